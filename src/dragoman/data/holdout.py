"""Validation pairs held out of the training corpus when the user names none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import SentencePair

MAX_HOLDOUT_PAIRS = 2_000  # pairs, unless told
MAX_BUFFERED_HASHES = 2**18  # hashes that are looked through together


@dataclass(frozen=True)
class HoldoutSplit:
    """The pairs whose source text hashes to `threshold` or below: h(x) ≤ threshold.

    The source alone decides, so that every translation of a held-out sentence leaves the training corpus with it. The
    seed of a run does not: runs with different seeds have the same validation pairs and vocabularies.
    Of documents whole parts are held out, so that the sentences of a part stay together.
    `pairs` says how many there are (empty ones aside), 0 if the corpus has no second sentence to train on.
    """

    threshold: int
    pairs: int

    def __contains__(self, pair: SentencePair) -> bool:
        return _hash(pair) <= self.threshold

    def validation_pairs(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        return (pair for pair in pairs if pair in self)

    def training_pairs(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        return (pair for pair in pairs if pair not in self)


def choose_holdout(pairs: Iterable[SentencePair], size: int | None = None) -> HoldoutSplit:
    """Chooses about `size` pairs in one pass over the corpus, by default as many as `holdout_size` says."""
    sampler = HoldoutSampler(size)
    sampler.add(source_hashes(pairs))
    return sampler.choose()


class HoldoutSampler:
    """Chooses what to hold out while the hashes of the sources pass, of which it keeps only the smallest."""

    def __init__(self, size: int | None = None) -> None:
        self.size, self.total = size, 0
        self.room = (
            MAX_HOLDOUT_PAIRS if size is None else size
        ) + 2  # one more than can be chosen, and one that never is
        self.waiting: list[NDArray[np.uint64]] = []
        self.smallest = np.empty(0, np.uint64)
        self.counts = np.empty(0, np.int64)

    def add(self, hashes: NDArray[np.uint64]) -> None:
        self.total += len(hashes)
        if len(self.smallest) == self.room:
            hashes = hashes[hashes <= self.smallest[-1]]
        self.waiting.append(hashes)
        if sum(map(len, self.waiting)) > MAX_BUFFERED_HASHES:
            self._sift()

    def _sift(self) -> None:
        new = np.concatenate([np.empty(0, np.uint64), *self.waiting])
        distinct, which = np.unique(np.concatenate([self.smallest, new]), return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, which, np.concatenate([self.counts, np.ones(len(new), np.int64)]))
        self.smallest, self.counts, self.waiting = distinct[: self.room], counts[: self.room], []

    def choose(self) -> HoldoutSplit:
        self._sift()
        held = np.cumsum(self.counts)[:-1]  # of the k smallest hashes; never all of them
        if not len(held):
            return HoldoutSplit(threshold=-1, pairs=0)
        size = default_holdout_size(self.total) if self.size is None else self.size
        chosen = max(1, int(np.searchsorted(held, size, side="right")))
        return HoldoutSplit(threshold=int(self.smallest[chosen - 1]), pairs=int(held[chosen - 1]))


def source_hashes(pairs: Iterable[SentencePair]) -> NDArray[np.uint64]:
    """Of the sources of the pairs that can be held out: those with text on both sides."""
    return np.fromiter((_hash(pair) for pair in pairs if _whole(pair)), np.uint64)


def default_holdout_size(total: int) -> int:
    """5 % of the corpus, but no less than 50 pairs (or a tenth, where that is less) and no more than 2,000."""
    return max(1, min(MAX_HOLDOUT_PAIRS, max(total // 20, min(50, total // 10))))


def _whole(pair: SentencePair) -> bool:
    return bool(pair.source.strip()) and (pair.target is None or bool(pair.target.strip()))


def _hash(pair: SentencePair) -> int:
    return int.from_bytes(
        blake2b((pair.holdout_unit or pair.source).encode(), digest_size=8, salt=b"hold out").digest(), "little"
    )
