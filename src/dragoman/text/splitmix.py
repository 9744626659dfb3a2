"""Chance that follows from numbers: the same number always gives the same bits, in any order and in every process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio: its multiples lie far apart


def splitmix64(numbers: UInt64Array) -> UInt64Array:
    """SplitMix64's finaliser (Steele, Lea & Flood 2014): every bit of the answer depends on every bit of the number."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
