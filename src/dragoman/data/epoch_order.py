"""The order in which pairs are drawn: a closed form of seed and epoch, which costs the same however many there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.errors import UserError
from dragoman.text.splitmix import GOLDEN_GAMMA, UInt64Array, splitmix64

Indices = NDArray[np.int64]
Keys = NDArray[np.uint64]  # ROUNDS numbers a row

ROUNDS = 8
MAX_BLOCK_PAIRS = 64  # pairs of about 30 tokens: a page of the disk, which is read whole for one of them anyway
MIN_BLOCKS = 2**16  # that a corpus has at least, before neighbours stay together
SCATTER_SPAN = 2**16  # places of an epoch among which neighbours are scattered
MIXTURE, SCATTER = 2**32, 2**32 + 1  # stand in the place of a corpus' number where no single one is permuted


class EpochOrder:
    """Which pairs of a store are at which places of an epoch.

    A store holds corpora one after the other, of `counts` pairs; an epoch draws `draws` of each: by default all. Every
    corpus is walked by a permutation of its own that goes on over the epochs: draw j of a corpus of n pairs is place
    j mod n of its pass j // n, so that all its pairs are seen equally often however many an epoch draws. The draws of
    an epoch are interleaved by one more permutation.

    In a corpus of millions, blocks of up to 64 neighbours are permuted and not single pairs: what the disk reads for
    one of them serves the others. Their pairs are scattered over the next 65,536 places, so that a batch does not hold
    a piece of one document, and what was read is still in memory when they come.

    Nothing is kept, and nothing is computed but the places asked for.
    """

    def __init__(
        self, counts: Sequence[int], seed: int, shuffle: bool = True, draws: Sequence[int] | None = None
    ) -> None:
        self.counts = np.array(counts, np.int64)
        self.draws = self.counts if draws is None else np.array(draws, np.int64)
        if len(self.draws) != len(self.counts) or (self.draws[self.counts == 0] > 0).any():
            raise ValueError(f"{self.draws.tolist()} cannot be drawn of corpora of {self.counts.tolist()} pairs")
        self.seed, self.shuffle = seed, shuffle
        self.ends = np.cumsum(self.draws)

    def __len__(self) -> int:
        """How many pairs an epoch draws."""
        return int(self.ends[-1])

    def pair_indices(self, epoch: int, start: int, stop: int) -> Indices:
        """The numbers of the pairs at the places from `start` up to `stop` of an epoch."""
        drawn = np.arange(start, min(stop, len(self)), dtype=np.int64)
        if self.shuffle and len(self) > MIN_BLOCKS:
            drawn = scattered(drawn, len(self), keys(self.seed, SCATTER, [epoch]))
        if self.shuffle and len(self.counts) > 1:
            drawn = permuted(drawn, len(self), keys(self.seed, MIXTURE, [epoch]))
        corpus = np.searchsorted(self.ends, drawn, side="right")
        drawn += (epoch * self.draws - (self.ends - self.draws))[corpus]  # over all epochs, of the corpus alone
        first = np.cumsum(self.counts) - self.counts
        for number in np.unique(corpus).tolist():
            own = corpus == number
            passes, places = np.divmod(drawn[own], self.counts[number])
            if self.shuffle:
                passes, which = np.unique(passes, return_inverse=True)
                table = keys(self.seed, number, passes)
                places = permuted(places, int(self.counts[number]), table, None if len(passes) == 1 else which)
            drawn[own] = first[number] + places
        return drawn


def draws_per_corpus(
    counts: Sequence[int], weights: Sequence[float] = (), temperature: float | None = None
) -> list[int]:
    """How many pairs an epoch draws of each corpus; together as many as there are.

    A corpus' share is its weight over the sum of the weights, or by a temperature τ proportional to n^(1/τ)
    (Arivazhagan et al. 2019): τ = 1 is proportional to its size, a large τ the same for all. Without either all pairs
    are drawn. What is left by rounding down goes to the largest remainders.
    """
    sizes = np.array(counts, np.float64)
    if not weights and temperature is None:
        return [int(count) for count in counts]
    shares = np.array(weights) if weights else sizes ** (1 / (temperature or 1))
    shares = np.where(sizes > 0, shares, 0.0)
    if not shares.any():
        raise UserError(
            "no corpus with a weight above 0 has a pair left: see data.sampling_weights, and what was dropped"
        )
    quotas = int(sizes.sum()) * (shares / shares.sum())
    draws = np.floor(quotas).astype(np.int64)
    left = int(sizes.sum() - draws.sum())
    draws[np.argsort(draws - quotas, kind="stable")[:left]] += 1
    return [int(count) for count in draws]


def scattered(places: Indices, size: int, table: Keys) -> Indices:
    """Where a permutation of 0 … size − 1 takes some places that moves none out of its span."""
    last = size // SCATTER_SPAN - 1  # takes in what is left, up to twice as much as the others
    span = np.minimum(places // SCATTER_SPAN, last)
    found = places - span * SCATTER_SPAN
    for own, width in ((span < last, SCATTER_SPAN), (span == last, size - last * SCATTER_SPAN)):
        tweak = splitmix64(span[own].astype(np.uint64))
        found[own] = _permuted(found[own].astype(np.uint64), width, table, None, tweak)
    return span * SCATTER_SPAN + found


def permuted(places: Indices, size: int, table: Keys, which: Indices | None = None) -> Indices:
    """Where a permutation of 0 … size − 1 takes some places; `which` is the row of the table that is a place's key.

    A Feistel network permutes the next even power of two; what falls outside the range is sent through it again until
    it falls inside (cycle walking: Black & Rogaway 2002), which takes four times on average at most.
    """
    block = max(1, min(MAX_BLOCK_PAIRS, size // MIN_BLOCKS))
    blocks = -(-size // block)
    found = places.copy()
    outside = np.arange(len(places))
    while len(outside):  # the last block may be a shorter one: what falls behind it goes round again
        again, row = found[outside] // block, None if which is None else which[outside]
        found[outside] = _permuted(again.astype(np.uint64), blocks, table, row) * block + found[outside] % block
        outside = outside[found[outside] >= size]
    return found


def _permuted(
    numbers: UInt64Array, size: int, table: Keys, which: Indices | None, tweak: UInt64Array | None = None
) -> Indices:
    """The same for single numbers; those with another `tweak` are permuted in another way."""
    found, key = numbers, table[:1] if which is None else table[which]  # 1 or N × ROUNDS
    if tweak is not None:
        key = key + tweak[:, None]
    outside = np.arange(len(numbers))
    while len(outside):
        found[outside] = _feistel(found[outside], size, key if len(key) == 1 else key[outside])
        outside = outside[found[outside] >= size]
    return found.astype(np.int64)


def _feistel(numbers: UInt64Array, size: int, key: Keys) -> UInt64Array:
    """(l, r) → (r, l ⊕ f(r + key)), round after round: a bijection of 2^2h numbers whatever f is.

    Luby & Rackoff 1988, “How to construct pseudorandom permutations from pseudorandom functions”.
    """
    half = max(1, (max(0, size - 1).bit_length() + 1) // 2)
    bits = np.uint64(half)
    left, right = numbers >> bits, numbers & np.uint64(2**half - 1)
    for number in range(ROUNDS):
        left, right = right, left ^ (splitmix64(right + key[:, number]) >> np.uint64(64 - half))
    return left << bits | right


def keys(seed: int, corpus: int, passes: ArrayLike) -> Keys:
    """P × ROUNDS numbers that follow from seed, corpus and pass."""
    drawn = random_keys(seed, corpus, passes)
    return splitmix64(drawn[:, None] + GOLDEN_GAMMA * np.arange(1, ROUNDS + 1, dtype=np.uint64))


def random_keys(seed: int, purpose: int, numbers: ArrayLike) -> UInt64Array:
    """A random number for each number, which follows from it, the seed and what it is for."""
    found = splitmix64(np.array([seed % 2**64], np.uint64) + GOLDEN_GAMMA)
    found = splitmix64(found + np.uint64(purpose) + GOLDEN_GAMMA)
    return splitmix64(found + np.asarray(numbers).astype(np.uint64) + GOLDEN_GAMMA)
