"""Rows of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor


def pad_rows(rows: Sequence[Any], pad: int) -> tuple[Tensor, Tensor]:
    """B T ids with `pad` after them, or B S F vectors with zeros after them, and B lengths."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    inside = np.arange(lengths.max()) < lengths[:, None]  # B T
    if isinstance(rows[0], np.ndarray):
        found = np.zeros((*inside.shape, rows[0].shape[1]), dtype=np.float32)
        found[inside] = np.concatenate(rows)
    else:
        found = np.full(inside.shape, pad)
        found[inside] = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    return torch.from_numpy(found), torch.from_numpy(lengths)
