"""The order of an epoch is a permutation that can be entered anywhere, evenly random, and mixes corpora exactly."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data import EpochOrder, draws_per_corpus
from dragoman.data.epoch_order import MAX_BLOCK_PAIRS, MIN_BLOCKS, SCATTER_SPAN
from dragoman.errors import UserError


def whole(order: EpochOrder, epoch: int = 0) -> np.ndarray:
    return order.pair_indices(epoch, 0, len(order))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1000, 2**16, 2**16 + 1, 2**17, 2**17 + 1, 300_001])
def test_an_epoch_of_one_corpus_is_a_permutation_of_it(size: int) -> None:
    for epoch in (0, 7):
        assert (np.sort(whole(EpochOrder([size], seed=3), epoch)) == np.arange(size)).all()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any), st.integers(0, 2**70), st.integers(0, 5))
def test_completely_drawn_corpora_are_permuted_together(counts: list[int], seed: int, epoch: int) -> None:
    assert (np.sort(whole(EpochOrder(counts, seed), epoch)) == np.arange(sum(counts))).all()


@pytest.mark.parametrize("counts", [[1000], [300_000], [200_000, 1000, 7]])
def test_a_part_of_an_epoch_equals_the_part_of_the_whole(counts: list[int]) -> None:
    order, draws = EpochOrder(counts, 5), draws_per_corpus(counts, temperature=3.0)
    for made in (order, EpochOrder(counts, 5, draws=draws)):
        everything = whole(made, 2)
        edges = sorted({0, 1, 17, len(made) // 3, min(SCATTER_SPAN, len(made)) - 1, len(made) - 1, len(made)})
        parts = [made.pair_indices(2, start, stop) for start, stop in pairwise(edges)]
        assert (np.concatenate(parts) == everything).all()
    assert order.pair_indices(0, len(order), len(order) + 5).tolist() == []


def test_seed_epoch_and_corpus_change_the_order() -> None:
    orders = [whole(EpochOrder([500], 1)), whole(EpochOrder([500], 2)), whole(EpochOrder([500], 1), 1)]
    two = whole(EpochOrder([500, 500], 1))
    orders += [two[two < 500], two[two >= 500] - 500]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)
    assert (whole(EpochOrder([500], 1)) == orders[0]).all()


def test_without_shuffling_pairs_keep_their_order() -> None:
    assert whole(EpochOrder([3, 0, 2], seed=1, shuffle=False), 4).tolist() == [0, 1, 2, 3, 4]


def chi_square(counts: np.ndarray, freedom: int) -> float:
    """How many standard deviations above its expectation the statistic of counts that should be even lies."""
    expected = counts.mean()
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("size", [2, 3, 5, 16, 61])
def test_every_pair_is_equally_likely_at_every_position(size: int) -> None:
    seen = np.zeros((size, size))
    for seed in range(600):
        seen[np.arange(size), whole(EpochOrder([size], seed))] += 1
    assert chi_square(seen, freedom=(size - 1) ** 2) < 4  # rows and columns add up to the same


def test_all_permutations_of_three_are_equally_likely() -> None:
    found = [tuple(whole(EpochOrder([3], seed)).tolist()) for seed in range(3000)]
    assert chi_square(np.array([found.count(one) for one in permutations(range(3))]), 5) < 4


def test_neighbors_in_an_epoch_are_uncorrelated() -> None:
    order = whole(EpochOrder([50_000], 1)).astype(float)
    other = whole(EpochOrder([50_000], 1), 1).astype(float)
    for left, right in ((order[:-1], order[1:]), (order, np.arange(50_000.0)), (order, other)):
        assert abs(np.corrcoef(left, right)[0, 1]) < 4 / np.sqrt(50_000)


def test_a_large_corpus_is_read_in_blocks_whose_pairs_are_scattered() -> None:
    size = MIN_BLOCKS * MAX_BLOCK_PAIRS
    pairs = EpochOrder([size], 1).pair_indices(0, 0, SCATTER_SPAN)
    blocks, counts = np.unique(pairs // MAX_BLOCK_PAIRS, return_counts=True)
    assert (counts == MAX_BLOCK_PAIRS).all()  # what the disk reads for one of them serves all
    assert len(blocks) == SCATTER_SPAN // MAX_BLOCK_PAIRS
    near = (np.abs(np.diff(pairs)) < MAX_BLOCK_PAIRS).sum()  # 63 of 65,535 would be neighbours by chance
    assert near < 4 * MAX_BLOCK_PAIRS


def test_cost_does_not_depend_on_the_number_of_pairs() -> None:
    order = EpochOrder([10**9, 10**6], 1)
    pairs = order.pair_indices(3, 10**9 - 500, 10**9 + 500)
    assert len(np.unique(pairs)) == 1000
    assert pairs.min() >= 0
    assert pairs.max() < len(order) == 10**9 + 10**6


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 10)), min_size=1, max_size=4).filter(
        lambda parts: sum(weight for _, weight in parts) > 0.01
    )
)
def test_weights_are_exact_and_pairs_of_a_corpus_are_seen_equally_often(parts: list[tuple[int, float]]) -> None:
    counts, weights = zip(*parts)
    draws = draws_per_corpus(counts, weights)
    assert sum(draws) == sum(counts)
    quotas = np.array(weights) / sum(weights) * sum(counts)
    assert (np.abs(np.array(draws) - quotas) < 1).all()
    order, seen = EpochOrder(counts, 9, draws=draws), np.zeros(sum(counts), int)
    for epoch in range(5):
        pairs = whole(order, epoch)
        ends = np.cumsum(counts)
        assert np.bincount(np.searchsorted(ends, pairs, side="right"), minlength=len(counts)).tolist() == draws
        np.add.at(seen, pairs, 1)
    for count, end, drawn in zip(counts, np.cumsum(counts), draws):
        own = seen[end - count : end]
        assert set(own.tolist()) <= {5 * drawn // count, 5 * drawn // count + 1}


def test_temperature_sampling() -> None:
    # 100^(1/2) : 10,000^(1/2) = 10 : 100, and 10,100 · 10/110 = 918.18
    assert draws_per_corpus([100, 10_000], temperature=2.0) == [918, 9182]
    assert draws_per_corpus([100, 10_000], temperature=1.0) == [100, 10_000]
    assert draws_per_corpus([100, 10_000], temperature=1e6) == [5050, 5050]
    assert draws_per_corpus([100, 10_000]) == [100, 10_000]


def test_an_empty_corpus_is_never_drawn() -> None:
    assert draws_per_corpus([0, 6, 6], weights=[5, 1, 2]) == [0, 4, 8]
    with pytest.raises(UserError, match="no corpus with a sampling weight above 0 has pairs left"):
        draws_per_corpus([0, 6], weights=[1, 0])


def test_the_corpora_of_an_epoch_are_interleaved() -> None:
    order = EpochOrder([1000, 3000], 2)
    first = whole(order) < 1000
    shares = first.reshape(40, 100).mean(1)  # a quarter, give or take √(¼·¾/100) = 0.043
    assert abs(shares - 0.25).max() < 4 * 0.043
