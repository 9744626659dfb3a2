"""Rows of different lengths as one tensor."""

from __future__ import annotations

import numpy as np
import torch

from dragoman.data.batch_arrays import pad_rows


def test_ids_stand_before_their_padding() -> None:
    ids, lengths = pad_rows([[5, 6, 7], [], [8]], pad=2)
    assert ids.tolist() == [[5, 6, 7], [2, 2, 2], [8, 2, 2]]
    assert lengths.tolist() == [3, 0, 1]
    assert ids.dtype == lengths.dtype == torch.int64


def test_rows_without_anything() -> None:
    ids, lengths = pad_rows([[], []], pad=2)
    assert ids.shape == (2, 0)
    assert lengths.tolist() == [0, 0]


def test_vectors_stand_before_zeros() -> None:
    found, lengths = pad_rows([np.ones((2, 3), np.float32), np.full((1, 3), 2.0, np.float32)], pad=9)
    assert found.tolist() == [[[1.0] * 3, [1.0] * 3], [[2.0] * 3, [0.0] * 3]]
    assert lengths.tolist() == [2, 1]
    assert found.dtype == torch.float32
