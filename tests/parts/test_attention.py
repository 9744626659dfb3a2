"""Attention: the textbook's worked examples, and every way through `attend` against a loop over queries and keys."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.attention_function import AttentionArgs, attend
from dragoman.parts.attention_scores import ScaledDot, ScaledDotScore
from dragoman.parts.mixer import Context, Memory, SequenceLayout, assign_paths
from dragoman.parts.positions import Position
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal, Full, Window


def weights_of(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of one query to all keys: the recorded weights and the output."""
    recorder: dict[str, list[Tensor]] = {}
    queries, keys = SequenceLayout(torch.zeros(1, 1, dtype=torch.long)), SequenceLayout(torch.arange(len(key))[None])
    y = attend(
        query[None, None],
        key[None, None],
        value[None, None],
        queries,
        keys,
        Context(queries, recorder=recorder),
        AttentionArgs(),
    )
    return recorder[""][0][0, 0, 0], y[0, 0, 0]


# ---- worked examples


def test_scores_112_and_96_become_14_and_12_and_weights_88_and_12() -> None:
    """d_k = 64: 112/8 = 14, 96/8 = 12; softmax = 1/(1 + e^−2) = 0.88 and 0.12."""
    query = torch.ones(1, 64)
    key = torch.stack((torch.full((64,), 112 / 64), torch.full((64,), 96 / 64)))
    assert (query @ key.T).tolist() == [[112.0, 96.0]]
    weights, y = weights_of(query, key, torch.eye(2, 64))
    assert weights.tolist() == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))], abs=1e-6)
    assert [round(w, 2) for w in weights.tolist()] == [0.88, 0.12]
    assert y[:2].tolist() == pytest.approx(weights.tolist())


def test_textbook_example_cat_attends_to_dog() -> None:
    """cat·dog = 1.05, over √3 0.606; with 0.2 and −0.8 beside it the softmax is (0.523, 0.348, 0.128)."""
    cat, dog = torch.tensor([0.6, 0.3, 0.8]), torch.tensor([0.5, 0.1, 0.9])
    assert float(cat @ dog) == pytest.approx(1.05)
    assert float(cat @ dog) / math.sqrt(3) == pytest.approx(0.606, abs=5e-4)
    others = [scaled * math.sqrt(3) * cat / float(cat @ cat) for scaled in (0.2, -0.8)]  # keys with those very scores
    key = torch.stack((dog, *others))
    weights, _ = weights_of(cat[None], key, key)
    assert weights.tolist() == pytest.approx([0.523, 0.348, 0.128], abs=1e-3)
    only_dog = torch.stack((dog, torch.zeros(3), torch.zeros(3)))
    assert weights_of(cat[None], key, only_dog)[1].tolist() == pytest.approx([0.262, 0.052, 0.471], abs=1e-3)


def test_query_equal_to_one_key_returns_its_value() -> None:
    """Soft look-up: scores far apart make it a hard one."""
    key, value = 40 * torch.eye(3), torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert weights_of(key[1:2], key, value)[1].tolist() == pytest.approx([4, 5, 6])


# ---- who may see whom


def test_causal_mask_by_hand() -> None:
    positions = torch.arange(4)[None]
    seen = Causal().mask(positions, positions, Context(SequenceLayout(positions)))[0].int()
    assert seen.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_window_mask_by_hand() -> None:
    positions = torch.arange(5)[None]
    seen = Window(2).mask(positions, positions, Context(SequenceLayout(positions)))[0].int()
    assert seen.tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_mask_is_applied_before_the_softmax() -> None:
    """Masked keys have weight 0 exactly, and the weights of visible keys sum to 1."""
    recorder: dict[str, list[Tensor]] = {}
    layout = SequenceLayout(torch.arange(6).expand(2, 6))
    part = SelfAttention(heads=2, visibility=Causal()).build(8)
    part(torch.randn(2, 6, 8), Context(layout, recorder=recorder))
    weights = recorder[""][0]
    assert weights.shape == (2, 2, 6, 6)
    assert (weights.triu(1) == 0).all()
    assert (weights.tril() > 0).sum() == 2 * 2 * 21
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 6))


@pytest.mark.parametrize("visibility", [None, Full(), Causal()])
def test_an_additional_mask_hides_keys_whatever_the_visibility(visibility: Full | Causal | None) -> None:
    """Equal scores: each query returns the mean of the values 1, 2 and 6 that it sees, without the first from 1 on."""
    layout = SequenceLayout(torch.arange(3)[None])
    query, value = torch.zeros(1, 1, 3, 1), torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 3, 1)
    mask = torch.tensor([[[True, True, True], [False, True, True], [False, True, True]]])
    y = attend(query, query, value, layout, layout, Context(layout), AttentionArgs(visibility, mask=mask))
    assert y.flatten().tolist() == pytest.approx([1, 2, 4] if isinstance(visibility, Causal) else [3, 4, 4])


