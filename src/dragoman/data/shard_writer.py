"""Writing token stores: rows in a folder, or corpora in shards with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dragoman.data.data_formats import EncodedPair
from dragoman.data.ragged_array import RaggedArray
from dragoman.data.token_store import (
    INDEX_FILE,
    LENGTH_COUNTS_FILE,
    SHARDED_VERSION,
    SINGLE_FOLDER_VERSION,
    LengthCounts,
    StoredCorpus,
    TokenStore,
    count_lengths,
    merge_length_counts,
)
from dragoman.errors import UserError
from dragoman.storage import atomic_folder, remove_folder

MAX_SHARD_PAIRS = 2**22  # a billion pairs are 239 shards


EncodedColumns = Mapping[str, RaggedArray]  # source; target and flags if there are any


def encode_columns(pairs: Sequence[EncodedPair], vocab_sizes: tuple[int, int]) -> dict[str, RaggedArray]:
    """Convert pairs to columns: two bytes per token if the vocabulary allows it, float32 for features."""
    columns = {"source": _encode_column([pair.source for pair in pairs], vocab_sizes[0])}
    if pairs[0].target is not None:
        columns["target"] = _encode_column([pair.target for pair in pairs], vocab_sizes[1])
    if pairs[0].flags is not None:
        columns["flags"] = _encode_column([[pair.flags] for pair in pairs], 2**16)
    return columns


def _encode_column(rows: list[Any], vocab_size: int) -> RaggedArray:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if isinstance(rows[0], np.ndarray):
        return RaggedArray(np.concatenate(rows).astype(np.float32), lengths)
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    return RaggedArray(np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths)


def write_store(
    folder: Path, chunks: Iterable[list[EncodedPair]], vocab_size: int, target_vocab_size: int = 0
) -> TokenStore:
    """Write a store without shards in one pass and open it."""
    vocab_sizes = (vocab_size, target_vocab_size or vocab_size)
    with _replace_store(folder) as partial, ExitStack() as stack:
        shard = _ShardWriter(partial)
        stack.callback(shard.close)
        for chunk in filter(None, chunks):
            shard.write(encode_columns(chunk, vocab_sizes))
        _require_pairs(shard.pairs, folder)
        shard.finish()
    return TokenStore(folder)


def write_shards(
    folder: Path,
    chunks: Iterable[tuple[int, EncodedColumns]],
    names: Sequence[str],
    tags: Sequence[str] = (),
    draws: Callable[[Sequence[int]], Sequence[int]] = list,
) -> TokenStore:
    """Write corpora in shards of at most MAX_SHARD_PAIRS pairs, in one pass, and open the store.

    Args:
        chunks: the index of a corpus and some of its pairs; corpora in order.
        names: of the corpora.
        tags: of the corpora.
        draws: computes from the pairs of each corpus how many of them an epoch draws.
    """
    with _replace_store(folder) as partial, ExitStack() as stack:
        shards: list[_ShardWriter] = []
        for corpus, columns in chunks:
            rest = dict(columns)
            while pairs := len(rest["source"].lengths):
                if not shards or shards[-1].corpus != corpus or shards[-1].pairs == MAX_SHARD_PAIRS:
                    if shards:
                        shards[-1].finish()
                    shards.append(_ShardWriter(partial / f"{len(shards):06d}", corpus))
                    stack.callback(shards[-1].close)
                free = min(pairs, MAX_SHARD_PAIRS - shards[-1].pairs)
                shards[-1].write({name: column[:free] for name, column in rest.items()})
                rest = {name: column[free:] for name, column in rest.items()}
        _require_pairs(len(shards), folder)
        shards[-1].finish()
        counts = [sum(shard.pairs for shard in shards if shard.corpus == index) for index in range(len(names))]
        corpora = zip(names, counts, draws(counts), tags or [""] * len(names))
        columns_info = {name: column.info() for name, column in shards[0].columns.items()}
        index = {
            "version": SHARDED_VERSION,
            "fingerprint": "",  # required by earlier versions
            "pairs": sum(counts),
            "longest": max(shard.max_length for shard in shards),
            "sides": {
                name: {key: value for key, value in info.items() if key != "tokens"}
                for name, info in columns_info.items()
            },
            "corpora": [asdict(StoredCorpus(*corpus)) for corpus in corpora],
            "shards": [
                {"folder": shard.folder.name, "corpus": shard.corpus, "pairs": shard.pairs, "tokens": shard.tokens}
                for shard in shards
            ],
        }
        length_counts = merge_length_counts([shard.length_counts for shard in shards])
        (partial / LENGTH_COUNTS_FILE).write_bytes(np.stack(length_counts, 1).astype(np.int64).tobytes())
        (partial / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return TokenStore(folder)


def _require_pairs(count: int, folder: Path) -> None:
    if not count:
        raise UserError(f"there are no sentence pairs to write to {folder}: the corpus is empty")


@contextmanager
def _replace_store(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which replaces an existing store when the block succeeds."""
    if folder.exists() and not (folder / INDEX_FILE).exists():
        raise UserError(f"{folder} exists and is not a token store: delete it or choose another folder")
    with atomic_folder(folder) as partial:
        yield partial
        remove_folder(folder)


class _ShardWriter:
    """Writes the columns of a folder: tokens, lengths and offsets of the rows."""

    def __init__(self, folder: Path, corpus: int = 0) -> None:
        self.folder, self.corpus, self.pairs = folder, corpus, 0
        self.columns: dict[str, _ColumnWriter] = {}
        self.length_counts: LengthCounts  # set by finish()
        folder.mkdir(exist_ok=True)

    @property
    def max_length(self) -> int:
        return max(column.max_length for column in self.columns.values())

    @property
    def tokens(self) -> dict[str, int]:
        return {name: column.tokens for name, column in self.columns.items()}

    def write(self, columns: EncodedColumns) -> None:
        if not self.columns:
            self.columns = {name: _ColumnWriter(self.folder, name, column) for name, column in columns.items()}
        for name, column in self.columns.items():
            column.write(columns[name])
        self.pairs += len(columns["source"].lengths)

    def finish(self) -> None:
        self.close()
        index = {
            "version": SINGLE_FOLDER_VERSION,
            "fingerprint": "",  # required by earlier versions
            "pairs": self.pairs,
            "longest": self.max_length,
            "sides": {name: column.info() for name, column in self.columns.items()},
        }
        (self.folder / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
        self.length_counts = count_lengths(TokenStore(self.folder))

    def close(self) -> None:
        for column in self.columns.values():
            for file in column.files:
                file.close()


class _ColumnWriter:
    def __init__(self, folder: Path, name: str, first: RaggedArray) -> None:
        self.dtype, self.features = first.values.dtype, first.features
        self.tokens = self.max_length = 0
        paths = [folder / f"{name}.{suffix}" for suffix in ("tokens", "lengths", "offsets")]
        self.files: list[BinaryIO] = [path.open("wb") for path in paths]

    def info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"dtype": self.dtype.name, "tokens": self.tokens}
        return info | ({"features": self.features} if self.features else {})

    def write(self, column: RaggedArray) -> None:
        ends = self.tokens + np.cumsum(column.lengths)
        arrays = (column.values, column.lengths.astype(np.int32), ends - column.lengths)
        for file, array in zip(self.files, arrays):
            file.write(np.ascontiguousarray(array).data)
        self.tokens = int(ends[-1])
        self.max_length = max(self.max_length, int(column.lengths.max()))
