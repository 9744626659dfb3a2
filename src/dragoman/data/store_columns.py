"""Columns of a token store (source, target, flags), memory-mapped shard by shard."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.ragged_array import Indices, RaggedArray, row_positions
from dragoman.errors import UserError

MAX_RESIDENT_BYTES = 2**27  # of a column; of larger columns, pages are released after reading
ROWS_BEFORE_RELEASE = 2**16
MAX_PRELOAD_BYTES = 2**27
MAX_OPEN_SHARDS = 64  # per column: each uses three file descriptors, of which a process often has 1024


@dataclass(frozen=True)
class ColumnInfo:
    """Metadata of a column: source, target or flags."""

    name: str
    dtype: np.dtype[Any]
    tokens: list[int]  # per shard
    features: int = 0  # size of feature vectors; 0 for tokens


class TokenRows:
    """Rows of tokens: row i is `tokens[offsets[i] : offsets[i] + lengths[i]]`, without BOS and EOS."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def row(self, index: int) -> NDArray[Any]:
        """Return the tokens, or feature vectors, of one row."""
        start = self.offsets[index]
        return self.tokens[start : start + self.lengths[index]]

    def rows(self, indices: Indices) -> NDArray[Any]:
        """Return the tokens, or feature vectors, of some rows, concatenated."""
        # row_positions: offset, …, offset + length − 1 of each row
        return self.tokens[row_positions(self.offsets[indices], self.lengths[indices])]


class LoadedRows(TokenRows):
    """Copies of some rows of a column; `indices` are their sorted row numbers."""

    def __init__(self, indices: Indices, lengths: NDArray[np.int32], tokens: NDArray[Any]) -> None:
        """Keep the rows of these (sorted) indices of the store: their lengths, and their `tokens`, concatenated."""
        self.indices, self.lengths, self.tokens = indices, lengths, tokens
        self.offsets = np.cumsum(lengths, dtype=np.int64) - lengths  # index of the first token of each row


