"""Relative positions: T5's buckets as in Hugging Face, Shaw's vectors pair by pair, ALiBi's slopes as in the paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.parts.attention import SelfAttention
from dragoman.parts.mixer import Context, SequenceLayout, assign_paths
from dragoman.parts.positions import ALiBi, RelativeBias, Shaw, slopes
from dragoman.parts.stack import Residual, Stack
from dragoman.parts.visibility import Causal, Full

TRANSFORMERS = "transformers.models.t5.modeling_t5"


def places(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


# ---- T5's buckets


@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (32, 20), (12, 50), (8, 1000)])
@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_are_those_of_hugging_face(both_ways: bool, buckets: int, longest: int) -> None:
    bucket_of = pytest.importorskip(TRANSFORMERS).T5Attention._relative_position_bucket
    distances = torch.arange(-3000, 3001)
    expected = bucket_of(distances, both_ways, buckets, longest)
    assert torch.equal(RelativeBias(2, buckets, longest, both_ways).build(8).bucket(distances), expected)


@pytest.mark.parametrize("both_ways", [True, False])
@torch.no_grad()
def test_the_bias_is_that_of_hugging_face(both_ways: bool) -> None:
    t5 = pytest.importorskip(TRANSFORMERS)
    config = t5.T5Config(d_model=8, num_heads=4, d_kv=2, is_decoder=not both_ways)
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = RelativeBias(4, bidirectional=both_ways).build(8)
    ours.table.load_state_dict(theirs.relative_attention_bias.state_dict())
    positions = torch.arange(200).expand(3, 200)
    expected = theirs.compute_bias(200, 200)
    assert torch.equal(ours.score_bias(torch.randn(3, 4, 200, 2), positions, positions), expected)
    one = ours.score_bias(
        torch.randn(3, 4, 1, 2), places([7], [0], [199]), positions
    )  # a step, rows at different places
    assert torch.equal(one, torch.cat([expected[:, :, p : p + 1] for p in (7, 0, 199)]))


def test_buckets_by_hand() -> None:
    """Four a direction up to 8: 0, 1 alone; from 2 on 2 + ⌊2 · log(d/2) / log(8/2)⌋ = 2 up to 3, then 3."""
    part = RelativeBias(1, 8, 8).build(8)
    assert part.bucket(-torch.arange(10)).tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 3, 3]
    assert part.bucket(torch.arange(10)).tolist() == [0, 5, 6, 6, 7, 7, 7, 7, 7, 7]
    behind = RelativeBias(1, 4, 8, bidirectional=False).build(8)
    assert behind.bucket(torch.tensor([-9, -4, -3, -2, -1, 0, 1, 5])).tolist() == [3, 3, 2, 2, 1, 0, 0, 0]


@torch.no_grad()
def test_the_layers_of_a_stack_share_one_table() -> None:
    spec = Stack((Residual(SelfAttention(2, visibility=Full())),), depth=3, position=RelativeBias(2, 8, 8))
    stack = spec.build(8)
    assign_paths(stack)
    assert [name for name, _ in stack.named_parameters() if "table" in name] == ["position.table.weight"]
    recorder: dict[str, list[Tensor]] = {}
    torch.nn.init.zeros_(stack.position.table.weight)
    stack.position.table.weight[5] = 100.0  # all look at the next word, in every layer
    stack(torch.randn(1, 4, 8), Context(SequenceLayout.padded(4, torch.tensor([4])), recorder=recorder))
    assert len(recorder) == 3
    for (weights,) in recorder.values():
        torch.testing.assert_close(weights[0, :, :3, 1:], torch.eye(3).expand(2, 3, 3))


# ---- Shaw's vectors


def shaw_by_hand(query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, clip: int) -> Tensor:
    """One head, T E: e_ij = q_i·(k_j + a_K)/√E over j ≤ i, z_i = Σ α_ij (v_j + a_V), pair by pair."""
    z = torch.zeros_like(query)
    for i in range(len(query)):
        index = [max(-clip, min(clip, j - i)) + clip for j in range(i + 1)]
        scores = [float(query[i] @ (key[j] + keys[a])) / math.sqrt(query.shape[1]) for j, a in enumerate(index)]
        total = sum(math.exp(e) for e in scores)
        for j, a in enumerate(index):
            z[i] += math.exp(scores[j]) / total * (value[j] + values[a])
    return z


@pytest.mark.parametrize("with_values", [True, False])
@torch.no_grad()
def test_shaws_attention_pair_by_pair(with_values: bool) -> None:
    part = SelfAttention(heads=2, position=Shaw(clip=2, values=with_values), bias=False).build(6)
    x = torch.randn(1, 5, 6)
    query, key, value = part.project(x)[0].unflatten(-1, (3, 2, 3)).unbind(1)  # T H E
    keys = part.position.keys.weight
    values = part.position.values.weight if with_values else torch.zeros_like(keys)
    assert keys.shape == (5, 3)
    expected = [shaw_by_hand(query[:, h], key[:, h], value[:, h], keys, values, 2) for h in range(2)]
    for recorder in (None, {}):
        y = part(x, Context(SequenceLayout.padded(5, torch.tensor([5])), recorder=recorder)).output
        torch.testing.assert_close(y[0], part.output(torch.cat(expected, 1)), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_attention_scale_applies_to_shaw_scores() -> None:
    scaled = SelfAttention(heads=2, position=Shaw(2), scale=1.0).build(8)
    usual = SelfAttention(heads=2, position=Shaw(2)).build(8)
    usual.load_state_dict(scaled.state_dict())
    usual.project.weight[:8] *= 2  # √E: larger queries in place of a larger scale
    usual.project.bias[:8] *= 2
    x, context = torch.randn(2, 5, 8), Context(SequenceLayout.padded(5, torch.tensor([5, 3])))
    torch.testing.assert_close(scaled(x, context)[0], usual(x, context)[0], atol=1e-5, rtol=1e-5)


def test_distances_are_clipped() -> None:
    index = Shaw(clip=2).build(4).index(places([0, 3, 6]), torch.arange(7)[None])[0, 0]
    assert index.tolist() == [[2, 3, 4, 4, 4, 4, 4], [0, 0, 1, 2, 3, 4, 4], [0, 0, 0, 0, 0, 1, 2]]


@torch.no_grad()
def test_steps_of_rows_at_different_places_equal_the_whole() -> None:
    for position in (Shaw(2), RelativeBias(2, 8, 8, bidirectional=False), ALiBi(2)):
        part = SelfAttention(heads=2, position=position, visibility=Causal()).build(8)
        x = torch.randn(2, 6, 8)
        whole = part(x, Context(SequenceLayout.padded(6, torch.tensor([6, 6])))).output
        state = part.init_state(2, 9, x)
        state = part(x[:, :3], Context(SequenceLayout.padded(3, torch.tensor([3, 1]))), state).state
        at = torch.tensor([3, 1])
        for _ in range(3):
            step, state, *_ = part(x[torch.arange(2), at][:, None], Context(SequenceLayout.continuation(at)), state)
            torch.testing.assert_close(step[:, 0], whole[torch.arange(2), at], atol=1e-5, rtol=1e-5)
            at = at + 1


# ---- ALiBi's slopes


def test_slopes_of_the_paper() -> None:
    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(16) == pytest.approx([2 ** (-h / 2) for h in range(1, 17)])
    assert slopes(1) == [1 / 256]


def test_alibi_slopes_of_other_numbers_of_heads() -> None:
    """Twelve: those of 8, then the 1st, 3rd, 5th and 7th of 16: 2^−0.5, 2^−1.5, 2^−2.5, 2^−3.5."""
    assert slopes(12) == pytest.approx([*slopes(8), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    assert slopes(3) == pytest.approx([2**-4, 2**-8, 2**-2])


def test_alibi_falls_with_the_distance() -> None:
    bias = ALiBi(2).build(8).score_bias(torch.zeros(2, 2, 1, 4), places([2], [0]), torch.arange(4).expand(2, 4))
    assert bias[0].tolist() == [[[-2 / 16, -1 / 16, 0, -1 / 16]], [[-2 / 256, -1 / 256, 0, -1 / 256]]]
    assert bias[1].tolist() == [[[0, -1 / 16, -2 / 16, -3 / 16]], [[0, -1 / 256, -2 / 256, -3 / 256]]]


# ---- what does not fit


@pytest.mark.parametrize("position", [RelativeBias(1), ALiBi(1), RelativeBias(8), ALiBi(8)])
def test_another_number_of_heads_is_refused(position: RelativeBias | ALiBi) -> None:
    stack = Stack((SelfAttention(4),), position=position).build(8)
    told = f"{type(position).__name__} is built for {position.heads} attention heads, but the attention has 4"
    with pytest.raises(UserError, match=told):
        stack(torch.randn(1, 3, 8), Context(SequenceLayout.padded(3, torch.tensor([3]))))


def test_shaws_positions_belong_to_an_attention() -> None:
    stack = Stack((SelfAttention(4),), position=Shaw()).build(8)
    with pytest.raises(UserError, match="have width 8, but the attention heads have width 2: set Shaw"):
        stack(torch.randn(1, 3, 8), Context(SequenceLayout.padded(3, torch.tensor([3]))))


def test_too_few_buckets_are_refused() -> None:
    with pytest.raises(UserError, match="have 1 buckets per direction and max_distance=128"):
        RelativeBias(4, buckets=2).build(8)
    with pytest.raises(UserError, match="have 16 buckets per direction and max_distance=8"):
        RelativeBias(4, max_distance=8).build(8)
