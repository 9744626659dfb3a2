"""Self-attention without projections, and values of another width than keys: by hand, and against torch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.errors import UserError
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.attention_function import AttentionArgs, attend
from dragoman.parts.mixer import AttentionMasks, Context, Memory, SequenceLayout
from dragoman.parts.packed_attention import packed_attention, varlen_attention
from dragoman.parts.positions import Shaw
from dragoman.parts.visibility import Causal, Full
from dragoman.search.forced_decoding import attention_weights
from dragoman.systems import SYSTEMS, VocabularySizes

# ---- softmax(x xᵀ) x


def test_simplified_self_attention_of_cat_and_dog_by_hand() -> None:
    """cat·cat = 1.09, cat·dog = 1.05, dog·dog = 1.07; no scale: softmax(1.09, 1.05) and softmax(1.05, 1.07)."""
    x = torch.tensor([[[0.6, 0.3, 0.8], [0.5, 0.1, 0.9]]])
    recorder: dict[str, list[Tensor]] = {}
    layout = SequenceLayout(torch.arange(2)[None])
    part = SelfAttention(heads=1, visibility=Full(), projections=False).build(3)
    assert not list(part.parameters())
    watched = part(x, Context(layout, recorder=recorder)).output
    a, b = 1 / (1 + math.exp(1.05 - 1.09)), 1 / (1 + math.exp(1.07 - 1.05))  # weights of cat in both rows
    assert recorder[""][0][0, 0].flatten().tolist() == pytest.approx([a, 1 - a, b, 1 - b], abs=1e-6)
    expected = [[c * 0.6 + (1 - c) * 0.5, c * 0.3 + (1 - c) * 0.1, c * 0.8 + (1 - c) * 0.9] for c in (a, b)]
    torch.testing.assert_close(watched[0], torch.tensor(expected), atol=1e-6, rtol=0)
    torch.testing.assert_close(part(x, Context(layout)).output, watched, atol=1e-6, rtol=0)  # a fused kernel


def test_masked_simplified_self_attention_by_hand() -> None:
    """α_ij for j ≤ i alone: the first word sees itself only."""
    x = torch.tensor([[[0.6, 0.3, 0.8], [0.5, 0.1, 0.9]]])
    y = SelfAttention(heads=1, projections=False).build(3)(x, Context(SequenceLayout(torch.arange(2)[None]))).output
    b = 1 / (1 + math.exp(1.07 - 1.05))
    torch.testing.assert_close(y[0, 0], x[0, 0])
    torch.testing.assert_close(y[0, 1], b * x[0, 0] + (1 - b) * x[0, 1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("heads", [1, 2])
def test_simplified_self_attention_is_attention_with_identity_matrices(heads: int) -> None:
    simplified = SelfAttention(heads, visibility=Causal(), projections=False).build(6)
    projected = SelfAttention(heads, visibility=Causal(), bias=False, scale=1.0).build(6)
    identity = {"project.weight": torch.eye(6).repeat(3, 1), "output.weight": torch.eye(6)}
    projected.load_state_dict(identity)
    x, context = torch.randn(2, 5, 6), Context(SequenceLayout.padded(5, torch.tensor([5, 3])))
    torch.testing.assert_close(simplified(x, context).output, projected(x, context).output, atol=1e-5, rtol=1e-5)


def test_order_of_the_inputs_does_not_matter_to_simplified_self_attention() -> None:
    part, context = (
        SelfAttention(2, visibility=Full(), projections=False).build(6),
        Context(SequenceLayout(torch.arange(5)[None])),
    )
    x, order = torch.randn(1, 5, 6), torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(part(x[:, order], context).output, part(x, context).output[:, order])


def test_weights_of_simplified_self_attention_are_recorded_in_a_model() -> None:
    settings = {"self_attention_projections": False, "heads": 1, "layers": 1, "model_dim": 8}
    model = SYSTEMS["transformer"].spec(VocabularySizes(9, 9), "tiny", **settings).build().eval()
    source, target = torch.tensor([[4, 5, 6, 7]]), torch.tensor([[2, 6, 8]])
    weights = attention_weights(model, source, torch.tensor([4]), target, torch.tensor([3]))
    assert {path: tuple(w.shape) for path, w in weights.items()} == {
        "encoder.layers.0.0.body": (1, 1, 4, 4),
        "decoder.layers.0.0.body": (1, 1, 3, 3),
        "decoder.layers.0.1.body": (1, 1, 3, 4),
    }
    x = model.encoder.position.embed(model.source_embedding(source), SequenceLayout(torch.arange(4)[None]))
    expected = (x @ x.mT).softmax(-1)
    torch.testing.assert_close(weights["encoder.layers.0.0.body"][:, 0], expected, atol=1e-5, rtol=1e-5)


def test_self_attention_without_projections_has_the_width_of_its_input() -> None:
    for settings in ({"kv_heads": 1}, {"head_dim": 3}, {"value_dim": 3}):
        with pytest.raises(UserError, match="kv_heads, head_dim or value_dim make these"):
            SelfAttention(2, projections=False, **settings).build(8)


# ---- d_v ≠ d_k

LENGTHS = torch.tensor([5, 3])
REAL = torch.arange(5) < LENGTHS[:, None]


@pytest.mark.parametrize("value_dim", [2, 9])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_self_attention_with_another_value_width_equals_torch(value_dim: int, kv_heads: int) -> None:
    part = SelfAttention(4, kv_heads, head_dim=6, visibility=Full(), value_dim=value_dim).build(8)
    x = torch.randn(2, 5, 8)
    query, key, value = F.linear(x, *part.project.parameters()).split((24, 6 * kv_heads, value_dim * kv_heads), -1)
    query, key, value = (
        y.unflatten(-1, (n, -1)).transpose(1, 2) for y, n in ((query, 4), (key, kv_heads), (value, kv_heads))
    )
    mask = REAL[:, None, None]
    y = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)  # d_k = 6: scaled by 1/√6
    assert y.shape == (2, 4, 5, value_dim)
    expected = F.linear(y.transpose(1, 2).flatten(2), *part.output.parameters())
    recorder: dict[str, list[Tensor]] = {}
    for context in (
        Context(SequenceLayout.padded(5, LENGTHS)),
        Context(SequenceLayout.padded(5, LENGTHS), recorder=recorder),
    ):
        torch.testing.assert_close(part(x, context).output[REAL], expected[REAL], atol=1e-5, rtol=1e-5)
    weights = (
        (query @ key.repeat_interleave(4 // kv_heads, 1).mT / math.sqrt(6)).masked_fill(~mask, -torch.inf).softmax(-1)
    )
    torch.testing.assert_close(recorder[""][0], weights, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("value_dim", [2, 9])
@torch.no_grad()
def test_cross_attention_with_another_value_width_equals_torch(value_dim: int) -> None:
    part = CrossAttention(2, head_dim=5, value_dim=value_dim).build(8)
    states, x = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    key, value = F.linear(states, *part.project.parameters()).split((10, 2 * value_dim), -1)
    query, key, value = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in (part.query(x), key, value))
    y = F.scaled_dot_product_attention(query, key, value, REAL[:, None, None])
    expected = part.output(y.transpose(1, 2).flatten(2))
    context = Context(SequenceLayout(torch.arange(3).expand(2, 3)), Memory(states, SequenceLayout.padded(5, LENGTHS)))
    torch.testing.assert_close(part(x, context).output, expected, atol=1e-5, rtol=1e-5)


def test_positions_in_values_have_the_width_of_values() -> None:
    assert SelfAttention(2, position=Shaw(3, value_dim=5), value_dim=5).build(8).position.value_dim == 5
    with pytest.raises(UserError, match=r"vectors of width 4 to .*, which have width 5: set value_dim .* to 5"):
        SelfAttention(2, position=Shaw(3), value_dim=5).build(8)


def test_rows_of_stacked_matrices_follow_both_widths() -> None:
    part = SelfAttention(4, 2, head_dim=6, value_dim=3).build(8)
    assert part.blocks == {"project.weight": (24, 12, 6)}
    assert part.project.weight.shape == (42, 8)
    assert part.output.weight.shape == (8, 12)
    cross = CrossAttention(4, head_dim=6, value_dim=3).build(8)
    assert cross.blocks == {"project.weight": (24, 12)}
    assert {name: tuple(leaf.shape) for name, leaf in part.init_state(1, 7, torch.zeros(1)).items()} == {
        "key": (1, 7, 2, 6),
        "value": (1, 7, 2, 3),
    }


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("value_dim", [3, 24])
def test_packed_attention_with_another_value_width(value_dim: int) -> None:
    layout = SequenceLayout.packed_row(256, torch.tensor([100, 120, 36]), max_length=256)
    query, key, value = torch.randn(1, 2, 256, 8), torch.randn(1, 2, 256, 8), torch.randn(1, 2, 256, value_dim)
    found = packed_attention(query, key, value, layout, layout, AttentionMasks(), AttentionArgs(Causal()))
    expected = attend(query, key, value, layout, layout, Context(layout), AttentionArgs(Causal()))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own
@pytest.mark.gpu
@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 32), (32, 16)])
def test_kernels_on_a_gpu_with_another_value_width(key_dim: int, value_dim: int) -> None:
    torch.manual_seed(0)
    layout = SequenceLayout.packed_row(256, torch.tensor([100, 120, 36], device="cuda"), max_length=256)
    query, key = (torch.randn(1, 2, 256, key_dim, device="cuda") for _ in range(2))
    value = torch.randn(1, 2, 256, value_dim, device="cuda")
    recorded = Context(layout, recorder={})
    expected = attend(query, key, value, layout, layout, recorded, AttentionArgs(Causal()))
    found = varlen_attention(query, key, value, layout, layout, causal=True, scale=None)
    torch.testing.assert_close(found, expected, atol=3e-2, rtol=3e-2)  # bfloat16
    compiled = torch.compile(attend)
    found = compiled(query, key, value, layout, layout, Context(layout), AttentionArgs(Causal()))
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)  # TF32
    padded = SequenceLayout.padded(9, torch.tensor([9, 4], device="cuda"))
    query, key = (torch.randn(2, 2, 9, key_dim, device="cuda") for _ in range(2))
    value = torch.randn(2, 2, 9, value_dim, device="cuda")
    with torch.no_grad():
        expected = attend(query, key, value, padded, padded, Context(padded, recorder={}), AttentionArgs())
        found = attend(query, key, value, padded, padded, Context(padded), AttentionArgs())
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
