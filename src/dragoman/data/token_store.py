"""Token ids on disk, memory-mapped, so that a corpus can be larger than memory: reading and writing of stores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.data_formats import ENDS_MID_LINE, FOLLOWS_PREVIOUS_ROW, STARTS_MID_LINE, EncodedPair
from dragoman.data.ragged_array import RaggedArray
from dragoman.data.store_columns import ColumnInfo, StoreColumn, damaged_store
from dragoman.errors import UserError
from dragoman.storage import atomic_folder, remove_folder

# Versions of the file format: rows in the folder itself, or in shards, which are folders of the first version.
SINGLE_FOLDER_VERSION, SHARDED_VERSION = 1, 2
INDEX_FILE = "store.json"
LENGTH_COUNTS_FILE = "lengths.counts"  # triples of source length, target length and number of pairs
ROWS_PER_SLICE = 2**18
MAX_SHARD_PAIRS = 2**22  # a billion pairs are 239 shards


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
    source_language: str = ""  # codes of a multilingual model
    target_language: str = ""


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
        """Read the index of a store and check the sizes of its files; raise a UserError if it is damaged.

        In the index, `sides` are the columns (source, target, flags) and `longest` is the maximum length of a row. The
        rows are in `folder` itself (SINGLE_FOLDER_VERSION) or in shards, its subfolders.
        """
        self.folder = folder
        index = _read_index(folder)
        try:
            self.pairs: int = index["pairs"]
            self.max_length: int = index["longest"]
            if index["version"] == SINGLE_FOLDER_VERSION:
                folders, pairs = [folder], np.array([self.pairs])
                tokens = {name: [column["tokens"]] for name, column in index["sides"].items()}
                self.corpora = [StoredCorpus(folder.name, pairs=self.pairs, draws=self.pairs)]
            else:
                folders = [folder / shard["folder"] for shard in index["shards"]]
                pairs = np.array([shard["pairs"] for shard in index["shards"]])
                tokens = {name: [shard["tokens"][name] for shard in index["shards"]] for name in index["sides"]}
                self.corpora = [StoredCorpus(**corpus) for corpus in index["corpora"]]
            if pairs.sum() != self.pairs or sum(corpus.pairs for corpus in self.corpora) != self.pairs:
                raise ValueError("the numbers of pairs of shards, corpora and store differ")
            columns = {}
            for name, column in index["sides"].items():  # "features": size of feature vectors, missing for tokens
                info = ColumnInfo(name, np.dtype(column["dtype"]), tokens[name], column.get("features", 0))
                _check_file_sizes(info, folders, pairs.tolist())
                columns[name] = StoreColumn(info, folders, pairs)
            self.columns = (columns["source"], columns.get("target", columns["source"]))
            self.flags = columns.get("flags")
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            raise damaged_store(folder) from None
        self.monolingual = "target" not in columns

    def __len__(self) -> int:
        """Return the number of pairs."""
        return self.pairs

    @property
    def tokens(self) -> int:
        """Number of tokens of the column (source or target) with more of them."""
        return max(column.tokens for column in self.columns)

    def source(self, index: int) -> NDArray[Any]:
        """Return the source ids of a pair, without BOS and EOS, or its S feature vectors of F numbers, S F."""
        return self.columns[0].row(index)

    def target(self, index: int) -> NDArray[Any]:
        """Return the target ids of a pair, without BOS and EOS."""
        return self.columns[1].row(index)

    def corpus_numbers(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the corpus of each pair, given the store indices of pairs."""
        ends = np.cumsum([corpus.pairs for corpus in self.corpora])
        return np.searchsorted(ends, pairs, side="right")

    def preload(self, pairs: NDArray[np.int64]) -> None:
        """Copy the pairs with these store indices, which are about to be read, into memory if the store is large."""
        columns = list(self.columns[:1] if self.monolingual else self.columns)  # monolingual: both are the same column
        for column in columns if self.flags is None else [*columns, self.flags]:
            column.preload(pairs)

    def starts_line(self, index: int) -> bool:
        """Whether a row of text starts its line; lines longer than `data.max_length` are split into several rows."""
        return not self._has_flag(index, STARTS_MID_LINE)

    def ends_line(self, index: int) -> bool:
        """Whether a row of text ends its line, and the line does not go on in the next row."""
        return not self._has_flag(index, ENDS_MID_LINE)

    def follows_previous(self, index: int) -> bool:
        """Whether a row follows the previous row in the same document; assumed for old stores without flags."""
        return index > 0 if self.flags is None else self._has_flag(index, FOLLOWS_PREVIOUS_ROW)

    def same_document(self, first: int, second: int) -> bool:
        """Whether the rows with these indices, in any order, belong to one document; False for old stores.

        These have no flags, and so do not know.
        """
        rows = range(min(first, second) + 1, max(first, second) + 1)  # each of them follows the previous row in it
        return self.flags is not None and all(self._has_flag(row, FOLLOWS_PREVIOUS_ROW) for row in rows)

    def _has_flag(self, index: int, flag: int) -> bool:
        """Whether a bit is set in the flags of a pair; never, if the store has no flags."""
        return self.flags is not None and bool(int(self.flags.row(index)[0]) & flag)

    def length_counts(self) -> LengthCounts:
        """Return how many pairs have each combination of source and target length."""
        path = self.folder / LENGTH_COUNTS_FILE
        if not path.exists():  # a store without shards
            return count_lengths(self)
        table = np.fromfile(path, np.int64)  # triples of source length, target length and number of pairs
        if len(table) % 3 or table[2::3].sum() != self.pairs:
            raise damaged_store(self.folder)
        return LengthCounts(*table.reshape(-1, 3).T)


