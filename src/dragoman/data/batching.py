"""Batches by token budget, in an order that follows from seed and epoch alone and can be entered at any position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.data.batch import Batch, BatchArrays, Indices, RaggedArray, RowBuilder, SubwordSamplers, read_rows
from dragoman.data.epoch_order import EpochOrder, random_keys
from dragoman.data.token_store import TokenStore
from dragoman.errors import UserError
from dragoman.text.framing import ENCODER_DECODER_FRAMING, Framing

RowLengths = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
PackedLengths = Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]

# What a random stream is for: streams of different purposes never meet.
SHUFFLE, NOISE = 1, 2
PACKED_ROW_MULTIPLE = (
    128  # packed rows are so many tokens wide, or a multiple of it: what attention kernels cut them into
)


@dataclass(frozen=True)
class DataPosition:
    """A place in the data: the next batch to be made."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


@dataclass(frozen=True)
class PackedShape:
    """The shape of packed batches: the widths of their two rows, how many sequences they hold, the longest of them."""

    row_lengths: tuple[int, int]
    max_sequences: int
    max_lengths: tuple[int, int]

    @staticmethod
    def for_store(
        store: TokenStore, tokens: int, sizes: PackedLengths, growth: tuple[float, float] = (1.0, 1.0)
    ) -> PackedShape:
        """`tokens` on the larger side, on the other as many as usually come with them, grown so much."""
        source, target, count = store.length_counts()
        sides = sizes(source, target)
        totals = [max(0.0, grown * float((side * count).sum())) for side, grown in zip(sides, growth)]
        largest, pairs = max(totals), int(count.sum())
        longest = (max(1, int(sides[0].max())), max(1, int(sides[1].max())))
        widths = [
            max(_round_up(1.01 * tokens * total / largest), _round_up(most + 1)) if total else 0
            for total, most in zip(totals, longest)
        ]
        return PackedShape((widths[0], widths[1]), _round_up(1.25 * pairs * tokens / largest, 64), longest)


