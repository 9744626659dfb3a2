"""Batches with a token budget, in an order that depends only on seed and epoch and can be resumed at any position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.data.batch import Batch, RowBuilder, SubwordSamplers
from dragoman.data.batch_arrays import PACKED_ROW_MULTIPLE, BatchArrays, PackedShape, PairTokens
from dragoman.data.epoch_order import EpochOrder, random_keys
from dragoman.data.ragged_array import Indices, RaggedArray, round_up
from dragoman.data.token_store import TokenStore
from dragoman.errors import UserError
from dragoman.text.framing import ENCODER_DECODER_FRAMING, Framing

Lengths = NDArray[Any]

BATCH_FILL = 0.95  # typical share of a batch's token budget that holds tokens; the rest is padding
_SHUFFLE_STREAM, _NOISE_STREAM = 1, 2  # random streams with different purposes are independent


@dataclass(frozen=True)
class DataPosition:
    """The position of the next batch; it is saved in checkpoints."""

    epoch: int = 0
    window: int = 0  # of pairs that are sorted by length together, within the epoch
    batch: int = 0  # within the window


def longer_side(source: Lengths, target: Lengths) -> Lengths:
    """Return for each pair the length of its longer side: source and EOS, or BOS and target."""
    return np.maximum(source + 1, target + 1)


def both_sides(source: Lengths, target: Lengths) -> tuple[Lengths, Lengths]:
    """Return the lengths of both sides of each pair: source and EOS, and BOS and target."""
    return source + 1, target + 1


@dataclass(frozen=True)
class RowFormat:
    """How an objective turns pairs of a store into rows of a batch."""

    framing: Framing = ENCODER_DECODER_FRAMING  # special tokens around pairs
    build_row: RowBuilder | None = None  # builds a row, anew in every epoch; None for pairs with their framing
    labels_source: bool = False  # whether the labels are for tokens of the source instead of a target
    #: estimates the lengths of padded rows from the lengths of source and target in the store
    row_length: Callable[[Lengths, Lengths], Lengths] = longer_side
    #: estimates the lengths that rows take in the two packed rows
    packed_lengths: Callable[[Lengths, Lengths], tuple[Lengths, Lengths]] = both_sides
    #: number of epochs whose rows (such as their masks) differ; then they repeat. None: never.
    distinct_epochs: int | None = None
    doubled: bool = False  # whether every pair is in its batch twice (as R-Drop needs it)
    #: segment source and target anew in every epoch (subword regularization)
    subword_samplers: SubwordSamplers = (None, None)
    model_framing: Framing | None = None  # that of a multilingual model, which has one for the languages of each corpus

    def framings(self, store: TokenStore) -> list[Framing]:
        """Return the special tokens around pairs (framing) of each corpus of a store; one element if all have the same.

        Only corpora in different languages of a multilingual model differ, in their language codes. The framing of the
        model (`model_framing`) has the codes of all its languages; None stands for the default language of the model.
        """
        languages = [(corpus.source_language or None, corpus.target_language or None) for corpus in store.corpora]
        model_framing = self.model_framing
        # not a multilingual model, or no corpus has a language of its own
        if model_framing is None or model_framing.languages is None or set(languages) == {(None, None)}:
            return [self.framing]
        framings = [model_framing.for_languages(source=source, target=target) for source, target in languages]
        return framings if len(set(languages)) > 1 else framings[:1]

    def for_validation(self) -> RowFormat:
        """Return the format for validation: each pair once per batch, without subword regularization.

        `distinct_epochs`, the number of epochs with different noise, is unset, since validation is always epoch 0.
        """
        return replace(self, distinct_epochs=None, doubled=False, subword_samplers=(None, None))


class EpochRows:
    """Reads pairs of a store in the segmentation of an epoch: subword regularization segments them anew in each.

    A pair keeps its stored tokens if it became longer than the longest stored one, on one side or as a row.
    """

    def __init__(self, store: TokenStore, rows: RowFormat, seed: int) -> None:
        """Measure the longest source, target, pair and row of the store, which pairs must not exceed in any epoch.

        A row is a pair with its special tokens, as a batch has it. `rows` has the functions that segment pairs anew in
        each epoch (subword regularization); they depend on `seed` and epoch.
        """
        self.store, self.rows, self.seed = store, rows, seed
        self.resegments = rows.subword_samplers != (None, None)  # whether source or target has subword regularization
        counts = store.length_counts()
        self.max_lengths = int(counts.source.max()), int(counts.target.max())
        self.max_pair_length = int((counts.source + counts.target).max())
        self.max_row_length = int(rows.row_length(counts.source, counts.target).max())

    def stored_lengths(self, pairs: Indices) -> list[Lengths]:
        """Return the lengths of source and target of the pairs with these store indices, as they are stored."""
        return [np.asarray(column.lengths[pairs]) for column in self.store.columns]

    def lengths(self, pairs: Indices, epoch: int) -> list[Lengths]:
        """Return the lengths of source and target as subword regularization segments them in an epoch.

        `pairs` are store indices. A pair that would exceed the longest stored one keeps its stored tokens, and so does
        a source or target without subword regularization (None).
        """
        resegmented, is_short_enough = self._resegment(pairs, epoch)
        columns = zip(self.stored_lengths(pairs), resegmented)  # source, target
        return [stored if new is None else np.where(is_short_enough, new.lengths, stored) for stored, new in columns]

    def read(self, pairs: Indices, epoch: int) -> list[RaggedArray]:
        """Return the tokens of source and target as subword regularization segments them in an epoch.

        `pairs` are store indices. A pair that would exceed the longest stored one keeps its stored tokens, and so does
        a source or target without subword regularization (None).
        """
        resegmented, is_short_enough = self._resegment(pairs, epoch)
        columns = zip((column.read(pairs) for column in self.store.columns), resegmented)  # source, target
        return [stored if new is None else new.where(is_short_enough, other=stored) for stored, new in columns]

    def store_with_rows(self, pairs: Indices, epoch: int) -> TokenStore:
        """Return a view of the store in which these pairs (store indices) are segmented by subword regularization.

        It is for reading pairs one by one. Other pairs keep their stored tokens, so that an objective that also reads
        pairs of other rows, as for the prediction of the next sentence, cannot have subword regularization.
        """
        if not self.resegments:  # no subword regularization: the stored tokens
            return self.store
        pairs = np.unique(pairs)  # `with_rows` needs sorted indices
        changed = copy(self.store)
        source, target = (
            column.with_rows(pairs, rows) for column, rows in zip(self.store.columns, self.read(pairs, epoch))
        )
        changed.columns = source, target
        return changed

    def _resegment(self, pairs: Indices, epoch: int) -> tuple[list[RaggedArray | None], NDArray[np.bool_]]:
        """Return source and target as subword regularization segments them in an epoch, and which pairs can use it.

        Those can that are not longer than the longest stored source, target, pair and row, for which batches have room.
        `pairs` are store indices. A source or target without subword regularization is None. The random keys depend on
        seed, epoch, side (0: source, 1: target) and pair.
        """
        resegmented: list[RaggedArray | None] = [None, None]
        if not self.resegments:
            return resegmented, np.ones(len(pairs), bool)
        for side, (column, segment) in enumerate(zip(self.store.columns, self.rows.subword_samplers)):
            if segment is not None:
                stored = column.read(pairs)
                epoch_key = int(random_keys(self.seed, purpose=_NOISE_STREAM, numbers=[epoch])[0])
                keys = random_keys(epoch_key, purpose=side, numbers=pairs)
                resegmented[side] = RaggedArray(*segment(stored.values, stored.lengths, keys))
        source, target = (
            old if new is None else new.lengths for old, new in zip(self.stored_lengths(pairs), resegmented)
        )
        is_short_enough = (source <= self.max_lengths[0]) & (target <= self.max_lengths[1])
        is_short_enough &= source + target <= self.max_pair_length  # a decoder-only model reads both as one sequence
        return resegmented, is_short_enough & (self.rows.row_length(source, target) <= self.max_row_length)


class Batches:
    """The batches of a store, epoch by epoch.

    An epoch is a permutation of the pairs, divided into windows. The pairs of a window are sorted by row length, then
    by the difference between the sides (ties in random order), divided into batches with rows × longest row ≤
    `max_tokens`, and these are shuffled.

    Packed batches have one shape and contain successive pairs of the permutation, without sorting.
    """

    def __init__(
        self,
        store: TokenStore,
        max_tokens: int,
        seed: int,
        window: int | None = None,
        shuffle: bool = True,
        rows: RowFormat = RowFormat(),  # noqa: B008 (immutable)
        packed: bool = False,
        pad_to_multiples: tuple[int, int] = (1, 1),
    ) -> None:
        """Check that the longest pair, with special tokens, fits into a batch; choose the shape of packed batches.

        Args:
            store: the tokenized pairs.
            max_tokens: token budget of a batch, with padding.
            seed: determines the order of pairs and batches, and the noise.
            window: pairs that are sorted together; by default about a hundred batches: little padding, some variety.
            shuffle: permute pairs and batches; otherwise they have the order of the store.
            rows: how the objective builds rows of a batch from pairs; `rows.doubled`: every pair twice (R-Drop).
            packed: pack all pairs of a batch into one row for the source, and one for the target.
            pad_to_multiples: number and length of padded rows are multiples of these, so that shapes repeat.
        """
        counts = [corpus.pairs for corpus in store.corpora]
        draws = [corpus.draws for corpus in store.corpora]  # pairs that an epoch has of each corpus
        self.order = EpochOrder(counts, seed, shuffle, draws)
        if window is None:
            window = 100 * max_tokens * len(store) // max(1, store.tokens)  # pairs of about 100 batches
            window = max(1000, min(2**16, window))
        if window < 1:
            raise UserError(
                "the argument window, the number of pairs that are sorted by length together, must be at least 1, got "
                f"{window}: raise it"
            )
        self.epoch_rows = EpochRows(store, rows, seed)
        max_row_length = self.epoch_rows.max_row_length
        if max_row_length > max_tokens:
            raise UserError(
                f"the longest row of a batch has {max_row_length:,} tokens with BOS and EOS, but a batch may have at "
                f"most {max_tokens:,} tokens: raise training.batch_tokens or lower data.max_length"
            )
        self.store, self.max_tokens, self.seed, self.window, self.shuffle = store, max_tokens, seed, window, shuffle
        self.rows, self.packed, self.pad_to_multiples = rows, packed, pad_to_multiples
        self.budget = max_tokens // 2 if rows.doubled else max_tokens  # for the first copies of pairs
        self.windows = -(-len(self.order) // window)  # per epoch, rounded up
        self.length_growth = self._estimate_growth()  # of source and target rows, by subword regularization
        self.packed_shape = self._packed_shape() if packed else None
        self.framings = rows.framings(store)  # of each corpus, or one for all

    @cached_property
    def batches_per_epoch(self) -> int:
        """Number of batches of an epoch, estimated from the store's histogram of lengths."""
        source, target, count = self.store.length_counts()  # lengths, and how many pairs have them
        repeats = len(self.order) / max(1, len(self.store))  # 1, unless corpora are sampled by weight
        if self.packed_shape is None:
            # for tokens as stored: a batch also holds the second copies of doubled pairs (as R-Drop needs them), and
            # the tokens that subword regularization adds (`length_growth`)
            budget = (self.max_tokens / 2 if self.rows.doubled else self.max_tokens) / max(self.length_growth)
            tokens = repeats * (self.rows.row_length(source, target) * count).sum()
            return max(1, round(tokens / (BATCH_FILL * budget)))  # the rest of the budget is padding
        estimates = [1]
        columns = zip(self.rows.packed_lengths(source, target), self.length_growth, self.packed_shape.row_lengths)
        for lengths, growth, row_length in columns:  # source, then target; a packed row is missing if its length is 0
            if row_length:
                estimates.append(round(repeats * growth * (lengths * count).sum() / row_length))
        return max(estimates)

    def iterate_from(self, position: DataPosition | None = None) -> Iterator[tuple[Batch, DataPosition]]:
        """Yield batches from a position on, without end, each with the position after it; None: from the beginning.

        A position that does not exist, because it belongs to other data or settings, is a UserError.
        """
        for indices, epoch, next_position in self.iterate_indices(position):
            yield self.build_batch(indices, epoch), next_position

    def iterate_indices(self, position: DataPosition | None = None) -> Iterator[tuple[Indices, int, DataPosition]]:
        """Yield (store indices of the pairs, epoch, position after it) for every batch from a position on, without end.

        A position is an epoch, a window of pairs that are sorted by length together, and a batch of that window; None
        is the first one. One that does not exist is a UserError: it belongs to other data or settings.
        """
        position = position or DataPosition()
        while True:
            batches = self.plan_window(position.epoch, position.window) if position.window < self.windows else []
            if position.batch >= len(batches):
                raise UserError(
                    f"the training data has no batch at {position}, where training would continue after the "
                    "checkpoint: resume with the corpus, seed and training.batch_tokens with which training "
                    "started"
                )
            next_window = DataPosition(position.epoch, position.window + 1)
            if next_window.window == self.windows:  # the number of windows of an epoch
                next_window = DataPosition(position.epoch + 1)
            for number, indices in enumerate(batches[position.batch :], position.batch + 1):
                next_position = next_window if number == len(batches) else replace(position, batch=number)
                yield indices, position.epoch, next_position
            position = next_window

    def iterate_epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        for window in range(self.windows):
            for indices in self.plan_window(epoch, window):
                yield self.build_batch(indices, epoch)

    def plan_window(self, epoch: int, window: int) -> list[Indices]:
        """Return the pair indices of every batch of a window, which is a number of consecutive pairs of an epoch.

        Its pairs are sorted by length, split into batches, and these are shuffled. Packed batches are filled with pairs
        in the order of the epoch instead. The store may copy the pairs into memory.
        """
        # self.window: number of pairs of a window
        pairs = self.order.pair_indices(epoch, start=window * self.window, stop=(window + 1) * self.window)
        self.store.preload(pairs)  # into memory, as all of them are read soon
        source, target = self.epoch_rows.lengths(pairs, epoch)
        if self.packed_shape is not None:
            return _fill_packed(pairs, self.rows.packed_lengths(source, target), self.packed_shape)
        row_lengths, difference = self.rows.row_length(source, target), source - target
        # Sort equal row lengths by the difference between the sides, ascending for odd and descending for even lengths:
        # then pairs are similar, too, where one row length ends and the next begins.
        alternating = np.where(row_lengths % 2, difference, -difference)
        by_length = np.lexsort((alternating, row_lengths))  # stable: ties keep the random order of the permutation
        batches = _split_by_tokens(pairs[by_length], row_lengths[by_length], self.budget)
        if not self.shuffle:
            return batches
        # Sort raw bits: numpy does not guarantee the stream of Generator.permutation between versions.
        bits = self._random(_SHUFFLE_STREAM, epoch, window).random_raw(len(batches))
        return [batches[index] for index in np.argsort(bits, kind="stable")]

    def build_batch(self, indices: Indices, epoch: int) -> Batch:
        """Build the tensors of the pairs with these store indices; noise and segmentation depend on the epoch."""
        rows = self.rows
        if rows.build_row is None:  # the rows are the pairs with their special tokens
            special = PairTokens.of(self.framings, self.store.corpus_numbers(indices))
            source, target = self.epoch_rows.read(indices, epoch)
            arrays = BatchArrays.from_pairs(special, source, target)
        else:
            # the noise repeats after `distinct_epochs` epochs
            noise_epoch = epoch if rows.distinct_epochs is None else epoch % rows.distinct_epochs
            store = self.epoch_rows.store_with_rows(indices, epoch)
            built_rows = [
                rows.build_row(store, index, np.random.Generator(self._random(_NOISE_STREAM, noise_epoch, index)))
                for index in indices.tolist()
            ]
            arrays = BatchArrays.from_rows(built_rows, rows.labels_source, rows.framing.pad)
        if self.packed_shape is None:
            batch = arrays.to_padded_batch(indices, rows.framing.pad, self.pad_to_multiples)
        else:
            batch = arrays.to_packed_batch(indices, rows.framing.pad, self.packed_shape)
        return batch.duplicate_rows() if rows.doubled else batch  # doubled: with every pair twice, as in R-Drop

    def _random(self, stream: int, epoch: int, number: int) -> np.random.Philox:
        """Return an independent random stream for each purpose (`stream`), epoch and number (Salmon et al. 2011).

        `number` is that of a window of pairs, or of a pair. The first word of the counter counts the random numbers.
        """
        return np.random.Philox(key=[self.seed % 2**64, stream], counter=[0, number, epoch, 0])

    def _estimate_growth(self) -> list[float]:
        """Estimate from 1,000 pairs by which factors subword regularization lengthens the rows of source and target.

        They are 1 without it.
        """
        if not self.epoch_rows.resegments:
            return [1.0, 1.0]
        pairs = self.order.pair_indices(epoch=0, start=0, stop=1000)

        def row_lengths(source: Lengths, target: Lengths) -> tuple[Lengths, Lengths]:
            """Return the lengths of the rows of source and target, which are equal in padded batches."""
            if self.packed:
                return self.rows.packed_lengths(source, target)
            length = self.rows.row_length(source, target)
            return length, length

        stored = row_lengths(*self.epoch_rows.stored_lengths(pairs))
        resegmented = row_lengths(*self.epoch_rows.lengths(pairs, epoch=0))
        return [float(new.sum() / old.sum()) if old.any() else 1.0 for old, new in zip(stored, resegmented)]

    def _packed_shape(self) -> PackedShape:
        """Choose the lengths of the packed rows of source and target, and how many sequences they hold.

        The side with more tokens in the store gets the token budget, the other one a proportional length. A side
        without tokens has no row (length 0). `length_growth` are factors by which subword regularization adds tokens.
        """
        source, target, count = self.store.length_counts()  # lengths, and how many pairs have them
        columns = self.rows.packed_lengths(source, target)
        # tokens of source and target in the whole store
        totals = [growth * float((lengths * count).sum()) for lengths, growth in zip(columns, self.length_growth)]
        max_lengths = tuple(max(1, int(lengths.max())) for lengths in columns)
        row_lengths = tuple(
            # 1 % more than the budget, since pairs are not split; the last position is padding
            round_up(max(1.01 * self.budget * total / max(totals), longest + 1), PACKED_ROW_MULTIPLE) if total else 0
            for total, longest in zip(totals, max_lengths)
        )
        mean_sequences = int(count.sum()) * self.budget / max(totals)  # per batch
        max_sequences = round_up(1.25 * mean_sequences, 64)  # 25 % more, for batches of short pairs
        return PackedShape(row_lengths, max_sequences, max_lengths)


