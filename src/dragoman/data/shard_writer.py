"""Writing token stores: rows in a folder, or corpora in shards of many rows with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.examples import EncodedPair
from dragoman.data.token_store import (
    LENGTH_COUNTS_FILE,
    SHARDED_VERSION,
    SINGLE_FOLDER_VERSION,
    LengthCounts,
    StoredCorpus,
    TokenStore,
    count_lengths,
    merge_lengths,
)
from dragoman.errors import UserError
from dragoman.storage import atomic_folder, remove_folder

MAX_SHARD_PAIRS = 2**22  # pairs of a shard at most: a billion are 239 shards


class EncodedColumn(NamedTuple):
    """One side of some pairs: the rows' lengths, and their tokens (or vectors of `features` numbers) flat."""

    lengths: NDArray[np.int32]
    tokens: NDArray[Any]
    features: int = 0

    def split(self, rows: int) -> tuple[EncodedColumn, EncodedColumn]:
        """The first rows, and the others."""
        place = int(self.lengths[:rows].sum(dtype=np.int64)) * max(1, self.features)
        first = EncodedColumn(self.lengths[:rows], self.tokens[:place], self.features)
        return first, EncodedColumn(self.lengths[rows:], self.tokens[place:], self.features)


EncodedColumns = Mapping[str, EncodedColumn]  # source, target where there is one, and flags of rows of text


def encode_columns(examples: Sequence[EncodedPair], vocabularies: tuple[int, int]) -> dict[str, EncodedColumn]:
    """Some pairs as they are written: two bytes a token while they fit, float32 for vectors."""
    names = ("source",) if examples[0].target is None else ("source", "target")
    made = {
        name: _column([getattr(example, name) for example in examples], vocabulary)
        for name, vocabulary in zip(names, vocabularies)
    }
    if examples[0].flags is not None:
        made["flags"] = _column([[example.flags] for example in examples], 2**16)
    return made


def _column(rows: list[Any], vocabulary: int) -> EncodedColumn:
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    if isinstance(rows[0], np.ndarray):
        return EncodedColumn(lengths, np.concatenate(rows).astype(np.float32).reshape(-1), rows[0].shape[1])
    dtype = np.uint16 if vocabulary <= 2**16 else np.uint32
    return EncodedColumn(lengths, np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum(dtype=np.int64))))


def write_store(
    folder: Path,
    chunks: Iterable[list[EncodedPair]],
    vocabulary: int,
    target_vocabulary: int = 0,
    fingerprint: str = "",
) -> TokenStore:
    """Writes a store without shards in one pass and opens it; until it is whole it stands under a temporary name."""
    vocabularies = (vocabulary, target_vocabulary or vocabulary)
    with _replaced(folder) as partial, ExitStack() as stack:
        shard = _Shard(partial, fingerprint)
        stack.callback(shard.close)
        for chunk in filter(None, chunks):
            shard.write(encode_columns(chunk, vocabularies))
        _some(shard.pairs, folder)
        shard.finish()
    return TokenStore(folder)


