"""The order in which an epoch visits the pairs, computed from the seed in constant memory for any number of pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.errors import UserError
from dragoman.text.splitmix import GOLDEN_GAMMA, UInt64Array, splitmix64

Indices = NDArray[np.int64]
Keys = NDArray[np.uint64]  # N × FEISTEL_ROUNDS

FEISTEL_ROUNDS = 8  # of the Feistel network
MAX_BLOCK_PAIRS = 64  # about 30 tokens each: one disk page, which is read as a whole
MIN_BLOCKS = 2**16  # in smaller corpora single pairs are permuted
SCATTER_SPAN = 2**16  # positions of an epoch over which a block is scattered
_MIXTURE_KEY, _SCATTER_KEY = 2**32, 2**32 + 1  # in place of the index of a corpus


class EpochOrder:
    """Maps positions of an epoch to pairs of a store.

    A store contains corpora with `counts` pairs each, and an epoch draws `draws` pairs of each, by default all. Every
    corpus is traversed in permutations that continue over epochs: draw j of a corpus of n pairs is position j mod n of
    its pass j // n, so that all its pairs are seen equally often for any number of draws. Another permutation
    interleaves the draws of an epoch.

    In a corpus of millions of pairs, blocks of up to 64 neighbors are permuted instead of single pairs, because they
    are read from disk together. The pairs of a block are scattered over the next 65,536 positions, so that a batch
    does not contain a part of one document, and the pages that were read are still cached.

    Only the requested positions are computed, and nothing is stored.
    """

    def __init__(
        self, counts: Sequence[int], seed: int, shuffle: bool = True, draws: Sequence[int] | None = None
    ) -> None:
        """Raise a ValueError if pairs are drawn from an empty corpus, or `draws` has not one number per corpus.

        Args:
            counts: number of pairs of each corpus.
            seed: determines the permutations.
            shuffle: permute the pairs; otherwise their order is that of the store.
            draws: number of pairs that an epoch draws from each corpus; by default all.
        """
        self.counts = np.array(counts, np.int64)
        self.draws = self.counts if draws is None else np.array(draws, np.int64)
        if len(self.draws) != len(self.counts) or (self.draws[self.counts == 0] > 0).any():
            raise ValueError(f"cannot draw {self.draws.tolist()} pairs from corpora of {self.counts.tolist()} pairs")
        self.seed, self.shuffle = seed, shuffle
        self.ends = np.cumsum(self.draws)  # where the draws of each corpus end, before they are mixed

    def __len__(self) -> int:
        """Return the number of pairs in an epoch."""
        return int(self.ends[-1])  # where the draws of the last corpus end

    def pair_indices(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the store indices of the pairs at positions `start` to `stop` − 1 of an epoch.

        Positions are permuted over the epoch, which mixes the corpora: a number below `draws[0]` is a draw from the
        first corpus, and so on. Draw j of a corpus, counted over all epochs, is position j mod n of pass j // n over
        its n pairs, and each pass is permuted.
        """
        draws = np.arange(start, min(stop, len(self)), dtype=np.int64)
        if self.shuffle and len(self) > MIN_BLOCKS:  # large: blocks of neighbors are permuted, so separate their pairs
            draws = _scatter(draws, len(self), _round_keys(self.seed, purpose=_SCATTER_KEY, numbers=[epoch]))
        if self.shuffle and len(self.counts) > 1:
            draws = _permute(draws, len(self), _round_keys(self.seed, purpose=_MIXTURE_KEY, numbers=[epoch]))
        corpus = np.searchsorted(self.ends, draws, side="right")
        first_draw = self.ends - self.draws  # of each corpus in an epoch
        draws += (epoch * self.draws - first_draw)[corpus]  # from here on counted per corpus, over all epochs
        first_pair = np.cumsum(self.counts) - self.counts  # of each corpus in the store
        pairs = np.empty_like(draws)
        for index in np.unique(corpus).tolist():
            selected = corpus == index
            passes, positions = np.divmod(draws[selected], self.counts[index])
            if self.shuffle:
                passes, key_rows = np.unique(passes, return_inverse=True)
                keys = _round_keys(self.seed, purpose=index, numbers=passes)  # passes × rounds
                positions = _permute(positions, int(self.counts[index]), keys, None if len(passes) == 1 else key_rows)
            pairs[selected] = first_pair[index] + positions
        return pairs


def draws_per_corpus(
    counts: Sequence[int], weights: Sequence[float] = (), temperature: float | None = None
) -> list[int]:
    """Return how many pairs an epoch draws from each corpus of `counts` pairs; the sum is that of `counts`.

    The share of a corpus of n pairs is proportional to its weight, or to n^(1/τ) with a temperature τ (Arivazhagan et
    al. 2019): τ = 1 is proportional to the size, a large τ uniform; with weights, τ is ignored. By default all pairs
    are drawn once. Remainders go to the corpora with the largest fractional parts. Empty corpora have no draws; that no
    other corpus has a weight above 0 is a UserError.
    """
    sizes = np.array(counts, np.float64)
    if not weights and temperature is None:
        return [int(count) for count in counts]
    shares = np.array(weights) if weights else sizes ** (1 / (temperature or 1))
    shares = np.where(sizes > 0, shares, 0.0)
    if not shares.any():
        raise UserError(
            "no corpus with a sampling weight above 0 has pairs left after filtering: give other corpora a weight "
            "(data.sampling_weights)"
        )
    quotas = int(sizes.sum()) * (shares / shares.sum())
    draws = np.floor(quotas).astype(np.int64)
    remainder = int(sizes.sum() - draws.sum())
    draws[np.argsort(draws - quotas, kind="stable")[:remainder]] += 1  # where rounding down has lost most
    return [int(count) for count in draws]