def count_lengths(store: TokenStore) -> LengthCounts:
    """Count how many pairs have each combination of source and target length, from all rows."""
    counts = LengthCounts(*np.zeros((3, 0), np.int64))
    for start in range(0, len(store), ROWS_PER_SLICE):  # in slices, so that memory is bounded
        rows = slice(start, start + ROWS_PER_SLICE)
        source, target = (np.asarray(column.lengths[rows], np.int64) for column in store.columns)
        counts = merge_length_counts([counts, LengthCounts(source, target, np.ones_like(source))])
    return counts


def merge_length_counts(counts: list[LengthCounts]) -> LengthCounts:
    """Add histograms of (source length, target length): sum the pairs of equal lengths."""
    source, target, pairs = (np.concatenate(arrays) for arrays in zip(*counts))
    # both lengths in one integer, the target length in its lower 32 bits
    lengths, inverse = np.unique(source << 32 | target, return_inverse=True)
    sums = np.zeros(len(lengths), np.int64)
    np.add.at(sums, inverse, pairs)
    return LengthCounts(source=lengths >> 32, target=lengths & 0xFFFFFFFF, pairs=sums)


def _check_file_sizes(info: ColumnInfo, folders: list[Path], pairs: list[int]) -> None:
    """Raise a ValueError if a file of a column does not have the size that follows from the index of the store.

    `folders` are those of the shards (parts of the store), `pairs` their numbers of pairs; no file is read.
    """
    for folder, rows, tokens in zip(folders, pairs, info.tokens):
        token_bytes = tokens * max(1, info.features) * info.dtype.itemsize
        # lengths have 4 bytes (int32), offsets 8 (int64)
        for suffix, size in {"tokens": token_bytes, "lengths": 4 * rows, "offsets": 8 * rows}.items():
            if (folder / f"{info.name}.{suffix}").stat().st_size != size:
                raise ValueError(f"{folder / info.name}.{suffix} has the wrong size")


def _read_index(folder: Path) -> dict[str, Any]:
    """Read the index file of a store; raise a UserError if it is missing, damaged or of an unknown version."""
    try:
        index = json.loads((folder / INDEX_FILE).read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no tokenized data, because the file {INDEX_FILE} is missing: train a new run from the "
            "original text files"
        ) from None
    except (OSError, ValueError):
        raise damaged_store(folder) from None
    if not isinstance(index, dict):
        raise damaged_store(folder)
    if index.get("version") not in (SINGLE_FOLDER_VERSION, SHARDED_VERSION):
        raise UserError(
            f"the tokenized data in {folder} has format version {index.get('version')}, but only "
            f"{SINGLE_FOLDER_VERSION} and {SHARDED_VERSION} are supported: train a new run from the original text files"
        )
    return index


# Writing

EncodedColumns = Mapping[str, RaggedArray]  # source; target and flags if there are any


