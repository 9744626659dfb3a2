"""Writing token stores: rows in a folder, or corpora in shards with an index."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.data.data_formats import EncodedPair
from dragoman.data.ragged_array import RaggedArray
from dragoman.data.token_store import (
    INDEX_FILE,
    LENGTH_COUNTS_FILE,
    SHARDED_VERSION,
    SINGLE_FOLDER_VERSION,
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
    with _replace_store(folder) as partial:
        index = _write_shard(partial, (encode_columns(chunk, vocab_sizes) for chunk in chunks if chunk))
        _require_pairs(index["pairs"], folder)
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
    with _replace_store(folder) as partial:
        shards: list[dict[str, Any]] = []
        columns: dict[str, Any] = {}
        length_counts, longest = [], 0
        for (corpus, _), group in groupby(_split_at_shards(chunks), key=itemgetter(0)):
            shard_folder = partial / f"{len(shards):06d}"
            index = _write_shard(shard_folder, (shard_columns for _, shard_columns in group))
            tokens = {name: column.pop("tokens") for name, column in index["sides"].items()}
            shards.append({"folder": shard_folder.name, "corpus": corpus, "pairs": index["pairs"], "tokens": tokens})
            columns, longest = columns or index["sides"], max(longest, index["longest"])
            length_counts.append(count_lengths(TokenStore(shard_folder)))
        _require_pairs(len(shards), folder)
        counts = [sum(shard["pairs"] for shard in shards if shard["corpus"] == n) for n in range(len(names))]
        corpora = map(StoredCorpus, names, counts, draws(counts), tags or [""] * len(names))
        merged_counts = np.stack(merge_length_counts(length_counts), 1).astype(np.int64)
        (partial / LENGTH_COUNTS_FILE).write_bytes(merged_counts.tobytes())
        _write_index(
            partial, SHARDED_VERSION, sum(counts), longest, columns, corpora=list(map(asdict, corpora)), shards=shards
        )
    return TokenStore(folder)


def _split_at_shards(chunks: Iterable[tuple[int, EncodedColumns]]) -> Iterator[tuple[tuple[int, int], EncodedColumns]]:
    """Split chunks of corpora where a shard is full; yield (corpus, shard of the corpus) with each part."""
    written: Counter[int] = Counter()  # pairs per corpus
    for corpus, columns in chunks:
        while pairs := len(columns["source"].lengths):
            shard, start = divmod(written[corpus], MAX_SHARD_PAIRS)
            fitting = min(pairs, MAX_SHARD_PAIRS - start)
            yield (corpus, shard), {name: column[:fitting] for name, column in columns.items()}
            columns = {name: column[fitting:] for name, column in columns.items()}
            written[corpus] += fitting


def _write_shard(folder: Path, chunks: Iterable[EncodedColumns]) -> dict[str, Any]:
    """Write the tokens, lengths and offsets of each column to a folder, and return its index."""
    folder.mkdir(exist_ok=True)
    writers: dict[str, _ColumnWriter] = {}
    pairs = 0
    with ExitStack() as stack:
        for columns in chunks:
            writers = writers or {name: _ColumnWriter(folder, name, column, stack) for name, column in columns.items()}
            for name, writer in writers.items():
                writer.write(columns[name])
            pairs += len(columns["source"].lengths)
    longest = max((writer.max_length for writer in writers.values()), default=0)
    return _write_index(
        folder, SINGLE_FOLDER_VERSION, pairs, longest, {name: writer.info() for name, writer in writers.items()}
    )


def _write_index(
    folder: Path, version: int, pairs: int, longest: int, columns: dict[str, Any], **shards: Any
) -> dict[str, Any]:
    """Write the index file of a store or shard, and return its contents."""
    # Earlier versions require a fingerprint.
    index = {"version": version, "fingerprint": "", "pairs": pairs, "longest": longest, "sides": columns, **shards}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return index


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


class _ColumnWriter:
    """Appends rows to the files of a column; `first` has its dtype and its number of features."""

    def __init__(self, folder: Path, name: str, first: RaggedArray, stack: ExitStack) -> None:
        self.dtype, self.features = first.values.dtype, first.features
        self.tokens = self.max_length = 0
        paths = [folder / f"{name}.{suffix}" for suffix in ("tokens", "lengths", "offsets")]
        self.files = [stack.enter_context(path.open("wb")) for path in paths]

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
