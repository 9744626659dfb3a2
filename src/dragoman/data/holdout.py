"""Validation pairs held out of the training corpus when the user names none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from dragoman.data.corpus import Pair


@dataclass(frozen=True)
class HoldOut:
    """The pairs whose source text hashes to `threshold` or below: h(seed, x) ≤ threshold.

    The source alone decides, so that every translation of a held-out sentence leaves the training corpus with it.
    `pairs` says how many there are (empty ones aside), 0 if the corpus has no second sentence to train on.
    """

    seed: int
    threshold: int
    pairs: int

    def __contains__(self, pair: Pair) -> bool:
        return _hash(pair.source, self.seed) <= self.threshold

    def valid(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        return (pair for pair in pairs if pair in self)

    def train(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        return (pair for pair in pairs if pair not in self)


def hold_out(pairs: Iterable[Pair], seed: int, size: int | None = None) -> HoldOut:
    """Chooses about `size` pairs in one pass over the corpus, by default as many as `holdout_size` says."""
    hashes = np.fromiter((_hash(pair.source, seed) for pair in pairs if _whole(pair)), np.uint64)
    total = len(hashes)
    distinct, counts = np.unique(hashes, return_counts=True)
    held = np.cumsum(counts)[:-1]  # of the k smallest hashes; never all of them
    if not len(held):
        return HoldOut(seed, threshold=-1, pairs=0)
    chosen = max(1, int(np.searchsorted(held, holdout_size(total) if size is None else size, side="right")))
    return HoldOut(seed, threshold=int(distinct[chosen - 1]), pairs=int(held[chosen - 1]))


def holdout_size(total: int) -> int:
    """5 % of the corpus, but no less than 50 pairs (or a tenth, where that is less) and no more than 2,000."""
    return max(1, min(2_000, max(total // 20, min(50, total // 10))))


def _whole(pair: Pair) -> bool:
    return bool(pair.source.strip()) and (pair.target is None or bool(pair.target.strip()))


def _hash(text: str, seed: int) -> int:
    salt = (seed % 2**64).to_bytes(8, "little")
    return int.from_bytes(blake2b(text.encode(), digest_size=8, salt=salt).digest(), "little")
