"""Visibility: masks written out by hand, and what a prefix lets through."""

from __future__ import annotations

import pytest
import torch

from dragoman.parts.attention import SelfAttention
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.spec import Spec
from dragoman.parts.visibility import Block, Causal, Full, Prefix, Visibility, Window


def mask(visibility: Visibility, width: int, prefix: list[int] | None = None) -> list[list[list[int]]]:
    positions = torch.arange(width).expand(len(prefix or [0]), width)
    told = None if prefix is None else torch.tensor(prefix)
    return visibility.mask(positions, positions, Context(SequenceLayout(positions), prefix_lengths=told)).int().tolist()


LEFT_TO_RIGHT = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
BOTH_WAYS = [[1, 1, 1, 1]] * 4
TWO_THEN_TWO = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_prefix_mask_by_hand() -> None:
    assert mask(Prefix(), 4, [2, 0, 4]) == [TWO_THEN_TWO, LEFT_TO_RIGHT, BOTH_WAYS]


def test_without_a_prefix_it_is_the_causal_mask() -> None:
    assert mask(Prefix(), 4) == mask(Causal(), 4) == [LEFT_TO_RIGHT]


def test_block_mask_by_hand() -> None:
    assert mask(Block(2), 5) == [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]]
    assert mask(Block(4), 4) == [LEFT_TO_RIGHT]


def test_a_band_of_two() -> None:
    assert mask(Window(2), 4) == [[[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]]


@torch.no_grad()
def test_attention_over_a_prefix_is_full_inside_and_causal_after_it() -> None:
    """Three rows of one length: all prefix, no prefix, and two words of it."""
    prefix = SelfAttention(2, visibility=Prefix()).build(8)
    full, causal = SelfAttention(2, visibility=Full()).build(8), SelfAttention(2, visibility=Causal()).build(8)
    for other in (full, causal):
        other.load_state_dict(prefix.state_dict())
    x, layout = torch.randn(3, 5, 8), SequenceLayout.padded(5, torch.tensor([5, 5, 5]))
    y = prefix(x, Context(layout, prefix_lengths=torch.tensor([5, 0, 2]))).output
    close = torch.testing.assert_close
    close(y[0], full(x, Context(layout))[0][0])
    close(y[1:, 2:], causal(x, Context(layout))[0][1:, 2:])
    close(y[1], causal(x, Context(layout))[0][1])
    close(y[2:, :2], full(x[2:, :2], Context(SequenceLayout.padded(2, torch.tensor([2]))))[0])


@pytest.mark.parametrize("visibility", [Prefix(), Causal(), Window(), Block(), Full()])
def test_prefix_visibility_does_not_support_packing(visibility: Spec) -> None:
    assert SelfAttention(2, visibility=visibility).build(8).supports_packing is (visibility != Prefix())
