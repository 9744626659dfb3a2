"""Token ids on disk, memory-mapped, so that a corpus can be larger than memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.data_formats import ENDS_MID_LINE, FOLLOWS_PREVIOUS_ROW, STARTS_MID_LINE
from dragoman.data.store_columns import ColumnInfo, ShardedLengths, StoreColumn, damaged_store
from dragoman.errors import UserError

# Versions of the file format: rows in the folder itself, or in shards, which are folders of the first version.
SINGLE_FOLDER_VERSION, SHARDED_VERSION = 1, 2
INDEX_FILE = "store.json"
LENGTH_COUNTS_FILE = "lengths.counts"  # triples of source length, target length and number of pairs
ROWS_PER_SLICE = 2**18


class LengthCounts(NamedTuple):
    """Histogram of (source length, target length): `f(source, target) @ pairs` sums f over all pairs."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    pairs: NDArray[np.int64]


@dataclass(frozen=True)
class StoredCorpus:
    """One of the corpora of a store; the field names are part of the file format."""

    name: str
    pairs: int
    draws: int  # pairs that an epoch draws
    tag: str = ""


class TokenStore:
    """The token ids of sentence pairs, read from disk on demand.

    A monolingual store has one column, which serves as source and target: a language model reads the target, an
    encoder the source, and a denoising model both.

    A store is a folder with rows, or with shards and an index; opening it reads no rows.

    Attributes:
        columns: source and target.
        flags: flags of rows of monolingual text; None for other data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = _read_index(folder)
        try:
            self.pairs: int = index["pairs"]
            self.max_length: int = index["longest"]
            if index["version"] == SINGLE_FOLDER_VERSION:
                folders, pairs = [folder], np.array([self.pairs])
                tokens = {name: [column["tokens"]] for name, column in index["sides"].items()}
                self.corpora = [StoredCorpus(folder.name, self.pairs, self.pairs)]
            else:
                folders = [folder / shard["folder"] for shard in index["shards"]]
                pairs = np.array([shard["pairs"] for shard in index["shards"]])
                tokens = {name: [shard["tokens"][name] for shard in index["shards"]] for name in index["sides"]}
                self.corpora = [StoredCorpus(**corpus) for corpus in index["corpora"]]
            if pairs.sum() != self.pairs or sum(self.pairs_per_corpus) != self.pairs:
                raise ValueError("the numbers of pairs of shards, corpora and store differ")
            columns = {}
            for name, column in index["sides"].items():
                info = ColumnInfo(name, np.dtype(column["dtype"]), tokens[name], column.get("features", 0))
                _check_file_sizes(info, folders, pairs.tolist())
                columns[name] = StoreColumn(info, folders, pairs)
            self.columns = (columns["source"], columns.get("target", columns["source"]))
            self.flags = columns.get("flags")
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            raise damaged_store(folder) from None
        self.monolingual = "target" not in columns

    def __len__(self) -> int:
        return self.pairs

    @property
    def pairs_per_corpus(self) -> list[int]:
        return [corpus.pairs for corpus in self.corpora]

    @property
    def draws_per_corpus(self) -> list[int]:
        """Number of pairs that an epoch draws from each corpus."""
        return [corpus.draws for corpus in self.corpora]

    @property
    def tokens(self) -> int:
        """Number of tokens of the longer column."""
        return max(column.tokens for column in self.columns)

    def source(self, index: int) -> NDArray[Any]:
        """Return the source ids of a pair, without BOS and EOS, or its features, S F."""
        return self.columns[0].row(index)

    def target(self, index: int) -> NDArray[Any]:
        """Return the target ids of a pair, without BOS and EOS."""
        return self.columns[1].row(index)

    def preload(self, pairs: NDArray[np.int64]) -> None:
        """Copy some pairs into memory that are about to be read."""
        flags = () if self.flags is None else (self.flags,)
        for column in (*self.columns[: 1 if self.monolingual else 2], *flags):
            column.preload(pairs)

    def starts_line(self, index: int) -> bool:
        """Whether a row of text starts its line; lines longer than `data.max_length` are split into several rows."""
        return not self._has_flag(index, STARTS_MID_LINE)

    def ends_line(self, index: int) -> bool:
        """Whether a row of text ends its line."""
        return not self._has_flag(index, ENDS_MID_LINE)

    def follows_previous(self, index: int) -> bool:
        """Whether a row follows the previous row in the same document; assumed for old stores without flags."""
        return index > 0 if self.flags is None else self._has_flag(index, FOLLOWS_PREVIOUS_ROW)

    def _has_flag(self, index: int, flag: int) -> bool:
        return self.flags is not None and bool(int(self.flags.row(index)[0]) & flag)

    @property
    def source_lengths(self) -> NDArray[np.int32] | ShardedLengths:
        return self.columns[0].lengths

    @property
    def target_lengths(self) -> NDArray[np.int32] | ShardedLengths:
        return self.columns[1].lengths

    def length_counts(self) -> LengthCounts:
        """Return the histogram of lengths."""
        path = self.folder / LENGTH_COUNTS_FILE
        if not path.exists():  # a store without shards
            return count_lengths(self)
        table = np.fromfile(path, np.int64)
        if len(table) % 3 or table[2::3].sum() != self.pairs:
            raise damaged_store(self.folder)
        return LengthCounts(*table.reshape(-1, 3).T)


def count_lengths(store: TokenStore) -> LengthCounts:
    """Compute the histogram of lengths from all rows."""
    counts = LengthCounts(*np.zeros((3, 0), np.int64))
    for start in range(0, len(store), ROWS_PER_SLICE):
        rows = slice(start, start + ROWS_PER_SLICE)
        source, target = (np.asarray(column.lengths[rows], np.int64) for column in store.columns)
        counts = merge_length_counts([counts, LengthCounts(source, target, np.ones_like(source))])
    return counts


def merge_length_counts(counts: list[LengthCounts]) -> LengthCounts:
    source, target, pairs = (np.concatenate(arrays) for arrays in zip(*counts))
    lengths, inverse = np.unique(source << 32 | target, return_inverse=True)
    sums = np.zeros(len(lengths), np.int64)
    np.add.at(sums, inverse, pairs)
    return LengthCounts(lengths >> 32, lengths & 0xFFFFFFFF, sums)


def _check_file_sizes(info: ColumnInfo, folders: list[Path], pairs: list[int]) -> None:
    """Detect truncated files without reading them."""
    for folder, rows, tokens in zip(folders, pairs, info.tokens):
        token_bytes = tokens * max(1, info.features) * info.dtype.itemsize
        for suffix, size in {"tokens": token_bytes, "lengths": 4 * rows, "offsets": 8 * rows}.items():
            if (folder / f"{info.name}.{suffix}").stat().st_size != size:
                raise ValueError(f"{folder / info.name}.{suffix} has the wrong size")


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX_FILE).read_bytes())
    except FileNotFoundError:
        raise UserError(f"{folder} has no token store: train a new run from the same files") from None
    except (OSError, ValueError):
        raise damaged_store(folder) from None
    if not isinstance(index, dict):
        raise damaged_store(folder)
    if index.get("version") not in (SINGLE_FOLDER_VERSION, SHARDED_VERSION):
        raise UserError(
            f"{folder} is a token store of version {index.get('version')}, but only versions {SINGLE_FOLDER_VERSION} "
            f"and {SHARDED_VERSION} are supported: train a new run from the same files"
        )
    return index