def batch_by_length(lengths: ArrayLike, max_tokens: int) -> list[Indices]:
    """Group sentences of similar length into batches, longest first, with rows × longest ≤ `max_tokens`.

    A sentence that is longer is a batch of its own. Returns the indices of the sentences of each batch.
    """
    row_lengths = np.asarray(lengths)
    order = np.argsort(-row_lengths, kind="stable")
    return _split_by_tokens(order, row_lengths[order], max_tokens)


def _split_by_tokens(indices: Indices, row_lengths: NDArray[np.int64], max_tokens: int) -> list[Indices]:
    """Split a sequence greedily into batches with rows × longest row ≤ `max_tokens`, but at least one row.

    `row_lengths[i]` is the length of the row of `indices[i]`.
    """
    batches, start = [], 0
    while start < len(indices):
        max_rows = max(1, max_tokens // max(1, int(row_lengths[start])))  # the longest row is not below the first
        candidates = row_lengths[start : start + max_rows]
        # rows × longest row of the first 1, 2, … candidates
        tokens = np.maximum.accumulate(candidates) * np.arange(1, len(candidates) + 1)
        end = start + max(1, int(np.searchsorted(tokens, max_tokens, side="right")))
        batches.append(indices[start:end])
        start = end
    return batches


def _fill_packed(indices: Indices, lengths: tuple[Lengths, Lengths], shape: PackedShape) -> list[Indices]:
    """Split a sequence of pairs into packed batches of about equal size; `lengths` are those of source and target.

    Starting with the smallest possible number of batches, the pairs are cut evenly by the tokens of the fuller side,
    which needs more rows; while a batch exceeds a row of `shape` or its number of sequences, one more batch is tried.
    """
    # tokens of the source, and of the target, in the first 0, 1, … pairs
    tokens_before = [np.concatenate(([0], np.cumsum(column, dtype=np.int64))) for column in lengths]
    capacities = [max(1, row - 1) for row in shape.row_lengths]  # the last position is always padding
    rows_needed = [before[-1] / capacity for before, capacity in zip(tokens_before, capacities)]
    tokens_of_fuller = tokens_before[int(np.argmax(rows_needed))]
    # what a batch may hold at most: tokens of the source and of the target, and sequences
    limits = [*zip(tokens_before, capacities), (np.arange(len(indices) + 1), shape.max_sequences)]
    num_batches = max(1, *(-(-int(before[-1]) // capacity) for before, capacity in limits))
    while True:
        cuts = tokens_of_fuller[-1] * np.arange(1, num_batches) / num_batches  # tokens before each boundary
        boundaries = np.concatenate(([0], np.searchsorted(tokens_of_fuller, cuts), [len(indices)]))
        one_pair_each = (np.diff(boundaries) <= 1).all()  # a pair that does not fit gets a longer row
        if one_pair_each or all((np.diff(before[boundaries]) <= capacity).all() for before, capacity in limits):
            return [indices[start:end] for start, end in pairwise(boundaries) if end > start]
        num_batches += 1