# ---- all ways agree


class Ramp(Position):
    """A score bias that depends on the distance, as position encodings add it."""

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        return -0.3 * (positions[:, None, :, None] - key_positions[:, None, None, :]).abs().float()


def brute_force(query: Tensor, key: Tensor, value: Tensor, see: list[list[list[bool]]], ramp: bool) -> Tensor:
    """Attention as a loop over queries and keys; queries that see no key get 0."""
    batch, heads, length, width = query.shape
    y = torch.zeros_like(query)
    for b in range(batch):
        for h in range(heads):
            g = h * key.shape[1] // heads  # consecutive query heads share a key head
            for t in range(length):
                seen = [s for s in range(key.shape[2]) if see[b][t][s]]
                scores = [
                    float(query[b, h, t] @ key[b, g, s]) / math.sqrt(width) - 0.3 * ramp * abs(t - s) for s in seen
                ]
                total = sum(math.exp(score) for score in scores)
                for s, score in zip(seen, scores):
                    y[b, h, t] += math.exp(score) / total * value[b, g, s]
    return y


SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
LENGTHS = [6, 3]
LAYOUTS = {
    "whole": SequenceLayout(torch.arange(6).expand(2, 6)),
    "padded": SequenceLayout.padded(6, torch.tensor(LENGTHS)),
    "packed": SequenceLayout(
        torch.tensor([[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]]), segment_ids=SEGMENTS, max_length=5
    ),
}
VISIBILITIES = {"full": Full(), "causal": Causal(), "window": Window(2)}


