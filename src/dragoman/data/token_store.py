"""Token ids on disk, memory-mapped: a corpus larger than memory trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import open_file
from dragoman.data.examples import ENDS_MID_LINE, FOLLOWS_PREVIOUS_ROW, STARTS_MID_LINE
from dragoman.data.store_columns import ColumnInfo, LengthArray, StoreColumn, damaged_store
from dragoman.errors import UserError

SINGLE_FOLDER_VERSION, SHARDED_VERSION = (
    1,
    2,
)  # versions: rows in the folder itself, or in shards of it, each a folder of version 1
ROWS_PER_SLICE = 2**18  # rows that are looked at together
LENGTH_COUNTS_FILE = "lengths.counts"  # a file beside an index: triples of source length, target length and pairs


def fingerprint(files: Iterable[Path], *settings: str) -> str:
    """A digest of what a store is made from: the files' bytes, and the tokenizer and limits as strings."""
    digest = hashlib.blake2b(digest_size=16)
    for setting in settings:
        digest.update(hashlib.blake2b(setting.encode()).digest())
    for path in files:
        with open_file(path) as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


class LengthCounts(NamedTuple):
    """How many pairs have a source and a target of such lengths: `f(source, target) @ pairs` sums over all pairs."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    pairs: NDArray[np.int64]


@dataclass(frozen=True)
class StoredCorpus:
    """One of the corpora in a store: how many pairs it has, and how many of them an epoch draws."""

    name: str
    pairs: int
    draws: int
    tag: str = ""


class TokenStore:
    """The token ids of sentence pairs, read from disk as they are asked for.

    A monolingual store holds one side and gives it as source and as target, which is what a language model (target
    alone), an encoder (source alone) and a denoiser (both) want to see.

    A store is a folder of rows, or of shards of them with an index; opening it reads no rows of either.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = _about(folder)
        try:
            self.pairs: int = about["pairs"]
            self.fingerprint: str = about["fingerprint"]
            self.max_length: int = about["longest"]
            if about["version"] == SINGLE_FOLDER_VERSION:
                folders, pairs = [folder], np.array([self.pairs])
                tokens = {name: [side["tokens"]] for name, side in about["sides"].items()}
                self.corpora = [StoredCorpus(folder.name, self.pairs, self.pairs)]
            else:
                folders = [folder / shard["folder"] for shard in about["shards"]]
                pairs = np.array([shard["pairs"] for shard in about["shards"]])
                tokens = {name: [shard["tokens"][name] for shard in about["shards"]] for name in about["sides"]}
                self.corpora = [StoredCorpus(**part) for part in about["corpora"]]
            if pairs.sum() != self.pairs or sum(self.pairs_per_corpus) != self.pairs:
                raise ValueError("the pairs of the shards, of the corpora and of the store differ")
            sides = {}
            for name, side in about["sides"].items():
                found = ColumnInfo(name, np.dtype(side["dtype"]), tokens[name], side.get("features", 0))
                _check_sizes(found, folders, pairs.tolist())
                sides[name] = StoreColumn(found, folders, pairs)
            self.columns = (sides["source"], sides.get("target", sides["source"]))
            self.flags = sides.get("flags")
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            raise damaged_store(folder) from None
        self.monolingual = "target" not in sides

    def __len__(self) -> int:
        return self.pairs

    @property
    def pairs_per_corpus(self) -> list[int]:
        """The pairs of each corpus, in order."""
        return [part.pairs for part in self.corpora]

    @property
    def draws_per_corpus(self) -> list[int]:
        """How many pairs of each corpus an epoch draws."""
        return [part.draws for part in self.corpora]

    @property
    def tokens(self) -> int:
        """How many there are on the longer side."""
        return max(side.tokens for side in self.columns)

    def source(self, index: int) -> NDArray[Any]:
        return self.columns[0].row(index)

    def target(self, index: int) -> NDArray[Any]:
        return self.columns[1].row(index)

    def preload(self, pairs: NDArray[np.int64]) -> None:
        """Have some pairs at hand, such as a window of them from which batches are then made: see `StoreColumn.preload`."""
        for side in (*self.columns[: 1 if self.monolingual else 2], *([self.flags] if self.flags else [])):
            side.preload(pairs)

    def starts_line(self, index: int) -> bool:
        """Whether a row of text begins its line; a line longer than data.max_length is cut into several rows."""
        return not self._has(index, STARTS_MID_LINE)

    def ends_line(self, index: int) -> bool:
        """Whether a row of text ends its line."""
        return not self._has(index, ENDS_MID_LINE)

    def follows_previous(self, index: int) -> bool:
        """Whether a row comes right after the row before it in one document, as is assumed of old stores."""
        return index > 0 if self.flags is None else self._has(index, FOLLOWS_PREVIOUS_ROW)

    def _has(self, index: int, flag: int) -> bool:
        return self.flags is not None and bool(int(self.flags.row(index)[0]) & flag)

    @property
    def source_lengths(self) -> LengthArray:
        return self.columns[0].lengths

    @property
    def target_lengths(self) -> LengthArray:
        return self.columns[1].lengths

    def length_counts(self) -> LengthCounts:
        """The distribution of lengths, for sums and maxima over all pairs that need not look at them."""
        path = self.folder / LENGTH_COUNTS_FILE
        if not path.exists():  # a store without an index
            return count_lengths(self)
        table = np.fromfile(path, np.int64)
        if len(table) % 3 or table[2::3].sum() != self.pairs:
            raise damaged_store(self.folder)
        return LengthCounts(*table.reshape(-1, 3).T)


def count_lengths(store: TokenStore) -> LengthCounts:
    """How many pairs have which lengths, by looking at them all."""
    found = LengthCounts(*np.zeros((3, 0), np.int64))
    for start in range(0, len(store), ROWS_PER_SLICE):
        rows = slice(start, start + ROWS_PER_SLICE)
        source, target = (np.asarray(side.lengths[rows], np.int64) for side in store.columns)
        found = merge_lengths([found, LengthCounts(source, target, np.ones_like(source))])
    return found


def merge_lengths(some: list[LengthCounts]) -> LengthCounts:
    source, target, count = (np.concatenate(column) for column in zip(*some))
    lengths, which = np.unique(source << 32 | target, return_inverse=True)
    sums = np.zeros(len(lengths), np.int64)
    np.add.at(sums, which, count)
    return LengthCounts(lengths >> 32, lengths & 0xFFFFFFFF, sums)


def _check_sizes(about: ColumnInfo, folders: list[Path], pairs: list[int]) -> None:
    """A file that was cut short is found before training, though nothing in it is read."""
    for folder, rows, tokens in zip(folders, pairs, about.tokens):
        wanted = {"tokens": tokens * max(1, about.features) * about.dtype.itemsize, "lengths": 4 * rows}
        for kind, size in (wanted | {"offsets": 8 * rows}).items():
            if (folder / f"{about.name}.{kind}").stat().st_size != size:
                raise ValueError(f"{folder / about.name}.{kind} has the wrong size")


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "store.json").read_bytes())
    except FileNotFoundError:
        raise UserError(f"{folder} holds no token store: train a new run from its files") from None
    except (OSError, ValueError):
        raise damaged_store(folder) from None
    if not isinstance(about, dict):
        raise damaged_store(folder)
    if about.get("version") not in (SINGLE_FOLDER_VERSION, SHARDED_VERSION):
        raise UserError(
            f"{folder} is a token store of version {about.get('version')}, but this program reads versions {SINGLE_FOLDER_VERSION} "
            f"and {SHARDED_VERSION}: train a new run from the same files"
        )
    return about
