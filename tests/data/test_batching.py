"""Every pair once an epoch, within the budget, in an order that seed and epoch decide and that resumes anywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.data import (
    IGNORE_INDEX,
    Batches,
    BatchRow,
    DataPosition,
    RowFormat,
    TokenStore,
    batch_by_length,
    prefetch,
)
from dragoman.data.epoch_order import EpochOrder
from dragoman.errors import UserError
from dragoman.text import Framing

StoreOf = Callable[..., TokenStore]
LAW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=60)


def of_lengths(store_of: StoreOf, lengths: list[tuple[int, int]]) -> TokenStore:
    """Row i is made of its own number, so that a batch can be checked without the store."""
    return store_of(*([[10 + i] * pair[side] for i, pair in enumerate(lengths)] for side in (0, 1)), vocabulary=1000)


def many(store_of: StoreOf, pairs: int = 500) -> TokenStore:
    random = np.random.default_rng(0)
    return of_lengths(store_of, random.integers(1, 12, (pairs, 2)).tolist())


def numbers(batches: Batches, epoch: int) -> list[list[int]]:
    return [indices.tolist() for window in range(batches.windows) for indices in batches.plan_window(epoch, window)]


def test_a_batch_is_framed_and_padded(store_of: StoreOf) -> None:
    batches = Batches(store_of([[5, 6, 7], [8]], [[9], [10, 11]]), max_tokens=100, seed=0, shuffle=False)
    batch = batches.build_batch(np.array([1, 0]), epoch=0)
    assert batch.source.tolist() == [[8, 3, 0, 0], [5, 6, 7, 3]]
    assert batch.target.tolist() == [[2, 10, 11], [2, 9, 0]]  # what a decoder is fed
    assert batch.labels.tolist() == [[10, 11, 3], [9, 3, IGNORE_INDEX]]  # what it is to say
    assert batch.source_lengths.tolist() == [2, 4]
    assert batch.target_lengths.tolist() == [3, 2]
    assert batch.source.dtype == batch.target.dtype == batch.source_lengths.dtype == batch.labels.dtype == torch.int64
    assert (len(batch), batch.source_tokens, batch.target_tokens) == (2, 6, 5)
    assert batch.padding_ratio == pytest.approx(3 / 14)
    assert batch.label_positions is None
    assert batch.max_lengths is None
    assert batch.to("cpu").source.tolist() == batch.source.tolist()


def test_special_tokens_come_from_the_framing(store_of: StoreOf) -> None:
    batches = Batches(
        store_of([[5], [6, 7]], [[8], [9]]),
        100,
        0,
        rows=RowFormat(Framing(99, 98, 97, source_prefix=(96,), source_suffix=(97, 95))),
    )
    batch = batches.build_batch(np.array([0, 1]), epoch=0)
    assert batch.source.tolist() == [[96, 5, 97, 95, 99], [96, 6, 7, 97, 95]]
    assert batch.target.tolist() == [[98, 8], [98, 9]]
    assert batch.labels.tolist() == [[8, 97], [9, 97]]


def test_monolingual_text_is_source_and_target(store_of: StoreOf) -> None:
    batch = Batches(store_of([[5, 6]]), 100, 0).build_batch(np.array([0]), epoch=0)
    assert batch.source.tolist() == [[5, 6, 3]]
    assert batch.target.tolist() == [[2, 5, 6]]
    assert batch.labels.tolist() == [[5, 6, 3]]


@given(LENGTHS, st.integers(11, 60), st.integers(1, 70), st.integers(0, 2**70), st.booleans())
@LAW
def test_an_epoch_contains_every_pair_once_within_the_token_budget(
    store_of, lengths, tokens, window, seed, shuffle
) -> None:
    batches = Batches(of_lengths(store_of, lengths), tokens, seed, window, shuffle)
    seen = []
    for batch in batches.iterate_epoch(0):
        assert max(batch.source.numel(), batch.target.numel()) <= tokens
        rows = zip(batch.indices.tolist(), batch.source.tolist(), batch.target.tolist(), batch.labels.tolist())
        for index, source, target, answers in rows:
            (one, other), ids = lengths[index], [10 + index]
            assert source == ids * one + [3] + [0] * (batch.source.shape[1] - one - 1)
            assert target == [2] + ids * other + [0] * (batch.target.shape[1] - other - 1)
            assert answers == ids * other + [3] + [IGNORE_INDEX] * (batch.target.shape[1] - other - 1)
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(len(lengths)))


@given(LENGTHS, st.integers(11, 60), st.integers(1, 70), st.integers(0, 30))
@LAW
def test_resuming_yields_exactly_the_remaining_batches(store_of, lengths, tokens, window, stop) -> None:
    store = of_lengths(store_of, lengths)
    whole = list(islice(Batches(store, tokens, 1, window).iterate_from(), stop + 30))
    here = whole[stop - 1][1] if stop else DataPosition()
    rest = list(islice(Batches(store, tokens, 1, window).iterate_from(here), 30))
    assert [after for _, after in rest] == [after for _, after in whole[stop:]]
    for (batch, _), (expected, _) in zip(rest, whole[stop:]):
        assert torch.equal(batch.source, expected.source)
        assert torch.equal(batch.target, expected.target)
        assert torch.equal(batch.labels, expected.labels)
        assert batch.indices.tolist() == expected.indices.tolist()


def test_positions_count_batches_then_windows_then_epochs(store_of: StoreOf) -> None:
    batches = Batches(of_lengths(store_of, [(1, 1)] * 6), max_tokens=6, seed=0, window=4)  # two rows a batch
    positions = [after for _, after in islice(batches.iterate_from(), 4)]
    assert positions == [DataPosition(0, 0, 1), DataPosition(0, 1, 0), DataPosition(1, 0, 0), DataPosition(1, 0, 1)]


def test_the_order_depends_only_on_seed_and_epoch(store_of: StoreOf) -> None:
    store = many(store_of)
    first = Batches(store, 50, seed=1, window=100)
    assert numbers(first, 0) == numbers(Batches(store, 50, seed=1, window=100), 0)
    assert numbers(first, 0) != numbers(first, 1)
    assert numbers(first, 0) != numbers(Batches(store, 50, seed=2, window=100), 0)
    assert numbers(first, 1) == numbers(Batches(store, 50, seed=1, window=100), 1)


def test_a_window_of_one_pair_keeps_the_order_of_the_epoch(store_of: StoreOf) -> None:
    batches = Batches(many(store_of), 50, seed=7, window=1)
    assert [index for [index] in numbers(batches, 3)] == EpochOrder([500], seed=7).pair_indices(3, 0, 500).tolist()


def test_batches_of_a_window_are_shuffled(store_of: StoreOf) -> None:
    store = many(store_of)
    widths = [
        max(max(column.lengths[i] + 1 for column in store.columns) for i in batch)
        for batch in numbers(Batches(store, 50, 0), 0)
    ]
    assert widths != sorted(widths)


def test_pairs_of_equal_length_are_batched_differently_in_each_epoch(store_of: StoreOf) -> None:
    batches = Batches(of_lengths(store_of, [(1, 1)] * 60), max_tokens=12, seed=0)
    company = [{frozenset(batch) for batch in numbers(batches, epoch)} for epoch in (0, 1)]
    assert len(company[0] & company[1]) < 3


def test_sorting_keeps_padding_low(store_of: StoreOf) -> None:
    random = np.random.default_rng(0)
    lengths = np.clip(random.poisson(8, 4000)[:, None] + random.integers(0, 3, (4000, 2)), 1, 30)
    store = store_of(*([[5] * length for length in column] for column in lengths.T.tolist()))
    padding = [batch.padding_ratio for batch in Batches(store, 500, 0).iterate_epoch(0)]
    assert np.mean(padding) < 0.05


def test_noise_depends_on_the_epoch_and_is_reproducible(store_of: StoreOf) -> None:
    def drop(store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        ids = store.source(index)
        return BatchRow(ids[random.random(len(ids)) < 0.5], ids, sentence_label=index)

    store = store_of([range(10, 60), range(60, 99)], [range(10, 60), range(60, 99)])
    batches = Batches(store, 200, seed=0, rows=RowFormat(build_row=drop))
    one, again, later = (batches.build_batch(np.array([0, 1]), epoch) for epoch in (0, 0, 1))
    assert torch.equal(one.source, again.source)
    assert one.source.tolist() != later.source.tolist()
    assert torch.equal(one.target, later.target)
    alone = batches.build_batch(np.array([1]), 0)  # the company of a pair does not change its noise
    length = int(alone.source_lengths[0])
    assert one.source[1, :length].tolist() == alone.source[0].tolist()
    assert one.source_lengths.tolist() == [(row != 0).sum() for row in one.source]
    assert one.sentence_labels is not None
    assert one.sentence_labels.tolist() == [0, 1]
    copies = Batches(store, 200, seed=0, rows=RowFormat(build_row=drop, distinct_epochs=3))
    assert torch.equal(copies.build_batch(np.array([0]), 3).source, copies.build_batch(np.array([0]), 0).source)
    assert copies.build_batch(np.array([0]), 2).source.tolist() != copies.build_batch(np.array([0]), 0).source.tolist()


def test_source_labels_have_positions_and_are_counted(store_of: StoreOf) -> None:
    def answers(store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        ids = store.source(index)
        return BatchRow(ids, np.where(ids % 2, ids, 0), token_type_ids=ids % 3)

    rows = RowFormat(build_row=answers, labels_source=True)
    batch = Batches(store_of([[5, 6, 7], [9]]), 200, 0, rows=rows).build_batch(np.array([0, 1]), 0)
    assert batch.target.shape == (2, 0)
    assert batch.label_positions is not None
    assert batch.label_positions.tolist() == [0, 2, 3]  # places in the two rows of three
    assert batch.labels.tolist() == [5, 7, 9]
    assert batch.target_tokens == 3
    assert batch.padding_ratio == pytest.approx(2 / 6)
    assert batch.token_type_ids is not None
    assert batch.token_type_ids.tolist() == [[2, 0, 1], [0, 0, 0]]


def test_a_pair_longer_than_the_token_budget_is_rejected(store_of: StoreOf) -> None:
    with pytest.raises(UserError, match="has 12 tokens with BOS and EOS, but a batch may have at most 11 tokens"):
        Batches(of_lengths(store_of, [(3, 11)]), max_tokens=11, seed=0)
    with pytest.raises(UserError, match="must be at least 1"):
        Batches(of_lengths(store_of, [(3, 3)]), max_tokens=11, seed=0, window=0)


@pytest.mark.parametrize("position", [DataPosition(0, 1, 0), DataPosition(0, 0, 5)])
def test_a_position_of_other_data_is_rejected(store_of: StoreOf, position: DataPosition) -> None:
    batches = Batches(of_lengths(store_of, [(1, 1)] * 6), max_tokens=6, seed=0)
    with pytest.raises(UserError, match="the training data has no batch at DataPosition"):
        next(batches.iterate_from(position))


def test_prefetched_batches_have_the_position_of_the_current_batch(store_of: StoreOf) -> None:
    store = many(store_of)
    plain = [after for _, after in islice(Batches(store, 50, 3).iterate_from(), 20)]
    ahead = prefetch(Batches(store, 50, 3).iterate_from())
    assert [after for _, after in islice(ahead, 20)] == plain
    ahead.close()


@given(st.lists(st.integers(0, 30)), st.integers(1, 50))
def test_batches_by_length_contain_every_sentence_once(lengths: list[int], tokens: int) -> None:
    batches = batch_by_length(lengths, tokens)
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens
    flat = [lengths[i] for batch in batches for i in batch]
    assert flat == sorted(lengths, reverse=True)


def test_data_is_imported_without_torch() -> None:
    code = "import sys, dragoman.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
