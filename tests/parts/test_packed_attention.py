"""Attention block by block over packed rows, against the same with all weights written out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.parts.attention_function import AttentionArgs, attend
from dragoman.parts.mixer import AttentionMasks, Context, SequenceLayout
from dragoman.parts.packed_attention import PACK_MULTIPLE, block_mask, packed_attention
from dragoman.parts.positions import ALiBi, NoPosition, Position, RelativeBias
from dragoman.parts.spec import Spec
from dragoman.parts.visibility import Block, Causal, Full, Visibility, Window

# without a compiler the kernel says that it is slow
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

WIDTH, HEADS, EACH = 384, 4, 8
#: of a row of 384: short ones, one over two borders of blocks, ends on a border, empty ones, hardly anything left over
LENGTHS = {
    "short": [3, 9, 1, 17, 30, 2],
    "across": [100, 180, 60],
    "on the border": [128, 100, 28, 64, 63],
    "with none between": [40, 0, 0, 90, 0, 130, 7],
    "one alone": [383],
}
VISIBILITIES: dict[str, Visibility] = {"full": Full(), "causal": Causal(), "window": Window(20), "block": Block(50)}
POSITIONS: dict[str, Spec] = {
    "none": NoPosition(),
    "bias": RelativeBias(HEADS, buckets=8, max_distance=40),
    "alibi": ALiBi(HEADS),
}


def layout_of(lengths: list[int], width: int = WIDTH, count: int = 8) -> SequenceLayout:
    left = [0] * (count - len(lengths)) + [width - sum(lengths)]
    return SequenceLayout.packed_row(width, torch.tensor(lengths + left), max_length=width)


def heads(count: int, width: int = WIDTH) -> Tensor:
    return torch.randn(1, count, width, EACH)


def position_of(spec: Spec) -> Position:
    position = spec.build(EACH)
    assert isinstance(position, Position)
    for weight in position.parameters():
        torch.nn.init.normal_(weight)
    return position.requires_grad_(False)


def attention_cases() -> list[Any]:
    """Every combination; by default each kind of lengths, visibility and position with one choice of the others."""
    usual, found = ("with none between", "causal", "bias"), []
    for case in itertools.product(LENGTHS, VISIBILITIES, POSITIONS):
        differences = sum(one != other for one, other in zip(case, usual))
        found.append(pytest.param(*case, marks=pytest.mark.exhaustive if differences > 1 else ()))
    return found


@pytest.mark.parametrize(("lengths", "visibility", "position"), attention_cases())
def test_packed_attention_equals_plain_attention(lengths: str, visibility: str, position: str) -> None:
    layout = layout_of(LENGTHS[lengths])
    sees, place = VISIBILITIES[visibility], position_of(POSITIONS[position])
    query, key, value = heads(HEADS), heads(HEADS), heads(HEADS)
    expected = attend(query, key, value, layout, layout, Context(layout), AttentionArgs(sees, (place,)))
    found = packed_attention(query, key, value, layout, layout, AttentionMasks(), AttentionArgs(sees, (place,)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_heads_may_share_keys_and_have_a_scale_of_their_own(groups: int, scale: float | None) -> None:
    layout, sees = layout_of(LENGTHS["across"]), Causal()
    query, key, value = heads(HEADS), heads(groups), heads(groups)
    expected = attend(query, key, value, layout, layout, Context(layout), AttentionArgs(sees, scale=scale))
    found = packed_attention(query, key, value, layout, layout, AttentionMasks(), AttentionArgs(sees, scale=scale))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


CROSSINGS = [
    ("short", [200, 5, 40, 1, 9, 60], 384),
    ("across", [3, 3, 300], 384),
    ("on the border", [127, 1, 128, 100, 27], 512),
    ("with none between", [10, 0, 0, 250, 0, 3, 90], 384),
    ("one alone", [50], 128),
]


@pytest.mark.parametrize(("lengths", "others", "width"), CROSSINGS, ids=[one[0] for one in CROSSINGS])
def test_each_target_sees_its_own_source_alone(lengths: str, others: list[int], width: int) -> None:
    queries, keys = layout_of(LENGTHS[lengths]), layout_of(others, width)
    query, key, value = heads(HEADS), heads(2, width), heads(2, width)
    expected = attend(query, key, value, queries, keys, Context(queries), AttentionArgs())
    found = packed_attention(query, key, value, queries, keys, AttentionMasks(), AttentionArgs())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    start, other = 0, 0
    for length, source in zip(LENGTHS[lengths], others):  # and by hand, pair by pair
        if length:
            q, k, v = (
                x[:, :, at : at + n].repeat_interleave(HEADS // x.shape[1], 1)
                for x, at, n in ((query, start, length), (key, other, source), (value, other, source))
            )
            alone = (q @ k.mT / EACH**0.5).softmax(-1) @ v
            torch.testing.assert_close(found[:, :, start : start + length], alone, atol=1e-5, rtol=1e-5)
        start, other = start + length, other + source


def shown(layout: SequenceLayout, keys: SequenceLayout, sees: Visibility | None) -> tuple[Tensor, Tensor]:
    """Which pairs of blocks are looked at, and which have a pair of tokens that may see each other."""
    mask = block_mask(layout, keys, sees)
    looked = torch.zeros(mask.kv_indices.shape[2:], dtype=torch.bool)
    for row, count in enumerate(mask.kv_num_blocks[0, 0].tolist()):
        looked[row, mask.kv_indices[0, 0, row, :count].long()] = True
    assert layout.segment_ids is not None
    assert keys.segment_ids is not None
    allowed = layout.segment_ids[0][:, None] == keys.segment_ids[0]
    if sees is not None:
        allowed &= sees.allows(layout.positions[0][:, None], keys.positions[0])
    size = [-(-side // PACK_MULTIPLE) * PACK_MULTIPLE for side in allowed.shape]
    padded = torch.zeros(size, dtype=torch.bool)
    padded[: allowed.shape[0], : allowed.shape[1]] = allowed
    return looked, padded.view(size[0] // PACK_MULTIPLE, PACK_MULTIPLE, size[1] // PACK_MULTIPLE, PACK_MULTIPLE).any(
        3
    ).any(1)


@pytest.mark.parametrize(("lengths", "visibility"), list(itertools.product(LENGTHS, VISIBILITIES)))
def test_block_mask_contains_every_visible_block(lengths: str, visibility: str) -> None:
    """The kernel looks at the listed blocks alone: every pair that may see each other must lie in one of them."""
    layout = layout_of(LENGTHS[lengths])
    looked, needed = shown(layout, layout, VISIBILITIES[visibility])
    assert not (needed & ~looked).any()
    if visibility in ("full", "causal"):  # and none is looked at for nothing
        assert torch.equal(needed, looked)


@pytest.mark.parametrize(("lengths", "others", "width"), CROSSINGS, ids=[one[0] for one in CROSSINGS])
def test_no_block_of_a_source_is_left_out(lengths: str, others: list[int], width: int) -> None:
    looked, needed = shown(layout_of(LENGTHS[lengths]), layout_of(others, width), None)
    assert not (needed & ~looked).any()


def test_rows_need_not_end_where_a_block_does() -> None:
    layout = layout_of([100, 150, 40], 300)
    looked, needed = shown(layout, layout, Causal())
    assert torch.equal(looked, needed)
    query, key, value = heads(HEADS, 300), heads(HEADS, 300), heads(HEADS, 300)
    sees = Causal()
    expected = attend(query, key, value, layout, layout, Context(layout), AttentionArgs(sees))
    found = packed_attention(query, key, value, layout, layout, AttentionMasks(), AttentionArgs(sees))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_block_mask_is_shared_by_layers() -> None:
    layout, sees = layout_of(LENGTHS["short"]), Causal()
    masks = AttentionMasks()
    for _ in range(2):
        packed_attention(heads(2), heads(2), heads(2), layout, layout, masks, AttentionArgs(sees, mask_key="causal"))
    assert len(masks.blocks) == 1


def test_unused_columns_may_be_several_segments() -> None:
    """More pieces of the target than of the source: some see nothing, which must not become anything but a number."""
    queries = SequenceLayout.packed_row(384, torch.tensor([100, 50, 0, 100, 100, 34]), 100)
    keys = SequenceLayout.packed_row(256, torch.tensor([90, 70, 0, 96, 0, 0]), 100)
    query, key, value = heads(HEADS), heads(HEADS, 256), heads(HEADS, 256)
    for tensor in (query, key, value):
        tensor.requires_grad_()
    found = attend(query, key, value, queries, keys, Context(queries), AttentionArgs())
    found[:, :, :150].sum().backward()
    for tensor in (query, key, value):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    with torch.no_grad():
        detached = (tensor.detach() for tensor in (query, key, value))
        other = packed_attention(*detached, queries, keys, AttentionMasks(), AttentionArgs())
    torch.testing.assert_close(other[:, :, :150], found[:, :, :150], atol=1e-5, rtol=1e-5)
    assert other.isfinite().all()
    assert found.isfinite().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize("visibility", ["full", "causal"])
@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_compiled_packed_attention_is_the_same(visibility: str, position: str) -> None:
    """The compiled kernel looks at the listed blocks alone."""
    sees, place = VISIBILITIES[visibility], position_of(POSITIONS[position])

    def look(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, segments: Tensor, starts: Tensor) -> Tensor:
        layout = SequenceLayout(positions, segment_ids=segments, max_length=WIDTH, cu_seqlens=starts)
        return packed_attention(query, key, value, layout, layout, AttentionMasks(), AttentionArgs(sees, (place,)))

    compiled = torch.compile(look, fullgraph=True, dynamic=False)
    for lengths in LENGTHS.values():
        layout = layout_of(lengths)
        query, key, value = heads(HEADS), heads(HEADS), heads(HEADS)
        expected = attend(query, key, value, layout, layout, Context(layout), AttentionArgs(sees, (place,)))
        found = compiled(query, key, value, layout.positions, layout.segment_ids, layout.cu_seqlens)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
