"""Gradients of loops, computed once for all steps, are those that autograd sums up."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.parts.deferred_gradients import CollectGradient, deferred_weight_gradients
from dragoman.parts.recurrence import LSTMCell, LSTMCells

Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def batched(x: Tensor, weight: Tensor, bias: Tensor, memory: Tensor) -> Tensor:
    """A linear layer and attention to the encoder output `memory`, as in a recurrent decoder."""
    x = torch.tanh(F.linear(x, weight, bias))
    scores = x[:, None] @ memory.transpose(-1, -2)
    return x + (scores.softmax(-1) @ memory)[:, 0]


def sliced(x: Tensor, weight: Tensor, bias: Tensor, memory: Tensor) -> Tensor:
    """A part of a matrix, another view of it in each step, and a third dimension."""
    return F.linear(x[:, None, :2], weight[:, :2]).sum(1) + torch.matmul(x, weight[:, :])


def unused(x: Tensor, weight: Tensor, bias: Tensor, memory: Tensor) -> Tensor:
    F.linear(x, weight, bias)
    return x + memory.sum((1, 2))[:, None]


def gradients(step: Step, inside: bool, dtype: torch.dtype = torch.float64) -> list[Tensor | None]:
    torch.manual_seed(0)
    some = [(3, 4), (4, 4), (4,), (3, 5, 4)]
    x, weight, bias, memory = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in some)
    with deferred_weight_gradients() if inside else nullcontext():
        y = x
        for _ in range(5):
            y = step(y, weight, bias, memory)
    y.square().sum().backward()
    return [tensor.grad for tensor in (x, weight, bias, memory)]


@pytest.mark.parametrize("step", [batched, sliced, unused])
def test_deferred_gradients_equal_autograd(step: Step) -> None:
    for one, other in zip(gradients(step, True), gradients(step, False)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)


def test_weight_gradient_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    backward = CollectGradient.backward
    monkeypatch.setattr(
        CollectGradient,
        "backward",
        staticmethod(lambda context, *g: (calls.append(len(context.products)), backward(context, *g))[1]),
    )
    gradients(batched, True)
    assert sorted(calls) == [5, 5, 5]  # the weight; the memory as it is and transposed


def test_gradients_of_inputs_alone_leave_no_tensors() -> None:
    """A loop whose weight gradients are not wanted is freed with its graph."""
    weight = torch.randn(4, 4, requires_grad=True)

    def input_gradient() -> list[weakref.ref[Tensor]]:
        x = torch.randn(3, 4, requires_grad=True)
        steps = [x]
        with deferred_weight_gradients():
            for _ in range(3):
                steps.append(torch.tanh(F.linear(steps[-1], weight)))
        torch.autograd.grad(steps[-1].sum(), x)
        return [weakref.ref(step) for step in steps]

    assert [reference() for reference in input_gradient()] == [None] * 4


def test_deferred_gradients_under_autocast() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    found = []
    for inside in (True, False):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), deferred_weight_gradients() if inside else nullcontext():
            y = x
            for _ in range(3):
                y = torch.tanh(layer(y))
            assert layer(x).dtype == torch.bfloat16
        y.float().sum().backward()
        assert layer.weight.grad is not None
        found.append(layer.weight.grad.clone())
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0], found[1], rtol=0.05, atol=0.02)


def test_deferred_gradients_without_grad_mode() -> None:
    with torch.no_grad():
        assert isinstance(deferred_weight_gradients(), nullcontext)


def test_lstm_cell_gradient_passes_gradcheck() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 12), (2, 12), (2, 3))]
    assert torch.autograd.gradcheck(LSTMCell.apply, inputs)


def test_lstm_cell_equals_its_equations() -> None:
    cells = LSTMCells(4, 3, 1, 0.0)
    gates, recurrent, before = (
        torch.randn(2, 12),
        torch.randn(2, 12),
        {"hidden": torch.zeros(2, 3), "cell": torch.randn(2, 3)},
    )
    own = cells.cell(gates, recurrent, before)
    with torch.no_grad():
        plain = cells.cell(gates, recurrent, before)
    for name in ("hidden", "cell"):
        torch.testing.assert_close(own[name], plain[name])