def _round_up(number: float, multiple: int = PACKED_ROW_MULTIPLE) -> int:
    return int(-(-number // multiple) * multiple)


class Batches:
    """The batches of a store, epoch after epoch.

    An epoch is a permutation of the pairs, cut into windows of `window` pairs: as many as fill about a hundred batches
    unless told, so that batches are tight and yet hold sentences of some variety. The pairs of a window are sorted by
    the length of their longer side, then by how much longer it is (chance decides between equals), cut where rows ×
    longest side would exceed `tokens`, and the batches of the window are shuffled.

    Padded, they have rows and widths that are `multiples`, so that the same shapes come up again. Packed, they have one
    shape, whatever is in them (`sizes` says what a pair takes up on either side), and hold what comes next in the
    permutation: nothing is sorted. `twins`: every pair stands in its batch twice.

    `rows` makes each row of a batch from the store, afresh in every epoch (or in every one of `copies` epochs, after
    which the same come again); without it a row is a pair with its framing. `width` estimates from the lengths of its
    two sides in the store how wide a row will be. `segments` segment the two sides anew in every epoch (BPE dropout);
    batches are planned with the lengths that result, and rows are made from them.
    """

    def __init__(
        self,
        store: TokenStore,
        max_tokens: int,
        seed: int,
        window: int | None = None,
        shuffle: bool = True,
        framing: Framing = ENCODER_DECODER_FRAMING,
        build_row: RowBuilder | None = None,
        aligned: bool = False,
        row_length: RowLengths | None = None,
        distinct_epochs: int | None = None,
        packed_lengths: PackedLengths | None = None,
        pad_to_multiples: tuple[int, int] = (1, 1),
        doubled: bool = False,
        subword_samplers: SubwordSamplers = (None, None),
    ) -> None:
        self.order = EpochOrder(store.pairs_per_corpus, seed, shuffle, store.draws_per_corpus)
        if window is None:
            window = max(1000, min(2**16, 100 * max_tokens * len(store) // max(1, store.tokens)))
        if window < 1:
            raise UserError(f"the window of pairs that are sorted together must be at least 1, not {window}")
        self.row_length = row_length or (lambda source, target: np.maximum(source + 1, target + 1))
        known = store.length_counts()
        self.max_lengths = int(known.source.max()), int(known.target.max())  # tokens of a side
        self.max_pair_length = int((known.source + known.target).max())  # tokens of both
        self.max_row_length = int(self.row_length(known.source, known.target).max())  # tokens of a row
        if self.max_row_length > max_tokens:
            raise UserError(
                f"the longest row has {self.max_row_length:,} tokens with start and end, but a batch may hold {max_tokens:,} "
                f"tokens: raise the tokens of a batch or lower the longest sentence that is kept"
            )
        self.store, self.max_tokens, self.seed, self.window, self.shuffle = store, max_tokens, seed, window, shuffle
        self.framing, self.build_row, self.aligned, self.distinct_epochs = framing, build_row, aligned, distinct_epochs
        self.windows = -(-len(self.order) // window)
        self.packed_lengths, self.pad_to_multiples = packed_lengths, pad_to_multiples
        self.doubled, self.subword_samplers = doubled, subword_samplers
        self.length_growth = self._growth()
        self.packed_shape = (
            PackedShape.for_store(store, max_tokens // 2 if doubled else max_tokens, packed_lengths, self.length_growth)
            if packed_lengths
            else None
        )

    @cached_property
    def batches_per_epoch(self) -> int:
        """About how many batches an epoch has."""
        source, target, count = self.store.length_counts()
        drawn = len(self.order) / max(1, len(self.store))
        if self.packed_shape is not None and self.packed_lengths is not None:
            sides = zip(self.packed_lengths(source, target), self.length_growth, self.packed_shape.row_lengths)
            return max(
                1, *(round(drawn * grown * (size * count).sum() / width) for size, grown, width in sides if width)
            )
        tokens = (self.max_tokens / 2 if self.doubled else self.max_tokens) / max(self.length_growth)
        return max(1, round(drawn * (self.row_length(source, target) * count).sum() / (0.95 * tokens)))

    def _growth(self) -> tuple[float, float]:
        """How much longer the two rows of a batch become by resegmentation, estimated from the first pairs."""
        if self.subword_samplers == (None, None):
            return 1.0, 1.0
        pairs = self.order.pair_indices(0, 0, 1000)
        plain = [np.asarray(side.lengths[pairs]) for side in self.store.columns]
        sizes = self.packed_lengths or (lambda source, target: (self.row_length(source, target),) * 2)
        before, after = sizes(plain[0], plain[1]), sizes(*self._lengths(pairs, 0))
        grown = [float(new.sum() / old.sum()) if old.any() else 1.0 for old, new in zip(before, after)]
        return grown[0], grown[1]

    def _read(self, pairs: Indices, epoch: int) -> tuple[RaggedArray, RaggedArray]:
        """Both sides of some pairs in the segmentation of an epoch.

        A pair that would get longer than the longest one of the store, on one side or as a row, keeps its tokens.
        """
        made, fits = self._segmented(pairs, epoch)
        source, target = (
            read_rows(side, pairs) if one is None else one.where(fits, read_rows(side, pairs))
            for side, one in zip(self.store.columns, made)
        )
        return source, target

    def _lengths(self, pairs: Indices, epoch: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The lengths of what `_read` gives."""
        made, fits = self._segmented(pairs, epoch)
        plain = [np.asarray(side.lengths[pairs]) for side in self.store.columns]
        source, target = (old if one is None else np.where(fits, one.lengths, old) for old, one in zip(plain, made))
        return source, target

    def _segmented(self, pairs: Indices, epoch: int) -> tuple[list[RaggedArray | None], NDArray[np.bool_]]:
        """The sides that are segmented anew, and which pairs are short enough to use it."""
        made: list[RaggedArray | None] = [None, None]
        if self.subword_samplers == (None, None):
            return made, np.ones(len(pairs), bool)
        for number, (side, segment) in enumerate(zip(self.store.columns, self.subword_samplers)):
            if segment is not None:
                plain = read_rows(side, pairs)
                keys = random_keys(int(random_keys(self.seed, NOISE, [epoch])[0]), number, pairs)
                made[number] = RaggedArray(*segment(plain.values, plain.lengths, keys))
        source, target = (
            np.asarray(side.lengths[pairs]) if one is None else one.lengths
            for side, one in zip(self.store.columns, made)
        )
        fits = (source <= self.max_lengths[0]) & (target <= self.max_lengths[1])
        fits &= source + target <= self.max_pair_length  # a decoder alone reads both as one sequence
        return made, fits & (self.row_length(source, target) <= self.max_row_length)

    def _resegmented(self, indices: Indices, epoch: int) -> TokenStore:
        """The store with the segmentation of an epoch in some rows."""
        if self.subword_samplers == (None, None):
            return self.store
        numbers = np.unique(indices)
        changed, sides = copy(self.store), zip(self.store.columns, self._read(numbers, epoch))
        source, target = (side.with_rows(numbers, rows.lengths, rows.values) for side, rows in sides)
        changed.columns = source, target
        return changed

    def iterate_from(self, position: DataPosition | None = None) -> Iterator[tuple[Batch, DataPosition]]:
        """The batches from a position on without end, each with the position after it, from where to resume."""
        for indices, epoch, after in self.iterate_indices(position):
            yield self.build_batch(indices, epoch), after

    def iterate_indices(self, position: DataPosition | None = None) -> Iterator[tuple[Indices, int, DataPosition]]:
        """The same before the tensors are made: pair numbers, epoch and the position after them."""
        here = position or DataPosition()
        while True:
            plan = self.plan_window(here.epoch, here.window) if here.window < self.windows else []
            if here.batch >= len(plan):
                raise UserError(
                    f"the data has no {here}: go on with the corpus, seed and tokens a batch that it was saved with"
                )
            for number in range(here.batch, len(plan)):
                after = replace(here, batch=number + 1)
                if number + 1 == len(plan):
                    last = here.window + 1 == self.windows
                    after = DataPosition(here.epoch + 1) if last else DataPosition(here.epoch, here.window + 1)
                yield plan[number], here.epoch, after
            here = after

    def iterate_epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        for window in range(self.windows):
            for indices in self.plan_window(number, window):
                yield self.build_batch(indices, number)

    def plan_window(self, epoch: int, window: int) -> list[Indices]:
        """The pair numbers of every batch of a window, in order."""
        pairs = self.order.pair_indices(epoch, window * self.window, (window + 1) * self.window)
        self.store.preload(pairs)
        source, target = self._lengths(pairs, epoch)
        if self.packed_shape is not None and self.packed_lengths is not None:
            return _fill(pairs, self.packed_lengths(source, target), self.packed_shape)
        widths, lean = self.row_length(source, target), source - target
        snake = np.where(widths % 2, lean, -lean)  # there and back again: neighbours stay alike where widths change
        by_length = np.lexsort((snake, widths))  # stable: the permutation has already settled ties by chance
        batches = _cut(pairs[by_length], widths[by_length], self.max_tokens // 2 if self.doubled else self.max_tokens)
        if not self.shuffle:
            return batches
        return [batches[number] for number in self._shuffled(len(batches), SHUFFLE, epoch, window)]

    def build_batch(self, indices: Indices, epoch: int) -> Batch:
        """The tensors of some pairs; the epoch decides the noise."""
        if self.build_row is None:
            contents = BatchArrays.from_pairs(*self._read(indices, epoch), self.framing)
        else:
            number = epoch if self.distinct_epochs is None else epoch % self.distinct_epochs
            streams = (np.random.Generator(self._random(NOISE, number, index)) for index in indices.tolist())
            store = self._resegmented(indices, epoch)
            made = [self.build_row(store, index, stream) for index, stream in zip(indices.tolist(), streams)]
            contents = BatchArrays.from_rows(made, self.aligned, self.framing.pad)
        if self.packed_shape is None:
            batch = contents.to_padded_batch(indices, self.framing, self.pad_to_multiples)
        else:
            shape = self.packed_shape
            batch = contents.to_packed_batch(
                indices, self.framing, shape.row_lengths, shape.max_sequences, shape.max_lengths
            )
        return batch.duplicate_rows() if self.doubled else batch

    def _shuffled(self, count: int, purpose: int, epoch: int, number: int = 0) -> Indices:
        # Sorted raw bits and not Generator.permutation, whose stream another version of numpy may change.
        return np.argsort(self._random(purpose, epoch, number).random_raw(count), kind="stable")

    def _random(self, purpose: int, epoch: int, number: int = 0) -> np.random.Philox:
        """A random stream of its own for each purpose, epoch and number (Philox: Salmon et al. 2011)."""
        return np.random.Philox(key=[self.seed % 2**64, purpose], counter=[0, number, epoch, 0])


def batch_by_length(lengths: ArrayLike, max_tokens: int) -> list[Indices]:
    """Numbers of sentences in batches of like length, the longest first: rows × longest ≤ tokens, or one row alone.

    Every number stands in exactly one batch, so that results put back under their numbers have the old order.
    """
    widths = np.asarray(lengths)
    order = np.argsort(-widths, kind="stable")
    return _cut(order, widths[order], max_tokens)


def _cut(indices: Indices, widths: NDArray[Any], tokens: int) -> list[Indices]:
    """Cuts a sequence greedily into runs with rows × widest ≤ tokens, but at least one row."""
    batches, start = [], 0
    while start < len(indices):
        ahead = widths[start : start + max(1, tokens // max(1, int(widths[start])))]
        area = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)  # grows with every row
        end = start + max(1, int(np.searchsorted(area, tokens, side="right")))
        batches.append(indices[start:end])
        start = end
    return batches


def _fill(indices: Indices, sizes: tuple[NDArray[Any], NDArray[Any]], packing: PackedShape) -> list[Indices]:
    """Cuts a sequence into runs that fill the rows of a packed batch, all of them alike full."""
    sums = [np.concatenate(([0], np.cumsum(side, dtype=np.int64))) for side in sizes]
    rooms = [max(1, width - 1) for width in packing.row_lengths]  # one place is left over
    fullest = int(np.argmax([total[-1] / room for total, room in zip(sums, rooms)]))
    limits = [*zip(sums, rooms), (np.arange(len(indices) + 1), packing.max_sequences)]
    count = max(1, *(-(-int(total[-1]) // room) for total, room in limits))
    while True:
        share = sums[fullest][-1] * np.arange(1, count) / count
        ends = np.concatenate(([0], np.searchsorted(sums[fullest], share), [len(indices)]))
        single = (np.diff(ends) <= 1).all()  # what does not fit even so is given more room
        if single or all((np.diff(total[ends]) <= room).all() for total, room in limits):
            return [indices[start:end] for start, end in pairwise(ends) if end > start]
        count += 1
