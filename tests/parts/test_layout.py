"""Layouts: where the tokens of padded and packed rows stand."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.parts.mixer import SequenceLayout, map_state


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 9))
def test_packed_positions_count_from_zero_in_every_sequence(lengths: list[int], unused: int) -> None:
    """Unused columns form one more sequence."""
    width, longest = sum(lengths) + unused, max(*lengths, unused)
    layout = SequenceLayout.packed_row(width, torch.tensor(lengths), longest)
    all_lengths = [*lengths, unused]
    assert layout.positions.tolist() == [[place for length in all_lengths for place in range(length)]]
    numbers = [[number for number, length in enumerate(all_lengths) for _ in range(length)]]
    assert layout.segment_ids is not None
    assert layout.segment_ids.tolist() == numbers
    assert layout.max_length == longest
    assert layout.lengths is None
    assert layout.token_mask is None


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 3))
def test_token_mask_of_padded_rows(lengths: list[int], spare: int) -> None:
    width = max(lengths) + spare
    layout = SequenceLayout.padded(width, torch.tensor(lengths))
    assert layout.positions.tolist() == [list(range(width))] * len(lengths)
    assert layout.token_mask is not None
    assert layout.token_mask.tolist() == [[place < length for place in range(width)] for length in lengths]
    assert layout.max_length == width
    assert layout.segment_ids is None


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(1, 4))
def test_continuation_starts_at_the_position_of_each_row(first: list[int], count: int) -> None:
    layout = SequenceLayout.continuation(torch.tensor(first), count)
    assert layout.positions.tolist() == [[start + step for step in range(count)] for start in first]
    assert layout.token_mask is None


def test_map_state_applies_to_every_tensor() -> None:
    state = {"a": torch.tensor([1]), "b": {"c": torch.tensor([2]), "d": {"e": torch.tensor([3])}}, "f": {}}
    doubled = map_state(lambda leaf: leaf * 2, state)
    assert doubled == {"a": torch.tensor([2]), "b": {"c": torch.tensor([4]), "d": {"e": torch.tensor([6])}}, "f": {}}