def encode_columns(pairs: Sequence[EncodedPair], vocab_sizes: tuple[int, int]) -> dict[str, RaggedArray]:
    """Convert pairs to the columns source, target and flags, the last two only if pairs have them.

    Either all pairs have them, or none. Tokens have two bytes if their vocabulary allows it, otherwise four; feature
    vectors are float32. `vocab_sizes` are those of source and target.
    """
    columns = {"source": _encode_column([pair.source for pair in pairs], vocab_sizes[0])}
    if pairs[0].target is not None:
        columns["target"] = _encode_column([pair.target for pair in pairs], vocab_sizes[1])
    if pairs[0].flags is not None:
        columns["flags"] = _encode_column([[pair.flags] for pair in pairs], vocab_size=2**16)  # two bytes each
    return columns


def _encode_column(rows: list[Any], vocab_size: int) -> RaggedArray:
    """Concatenate rows of token ids in the smallest dtype that suffices, or rows of feature vectors in float32.

    `vocab_size` decides on the dtype of ids.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if isinstance(rows[0], np.ndarray):
        return RaggedArray(np.concatenate(rows).astype(np.float32), lengths)
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    return RaggedArray(np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths)


def write_store(folder: Path, chunks: Iterable[list[EncodedPair]], vocab_size: int) -> TokenStore:
    """Write a store without shards in one pass and open it; `vocab_size` is that of source and target.

    A store that is in the folder is replaced. Chunks may be empty, but no pairs at all are a UserError.
    """
    with _replace_store(folder) as partial:
        vocab_sizes = (vocab_size, vocab_size)  # of source and target
        index = _write_shard(partial, (encode_columns(chunk, vocab_sizes) for chunk in chunks if chunk))
        _require_pairs(index["pairs"], folder)
    return TokenStore(folder)


def write_shards(
    folder: Path,
    chunks: Iterable[tuple[int, EncodedColumns]],
    names: Sequence[str],
    tags: Sequence[str] = (),
    languages: Sequence[tuple[str, str]] = (),
    draws: Callable[[Sequence[int]], Sequence[int]] = list,
) -> TokenStore:
    """Write corpora in shards of at most MAX_SHARD_PAIRS pairs, in one pass, and open the store.

    Args:
        folder: the store; an existing one is replaced.
        chunks: the index of a corpus and some of its pairs; corpora in order.
        names: names of the corpora.
        tags: corpus tags, one per corpus, or none.
        languages: source and target language of each corpus, or none.
        draws: computes from the number of pairs of each corpus how many of them an epoch draws; by default all.

    No pairs at all are a UserError.
    """
    with _replace_store(folder) as partial:  # a temporary folder
        shards: list[dict[str, Any]] = []  # entries of the index file
        columns: dict[str, Any] = {}  # entries of source, target and flags
        length_counts, longest = [], 0  # histograms of lengths; the maximum length of a row
        for (corpus, _), group in groupby(_split_at_shards(chunks), key=itemgetter(0)):  # one group for each shard
            shard_folder = partial / f"{len(shards):06d}"
            index = _write_shard(shard_folder, (shard_columns for _, shard_columns in group))
            tokens = {name: column.pop("tokens") for name, column in index["sides"].items()}
            shards.append({"folder": shard_folder.name, "corpus": corpus, "pairs": index["pairs"], "tokens": tokens})
            # without their tokens, the entries of the columns are the same in all shards
            columns, longest = columns or index["sides"], max(longest, index["longest"])
            length_counts.append(count_lengths(TokenStore(shard_folder)))
        _require_pairs(len(shards), folder)
        # pairs of each corpus
        counts = [sum(shard["pairs"] for shard in shards if shard["corpus"] == index) for index in range(len(names))]
        source_languages, target_languages = zip(*(languages or [("", "")] * len(names)))
        tags = tags or [""] * len(names)
        corpora = map(StoredCorpus, names, counts, draws(counts), tags, source_languages, target_languages)
        merged_counts = np.stack(merge_length_counts(length_counts), 1).astype(np.int64)
        (partial / LENGTH_COUNTS_FILE).write_bytes(merged_counts.tobytes())
        _write_index(
            partial,
            SHARDED_VERSION,
            pairs=sum(counts),
            longest=longest,
            columns=columns,
            corpora=list(map(asdict, corpora)),
            shards=shards,
        )
    return TokenStore(folder)


def _split_at_shards(chunks: Iterable[tuple[int, EncodedColumns]]) -> Iterator[tuple[tuple[int, int], EncodedColumns]]:
    """Split chunks of pairs where a shard (a part of the store) has MAX_SHARD_PAIRS pairs.

    Chunks are (index of the corpus, pairs). Yields ((index of the corpus, index of its shard), pairs of one shard).
    """
    written: Counter[int] = Counter()  # pairs per corpus
    for corpus, columns in chunks:
        while pairs := len(columns["source"].lengths):
            shard, start = divmod(written[corpus], MAX_SHARD_PAIRS)
            fitting = min(pairs, MAX_SHARD_PAIRS - start)
            yield (corpus, shard), {name: column[:fitting] for name, column in columns.items()}
            columns = {name: column[fitting:] for name, column in columns.items()}
            written[corpus] += fitting


def _write_shard(folder: Path, chunks: Iterable[EncodedColumns]) -> dict[str, Any]:
    """Write the tokens, lengths and offsets of each column to a folder, and return the contents of its index file.

    In the index, "longest" is the maximum length of a row, and "sides" are the entries of the columns.
    """
    folder.mkdir(exist_ok=True)
    writers: dict[str, _ColumnWriter] = {}
    pairs = 0
    with ExitStack() as stack:
        for columns in chunks:
            if not writers:
                writers = {name: _ColumnWriter(folder, name, column, stack) for name, column in columns.items()}
            for name, writer in writers.items():
                writer.write(columns[name])
            pairs += len(columns["source"].lengths)
    longest = max((writer.max_length for writer in writers.values()), default=0)
    infos = {name: writer.info() for name, writer in writers.items()}
    return _write_index(folder, SINGLE_FOLDER_VERSION, pairs=pairs, longest=longest, columns=infos)


def _write_index(
    folder: Path, version: int, pairs: int, longest: int, columns: dict[str, Any], **shards: Any
) -> dict[str, Any]:
    """Write the index file of a store or shard, and return its contents.

    `longest` is the maximum length of a row; `columns` are the entries of source, target and flags; `shards` are
    further fields for a store with shards.
    """
    # Earlier versions of dragoman require the field `fingerprint`, which is no longer used.
    index = {"version": version, "fingerprint": "", "pairs": pairs, "longest": longest, "sides": columns, **shards}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return index


def _require_pairs(count: int, folder: Path) -> None:
    """Raise a UserError if `count`, the number of pairs that were written to `folder`, is 0."""
    if not count:
        raise UserError(
            f"the corpus has no sentence pairs, so that no tokenized data is written to {folder}: check the files"
        )


@contextmanager
def _replace_store(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `folder` when the block succeeds, and replaces a store that is there.

    Another folder than a store is not replaced, which is a UserError.
    """
    if folder.exists() and not (folder / INDEX_FILE).exists():
        raise UserError(
            f"{folder} exists, but holds no tokenized data (no file {INDEX_FILE}) and is not overwritten: delete it or "
            "choose another folder"
        )
    with atomic_folder(folder) as partial:
        yield partial
        remove_folder(folder)  # the store that is replaced


