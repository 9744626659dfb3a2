"""Packed batches: every pair once an epoch, one shape for all, and in them what padded batches hold."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch, Batches, BatchRow, RowFormat, TokenStore
from dragoman.data.batch_arrays import PACKED_ROW_MULTIPLE, pad_rows
from dragoman.parts.mixer import SequenceLayout

StoreOf = Callable[..., TokenStore]
LAW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=60)


def of_lengths(store_of: StoreOf, lengths: list[tuple[int, int]]) -> TokenStore:
    """Row i is made of its own number, so that a batch can be checked without the store."""
    return store_of(*([[10 + i] * pair[side] for i, pair in enumerate(lengths)] for side in (0, 1)), vocabulary=1000)


def many(store_of: StoreOf, pairs: int = 2000, most: int = 12) -> TokenStore:
    random = np.random.default_rng(0)
    return of_lengths(store_of, random.integers(1, most, (pairs, 2)).tolist())


def source_alone(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return source, 0 * target


def packing(store: TokenStore, tokens: int = 256, **settings: object) -> Batches:
    return Batches(store, tokens, **({"seed": 1, "packed": True} | settings))  # type: ignore[arg-type]


def sequences(row: Tensor, lengths: Tensor, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """The sequences of a packed row, and the pieces of what is left of it; those of no length left out."""
    parts = [part.tolist() for part in row[0].split(lengths.tolist())]
    return parts[:count], [part for part in parts[count:] if part]


def shape(batch: Batch) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in batch.tensors().items()}


@given(LENGTHS, st.integers(11, 300), st.integers(1, 70), st.integers(0, 2**70), st.booleans())
@LAW
def test_an_epoch_contains_every_pair_once_in_one_shape(store_of, lengths, tokens, window, seed, shuffle) -> None:
    store = of_lengths(store_of, lengths)
    batches = packing(store, tokens, seed=seed, window=window, shuffle=shuffle)
    padded = Batches(store, 10**6, seed=0)
    shapes, seen = set(), []
    for batch in batches.iterate_epoch(0):
        shapes.add((tuple(shape(batch).items()), batch.max_lengths))
        alone = padded.build_batch(batch.indices, 0)
        for name, blank in (("source", 0), ("target", 0)):
            row, row_lengths = getattr(batch, name), getattr(batch, f"{name}_lengths")
            assert row.shape[1] == int(row_lengths.sum())
            assert row.shape[1] % PACKED_ROW_MULTIPLE == 0
            own, rest = sequences(row, row_lengths, len(batch))
            expected = zip(getattr(alone, name).tolist(), getattr(alone, f"{name}_lengths").tolist())
            assert own == [ids[:length] for ids, length in expected]
            assert {token for piece in rest for token in piece} == {blank}
        own, rest = sequences(batch.labels, batch.target_lengths, len(batch))
        assert own == [[i for i in ids if i != IGNORE_INDEX] for ids in alone.labels.tolist()]
        assert {token for piece in rest for token in piece} == {IGNORE_INDEX}
        assert batch.target_tokens == alone.target_tokens == int((batch.labels != IGNORE_INDEX).sum())
        assert batch.source_tokens == alone.source_tokens
        places = batch.source.numel() + batch.target.numel()
        assert batch.padding_ratio == pytest.approx(1 - (alone.source_tokens + alone.target_tokens) / places)
        seen += batch.indices.tolist()
    assert len(shapes) == 1
    assert sorted(seen) == list(range(len(lengths)))


def test_the_layout_of_a_packed_row_restarts_at_each_sequence(store_of: StoreOf) -> None:
    batches = packing(many(store_of), tokens=500)
    batch = next(batches.iterate_epoch(0))
    assert batch.max_lengths is not None
    for row, lengths, longest in (
        (batch.source, batch.source_lengths, batch.max_lengths[0]),
        (batch.target, batch.target_lengths, batch.max_lengths[1]),
    ):
        layout = SequenceLayout.packed_row(row.shape[1], lengths, longest)
        assert layout.cu_seqlens is not None
        assert layout.segment_ids is not None
        numbers = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        assert layout.segment_ids[0].tolist() == numbers.tolist()
        for number, length in enumerate(lengths.tolist()):
            start = int(lengths[:number].sum())
            assert int(layout.cu_seqlens[number]) == start
            assert layout.positions[0, start : start + length].tolist() == list(range(length))
        assert int(lengths.max()) <= longest


def test_batches_are_about_equally_full(store_of: StoreOf) -> None:
    """Cut where equal shares end, two batches of a window differ by two sequences at most on the side that decides."""
    store = many(store_of, 5000)
    batches = packing(store, tokens=600)
    for window in range(batches.windows):
        plan = batches.plan_window(0, window)
        assert len(plan) > 20
        sides = [[int((side.lengths[indices] + 1).sum()) for indices in plan] for side in store.columns]
        assert min(max(tokens) - min(tokens) for tokens in sides) <= 2 * 12


def test_long_rows_have_little_padding(store_of: StoreOf) -> None:
    batches = packing(many(store_of, 8000), tokens=8192)
    assert np.mean([batch.padding_ratio for batch in batches.iterate_epoch(0)]) < 0.1


def test_packed_batches_keep_the_order_of_the_epoch(store_of: StoreOf) -> None:
    batches = packing(many(store_of), tokens=300, window=500)
    flat = [index for window in range(batches.windows) for batch in batches.plan_window(2, window) for index in batch]
    assert flat == batches.order.pair_indices(2, 0, 2000).tolist()


@given(LENGTHS, st.integers(11, 60), st.integers(1, 70), st.integers(0, 20))
@LAW
def test_resuming_yields_exactly_the_remaining_batches(store_of, lengths, tokens, window, stop) -> None:
    store = of_lengths(store_of, lengths)
    whole = list(islice(packing(store, tokens, window=window).iterate_from(), stop + 20))
    here = whole[stop - 1][1] if stop else None
    rest = list(islice(packing(store, tokens, window=window).iterate_from(here), 20))
    assert [after for _, after in rest] == [after for _, after in whole[stop:]]
    for (batch, _), (expected, _) in zip(rest, whole[stop:]):
        for name, tensor in expected.tensors().items():
            assert torch.equal(batch.tensors()[name], tensor)


def test_the_number_of_batches_per_epoch_is_estimated_well(store_of: StoreOf) -> None:
    batches = packing(many(store_of, 8000), tokens=4096)
    count = sum(len(batches.plan_window(0, window)) for window in range(batches.windows))
    assert batches.batches_per_epoch == pytest.approx(count, rel=0.1)


def test_the_longest_pair_fits_whatever_the_budget(store_of: StoreOf) -> None:
    batches = packing(of_lengths(store_of, [(1, 1)] * 50 + [(3, 199)]), tokens=200)
    assert len({tuple(shape(batch).items()) for batch in batches.iterate_epoch(0)}) == 1
    assert sorted(index for batch in batches.iterate_epoch(0) for index in batch.indices.tolist()) == list(range(51))


# ---- rows that an objective makes


def longer(by: int) -> Callable[[TokenStore, int, np.random.Generator], BatchRow]:
    """Rows with so many more tokens than the store has, as from byte pairs merged with dropout."""

    def make(store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        more = np.full(by, 7)
        source, target = store.source(index), store.target(index)
        return BatchRow(np.concatenate((source, more, [3])), np.concatenate(([2], target, more, [3])))

    return make


def test_longer_rows_get_the_next_larger_shape(store_of: StoreOf) -> None:
    store = many(store_of)
    batches = packing(store, 1024, rows=RowFormat(build_row=longer(2)))
    narrow = packing(store, 1024).packed_shape
    assert narrow is not None
    widths: dict[int, set[int]] = {}
    for batch in batches.iterate_epoch(0):
        for row, lengths, width in (
            (batch.source, batch.source_lengths, narrow.row_lengths[0]),
            (batch.target, batch.target_lengths, narrow.row_lengths[1]),
        ):
            own, _ = sequences(row, lengths, len(batch))
            shapes = [width + eighths * width // 8 for eighths in range(8)]
            assert row.shape[1] == int(lengths.sum()) == min(one for one in shapes if one > sum(map(len, own)))
            widths.setdefault(width, set()).add(row.shape[1])
    for width, found in widths.items():
        assert max(found) > width
        assert len(found) <= 4  # few shapes come up


def test_a_sequence_longer_than_all_stored_ones_keeps_its_positions(store_of: StoreOf) -> None:
    batch = next(packing(many(store_of, 300), 512, rows=RowFormat(build_row=longer(9))).iterate_epoch(0))
    assert batch.max_lengths is not None
    for row, lengths, longest in (
        (batch.source, batch.source_lengths, batch.max_lengths[0]),
        (batch.target, batch.target_lengths, batch.max_lengths[1]),
    ):
        layout = SequenceLayout.packed_row(row.shape[1], lengths, longest)
        for place, length in zip((lengths.cumsum(0) - lengths).tolist(), lengths.tolist()):
            assert layout.positions[0, place : place + length].tolist() == list(range(length))


def odd_ones(store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
    """Asks for every odd token."""
    ids = store.source(index)
    return BatchRow(ids, np.where(ids % 2, ids, 0), token_type_ids=ids % 3)


def test_label_positions_of_a_packed_source(store_of: StoreOf) -> None:
    random = np.random.default_rng(0)
    store = store_of([random.integers(4, 200, random.integers(1, 30)).tolist() for _ in range(400)])
    rows = RowFormat(build_row=odd_ones, labels_source=True, packed_lengths=source_alone)
    batches = packing(store, 700, rows=rows)
    shapes = set()
    for batch in batches.iterate_epoch(0):
        shapes.add((batch.source.shape, batch.target.shape))
        ids = np.concatenate([store.source(index) for index in batch.indices.tolist()])
        odd = np.flatnonzero(ids % 2)
        assert batch.source[0, : len(ids)].tolist() == ids.tolist()
        assert batch.token_type_ids is not None
        assert batch.token_type_ids[0, : len(ids)].tolist() == (ids % 3).tolist()
        assert batch.label_positions is not None
        assert batch.label_positions[: len(odd)].tolist() == odd.tolist()
        assert batch.labels[: len(odd)].tolist() == ids[odd].tolist()
        assert set(batch.labels[len(odd) :].tolist()) == {IGNORE_INDEX}
        assert len(batch.labels) == len(batch.label_positions)
        assert batch.target_tokens == len(odd)
        assert batch.target_lengths.tolist() == [0] * len(batch.target_lengths)
        assert batch.padding_ratio == pytest.approx(1 - len(ids) / batch.source.numel())
    (only,) = shapes
    assert only[1] == (1, 0)


# ---- padded batches of few shapes


@given(LENGTHS, st.integers(1, 5), st.integers(1, 6))
@LAW
def test_rows_and_widths_are_multiples(store_of, lengths, rows, columns) -> None:
    store = of_lengths(store_of, lengths)
    plain = Batches(store, 60, seed=1)
    wide = Batches(store, 60, seed=1, pad_to_multiples=(rows, columns))
    for batch, expected in zip(wide.iterate_epoch(0), plain.iterate_epoch(0)):
        count = len(expected)
        assert len(batch) == count
        assert batch.source_tokens == expected.source_tokens
        assert batch.target_tokens == expected.target_tokens
        for name, blank in (("source", 0), ("target", 0), ("labels", IGNORE_INDEX)):
            one, other = getattr(batch, name), getattr(expected, name)
            assert [size % multiple for size, multiple in zip(one.shape, (rows, columns))] == [0, 0]
            assert one.shape[0] - other.shape[0] < rows
            assert one.shape[1] - other.shape[1] < columns
            assert torch.equal(one[:count, : other.shape[1]], other)
            assert (one[count:] == blank).all()
            assert (one[:, other.shape[1] :] == blank).all()
        for name in ("source_lengths", "target_lengths"):
            assert getattr(batch, name).tolist() == getattr(expected, name).tolist() + [1] * (len(batch.source) - count)


def test_filling_rows_have_no_labels(store_of: StoreOf) -> None:
    def labelled(store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        return odd_ones(store, index, random)._replace(sentence_label=index)

    store = store_of([[5, 6, 7], [9]])
    rows = RowFormat(build_row=labelled, labels_source=True)
    plain = Batches(store, 200, 0, rows=rows).build_batch(np.array([0, 1]), 0)
    batch = Batches(store, 200, 0, rows=rows, pad_to_multiples=(4, 8)).build_batch(np.array([0, 1]), 0)
    assert batch.source.shape == (4, 8)
    assert batch.label_positions is not None
    assert batch.label_positions.tolist() == [0, 2, 8]
    assert batch.labels.tolist() == plain.labels.tolist() == [5, 7, 9]
    assert batch.target_tokens == 3
    assert batch.token_type_ids is not None
    assert batch.token_type_ids.shape == (4, 8)
    assert batch.sentence_labels is not None
    assert batch.sentence_labels.tolist() == [0, 1, IGNORE_INDEX, IGNORE_INDEX]


def halved(flat: np.ndarray, lengths: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every token becomes two, or stays, as chance says for its row."""
    twice = np.repeat(keys % np.uint64(2) == 1, lengths)
    return np.repeat(flat, 1 + twice), lengths * (1 + (keys % np.uint64(2)).astype(np.int64))


