"""Rows of different lengths in one array, and their padding and packing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Ids = NDArray[Any]


@dataclass(frozen=True)
class RaggedArray:
    """Rows of different lengths, concatenated; rows of ids, or of vectors with F features."""

    values: Ids  # N, or N F
    lengths: Indices

    @property
    def features(self) -> int:
        """Size of the vectors; 0 for token ids."""
        return self.values.shape[1] if self.values.ndim > 1 else 0

    @staticmethod
    def from_rows(rows: Iterable[Ids]) -> RaggedArray:
        """Build the array from rows of different lengths: token ids, or vectors S F."""
        arrays = list(rows)
        return RaggedArray(np.concatenate(arrays), np.array([len(row) for row in arrays], np.int64))

    def __getitem__(self, rows: slice) -> RaggedArray:
        """Return consecutive rows; the step of the slice must be 1."""
        boundaries = np.concatenate(([0], np.cumsum(self.lengths)))  # where rows begin among the values, and the end
        start, stop, _ = rows.indices(len(self.lengths))
        return RaggedArray(self.values[boundaries[start] : boundaries[stop]], self.lengths[rows])

    def with_special_tokens(self, prefix: Sequence[int | Indices], suffix: Sequence[int | Indices]) -> RaggedArray:
        """Add special tokens around every row, without a loop over rows.

        A token is one id for all rows, or an array with one id per row.
        """
        new_lengths = self.lengths + len(prefix) + len(suffix)
        starts = _starts(new_lengths)  # of the rows in the concatenated array
        values = np.empty(int(new_lengths.sum()), np.int64)
        values[row_positions(starts + len(prefix), self.lengths)] = self.values
        for position, token in enumerate(prefix):
            values[starts + position] = token
        for position, token in enumerate(suffix):
            values[starts + len(prefix) + self.lengths + position] = token
        return RaggedArray(values, new_lengths)

    def where(self, condition: NDArray[np.bool_], other: RaggedArray) -> RaggedArray:
        """Return this array's row i where condition[i] is true, else row i of `other`."""
        if condition.all():
            return self
        # in the concatenated values of both arrays
        starts = np.where(condition, _starts(self.lengths), len(self.values) + _starts(other.lengths))
        lengths = np.where(condition, self.lengths, other.lengths)
        return RaggedArray(np.concatenate((self.values, other.values))[row_positions(starts, lengths)], lengths)

    def padded(self, pad: int, multiples: tuple[int, int] = (1, 1)) -> Ids:
        """Pad every row to the longest with the id `pad`, or vectors with zeros: B S ids or B S F vectors.

        B is the number of rows, S the longest length, F the size of vectors. B and S are rounded up to `multiples`.
        """
        rows = round_up(len(self.lengths), multiples[0])
        longest = round_up(int(self.lengths.max()), multiples[1])
        padded = self._filled((rows, longest), pad)
        padded[: len(self.lengths)][np.arange(longest) < self.lengths[:, None]] = self.values
        return padded

    def packed(self, pad: int, row_length: int) -> Ids:
        """Concatenate all rows, and pad the result with the id `pad`, or vectors with zeros, to `row_length`.

        The result is 1 S for ids, or 1 S F for vectors of size F, where S is `row_length`.
        """
        packed = self._filled((1, row_length), pad)
        packed[0, : len(self.values)] = self.values
        return packed

    def packed_lengths(self, row_length: int, max_sequences: int, max_length: int) -> Indices:
        """Return the lengths of the sequences that `packed` puts into one row; they add up to `row_length`.

        First `max_sequences` lengths: those of this array's sequences, and zeros up to this number, so that all batches
        have the same shape. Then the padding at the end of the row, as sequences of at most `max_length`, because
        attention over a packed row relies on this maximum; and zeros again.
        """
        max_padding_sequences = -(-row_length // max_length)  # rounded up: those of a row of nothing but padding
        lengths = np.zeros(max_sequences + max_padding_sequences, np.int64)
        lengths[: len(self.lengths)] = self.lengths
        padding = row_length - len(self.values)  # number of positions
        # sequences of `max_length` positions, and the remaining positions
        padding_lengths = np.minimum(max_length, padding - max_length * np.arange(-(-padding // max_length)))
        lengths[max_sequences : max_sequences + len(padding_lengths)] = padding_lengths
        return lengths

    def _filled(self, shape: tuple[int, int], pad: int) -> Ids:
        """Return an array of padding of `shape` (rows, row length): ids, all `pad`, or vectors of zeros."""
        if self.values.ndim > 1:
            return np.zeros((*shape, *self.values.shape[1:]), np.float32)
        return np.full(shape, pad, np.int64)


def round_up(number: float, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below the number."""
    return int(-(-number // multiple) * multiple)


def row_positions(starts: Indices, lengths: NDArray[Any]) -> Indices:
    """Return the positions `start … start + length − 1` of each row, concatenated; rows need not follow each other."""
    return np.repeat(starts - _starts(lengths), lengths) + np.arange(int(lengths.sum()))


def _starts(lengths: NDArray[Any]) -> Indices:
    """Return where rows of these lengths start if they are concatenated: 0, the first length, …."""
    return np.cumsum(lengths, dtype=np.int64) - lengths