class MappedRows(TokenRows):
    """The rows of one column of one shard, memory-mapped."""

    def __init__(self, folder: Path, info: ColumnInfo, rows: int, tokens: int, release_after: int = 0) -> None:
        """Memory-map a column of the shard (a part of a token store) in `folder`, with this number of rows and tokens.

        Its memory pages are released whenever `release_after` rows have been read; 0: never. `info.features` is the
        size of feature vectors, 0 for tokens.
        """
        self._maps: list[mmap.mmap] = []
        self._release_after, self._unreleased = release_after, 0  # `_unreleased`: rows read since the last release
        values = self._map_file(folder / f"{info.name}.tokens", info.dtype, tokens * max(1, info.features))
        self.tokens = values.reshape(-1, info.features) if info.features else values
        self.lengths = self._map_file(folder / f"{info.name}.lengths", np.dtype(np.int32), rows)
        self.offsets = self._map_file(folder / f"{info.name}.offsets", np.dtype(np.int64), rows)

    def row(self, index: int) -> NDArray[Any]:
        """Return the tokens, or feature vectors, of one row."""
        row = super().row(index)
        self._count_read(rows=1, size=row.nbytes)
        return row

    def rows(self, indices: Indices) -> NDArray[Any]:
        """Return the tokens, or feature vectors, of some rows, concatenated."""
        tokens = super().rows(indices)
        self._count_read(rows=len(indices), size=tokens.nbytes)
        return tokens

    def _count_read(self, rows: int, size: int) -> None:
        """Release memory pages after `_release_after` reads (0: never).

        A row counts as one read, but rows of `size` bytes together count at least once per 64 KiB.
        """
        self._unreleased += max(rows, size // 2**16)
        if self._release_after and self._unreleased > self._release_after:
            self.release()

    def release(self) -> None:
        """Release the memory pages that were read, which otherwise count as resident memory of this process.

        The system keeps them cached. Reading a row maps up to 64 KiB of each of the files of tokens, lengths and
        offsets.
        """
        self._unreleased = 0
        for mapped in self._maps if hasattr(mmap, "MADV_DONTNEED") else []:  # not on Windows
            mapped.madvise(mmap.MADV_DONTNEED)

    def _map_file(self, path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """Memory-map a file of `count` values; a UserError says if it is missing or too short."""
        if not count:  # an empty file cannot be mapped
            return np.empty(0, dtype)
        try:
            with path.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return np.frombuffer(self._maps[-1], dtype, count)
        except (OSError, ValueError):
            raise damaged_store(path.parent) from None


class StoreColumn:
    """One column of a store over all shards, which are mapped on demand.

    Attributes:
        features: size of the feature vectors; 0 for tokens.
    """

    def __init__(self, info: ColumnInfo, folders: list[Path], pairs: Indices) -> None:
        """Open a column of the shards (parts of a token store) in `folders`; nothing is read.

        `pairs` is the number of rows of each shard. Memory-mapped pages of a large column are released after some
        reads, so that memory stays bounded.
        """
        self.info, self.folders, self.features = info, folders, info.features
        self.shard_rows, self.ends = pairs, np.cumsum(pairs)  # rows of each shard, and where they end in the column
        # a row has an int32 length and an int64 offset
        size = self.tokens * info.dtype.itemsize * max(1, info.features) + 12 * int(self.ends[-1])
        is_large = size > MAX_RESIDENT_BYTES
        # rows that are read from a shard before its pages are released; 0: never
        self._release_after = max(64, ROWS_BEFORE_RELEASE // min(MAX_OPEN_SHARDS, len(folders))) if is_large else 0
        self._loaded: LoadedRows | None = None
        self._mapped_shard = lru_cache(MAX_OPEN_SHARDS)(self._map_shard)  # maps a shard when it is first read

    def _map_shard(self, shard: int) -> MappedRows:
        """Memory-map the shard with this index; `_mapped_shard` caches the maps."""
        rows, tokens = int(self.shard_rows[shard]), self.info.tokens[shard]
        return MappedRows(self.folders[shard], self.info, rows, tokens, self._release_after)

    @property
    def tokens(self) -> int:
        """Return the number of tokens, or feature vectors, of all rows."""
        return sum(self.info.tokens)

    @property
    def lengths(self) -> NDArray[np.int32] | ShardedLengths:
        """Return the length of every row: an array, or if large or sharded an object that is indexed like one.

        Lengths count tokens, or feature vectors.
        """
        is_large = self._release_after > 0  # pages are released after some reads
        return ShardedLengths(self) if is_large or len(self.folders) > 1 else self._mapped_shard(0).lengths

    def preload(self, indices: Indices) -> None:
        """Copy the rows of these store indices, which are about to be read, into memory if the column is large.

        Each memory page is then read once. The rows that were preloaded before are replaced; rows of more than
        MAX_PRELOAD_BYTES are not preloaded.
        """
        if not self._release_after:  # a small column, whose pages are never released, stays in memory anyway
            return
        indices = np.unique(indices)
        lengths: list[NDArray[np.int32]] = []
        tokens: list[NDArray[Any]] = []
        for shard, _, rows_in_shard in self.split_by_shard(indices):
            lengths.append(shard.lengths[rows_in_shard])
            tokens.append(shard.rows(rows_in_shard))
            shard.release()  # so that at most one shard is resident
            if sum(array.nbytes for array in tokens) > MAX_PRELOAD_BYTES:
                self._loaded = None
                return
        self._loaded = LoadedRows(indices, np.concatenate(lengths), np.concatenate(tokens))

    def find_preloaded(self, indices: Indices) -> tuple[LoadedRows, Indices] | None:
        """Return the preloaded rows and the positions of `indices` in them, or None unless all are preloaded.

        Preloaded rows are copies in memory of rows that are about to be read; `indices` are those over all shards.
        """
        loaded = self._loaded  # a local reference, because another thread may preload
        if loaded is None:
            return None
        # where the indices are among the sorted preloaded ones, if they are
        positions = np.minimum(np.searchsorted(loaded.indices, indices), len(loaded.indices) - 1)
        return (loaded, positions) if (loaded.indices[positions] == indices).all() else None

    def with_rows(self, indices: Indices, rows: RaggedArray) -> StoreColumn:
        """Return a copy of the column in which the rows with these (sorted) store indices have other tokens.

        They replace the preloaded rows, so that `row` returns them, and the stored tokens of any other row. Only `row`
        may be used: `rows` returns stored tokens unless all rows are replaced, and `lengths` may be the stored ones.
        """
        changed = copy(self)
        changed._loaded = LoadedRows(indices, rows.lengths.astype(np.int32), rows.values)
        return changed

    def read(self, indices: Indices) -> RaggedArray:
        """Return the rows with these indices over all shards, tokens or feature vectors."""
        if self.features:
            return RaggedArray.from_rows(self.row(index) for index in indices.tolist())
        return RaggedArray(self.rows(indices), self.lengths[indices].astype(np.int64))

    def row(self, index: int) -> NDArray[Any]:
        """Return the tokens, or feature vectors, of one row; `index` counts over all shards."""
        if self._loaded is not None and (preloaded := self.find_preloaded(np.array([index]))):
            loaded, positions = preloaded
            return loaded.row(int(positions[0]))
        shard = int(np.searchsorted(self.ends, index, side="right"))
        first_row = int(self.ends[shard] - self.shard_rows[shard])  # of the shard
        return self._mapped_shard(shard).row(index - first_row)

    def rows(self, indices: Indices) -> NDArray[Any]:
        """Return the tokens of the rows with these indices, concatenated: preloaded ones, or from their shards."""
        if self._loaded is not None and (preloaded := self.find_preloaded(indices)):
            loaded, positions = preloaded
            return loaded.rows(positions)
        if len(self.folders) == 1:
            return self._mapped_shard(0).rows(indices)
        lengths = self.lengths[indices]
        ends = np.cumsum(lengths, dtype=np.int64)  # of the rows in the result
        shape = (int(ends[-1]), self.features) if self.features else (int(ends[-1]),)
        tokens = np.empty(shape, self.info.dtype)
        for shard, positions, rows_in_shard in self.split_by_shard(indices):
            # the places of the rows of this shard in the result
            tokens[row_positions((ends - lengths)[positions], lengths[positions])] = shard.rows(rows_in_shard)
        return tokens

    def split_by_shard(self, indices: Indices) -> Iterator[tuple[MappedRows, Indices, Indices]]:
        """Group rows by shard: yield the shard, the positions of its rows in `indices`, and their row numbers in it."""
        shards = np.searchsorted(self.ends, indices, side="right")  # of each row
        order = np.argsort(shards, kind="stable")
        for positions in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            if len(positions):
                shard = int(shards[positions[0]])
                first_row = self.ends[shard] - self.shard_rows[shard]  # of the shard
                yield self._mapped_shard(shard), positions, indices[positions] - first_row


class ShardedLengths:
    """The lengths of all rows of a column, over its shards."""

    def __init__(self, column: StoreColumn) -> None:
        """Give access to the lengths of the rows of a column; nothing is read yet."""
        self.column = column

    def __len__(self) -> int:
        """Return the number of rows of all shards."""
        return int(self.column.ends[-1])

    def __getitem__(self, rows: Any) -> Any:
        """Return the lengths at an index, a slice or an array of indices, like a numpy array."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        indices = np.asarray(rows, np.int64)
        if not indices.ndim:  # a single index
            return self[indices[None]][0]
        if preloaded := self.column.find_preloaded(indices):
            loaded, positions = preloaded
            return loaded.lengths[positions]
        lengths = np.empty(len(indices), np.int32)
        for shard, positions, rows_in_shard in self.column.split_by_shard(indices):
            lengths[positions] = shard.lengths[rows_in_shard]
        return lengths


def damaged_store(folder: Path) -> UserError:
    """Return the error for a token store (the tokenized data of a run) whose files are missing or too short."""
    return UserError(
        f"the tokenized data in {folder} is damaged or incomplete: train a new run from the original text files"
    )
