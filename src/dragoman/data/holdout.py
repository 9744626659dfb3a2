"""Validation pairs held out of the training corpus when there are no validation files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import SentencePair

MAX_HOLDOUT_PAIRS = 2_000  # by default
MAX_BUFFERED_HASHES = 2**18


@dataclass(frozen=True)
class HoldoutSplit:
    """Hold out the pairs whose source hashes to at most `threshold`.

    Only the source is hashed, so that all translations of a held-out sentence leave the training corpus. The split does
    not depend on the seed of a run: runs with different seeds have the same validation pairs and vocabularies. Of
    documents, units of several lines are held out.

    Attributes:
        pairs: number of held-out pairs without empty ones; 0 if the corpus has less than two different sources.
    """

    threshold: int
    pairs: int

    def __contains__(self, pair: SentencePair) -> bool:
        return _hash(pair) <= self.threshold

    def training_pairs(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        return (pair for pair in pairs if pair not in self)


class HoldoutSampler:
    """Chooses a split of about `size` pairs from a stream of source hashes; keeps only the smallest ones in memory."""

    def __init__(self, size: int | None = None) -> None:
        self.size, self.total = size, 0
        self.capacity = (MAX_HOLDOUT_PAIRS if size is None else size) + 2  # the split never contains all hashes
        self.buffer: list[NDArray[np.uint64]] = []
        self.smallest = np.empty(0, np.uint64)
        self.counts = np.empty(0, np.int64)  # of pairs per hash

    def add(self, hashes: NDArray[np.uint64]) -> None:
        self.total += len(hashes)
        if len(self.smallest) == self.capacity:
            hashes = hashes[hashes <= self.smallest[-1]]
        self.buffer.append(hashes)
        if sum(map(len, self.buffer)) > MAX_BUFFERED_HASHES:
            self._merge_buffer()

    def choose(self) -> HoldoutSplit:
        self._merge_buffer()
        cumulative = np.cumsum(self.counts)[:-1]
        if not len(cumulative):
            return HoldoutSplit(threshold=-1, pairs=0)
        size = default_holdout_size(self.total) if self.size is None else self.size
        chosen = max(1, int(np.searchsorted(cumulative, size, side="right")))
        return HoldoutSplit(threshold=int(self.smallest[chosen - 1]), pairs=int(cumulative[chosen - 1]))

    def _merge_buffer(self) -> None:
        new = np.concatenate([np.empty(0, np.uint64), *self.buffer])
        distinct, inverse = np.unique(np.concatenate([self.smallest, new]), return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, inverse, np.concatenate([self.counts, np.ones(len(new), np.int64)]))
        self.smallest, self.counts, self.buffer = distinct[: self.capacity], counts[: self.capacity], []


def source_hashes(pairs: Iterable[SentencePair]) -> NDArray[np.uint64]:
    """Hash the sources of the pairs that can be held out: those with text on both sides."""
    usable = (pair for pair in pairs if pair.source.strip() and (pair.target is None or pair.target.strip()))
    return np.fromiter(map(_hash, usable), np.uint64)


def default_holdout_size(total: int) -> int:
    """Return 5 % of the pairs, at least 50 (or a tenth, if that is less) and at most 2,000."""
    return max(1, min(MAX_HOLDOUT_PAIRS, max(total // 20, min(50, total // 10))))


def _hash(pair: SentencePair) -> int:
    unit = (pair.holdout_unit or pair.source).encode()
    return int.from_bytes(blake2b(unit, digest_size=8, salt=b"hold out").digest(), "little")