def random_keys(seed: int, purpose: int, numbers: ArrayLike) -> UInt64Array:
    """Return a random 64-bit key for each number: a hash of seed, purpose (any number that names the use) and number.

    Keys of different seeds and purposes are independent. `splitmix64` is the hash function, GOLDEN_GAMMA its constant.
    """
    key = splitmix64(np.array([seed % 2**64], np.uint64) + GOLDEN_GAMMA)
    key = splitmix64(key + np.uint64(purpose) + GOLDEN_GAMMA)
    return splitmix64(key + np.asarray(numbers).astype(np.uint64) + GOLDEN_GAMMA)


def _round_keys(seed: int, purpose: int, numbers: ArrayLike) -> Keys:
    """Derive the keys of N permutations, one key per round of a Feistel network: N × FEISTEL_ROUNDS.

    They depend on the seed, the purpose (any number that names the use), and the number of each permutation.
    """
    keys = random_keys(seed, purpose, numbers)
    return splitmix64(keys[:, None] + GOLDEN_GAMMA * np.arange(1, FEISTEL_ROUNDS + 1, dtype=np.uint64))


def _scatter(positions: Indices, size: int, keys: Keys) -> Indices:
    """Apply a permutation of 0 … size − 1 that moves positions only within spans of SCATTER_SPAN, each differently.

    `keys` (1 × FEISTEL_ROUNDS) determine the permutation; `size` is at least SCATTER_SPAN.
    """
    last = size // SCATTER_SPAN - 1  # index of the last span, which includes the remainder
    span = np.minimum(positions // SCATTER_SPAN, last)
    scattered = positions - span * SCATTER_SPAN  # positions within the span
    for selected, width in ((span < last, SCATTER_SPAN), (span == last, size - last * SCATTER_SPAN)):
        span_keys = keys[:1] + splitmix64(span[selected].astype(np.uint64))[:, None]  # another permutation per span
        scattered[selected] = _permute_numbers(scattered[selected].astype(np.uint64), width, span_keys)
    return span * SCATTER_SPAN + scattered


def _permute(positions: Indices, size: int, keys: Keys, key_rows: Indices | None = None) -> Indices:
    """Apply a permutation of 0 … size − 1 to positions; in a large range, blocks of neighbors stay together.

    `keys` (N × FEISTEL_ROUNDS) determine N permutations; `key_rows` selects that of each position, None: the first one.
    The last block may be shorter: results outside the range are permuted again until they are inside (cycle walking).
    """
    block_size = max(1, min(MAX_BLOCK_PAIRS, size // MIN_BLOCKS))  # positions; 1 in a small range
    num_blocks = -(-size // block_size)  # rounded up
    permuted = positions.copy()
    outside = np.arange(len(positions))  # indices of the positions whose result is not inside the range
    while len(outside):
        blocks = (permuted[outside] // block_size).astype(np.uint64)
        selected_keys = keys[:1] if key_rows is None else keys[key_rows[outside]]
        new_blocks = _permute_numbers(blocks, num_blocks, selected_keys)
        permuted[outside] = new_blocks * block_size + permuted[outside] % block_size
        outside = outside[permuted[outside] >= size]
    return permuted


def _permute_numbers(numbers: UInt64Array, size: int, keys: Keys) -> Indices:
    """Apply a permutation of 0 … size − 1 with one key for all numbers, or a key per number.

    A Feistel network permutes the numbers below the next even power of two; results outside the range are permuted
    again until they are inside (cycle walking: Black & Rogaway 2002), on average at most four times.
    """
    outside = np.arange(len(numbers))  # indices of the numbers whose result is not inside the range
    while len(outside):
        numbers[outside] = _feistel(numbers[outside], size, keys if len(keys) == 1 else keys[outside])
        outside = outside[numbers[outside] >= size]
    return numbers.astype(np.int64)


def _feistel(numbers: UInt64Array, size: int, keys: Keys) -> UInt64Array:
    """Split numbers into halves of h bits and apply rounds of (l, r) → (r, l ⊕ f(r + key)), with a hash function f.

    This is a bijection on the 2^2h numbers, the smallest even power of two that is not below `size`, for every f.
    Luby & Rackoff 1988, “How to construct pseudorandom permutations from pseudorandom functions”.
    """
    half = max(1, (max(0, size - 1).bit_length() + 1) // 2)  # h
    bits = np.uint64(half)
    left, right = numbers >> bits, numbers & np.uint64(2**half - 1)
    for index in range(FEISTEL_ROUNDS):
        left, right = right, left ^ (splitmix64(right + keys[:, index]) >> np.uint64(64 - half))
    return left << bits | right