def write_shards(
    folder: Path,
    parts: Iterable[tuple[int, EncodedColumns]],
    names: Sequence[str],
    tags: Sequence[str] = (),
    draws: Callable[[Sequence[int]], Sequence[int]] = list,
    fingerprint: str = "",
) -> TokenStore:
    """Writes corpora in shards of at most SHARD pairs, in one pass, and opens the store.

    `parts` are some pairs of a corpus at a time, with its number, in order; `draws` says from the pairs of each corpus
    how many an epoch draws of it. Where a shard ends follows from the pairs alone.
    """
    with _replaced(folder) as partial, ExitStack() as stack:
        shards: list[_Shard] = []
        corpora: list[int] = []  # of each shard
        for corpus, some in parts:
            rest = dict(some)
            while pairs := len(rest["source"].lengths):
                if not shards or corpora[-1] != corpus or shards[-1].pairs == MAX_SHARD_PAIRS:
                    if shards:
                        shards[-1].finish()
                    shards.append(_Shard(partial / f"{len(shards):06d}"))
                    stack.callback(shards[-1].close)
                    corpora.append(corpus)
                cut = {
                    name: column.split(min(pairs, MAX_SHARD_PAIRS - shards[-1].pairs)) for name, column in rest.items()
                }
                shards[-1].write({name: first for name, (first, _) in cut.items()})
                rest = {name: second for name, (_, second) in cut.items()}
        _some(len(shards), folder)
        shards[-1].finish()
        counts = [sum(s.pairs for s, c in zip(shards, corpora) if c == number) for number in range(len(names))]
        tagged = tags or [""] * len(names)
        index = {
            "version": SHARDED_VERSION,
            "fingerprint": fingerprint,
            "pairs": sum(counts),
            "longest": max(shard.longest for shard in shards),
            "sides": {name: _form(shards[0].sides[name].about()) for name in shards[0].sides},
            "corpora": [asdict(StoredCorpus(*part)) for part in zip(names, counts, draws(counts), tagged)],
            "shards": [
                {"folder": shard.folder.name, "corpus": corpus, "pairs": shard.pairs, "tokens": shard.tokens}
                for shard, corpus in zip(shards, corpora)
            ],
        }
        (partial / LENGTH_COUNTS_FILE).write_bytes(
            np.stack(merge_lengths([shard.lengths for shard in shards]), 1).astype(np.int64).tobytes()
        )
        (partial / "store.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    return TokenStore(folder)


def _form(about: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in about.items() if name != "tokens"}


def _some(count: int, folder: Path) -> None:
    if not count:
        raise UserError(f"there is no sentence pair to write to {folder}: the corpus is empty")


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """The folder under a temporary name; when the block has ended well it takes the place of the store before it."""
    if folder.exists() and not (folder / "store.json").exists():
        raise UserError(f"{folder} exists and is no token store: delete it or choose another folder")
    with atomic_folder(folder) as partial:
        yield partial
        remove_folder(folder)


class _Shard:
    """A folder of rows that is being written: of each side the tokens, the lengths, and where the rows begin."""

    def __init__(self, folder: Path, fingerprint: str = "") -> None:
        self.folder, self.fingerprint, self.pairs = folder, fingerprint, 0
        self.sides: dict[str, _SideFiles] = {}
        self.lengths: LengthCounts  # when it is finished
        folder.mkdir(exist_ok=True)

    @property
    def longest(self) -> int:
        return max(side.longest for side in self.sides.values())

    @property
    def tokens(self) -> dict[str, int]:
        return {name: side.tokens for name, side in self.sides.items()}

    def write(self, some: EncodedColumns) -> None:
        if not self.sides:
            self.sides = {name: _SideFiles(self.folder, name, column) for name, column in some.items()}
        for name, side in self.sides.items():
            side.write(some[name])
        self.pairs += len(some["source"].lengths)

    def finish(self) -> None:
        self.close()
        about = {
            "version": SINGLE_FOLDER_VERSION,
            "fingerprint": self.fingerprint,
            "pairs": self.pairs,
            "longest": self.longest,
            "sides": {name: side.about() for name, side in self.sides.items()},
        }
        (self.folder / "store.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        self.lengths = count_lengths(TokenStore(self.folder))

    def close(self) -> None:
        for side in self.sides.values():
            for file in side.files:
                file.close()


class _SideFiles:
    def __init__(self, folder: Path, name: str, first: EncodedColumn) -> None:
        self.dtype, self.features = first.tokens.dtype, first.features
        self.tokens = self.longest = 0
        paths = [folder / f"{name}.{kind}" for kind in ("tokens", "lengths", "offsets")]
        self.files: list[BinaryIO] = [path.open("wb") for path in paths]

    def about(self) -> dict[str, Any]:
        form: dict[str, Any] = {"dtype": self.dtype.name, "tokens": self.tokens}
        return form | ({"features": self.features} if self.features else {})

    def write(self, column: EncodedColumn) -> None:
        ends = self.tokens + np.cumsum(column.lengths, dtype=np.int64)
        for file, array in zip(self.files, (column.tokens, column.lengths, ends - column.lengths)):
            file.write(np.ascontiguousarray(array).data)
        self.tokens = int(ends[-1])
        self.longest = max(self.longest, int(column.lengths.max()))
