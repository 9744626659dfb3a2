"""Matrix products of training on a CPU are the same by both libraries."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dragoman.parts import cpu_products
from dragoman.parts.cpu_products import FastLinear, onednn_is_faster, product, use_fastest_products
from dragoman.parts.deferred_gradients import deferred_weight_gradients
from dragoman.parts.inference import PackedLinear, optimize_for_inference

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def with_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let oneDNN be the faster library, also for small products."""
    try:
        cpu_products._onednn_product(torch.ones(8, 4), torch.ones(3, 4), None)
    except (AttributeError, RuntimeError):
        pytest.skip("this torch is without oneDNN's products")
    monkeypatch.setattr(cpu_products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(cpu_products, "MIN_MULTIPLICATIONS", 1)


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor | None]:
    """The output, and the gradients of the input and of all weights, from one random gradient of the output."""
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    return [y.detach(), x.grad, *(weight.grad for weight in layer.parameters())]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(9, 5), (2, 7, 5), (3, 5), (1, 2, 3, 5), (0, 5)])
def test_linear_layers(with_onednn: None, bias: bool, shape: tuple[int, ...]) -> None:
    original = nn.Linear(5, 11, bias=bias)
    model = nn.Sequential(deepcopy(original))
    use_fastest_products(model)
    assert type(model[0]) is FastLinear
    x = torch.randn(shape)
    for found, expected in zip(gradients(model, x), gradients(original, x)):
        torch.testing.assert_close(found, expected, **TOLERANCE)
    assert model.state_dict().keys() == nn.Sequential(original).state_dict().keys()


def test_frozen_weights_and_inputs_without_gradients(with_onednn: None) -> None:
    layer = nn.Linear(5, 11)
    layer.weight.requires_grad_(False)
    use_fastest_products(layer)
    x = torch.randn(9, 5)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(layer.bias.grad, torch.full((11,), 9.0))


def test_float64_stays_as_it_is(with_onednn: None) -> None:
    layer = nn.Linear(5, 11).double()
    x = torch.randn(9, 5, dtype=torch.float64)
    expected = layer(x)
    use_fastest_products(layer)
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("sizes", [(8, 3, 5), (100, 64, 33), (2, 3, 4), (9, 0, 4), (9, 4, 0)])
def test_products_of_all_layouts(with_onednn: None, sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    for a in (torch.randn(rows, inner), torch.randn(inner, rows).mT, torch.randn(rows, 2 * inner)[:, :inner]):
        for b in (torch.randn(inner, columns), torch.randn(columns, inner).mT):
            torch.testing.assert_close(product(a, b), a @ b, **TOLERANCE)


def test_small_products_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN would compile a kernel for each shape of a batch."""
    monkeypatch.setattr(cpu_products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(cpu_products, "_onednn_product", None)
    layer, x = nn.Linear(128, 512), torch.randn(64, 128)
    use_fastest_products(layer)
    layer(x).sum().backward()
    torch.testing.assert_close(product(x, layer.weight.mT), x @ layer.weight.mT)


def test_stacks_of_matrices_are_left_to_torch(with_onednn: None) -> None:
    a, b = torch.randn(9, 2, 3), torch.randn(9, 3, 4)
    assert torch.equal(product(a, b), a @ b)
    assert torch.equal(product(a, b[0]), a @ b[0])


def test_gradients_of_loops_are_still_deferred(with_onednn: None) -> None:
    layer, x = nn.Linear(4, 4), torch.randn(9, 4)

    def loop(one: nn.Module) -> Tensor:
        with deferred_weight_gradients():
            h = x
            for _ in range(3):
                h = torch.tanh(one(h))
        return h.sum()

    expected = deepcopy(layer)
    loop(expected).backward()
    use_fastest_products(layer)
    loop(layer).backward()
    torch.testing.assert_close(layer.weight.grad, expected.weight.grad, **TOLERANCE)
    torch.testing.assert_close(layer.bias.grad, expected.bias.grad, **TOLERANCE)


@torch.no_grad()
def test_layers_of_a_trained_model_are_packed(with_onednn: None) -> None:
    model = nn.Sequential(nn.Linear(5, 11))
    use_fastest_products(model)
    assert type(optimize_for_inference(model)[0]) is PackedLinear


def test_the_choice_of_the_machine_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for chosen in ("blas", "onednn"):
        cpu_products._measure.cache_clear()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / chosen))
        monkeypatch.setattr(cpu_products, "fastest", lambda *_, chosen=chosen, **__: chosen)
        assert onednn_is_faster() == (chosen == "onednn")
        cpu_products._measure.cache_clear()
        monkeypatch.setattr(cpu_products, "fastest", None)  # not measured again
        assert onednn_is_faster() == (chosen == "onednn")
    cpu_products._measure.cache_clear()


def test_without_the_operator_of_onednn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: object) -> Tensor:
        raise RuntimeError("no such operator")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_products, "_onednn_product", missing)
    cpu_products._measure.cache_clear()
    assert not onednn_is_faster()
    cpu_products._measure.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_can_be_part_of_a_compiled_graph(with_onednn: None, dtype: torch.dtype) -> None:
    """One graph without breaks, in which torch multiplies; here it is run as it is, without a code generator."""
    a, b, layer = torch.randn(9, 4).to(dtype), torch.randn(4, 5).to(dtype), nn.Linear(4, 5).to(dtype)
    use_fastest_products(layer)
    compiled = torch.compile(lambda a, b: (product(a, b), layer(a)), backend="eager", fullgraph=True)
    for found, expected in zip(compiled(a, b), (a @ b, nn.functional.linear(a, layer.weight, layer.bias))):
        torch.testing.assert_close(found, expected)