def allowed(layout: str, visibility: str, b: int, t: int, s: int) -> bool:
    """Whether a query sees a key: no padding, the same sequence, not later, and within the window."""
    real = layout != "padded" or s < LENGTHS[b]
    same = layout != "packed" or bool(SEGMENTS[b, t] == SEGMENTS[b, s])
    near = {"full": True, "causal": s <= t, "window": t - 2 < s <= t}[visibility]
    return real and same and near


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("ramp", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("visibility", VISIBILITIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fused_and_explicit_attention_equal_a_loop(layout: str, visibility: str, ramp: bool, kv_heads: int) -> None:
    query, key, value = torch.randn(2, 4, 6, 3), torch.randn(2, kv_heads, 6, 3), torch.randn(2, kv_heads, 6, 3)
    see = [[[allowed(layout, visibility, b, t, s) for s in range(6)] for t in range(6)] for b in range(2)]
    expected = brute_force(query, key, value, see, ramp)
    lay, positions = LAYOUTS[layout], (Ramp(),) if ramp else ()
    real = (
        lay.token_mask if lay.token_mask is not None else torch.ones(2, 6, dtype=torch.bool)
    )  # nobody asks what padding sees

    def agrees(context: Context, look: AttentionArgs) -> None:
        y = attend(query, key, value, lay, lay, context, look)
        assert y.isfinite().all()
        torch.testing.assert_close(y.transpose(1, 2)[real], expected.transpose(1, 2)[real], atol=1e-5, rtol=1e-5)

    look = AttentionArgs(VISIBILITIES[visibility], positions)
    recorder: dict[str, list[Tensor]] = {}
    agrees(Context(lay), look)  # a fused kernel
    agrees(Context(lay, recorder=recorder), look)  # weights written out
    agrees(
        Context(lay), AttentionArgs(VISIBILITIES[visibility], positions, score=ScaledDotScore())
    )  # a score that no kernel knows
    assert recorder[""][0].shape == (2, 4, 6, 6)


@pytest.mark.parametrize("visibility", [Window(2), Causal(), Full()])
def test_padding_never_changes_the_output_of_tokens(visibility: Window | Causal | Full) -> None:
    """A query at padding may see no key: output and gradient must not become NaN, with and without recording."""
    block = PreNorm(SelfAttention(heads=2, visibility=visibility))
    stack = Stack((block,), depth=2).build(8)
    assign_paths(stack)
    x = torch.randn(2, 9, 8)
    layout = SequenceLayout.padded(9, torch.tensor([9, 2]))
    alone = stack(x[1:, :2], Context(SequenceLayout.padded(2, torch.tensor([2])))).output
    recorders: tuple[dict[str, list[Tensor]] | None, ...] = (None, {})
    for recorder in recorders:
        stack.zero_grad()
        y = stack(x, Context(layout, recorder=recorder)).output
        torch.testing.assert_close(y[1, :2], alone[0], atol=1e-5, rtol=1e-5)
        y[1, :2].square().sum().backward()
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in stack.parameters())


def test_multi_query_attention_equals_repeated_keys() -> None:
    """Multi-query attention is multi-head attention whose key heads have the same weights."""
    many, one = SelfAttention(heads=4).build(8), SelfAttention(heads=4, kv_heads=1).build(8)
    with torch.no_grad():
        query, key, value = one.project.weight.split((8, 2, 2))
        many.project.weight.copy_(torch.cat((query, key.repeat(4, 1), value.repeat(4, 1))))
        query, key, value = one.project.bias.split((8, 2, 2))
        many.project.bias.copy_(torch.cat((query, key.repeat(4), value.repeat(4))))
        many.output.load_state_dict(one.output.state_dict())
    x, context = torch.randn(2, 5, 8), Context(SequenceLayout.padded(5, torch.tensor([5, 3])))
    torch.testing.assert_close(many(x, context)[0], one(x, context)[0], atol=1e-5, rtol=1e-5)


def test_self_attention_equals_torchs_multi_head_attention() -> None:
    ours = SelfAttention(heads=4, visibility=Full()).build(8)
    torchs = nn.MultiheadAttention(8, 4, batch_first=True)
    torchs.load_state_dict(
        {
            "in_proj_weight": ours.project.weight.detach(),
            "in_proj_bias": ours.project.bias.detach(),
            "out_proj.weight": ours.output.weight.detach(),
            "out_proj.bias": ours.output.bias.detach(),
        }
    )
    x, lengths = torch.randn(2, 5, 8), torch.tensor([5, 3])
    pads = torch.arange(5) >= lengths[:, None]
    expected, weights = torchs(x, x, x, key_padding_mask=pads, average_attn_weights=False)
    recorder: dict[str, list[Tensor]] = {}
    for context in (
        Context(SequenceLayout.padded(5, lengths)),
        Context(SequenceLayout.padded(5, lengths), recorder=recorder),
    ):
        torch.testing.assert_close(ours(x, context)[0][~pads], expected[~pads], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(recorder[""][0], weights, atol=1e-6, rtol=1e-5)


def test_beam_rows_share_one_memory() -> None:
    part = CrossAttention(heads=2).build(8)
    states, lengths = torch.randn(2, 4, 8), torch.tensor([4, 2])
    x = torch.randn(6, 3, 8)  # three hypotheses a source
    memory = Memory(states, SequenceLayout.padded(4, lengths))
    memory.projections[""] = part.project_memory(memory)
    together = part(x, Context(SequenceLayout(torch.arange(3).expand(6, 3)), memory)).output
    repeated = Memory(states.repeat_interleave(3, 0), SequenceLayout.padded(4, lengths.repeat_interleave(3)))
    repeated.projections[""] = part.project_memory(repeated)
    apart = part(x, Context(SequenceLayout(torch.arange(3).expand(6, 3)), repeated)).output
    torch.testing.assert_close(together, apart, atol=1e-6, rtol=1e-5)


# ---- dropout


@pytest.mark.parametrize("watched", [False, True])
@torch.no_grad()
def test_weights_are_dropped_only_in_training(watched: bool) -> None:
    x, layout = torch.randn(1, 5, 8).expand(4000, 5, 8), SequenceLayout.padded(5, torch.full((4000,), 5))
    with_dropout, without = SelfAttention(heads=2, dropout=0.5).build(8), SelfAttention(heads=2).build(8)
    without.load_state_dict(with_dropout.state_dict())

    def out(part: nn.Module) -> Tensor:
        return part(x, Context(layout, recorder={} if watched else None))[0]

    expected = out(without)
    torch.testing.assert_close(out(with_dropout.eval()), expected, atol=1e-6, rtol=1e-5)
    dropped = out(with_dropout.train())
    assert not torch.allclose(dropped, expected, atol=1e-3)
    assert (dropped.mean(0) - expected[0]).abs().max() < 0.05  # it keeps the expectation


# ---- what does not fit


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="model_dim=10 is not divisible by 4 heads"):
        SelfAttention(heads=4).build(10)
    with pytest.raises(UserError, match="heads=4 is not divisible by kv_heads=3"):
        SelfAttention(heads=4, kv_heads=3).build(8)
    assert SelfAttention(heads=4, head_dim=5).build(10).output.weight.shape == (10, 20)


def test_part_of_the_wrong_kind_is_named() -> None:
    with pytest.raises(UserError, match="has a ScaledDot in a place that needs a Visibility"):
        SelfAttention(visibility=ScaledDot()).build(8)
    with pytest.raises(UserError, match="has a Causal in a place that needs a Position"):
        SelfAttention(position=Causal()).build(8)
    with pytest.raises(UserError, match="has a Causal in a place that needs a Mixer"):
        Stack((Causal(),)).build(8)