@pytest.mark.parametrize("packed", [True, False])
def test_resegmented_pairs_differ_between_epochs_and_fit(store_of, packed: bool) -> None:
    store = many(store_of, 600)
    longest = max(int(store.columns[0].lengths[i]) for i in range(600))
    settings: dict = {"rows": RowFormat(subword_samplers=(halved, None)), "packed": packed}
    batches, again = packing(store, 256, **settings), packing(store, 256, **settings)
    if packed:
        # lengths from 1 to 11 are alike frequent, and those up to 5 are doubled every other time: 1 + ½ · 15 / 66
        assert batches.length_growth[0] == pytest.approx(1.114, abs=0.03)
        assert batches.length_growth[1] == 1.0
    seen: list[dict[int, int]] = []
    for epoch in (0, 1):
        lengths = {}
        for batch, same in zip(batches.iterate_epoch(epoch), again.iterate_epoch(epoch)):
            assert shape(batch) == shape(same)
            assert batch.source.equal(same.source)
            if packed:
                assert shape(batch)["source"] == (1, batches.packed_shape.row_lengths[0])  # type: ignore[union-attr]
            else:
                assert batch.source.numel() <= 256
            lengths |= dict(zip(batch.indices.tolist(), batch.source_lengths.tolist()))
        assert len(lengths) == 600
        for index, length in lengths.items():
            usual = int(store.columns[0].lengths[index])
            assert length - 1 in (usual, 2 * usual)
            assert length - 1 <= longest
        seen.append(lengths)
    assert seen[0] != seen[1]


def test_ids_are_padded_on_the_right() -> None:
    ids, lengths = pad_rows([[5, 6, 7], [], [8]], pad=2)
    assert ids.tolist() == [[5, 6, 7], [2, 2, 2], [8, 2, 2]]
    assert lengths.tolist() == [3, 0, 1]
    assert ids.dtype == lengths.dtype == torch.int64


def test_empty_rows() -> None:
    ids, lengths = pad_rows([[], []], pad=2)
    assert ids.shape == (2, 0)
    assert lengths.tolist() == [0, 0]


def test_features_are_padded_with_zeros() -> None:
    found, lengths = pad_rows([np.ones((2, 3), np.float32), np.full((1, 3), 2.0, np.float32)], pad=9)
    assert found.tolist() == [[[1.0] * 3, [1.0] * 3], [[2.0] * 3, [0.0] * 3]]
    assert lengths.tolist() == [2, 1]
    assert found.dtype == torch.float32
