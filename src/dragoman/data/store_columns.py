"""The sides of a token store, source and target, mapped into memory shard by shard."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UserError

MAX_RESIDENT_BYTES = 2**27  # bytes of a side that may stay resident
ROWS_BEFORE_RELEASE = 2**16  # rows that a large side reads before it gives its pages back, if they are not loaded
MAX_PRELOAD_BYTES = 2**27  # bytes that may be loaded
MAX_OPEN_SHARDS = (
    64  # shards of a side that are mapped at a time: each takes three of a process's open files, often 1024
)

Indices = NDArray[np.int64]


class LengthArray(Protocol):
    """An array of lengths, or what is indexed like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class ColumnInfo:
    """What is known of a side before it is opened; `tokens` by shard."""

    name: str
    dtype: np.dtype[Any]
    tokens: list[int]
    features: int = 0


class TokenRows:
    """Rows of tokens: row i is `tokens[offsets[i] : offsets[i] + lengths[i]]`, without start and end."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def row(self, index: int) -> NDArray[Any]:
        start = self.offsets[index]
        return self.tokens[start : start + self.lengths[index]]

    def rows(self, indices: Indices) -> NDArray[Any]:
        """The rows one after the other: a flat copy of their tokens."""
        lengths = self.lengths[indices]
        ends = np.cumsum(lengths, dtype=np.int64)
        starts = self.offsets[indices] - (ends - lengths)  # minus the row's place in the answer
        return self.tokens[np.repeat(starts, lengths) + np.arange(ends[-1])]


class LoadedRows(TokenRows):
    """Copies of some rows of a side, by their numbers in it, which are sorted."""

    def __init__(self, numbers: Indices, lengths: NDArray[np.int32], tokens: NDArray[Any]) -> None:
        self.numbers, self.lengths, self.tokens = numbers, lengths, tokens
        self.offsets = np.cumsum(lengths, dtype=np.int64) - lengths

    def places(self, indices: Indices) -> Indices | None:
        """Where some rows are, if all of them are here."""
        places = np.minimum(np.searchsorted(self.numbers, indices), len(self.numbers) - 1)
        return places if (self.numbers[places] == indices).all() else None


class MappedRows(TokenRows):
    """One side of a folder."""

    def __init__(self, folder: Path, about: ColumnInfo, rows: int, tokens: int, room: int = 0) -> None:
        self._maps: list[mmap.mmap] = []
        self._room, self._unreleased = room, 0
        flat = self._map(folder / f"{about.name}.tokens", about.dtype, tokens * max(1, about.features))
        self.tokens = flat.reshape(-1, about.features) if about.features else flat
        self.lengths = self._map(folder / f"{about.name}.lengths", np.dtype(np.int32), rows)
        self.offsets = self._map(folder / f"{about.name}.offsets", np.dtype(np.int64), rows)

    def row(self, index: int) -> NDArray[Any]:
        row = super().row(index)
        self._read(1, row.nbytes)
        return row

    def rows_per_source(self, indices: Indices) -> NDArray[Any]:
        tokens = super().rows(indices)
        self._read(len(indices), tokens.nbytes)
        return tokens

    def _read(self, rows: int, size: int) -> None:
        self._unreleased += max(rows, size >> 16)
        if self._room and self._unreleased > self._room:
            self.release()

    def release(self) -> None:
        """Give back the pages that were read: until then they count as this process's memory.

        The system keeps them cached. A row brings up to 64 KiB of each of three files with it.
        """
        self._unreleased = 0
        for mapped in self._maps if hasattr(mmap, "MADV_DONTNEED") else []:
            mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self, path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        if not count:  # an empty file cannot be mapped
            return np.empty(0, dtype)
        try:
            with path.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return np.frombuffer(self._maps[-1], dtype, count)
        except (OSError, ValueError):
            raise damaged_store(path.parent) from None


class StoreColumn:
    """One side of a store, over its shards, which are mapped when they are asked for.

    `features` of more than 0: vectors of so many numbers stand in the place of tokens.
    """

    def __init__(self, about: ColumnInfo, folders: list[Path], pairs: NDArray[np.int64]) -> None:
        self.info, self.folders, self.features = about, folders, about.features
        self.pairs, self.ends = pairs, np.cumsum(pairs)
        size = sum(about.tokens) * about.dtype.itemsize * max(1, about.features) + 12 * int(self.ends[-1])
        self._room = (
            max(64, ROWS_BEFORE_RELEASE // min(MAX_OPEN_SHARDS, len(folders))) if size > MAX_RESIDENT_BYTES else 0
        )
        self._loaded: LoadedRows | None = None
        self._shard = lru_cache(MAX_OPEN_SHARDS)(self._map)

    def _map(self, number: int) -> MappedRows:
        pairs, tokens = int(self.pairs[number]), self.info.tokens[number]
        return MappedRows(self.folders[number], self.info, pairs, tokens, self._room)

    @property
    def tokens(self) -> int:
        return sum(self.info.tokens)

    @property
    def lengths(self) -> LengthArray:
        return _Lengths(self) if self._room or len(self.folders) > 1 else self._shard(0).lengths

    def preload(self, indices: Indices) -> None:
        """Copy rows into memory that will soon be asked for, a few at a time: a page of the disk is then read but once.

        Only what is large is copied. Rows that were loaded before are forgotten.
        """
        if not self._room:
            return
        numbers = np.unique(indices)
        lengths: list[NDArray[np.int32]] = []
        tokens: list[NDArray[Any]] = []
        for shard, _, local in self.split_by_shard(numbers):  # in their order, for the numbers are sorted
            lengths.append(shard.lengths[local])
            tokens.append(shard.rows_per_source(local))
            shard.release()  # at once, so that no more than one shard is resident
            if sum(some.nbytes for some in tokens) > MAX_PRELOAD_BYTES:
                self._loaded = None
                return
        self._loaded = LoadedRows(numbers, np.concatenate(lengths), np.concatenate(tokens))

    def find_preloaded(self, indices: Indices) -> tuple[LoadedRows, Indices] | None:
        """The rows that were loaded, and where in them these are, if all of them are."""
        loaded = self._loaded  # once: another thread may be loading
        places = None if loaded is None else loaded.places(indices)
        return None if loaded is None or places is None else (loaded, places)

    def with_rows(self, numbers: Indices, lengths: NDArray[Any], tokens: NDArray[Any]) -> StoreColumn:
        """The same side with other tokens in some rows, whose numbers are sorted."""
        changed = copy(self)
        changed._loaded = LoadedRows(numbers, lengths.astype(np.int32), tokens)
        return changed

    def row(self, index: int) -> NDArray[Any]:
        if self._loaded is not None and (found := self.find_preloaded(np.array([index]))):
            return found[0].row(int(found[1][0]))
        number = int(np.searchsorted(self.ends, index, side="right"))
        return self._shard(number).row(index - int(self.ends[number] - self.pairs[number]))

    def rows(self, indices: Indices) -> NDArray[Any]:
        """The rows one after the other: a flat copy of their tokens."""
        if self._loaded is not None and (found := self.find_preloaded(indices)):
            return found[0].rows(found[1])
        if len(self.folders) == 1:
            return self._shard(0).rows_per_source(indices)
        lengths = self.lengths[indices]
        ends = np.cumsum(lengths, dtype=np.int64)
        shape = (int(ends[-1]), self.features) if self.features else (int(ends[-1]),)
        tokens = np.empty(shape, self.info.dtype)
        for shard, some, local in self.split_by_shard(indices):
            flat = shard.rows_per_source(local)
            shift = (ends - lengths)[some] - (np.cumsum(lengths[some]) - lengths[some])  # here, less where in `flat`
            tokens[np.repeat(shift, lengths[some]) + np.arange(len(flat))] = flat
        return tokens

    def split_by_shard(self, indices: Indices) -> Iterable[tuple[MappedRows, Indices, Indices]]:
        """The shards in which some rows lie: the rows' places among those asked for, and their numbers in the shard."""
        number = np.searchsorted(self.ends, indices, side="right")
        order = np.argsort(number, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
            if len(some):
                shard = int(number[some[0]])
                yield self._shard(shard), some, indices[some] - (self.ends[shard] - self.pairs[shard])


class _Lengths:
    """The lengths of all rows of a side, over its shards."""

    def __init__(self, side: StoreColumn) -> None:
        self.side = side

    def __len__(self) -> int:
        return int(self.side.ends[-1])

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        indices = np.asarray(rows, np.int64)
        if not indices.ndim:
            return self[indices[None]][0]
        if found := self.side.find_preloaded(indices):
            return found[0].lengths[found[1]]
        lengths = np.empty(len(indices), np.int32)
        for shard, some, local in self.side.split_by_shard(indices):
            lengths[some] = shard.lengths[local]
        return lengths


def damaged_store(folder: Path) -> UserError:
    return UserError(f"the token store {folder} is damaged or incomplete: train a new run from the same files")
