"""Summaries of the source for recurrent decoders."""

from __future__ import annotations

import pytest
import torch

from dragoman.errors import UserError
from dragoman.parts.mixer import Memory, SequenceLayout
from dragoman.parts.recurrent_decoder import BackwardState, LastState, MeanState

STATES = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]], [[4.0, 0.0], [2.0, 2.0], [0.0, 4.0]]])  # B S D


def test_mean_ignores_padding() -> None:
    padded = Memory(STATES, SequenceLayout.padded(3, torch.tensor([2, 3])))
    assert MeanState()(padded).tolist() == [[2.0, 4.0], [2.0, 2.0]]
    assert MeanState()(Memory(STATES, SequenceLayout(torch.arange(3).expand(2, 3))))[1].tolist() == [2.0, 2.0]


def test_final_states_of_the_top_layer() -> None:
    final = {"hidden": torch.arange(8.0).view(1, 2, 4)}  # B L D: the second layer is the top
    memory = Memory(STATES[:1], SequenceLayout.padded(3, torch.tensor([3])), final_state=final)
    assert LastState()(memory).tolist() == [[4.0, 5.0, 6.0, 7.0]]
    assert BackwardState()(memory).tolist() == [[6.0, 7.0]]
    assert (LastState().width(4), BackwardState().width(4)) == (4, 2)


def test_final_state_needs_a_recurrent_encoder() -> None:
    with pytest.raises(UserError, match="use a recurrent encoder"):
        LastState()(Memory(STATES, SequenceLayout.padded(3, torch.tensor([3, 3]))))
