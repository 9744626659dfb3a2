"""Counter-based random numbers: the same counter gives the same bits in any order and in every process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio: its multiples are spread evenly


def splitmix64(counters: UInt64Array) -> UInt64Array:
    """Hash counters to random bits with the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    bits = (counters ^ (counters >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
