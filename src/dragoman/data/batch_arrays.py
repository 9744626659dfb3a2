"""Construction of batches from rows of different lengths: framing, padding, packing and halving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.data.batch import IGNORE_INDEX, Batch, BatchRow
from dragoman.data.ragged_array import Ids, Indices, RaggedArray, round_up
from dragoman.text.framing import Framing

if TYPE_CHECKING:
    from torch import Tensor

PACKED_ROW_MULTIPLE = 128  # tokens: the tile size of attention kernels


@dataclass(frozen=True)
class PackedShape:
    """The shape of packed batches; tuples are for source and target."""

    row_lengths: tuple[int, ...]
    max_sequences: int
    max_lengths: tuple[int, ...]  # of a sequence

    def halved(self) -> PackedShape:
        """Return a shape for either half of a batch, whose rows have half the length plus the longest sequence.

        A batch is split between sequences, so one half may be longer than the other by at most a sequence. Lengths are
        multiples of PACKED_ROW_MULTIPLE tokens, and at most those of the whole batch.
        """
        columns = zip(self.row_lengths, self.max_lengths)  # source, target
        halves = (min(length, round_up(length // 2 + longest, PACKED_ROW_MULTIPLE)) for length, longest in columns)
        return replace(self, row_lengths=tuple(halves))


@dataclass(frozen=True)
class PairTokens:
    """Special tokens around the pairs of a batch: each is one id, or an array with the id of every pair."""

    source_prefix: Sequence[int | Indices]
    source_suffix: Sequence[int | Indices]
    target_prefix: Sequence[int | Indices]  # BOS, and tokens that are generated first
    eos: int

    @staticmethod
    def of(framings: Sequence[Framing], corpus_of_pair: Indices) -> PairTokens:
        """Return the special tokens of the pairs of a batch, given the index of the corpus that each pair belongs to.

        `framings` has the special tokens of each corpus, or one element for all of them. They may differ only in
        language codes, which stand in the same places, so that EOS is the same.
        """
        first = framings[0]
        if len(framings) == 1:
            return PairTokens(first.source_prefix, first.source_suffix, first.target_prefix, first.eos)

        def ids_of_pairs(affixes: list[tuple[int, ...]]) -> list[Indices]:
            """Return one id per pair for each position of a prefix or suffix; `affixes` are those of the corpora."""
            return [np.array(corpus_ids)[corpus_of_pair] for corpus_ids in zip(*affixes, strict=True)]

        return PairTokens(
            source_prefix=ids_of_pairs([framing.source_prefix for framing in framings]),
            source_suffix=ids_of_pairs([framing.source_suffix for framing in framings]),
            target_prefix=ids_of_pairs([framing.target_prefix for framing in framings]),
            eos=first.eos,
        )


@dataclass(frozen=True)
class BatchArrays:
    """The contents of a batch before padding or packing."""

    source: RaggedArray
    target: RaggedArray
    labels: RaggedArray  # of the target tokens, or of the source tokens if `labels_source`
    labels_source: bool = False
    token_type_ids: RaggedArray | None = None
    sentence_labels: Indices | None = None

    @staticmethod
    def from_pairs(special: PairTokens, source: RaggedArray, target: RaggedArray) -> BatchArrays:
        """Add special tokens to pairs: for a target y, the model reads BOS y and predicts the labels y EOS.

        Tokens that are generated first, such as a language code, are read after BOS, and are no labels. Feature vectors
        in place of source tokens get no special tokens.
        """
        if source.values.ndim == 1:  # token ids
            source = source.with_special_tokens(prefix=special.source_prefix, suffix=special.source_suffix)
        # in place of labels for the tokens of the prefix after BOS: they are given, not predicted
        unlabeled = (IGNORE_INDEX,) * (len(special.target_prefix) - 1)
        labels = target.with_special_tokens(prefix=unlabeled, suffix=(special.eos,))
        target = target.with_special_tokens(prefix=special.target_prefix, suffix=())
        return BatchArrays(source, target, labels)

    @staticmethod
    def from_rows(rows: Sequence[BatchRow], labels_source: bool, pad: int) -> BatchArrays:
        """Concatenate rows, which an objective has built with their special tokens.

        The target of a row is BOS y EOS. With `labels_source` it is a label for each source token, where the id `pad`
        stands for no label; then the decoder has no target.
        """
        source = RaggedArray.from_rows(row.source for row in rows)
        # segments of the tokens as in BERT; all rows have them, or none
        type_rows = [row.token_type_ids for row in rows if row.token_type_ids is not None]
        optional: dict[str, Any] = {  # fields of BatchArrays
            "token_type_ids": RaggedArray.from_rows(type_rows) if type_rows else None,
            "sentence_labels": np.array([row.sentence_label for row in rows]),
        }
        if not labels_source:
            target = RaggedArray.from_rows(row.target[:-1] for row in rows)  # BOS y
            labels = RaggedArray.from_rows(row.target[1:] for row in rows)  # y EOS
            return BatchArrays(source, target, labels, labels_source=False, **optional)
        # signed integers, for the negative IGNORE_INDEX: ids in a token store are unsigned
        ids = np.concatenate([row.target for row in rows]).astype(np.int64)
        labels = RaggedArray(np.where(ids == pad, IGNORE_INDEX, ids), source.lengths)
        no_target = RaggedArray(np.empty(0, np.int64), np.zeros_like(source.lengths))  # empty rows
        return BatchArrays(source, no_target, labels, labels_source=True, **optional)

    def to_padded_batch(self, indices: Indices, pad: int, multiples: tuple[int, int] = (1, 1)) -> Batch:
        """Pad all rows (one per pair) to the longest one, with the token id `pad`.

        The number and the length of rows are rounded up to `multiples` (of the number, of the length). Rows that are
        added have no labels, and one token of padding, so that attention over them is not empty. `indices` are those of
        the pairs in the store. The labels are for target tokens, or with `labels_source` for tokens of the source.
        """
        source, target = self.source.padded(pad, multiples), self.target.padded(pad, multiples)
        num_added = len(source) - len(indices)

        def padded_lengths(lengths: Indices, width: int) -> Indices:
            """Return the lengths of all rows; those of added rows are 1, or 0 if no row has tokens (width 0)."""
            return np.append(lengths, np.full(num_added, min(1, width), np.int64))

        arrays = {
            "source": source,
            "source_lengths": padded_lengths(self.source.lengths, width=source.shape[1]),
            "target": target,
            "target_lengths": padded_lengths(self.target.lengths, width=target.shape[1]),
            "labels": self.labels.padded(IGNORE_INDEX, multiples),
        }
        if self.labels_source:  # keep only the labels, and their positions in the flattened source
            arrays["label_positions"] = np.flatnonzero(arrays["labels"] != IGNORE_INDEX)
            arrays["labels"] = arrays["labels"].reshape(-1)[arrays["label_positions"]]
        if self.token_type_ids is not None:
            arrays["token_type_ids"] = self.token_type_ids.padded(0, multiples)
        if self.sentence_labels is not None:
            arrays["sentence_labels"] = np.pad(self.sentence_labels, (0, num_added), constant_values=IGNORE_INDEX)
        return self._to_batch(indices, arrays)

    def to_packed_batch(self, indices: Indices, pad: int, shape: PackedShape) -> Batch:
        """Concatenate all sources into one long row, and all targets into another, of the lengths in `shape`.

        A row that is too short for its tokens is made longer. The padding at its end counts as further sequences, so
        that the lengths of all sequences (as many for source as for target, some of them 0) add up to the row.
        `indices` are those of the pairs in the store, `pad` is the id of padding. The labels are for target tokens, or
        with `labels_source` for tokens of the source.
        """
        columns = (self.source, self.target)
        source_row, target_row = (  # lengths of the two rows
            _grow_to_fit(length, len(column.values)) for length, column in zip(shape.row_lengths, columns)
        )
        # upper bounds of the sequence lengths; − 1, because they may equal the longest sequence, but need not exceed it
        max_source, max_target = (
            _grow_to_fit(length, int(column.lengths.max()) - 1) for length, column in zip(shape.max_lengths, columns)
        )
        source_lengths = self.source.packed_lengths(source_row, shape.max_sequences, max_source)
        target_lengths = self.target.packed_lengths(target_row, shape.max_sequences, max_target)
        sequences = max(len(source_lengths), len(target_lengths))
        arrays = {
            "source": self.source.packed(pad, source_row),
            "source_lengths": np.pad(source_lengths, (0, sequences - len(source_lengths))),
            "target": self.target.packed(pad, target_row),
            "target_lengths": np.pad(target_lengths, (0, sequences - len(target_lengths))),
            "labels": self.labels.packed(IGNORE_INDEX, source_row if self.labels_source else target_row),
        }
        if self.labels_source:
            labeled = np.flatnonzero(arrays["labels"][0] != IGNORE_INDEX)
            # a multiple of 64, or of 1/16 of the row if that is more, so that few shapes occur
            num_positions = _grow_to_fit(max(64, source_row // 16), len(labeled), step=1.0)
            positions = np.zeros(num_positions, np.int64)
            positions[: len(labeled)] = labeled
            is_label = np.arange(num_positions) < len(labeled)  # the others are filled up with IGNORE_INDEX
            arrays["labels"] = np.where(is_label, arrays["labels"][0, positions], IGNORE_INDEX)
            arrays["label_positions"] = positions
        if self.token_type_ids is not None:
            arrays["token_type_ids"] = self.token_type_ids.packed(0, source_row)
        return self._to_batch(indices, arrays, max_lengths=(max_source, max_target))

    def _to_batch(self, indices: Indices, arrays: dict[str, Ids], max_lengths: tuple[int, int] | None = None) -> Batch:
        """Return a batch of the pairs with these store indices; `arrays` are its tensors, by the name of the field.

        `max_lengths` are upper bounds of the source and target sequences of a packed batch; None for a padded one.
        """
        from torch import from_numpy

        tensors: dict[str, Any] = {name: from_numpy(array) for name, array in arrays.items()}
        return Batch(
            **tensors,
            indices=indices,
            source_tokens=len(self.source.values),
            target_tokens=int((self.labels.values != IGNORE_INDEX).sum()),
            max_lengths=max_lengths,
        )


def _grow_to_fit(length: int, tokens: int, step: float = 1 / 8) -> int:
    """Increase a row length in steps of `step` · `length` until it exceeds `tokens`.

    Steps are large, so that few different shapes occur. The length exceeds `tokens` because the last position of a
    packed row is padding. A length of 0 stays 0: there is no such row.
    """
    if not length:
        return 0
    missing = max(0, tokens + 1 - length)
    return length + round_up(missing, multiple=max(1, int(length * step)))


def pad_rows(rows: Sequence[Any], pad: int) -> tuple[Tensor, Tensor]:
    """Pad B rows to the longest, and return them with their lengths (B).

    Rows of ids become a tensor B T, filled with the id `pad`; rows of feature vectors, arrays S F, become B S F.
    """
    from torch import from_numpy

    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    are_features = isinstance(rows[0], np.ndarray)
    values = np.concatenate(rows) if are_features else np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    return from_numpy(RaggedArray(values, lengths).padded(pad)), from_numpy(lengths)


def halve_batch(batch: Batch) -> tuple[Batch, Batch]:
    """Split a batch into two, which together have the same loss, so that each takes about half of the memory.

    Rows of a padded batch keep their length; a packed row becomes two of about half its length. A batch of one pair is
    a ValueError.
    """
    if len(batch) < 2:
        raise ValueError("a batch of one pair cannot be halved")
    return _halve_packed(batch) if batch.is_packed else _halve_padded(batch)


def _halve_padded(batch: Batch) -> tuple[Batch, Batch]:
    """Split a padded batch by rows; rows of padding, which have no pair, go to the second half.

    In a doubled batch the second copies follow after all rows, so both copies of a row are selected.
    """
    import torch

    middle, rows = len(batch) // 2, len(batch.source) // batch.copies  # rows without second copies
    halves = []
    for first_row, stop_row in ((0, middle), (middle, rows)):
        selected = torch.cat([torch.arange(first_row, stop_row) + copy * rows for copy in range(batch.copies)])
        half: dict[str, Any] = batch.tensors()
        labels_of_positions = {}
        # positions are in the flattened source, so they are selected by value and counted from the start of the half
        if (positions := half.pop("label_positions", None)) is not None:
            start, end = first_row * batch.source.shape[1], stop_row * batch.source.shape[1]
            in_half = (positions >= start) & (positions < end)
            labels_of_positions = {"label_positions": positions[in_half] - start, "labels": half.pop("labels")[in_half]}
        half = {name: tensor[selected] for name, tensor in half.items()} | labels_of_positions
        half["indices"] = batch.indices[first_row:stop_row]
        half["source_tokens"] = batch.copies * int(half["source_lengths"][: len(half["indices"])].sum())
        half["target_tokens"] = int((half["labels"] != IGNORE_INDEX).sum())
        halves.append(replace(batch, **half))
    return halves[0], halves[1]


def _halve_packed(batch: Batch) -> tuple[Batch, Batch]:
    """Split a packed batch before the pair with which half of all tokens is reached, and pack both halves again."""
    arrays, shape = _unpack(batch)
    tokens_so_far = np.cumsum(arrays.source.lengths + arrays.target.lengths)
    half_reached = int(np.searchsorted(tokens_so_far, tokens_so_far[-1] / 2))  # index of the pair
    middle = min(max(1, half_reached), len(batch) - 1)  # each half has a pair
    # the id of padding is that of the last position, which is always padding, in a row of ids (not of feature vectors)
    ids = batch.source if batch.source.shape[1] and batch.source.dim() == 2 else batch.target
    pad = int(ids[0, -1])
    halves = []
    for pairs in (slice(0, middle), slice(middle, None)):
        half_arrays = BatchArrays(
            arrays.source[pairs],
            arrays.target[pairs],
            arrays.labels[pairs],
            labels_source=arrays.labels_source,
            token_type_ids=None if arrays.token_type_ids is None else arrays.token_type_ids[pairs],
        )
        half = half_arrays.to_packed_batch(batch.indices[pairs], pad, shape.halved())
        halves.append(half.duplicate_rows() if batch.doubled else half)
    return halves[0], halves[1]


def _unpack(batch: Batch) -> tuple[BatchArrays, PackedShape]:
    """Return the sequences of a packed batch, each pair once and without padding, and the shape before doubling."""
    assert batch.max_lengths is not None  # the batch is packed
    pairs, copies = len(batch), batch.copies
    row_lengths = (batch.source.shape[1] // copies, batch.target.shape[1] // copies)
    max_sequences = len(batch.source_lengths) // copies
    shape = PackedShape(row_lengths, max_sequences=max_sequences, max_lengths=batch.max_lengths)

    def unpack(row: Tensor, lengths: Tensor) -> RaggedArray:
        """Return the sequences of the pairs that are packed into a row (1 T), without second copies and padding.

        Those are at its end: only the first `pairs` lengths are of pairs.
        """
        return RaggedArray(row[0, : int(lengths[:pairs].sum())].numpy(), lengths[:pairs].numpy())

    source, target = unpack(batch.source, batch.source_lengths), unpack(batch.target, batch.target_lengths)
    types = None if batch.token_type_ids is None else unpack(batch.token_type_ids, batch.source_lengths)
    if batch.label_positions is None:
        labels_of_target = unpack(batch.labels, batch.target_lengths)
        return BatchArrays(source, target, labels_of_target, token_type_ids=types), shape
    labels, positions = batch.labels.numpy(), batch.label_positions.numpy()
    # the labels are for some tokens of the source: one for every token, as before packing
    label_of_token: Ids = np.full(len(source.values), IGNORE_INDEX, np.int64)
    label_of_token[positions[labels != IGNORE_INDEX]] = labels[labels != IGNORE_INDEX]
    labels_of_source = RaggedArray(label_of_token, source.lengths)
    return BatchArrays(source, target, labels_of_source, labels_source=True, token_type_ids=types), shape
