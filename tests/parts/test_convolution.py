"""Convolutions against sums written out, torch's own, and themselves step by step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.convolution import (
    Convolution,
    DilatedBlock,
    DilatedBlockMixer,
    GatedConvolution,
    GatedConvolutionMixer,
    MultiStepAttention,
    MultiStepAttentionMixer,
    ScaledResidual,
    Unfolding,
    UnfoldingMixer,
    WeightNormLinear,
)
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.mixer import Context, Memory, SequenceLayout
from dragoman.parts.stack import Stack


def layout(lengths: list[int], width: int | None = None) -> SequenceLayout:
    return SequenceLayout.padded(width or max(lengths), torch.tensor(lengths))


# ---- the convolution itself


def counting(kernel: int, dilation: int, causal: bool) -> Convolution:
    """Weights 1, 10, 100 from left to right and a bias of ½, so that the digits of an output show its inputs."""
    convolution = Convolution(nn.Linear(kernel, 1), 1, kernel, dilation, causal)
    with torch.no_grad():
        convolution.linear.weight.copy_(10.0 ** torch.arange(kernel))
        convolution.linear.bias.fill_(0.5)
    return convolution


@pytest.mark.parametrize(
    ("kernel", "dilation", "causal", "expected"),
    [
        (3, 1, True, [100.5, 210.5, 321.5, 432.5, 543.5]),
        (3, 1, False, [210.5, 321.5, 432.5, 543.5, 54.5]),
        (3, 2, True, [100.5, 200.5, 310.5, 420.5, 531.5]),
        (3, 2, False, [310.5, 420.5, 531.5, 42.5, 53.5]),
        (2, 3, True, [10.5, 20.5, 30.5, 41.5, 52.5]),
        (1, 4, True, [1.5, 2.5, 3.5, 4.5, 5.5]),
    ],
)
@torch.no_grad()
def test_convolutions_by_hand(kernel: int, dilation: int, causal: bool, expected: list[float]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])[None, :, None]
    y, state = counting(kernel, dilation, causal)(x, layout([5]), None)
    assert y[0, :, 0].tolist() == expected
    assert state is None


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("dilation", [1, 4])
@torch.no_grad()
def test_convolution_equals_torch(kernel: int, dilation: int) -> None:
    linear = nn.Linear(kernel * 3, 4)
    x = torch.randn(2, 7, 3)
    weight = linear.weight.unflatten(1, (kernel, 3)).transpose(1, 2)  # outputs, inputs, kernel
    reach = (kernel - 1) * dilation
    for causal, left in ((True, reach), (False, reach // 2)):
        padded = F.pad(x.transpose(1, 2), (left, reach - left))
        expected = F.conv1d(padded, weight, linear.bias, dilation=dilation).transpose(1, 2)
        y, _ = Convolution(linear, 3, kernel, dilation, causal)(x, layout([7, 7]), None)
        torch.testing.assert_close(y, expected)


@torch.no_grad()
def test_convolution_ignores_padding() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0]])[..., None]
    y, _ = counting(3, 1, causal=False)(x, layout([3, 1]), None)
    assert y[0, :, 0].tolist() == [210.5, 321.5, 32.5]
    assert y[1, 0, 0] == 40.5


@pytest.mark.parametrize("chunks", [[1] * 8, [3, 5], [1, 6, 1], [8]])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (3, 4), (2, 9)])
@torch.no_grad()
def test_convolution_in_chunks_equals_the_whole(kernel: int, dilation: int, chunks: list[int]) -> None:
    convolution = Convolution(nn.Linear(kernel * 2, 2), 2, kernel, dilation, causal=True)
    x = torch.randn(3, 8, 2)
    whole, _ = convolution(x, layout([8, 8, 8]), None)
    state, parts, at = convolution.init_state(3, x), [], torch.zeros(3, dtype=torch.long)
    assert state["last_inputs"].shape == (3, (kernel - 1) * dilation, 2)
    for chunk in x.split(chunks, 1):
        y, state = convolution(chunk, SequenceLayout.continuation(at, chunk.shape[1]), state)
        parts.append(y)
        at = at + chunk.shape[1]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@torch.no_grad()
def test_convolution_state_of_rows_with_different_lengths() -> None:
    """Read 4, 2 and 1 tokens, then up to two more, then one: the state is always that after the last real token."""
    convolution = Convolution(nn.Linear(3 * 2, 2), 2, 3, 2, causal=True)
    rows = torch.randn(3, 7, 2)
    whole, _ = convolution(rows, layout([7, 7, 7]), None)
    state, at = convolution.init_state(3, rows), torch.zeros(3, dtype=torch.long)
    for counts in (torch.tensor([4, 2, 1]), torch.tensor([1, 2, 0]), torch.tensor([1, 1, 1])):
        width = int(counts.max())
        places = at[:, None] + torch.arange(width)
        real = places < (at + counts)[:, None]
        x = rows.gather(1, places[..., None].expand(-1, -1, 2)).masked_fill(~real[..., None], 99.0)
        y, state = convolution(x, SequenceLayout(places, lengths=at + counts), state)
        for row in range(3):
            for t in range(counts[row]):
                torch.testing.assert_close(y[row, t], whole[row, places[row, t]])
        at = at + counts
        for row in range(3):
            expected = F.pad(rows[row, : at[row]], (0, 0, 4, 0))[-4:]
            torch.testing.assert_close(state["last_inputs"][row], expected)


@torch.no_grad()
def test_the_state_of_one_row_keeps_its_strides_and_type() -> None:
    convolution = Convolution(nn.Linear(3 * 2, 2), 2, 3, 1, causal=True)
    state = convolution.init_state(1, torch.zeros(1))
    form = (state["last_inputs"].shape, state["last_inputs"].stride(), state["last_inputs"].dtype)
    _, state = convolution(torch.randn(1, 5, 2), SequenceLayout.continuation(torch.tensor([0]), 5), state)
    assert (state["last_inputs"].shape, state["last_inputs"].stride(), state["last_inputs"].dtype) == form


def test_non_causal_convolution_cannot_decode() -> None:
    with pytest.raises(UserError, match="only causal convolutions can do"):
        Stack((GatedConvolution(causal=False),)).build(4).init_state(1, 9, torch.zeros(1))


# ---- gated convolutions


@torch.no_grad()
def test_weight_norm_sets_the_norm_of_the_weights() -> None:
    """v = (3, 4) is 5 long; g = 1 + 1 makes it (1.2, 1.6)."""
    linear = WeightNormLinear(2, 1, gain=1.0)
    linear.weight.copy_(torch.tensor([[3.0, 4.0]]))
    linear.growth.fill_(1.0)
    linear.bias.fill_(0.25)
    assert linear(torch.tensor([1.0, 0.0])).tolist() == pytest.approx([1.2 + 0.25])
    assert linear(torch.tensor([10.0, -5.0])).tolist() == pytest.approx([12 - 8 + 0.25])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@torch.no_grad()
def test_a_gated_convolution_by_hand() -> None:
    """Width 1, kernel 2: A = 2x_t, B = x_{t−1}, each weight as long as its g; A σ(B)."""
    part = GatedConvolution(kernel=2).build(1)
    linear = part.convolution.linear
    assert linear.gain == 2.0
    linear.weight.copy_(torch.tensor([[0.0, 7.0], [0.1, 0.0]]))
    linear.growth.copy_(torch.tensor([0.0, -1.0]))
    x = torch.tensor([1.0, -2.0, 3.0])[None, :, None]
    y = part(x, Context(layout([3]))).output
    expected = [2 * sigmoid(0), -4 * sigmoid(1), 6 * sigmoid(-2)]
    assert y[0, :, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_gated_convolutions_keep_the_variance_at_the_start() -> None:
    """Gehring et al. 2017, §3.5: weights of deviation √(4p/n), n = 3 · 256."""
    torch.manual_seed(0)
    part = GatedConvolution(kernel=3, dropout=0.19).build(256)
    assert isinstance(part, GatedConvolutionMixer)
    linear = part.convolution.linear
    assert linear.gain == pytest.approx(2 * 0.9)
    with torch.no_grad():
        nn.init.normal_(linear.weight, std=0.1)
        weight = linear(torch.eye(768)).T  # outputs, inputs
    assert weight.std().item() == pytest.approx(math.sqrt(4 * 0.81 / 768), rel=0.01)


@torch.no_grad()
def test_scaled_residual_by_hand() -> None:
    part = ScaledResidual((FeedForward(1), FeedForward(1))).build(1)
    for name, weight in part.named_parameters():
        weight.fill_(2.0 if "widen.weight" in name else 1.5 if "narrow.weight" in name else 0.0)
    y = part(torch.tensor([[[1.0]]]), Context(layout([1]))).output  # f = 3 · 3
    assert y.item() == pytest.approx(math.sqrt(0.5) * (1 + 9))


# ---- attention in every layer


def source(lengths: list[int], dim: int) -> Memory:
    """An encoded source whose padding has conspicuous values, so that a test notices if it is read."""
    shape = (len(lengths), max(lengths), dim)
    return Memory(torch.randn(shape), layout(lengths), encoder_inputs=torch.randn(shape))


def prepared(part: MultiStepAttentionMixer | UnfoldingMixer, memory: Memory) -> Memory:
    part.path = "part"
    memory.projections["part"] = part.project_memory(memory)
    return memory


@torch.no_grad()
def test_multi_step_attention_by_hand() -> None:
    """h = 1, g = 2, W = 3 → d = 3 + ½ + 2; z = (0.2, 0.4), e = (1, 3); m = 2."""
    part = MultiStepAttention().build(1)
    part.query.weight.fill_(5.0)  # only its sign matters
    part.query.growth.fill_(2.0)
    part.query.bias.fill_(0.5)
    states, inputs = torch.tensor([[0.2, 0.4, 9.0]])[..., None], torch.tensor([[1.0, 3.0, 9.0]])[..., None]
    memory = prepared(part, Memory(states, layout([2], 3), encoder_inputs=inputs))
    recorder: dict[str, list[Tensor]] = {}
    context = Context(layout([1]), memory, stack_inputs=torch.tensor([[[2.0]]]), recorder=recorder)
    y = part(torch.tensor([[[1.0]]]), context).output
    first, second = math.exp(5.5 * 0.2), math.exp(5.5 * 0.4)
    total = first + second
    assert y.item() == pytest.approx(math.sqrt(2) * (first * 1.2 + second * 3.4) / total)
    assert recorder["part"][0].flatten().tolist() == pytest.approx([first / total, second / total, 0.0])
    fused = part(torch.tensor([[[1.0]]]), replace(context, recorder=None)).output
    assert fused.item() == pytest.approx(y.item())


@torch.no_grad()
def test_multi_step_attention_with_beams_is_that_of_a_repeated_source() -> None:
    part = MultiStepAttention().build(4)
    nn.init.normal_(part.query.weight)
    memory = source([5, 2], 4)
    x, inputs = torch.randn(6, 2, 4), torch.randn(6, 2, 4)
    steps = SequenceLayout.continuation(torch.zeros(6, dtype=torch.long), 2)
    folded = part(x, Context(steps, prepared(part, memory), stack_inputs=inputs)).output
    assert memory.encoder_inputs is not None
    rows = [(memory.states[row, :m], memory.encoder_inputs[row, :m]) for row, m in ((0, 5), (1, 2)) for _ in range(3)]
    for row, (states, entered) in enumerate(rows):
        alone = prepared(part, Memory(states[None], layout([len(states)]), encoder_inputs=entered[None]))
        one = slice(row, row + 1)
        y, *_ = part(
            x[one],
            Context(SequenceLayout.continuation(torch.zeros(1, dtype=torch.long), 2), alone, stack_inputs=inputs[one]),
        )
        torch.testing.assert_close(folded[one], y)


# ---- dilated blocks and unfolding


def values(x: Any) -> list[Any]:
    return x.detach().double().tolist()


def activated(norm: nn.Module, x: list[float]) -> list[float]:
    """ReLU((x − mean) / √(variance + ε) · g + b)."""
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in x) / len(x) + 1e-5)
    pairs = zip(values(norm.weight), values(norm.bias))
    return [max(0.0, (value - mean) / deviation * g + b) for value, (g, b) in zip(x, pairs)]


def affine(linear: nn.Module, x: list[float]) -> list[float]:
    rows = zip(values(linear.weight), values(linear.bias))
    return [sum(w * value for w, value in zip(row, x)) + b for row, b in rows]


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_a_dilated_block_by_hand(causal: bool) -> None:
    part = DilatedBlock(kernel=3, dilation=2, causal=causal).build(6)
    for weight in part.parameters():
        nn.init.normal_(weight)
    x = torch.randn(1, 6, 6)
    y = part(x, Context(layout([6]))).output
    inner = [activated(part.norms[1], affine(part.narrow, activated(part.norms[0], row))) for row in values(x[0])]
    outside = [0.0] * 3
    for t, row in enumerate(values(x[0])):
        places = (t - 4, t - 2, t) if causal else (t - 2, t, t + 2)
        window = [value for place in places for value in (inner[place] if 0 <= place < 6 else outside)]
        added = affine(part.widen, activated(part.norms[2], affine(part.convolution.linear, window)))
        assert y[0, t].tolist() == pytest.approx([a + b for a, b in zip(row, added)], abs=1e-4)


def test_odd_width_is_refused() -> None:
    with pytest.raises(UserError, match="dilated convolution block needs an even width, but model_dim is 7"):
        DilatedBlock().build(7)
    assert isinstance(DilatedBlock().build(8), DilatedBlockMixer)


@torch.no_grad()
def test_unfolding_adds_the_source_and_nothing_beyond_its_end() -> None:
    """Two sources of 3 and 1 tokens, two hypotheses each, all at different positions."""
    part = Unfolding().build(2)
    memory = prepared(part, source([3, 1], 2))
    columns = memory.states @ part.project.weight.T + part.project.bias
    first = torch.tensor([0, 2, 0, 5])
    x = torch.randn(4, 2, 2)
    y = part(x, Context(SequenceLayout.continuation(first, 2), memory)).output
    below = [
        [columns[0, 0], columns[0, 1]],
        [columns[0, 2], torch.zeros(2)],
        [columns[1, 0], torch.zeros(2)],
        [torch.zeros(2), torch.zeros(2)],
    ]
    torch.testing.assert_close(y - x, torch.stack([torch.stack(row) for row in below]))
