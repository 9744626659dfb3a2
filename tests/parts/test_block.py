"""The parts of a block: norms, feed-forward, residual wiring, embeddings and first weights."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, OutputLayer
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Glorot, Orthogonal, Uniform
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Residual, ResidualMixer, Stack

CTX = Context(SequenceLayout.padded(4, torch.tensor([4, 4])))


# ---- layers


def test_layers_of_a_block_are_numbered() -> None:
    """Two blocks of attention, network, attention, network are four layers; each LSTM of a block is one."""
    part = PreNorm(FeedForward(inner_dim=4))
    attention = PreNorm(SelfAttention(heads=1))
    stack = Stack((attention, part, attention, part), depth=2).build(4)
    names = [f"{block}.{number}" for block in range(2) for number in range(4)]
    assert stack.layer_numbers() == dict(zip(names, (1, 1, 2, 2, 3, 3, 4, 4)))
    lstm = Residual(Recurrent("lstm"))
    assert Stack((lstm, lstm, lstm)).build(4).layer_numbers() == {"0.0": 1, "0.1": 2, "0.2": 3}


# ---- norms


def test_layer_norm_gives_zero_mean_and_unit_deviation() -> None:
    y = LayerNorm().build(64)(3 + 5 * torch.randn(7, 64))
    torch.testing.assert_close(y.mean(-1), torch.zeros(7), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.std(-1, correction=0), torch.ones(7), atol=1e-5, rtol=0)


def test_layer_norm_by_hand() -> None:
    """(1, 3): mean 2, deviation 1, so (−1, 1); times g, plus b."""
    norm = LayerNorm(epsilon=0.0).build(2)
    assert norm(torch.tensor([1.0, 3.0])).tolist() == [-1.0, 1.0]
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 3.0]))
        norm.bias.copy_(torch.tensor([10.0, 20.0]))
    assert norm(torch.tensor([1.0, 3.0])).tolist() == [8.0, 23.0]


@torch.no_grad()
def test_rms_norm_by_hand() -> None:
    """(3, 4): mean square 12.5; the mean is not taken away."""
    y = RMSNorm(epsilon=0.0).build(2)(torch.tensor([3.0, 4.0]))
    assert y.tolist() == pytest.approx([3 / math.sqrt(12.5), 4 / math.sqrt(12.5)])
    assert float(RMSNorm().build(64)(7 + torch.randn(64)).square().mean()) == pytest.approx(1.0, abs=1e-5)


# ---- residual wiring


@pytest.mark.parametrize(
    ("wrap", "formula"),
    [
        (Residual, lambda x, f, norm: x + f(x)),
        (PreNorm, lambda x, f, norm: x + f(norm(x))),
        (PostNorm, lambda x, f, norm: norm(x + f(x))),
    ],
)
def test_residuals_equal_their_formulas(wrap: type[Residual], formula: object) -> None:
    part = wrap(FeedForward()).build(8)
    assert isinstance(part, ResidualMixer)
    x = torch.randn(2, 4, 8)
    expected = formula(x, lambda z: part.body(z, CTX)[0], lambda z: F.layer_norm(z, (8,)))  # type: ignore[operator]
    torch.testing.assert_close(part(x, CTX)[0], expected, atol=1e-6, rtol=1e-5)


def test_residual_dropout_drops_the_branch_not_the_path() -> None:
    part = Residual(FeedForward(), dropout=0.9).build(64).train()
    x = torch.randn(2, 4, 64)
    kept = (part(x, CTX)[0] == x).float().mean()  # where the branch is dropped, x goes through as it is
    assert 0.8 < kept < 0.98
    assert not torch.equal(part.eval()(x, CTX)[0], x)


def test_stack_repeats_its_block() -> None:
    stack = Stack((FeedForward(), Residual(FeedForward(2))), depth=3, norm=LayerNorm()).build(8)
    assert [name for name, _ in stack.named_layers()] == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
    x = torch.randn(2, 4, 8)
    y = x
    for _, part in stack.named_layers():
        y = part(y, CTX).output
    torch.testing.assert_close(stack(x, CTX)[0], F.layer_norm(y, (8,)), atol=1e-6, rtol=1e-5)


# ---- feed-forward


@pytest.mark.parametrize(
    ("spec", "inner_of"),
    [
        (FeedForward(5), lambda a, b: a.clamp(min=0)),
        (FeedForward(5, "tanh"), lambda a, b: torch.tanh(a)),
        (FeedForward(5, "gelu"), lambda a, b: a * 0.5 * (1 + torch.erf(a / math.sqrt(2)))),
        (FeedForward(5, "silu"), lambda a, b: a / (1 + torch.exp(-a))),
        (FeedForward(5, "silu", gated=True), lambda a, b: a / (1 + torch.exp(-a)) * b),
        (FeedForward(5, "gelu", gated=True), lambda a, b: a * 0.5 * (1 + torch.erf(a / math.sqrt(2))) * b),
    ],
)
def test_feed_forward_equals_its_formula(spec: FeedForward, inner_of: object) -> None:
    part = spec.build(3)
    x = torch.randn(2, 4, 3)
    widened = x @ part.widen.weight.T + part.widen.bias
    gate = widened if part.gate is None else x @ part.gate.weight.T + part.gate.bias
    inner = inner_of(widened, gate)  # type: ignore[operator]
    expected = inner @ part.narrow.weight.T + part.narrow.bias
    torch.testing.assert_close(part(x, CTX)[0], expected, atol=1e-5, rtol=1e-5)


def test_feed_forward_default_inner_dim() -> None:
    assert FeedForward().build(8).widen.weight.shape == (32, 8)
    assert FeedForward(bias=False, gated=True).build(8).gate.bias is None  # type: ignore[union-attr]


# ---- embeddings and output


def test_embeddings_are_scaled_by_the_root_of_the_width() -> None:
    table = Embedding(scaled=True).build_embedding(5, 16)
    nn.init.normal_(table.weight)
    tokens = torch.tensor([[3, 0]])
    torch.testing.assert_close(table(tokens)[0], 4 * table.weight[[3, 0]])


def test_narrow_embeddings_are_projected_by_the_stack_and_their_output_layer_back() -> None:
    table = Embedding(width=4).build_embedding(5, 16)
    output = OutputLayer(5, 16, tied=table, bias=False)
    nn.init.normal_(table.weight)
    x = table(torch.tensor([[1]]))
    assert x.shape == (1, 1, 4)
    stack = Stack((), input_dim=4, input_norm=LayerNorm(bias=False)).build(16)
    context = Context(SequenceLayout.padded(1, torch.tensor([1])))
    normal = (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(stack(x, context)[0], stack.project(normal))
    assert output.weight is table.weight
    assert output(torch.randn(1, 1, 16)).shape == (1, 1, 5)


@torch.no_grad()
def test_word_dropout_leaves_out_whole_words_in_training_only() -> None:
    table = Embedding(word_dropout=0.25).build_embedding(5, 8)
    nn.init.ones_(table.weight)
    x = table.train()(torch.ones(1, 10000, dtype=torch.long))[0]
    kept = x[:, 0] != 0
    assert ((x != 0).all(-1) == kept).all()  # the word as a whole
    torch.testing.assert_close(x[kept], torch.full_like(x[kept], 1 / 0.75))
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.02)  # more than four deviations of the mean
    assert (table.eval()(torch.ones(1, 100, dtype=torch.long)) == 1).all()


def test_output_layer_is_linear() -> None:
    output = OutputLayer(5, 3, tied=None, bias=True)
    assert output.bias is not None
    nn.init.normal_(output.weight)
    nn.init.normal_(output.bias)
    x = torch.randn(2, 4, 3)
    torch.testing.assert_close(output(x), x @ output.weight.T + output.bias)


# ---- first weights


def initialised(initial: Glorot | Uniform | Orthogonal, spec: Spec, dim: int) -> dict[str, Tensor]:
    module = spec.build(dim)
    for weight in module.parameters():
        nn.init.constant_(weight, 7.0)
    initial.apply(module)
    return dict(module.named_parameters())


@torch.no_grad()
def test_glorot_is_uniform_within_its_bound() -> None:
    weights = initialised(Glorot(), FeedForward(200), 100)
    bound = math.sqrt(6 / (100 + 200))
    for name in ("widen", "narrow"):
        weight = weights[f"{name}.weight"]
        assert weight.abs().max() <= bound
        assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)  # of a uniform distribution
        assert not weights[f"{name}.bias"].any()


@torch.no_grad()
def test_uniform_keeps_within_its_bound() -> None:
    weights = initialised(Uniform(0.08), Recurrent("lstm"), 50)
    for name, weight in weights.items():
        if "bias" in name:
            assert not weight.any()
        else:
            assert 0.079 < float(weight.abs().max()) <= 0.08


@pytest.mark.parametrize(("cell", "gates"), [("rnn", 1), ("gru", 3), ("gru-reset-before", 3), ("lstm", 4)])
def test_orthogonal_recurrences_keep_lengths(cell: str, gates: int) -> None:
    weights = initialised(Orthogonal(), Recurrent(cell, layers=2), 12)  # type: ignore[arg-type]
    for layer in range(2):
        blocks = weights[f"cells.weight_hh_l{layer}"].split(12)
        assert len(blocks) == gates
        for block in blocks:
            torch.testing.assert_close(block @ block.T, torch.eye(12), atol=1e-5, rtol=0)


@pytest.mark.parametrize("initial", [Glorot(), Uniform(), Orthogonal()])
def test_norms_keep_their_ones(initial: Glorot | Uniform | Orthogonal) -> None:
    stack = Stack((PreNorm(FeedForward()),), norm=RMSNorm()).build(8)
    initial.apply(stack)
    weights = dict(stack.named_parameters())
    assert (weights["layers.0.0.before.weight"] == 1).all()
    assert (weights["norm.weight"] == 1).all()


@torch.no_grad()
def test_embeddings_start_with_unit_length() -> None:
    table = Embedding().build_embedding(4000, 64)
    Glorot().apply(table)
    assert float(table.weight.std()) == pytest.approx(1 / 8, rel=0.02)