class _ColumnWriter:
    """Appends rows to the files of a column: tokens, lengths and offsets."""

    def __init__(self, folder: Path, name: str, first: RaggedArray, stack: ExitStack) -> None:
        """Create the files of column `name`, which `stack` closes; `first` are some rows with the dtype of all."""
        self.dtype, self.features = first.values.dtype, first.features  # size of feature vectors; 0 for tokens
        self.tokens = self.max_length = 0  # number of tokens written so far; length of the longest row
        paths = [folder / f"{name}.{suffix}" for suffix in ("tokens", "lengths", "offsets")]
        self.files = [stack.enter_context(path.open("wb")) for path in paths]

    def info(self) -> dict[str, Any]:
        """Return the entry of the column in the index of the store: dtype, number of tokens, and size of features."""
        info: dict[str, Any] = {"dtype": self.dtype.name, "tokens": self.tokens}
        return info | ({"features": self.features} if self.features else {})

    def write(self, column: RaggedArray) -> None:
        """Append rows to the files of tokens, lengths and offsets; `self.tokens` counts the tokens written so far.

        The offset of a row is the index of its first token.
        """
        ends = self.tokens + np.cumsum(column.lengths)
        arrays = (column.values, column.lengths.astype(np.int32), ends - column.lengths)
        for file, array in zip(self.files, arrays):
            file.write(np.ascontiguousarray(array).data)
        self.tokens = int(ends[-1])
        self.max_length = max(self.max_length, int(column.lengths.max()))
