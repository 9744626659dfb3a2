"""Token ids on disk, memory-mapped: a corpus larger than memory trains."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import reading
from dragoman.data.examples import Example
from dragoman.errors import UserError
from dragoman.storage import new_folder, remove_folder

VERSION = 1
LARGE = 2**29  # bytes of a side that may stay resident


def fingerprint(files: Iterable[Path], *settings: str) -> str:
    """A digest of what a store is made from: the files' bytes, and the tokenizer and limits as strings."""
    digest = hashlib.blake2b(digest_size=16)
    for setting in settings:
        digest.update(hashlib.blake2b(setting.encode()).digest())
    for path in files:
        with reading(path) as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


class Side:
    """One side of a store: row i is `tokens[offsets[i] : offsets[i] + lengths[i]]`, without start and end.

    `features` of more than 0: vectors of so many numbers stand in the place of tokens.
    """

    def __init__(self, folder: Path, name: str, rows: int, tokens: int, dtype: str, features: int = 0) -> None:
        self._maps: list[mmap.mmap] = []
        self._unreleased = 0
        self.features = features
        flat = self._map(folder / f"{name}.tokens", np.dtype(dtype), tokens * max(1, features))
        self.tokens = flat.reshape(-1, features) if features else flat
        self.lengths: NDArray[np.int32] = self._map(folder / f"{name}.lengths", np.dtype(np.int32), rows)
        self.offsets: NDArray[np.int64] = self._map(folder / f"{name}.offsets", np.dtype(np.int64), rows)

    def row(self, index: int) -> NDArray[Any]:
        start = self.offsets[index]
        row = self.tokens[start : start + self.lengths[index]]
        self._release(1, row.nbytes)
        return row

    def rows(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """The rows one after the other: a flat copy of their tokens."""
        lengths = self.lengths[indices]
        ends = np.cumsum(lengths, dtype=np.int64)
        starts = self.offsets[indices] - (ends - lengths)  # minus the row's place in the answer
        tokens = self.tokens[np.repeat(starts, lengths) + np.arange(ends[-1])]
        self._release(len(indices), tokens.nbytes)
        return tokens

    def _release(self, rows: int, size: int) -> None:
        # Pages that were read count as this process's memory until they are given back (the system keeps them cached).
        # A row brings up to 64 KiB with it, so a large side is bounded to about 256 MiB however large it is.
        self._unreleased += max(rows, size >> 16)
        if self._unreleased > 4096 and sum(map(len, self._maps)) > LARGE and hasattr(mmap, "MADV_DONTNEED"):
            self._unreleased = 0
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self, path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != count * dtype.itemsize:
                raise ValueError(f"{path} has the wrong size")
            if not count:  # an empty file cannot be mapped
                return np.empty(0, dtype)
            self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return np.frombuffer(self._maps[-1], dtype)


class TokenStore:
    """The token ids of sentence pairs, read from disk as they are asked for.

    A monolingual store holds one side and gives it as source and as target, which is what a language model (target
    alone), an encoder (source alone) and a denoiser (both) want to see.
    """

    def __init__(self, folder: Path) -> None:
        about = _about(folder)
        try:
            self.pairs: int = about["pairs"]
            self.fingerprint: str = about["fingerprint"]
            self.longest: int = about["longest"]
            sides = {name: Side(folder, name, self.pairs, **side) for name, side in about["sides"].items()}
            self.sides = (sides["source"], sides.get("target", sides["source"]))
        except (KeyError, TypeError, ValueError, AttributeError, FileNotFoundError):
            raise _broken(folder) from None
        self.folder = folder
        self.monolingual = len(sides) == 1

    def __len__(self) -> int:
        return self.pairs

    @property
    def tokens(self) -> int:
        """How many there are on the longer side."""
        return max(len(side.tokens) for side in self.sides)

    def source(self, index: int) -> NDArray[Any]:
        return self.sides[0].row(index)

    def target(self, index: int) -> NDArray[Any]:
        return self.sides[1].row(index)

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        return self.sides[0].lengths

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        return self.sides[1].lengths


def write_store(
    folder: Path, chunks: Iterable[list[Example]], vocabulary: int, target_vocabulary: int = 0, fingerprint: str = ""
) -> TokenStore:
    """Writes a store in one pass and opens it; until it is whole it stands under a temporary name."""
    if folder.exists() and not (folder / "store.json").exists():
        raise UserError(f"{folder} exists and is no token store: delete it or choose another folder")
    with new_folder(folder) as partial:
        about = _write(partial, chunks, (vocabulary, target_vocabulary or vocabulary))
        about = {"version": VERSION, "fingerprint": fingerprint, **about}
        (partial / "store.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        remove_folder(folder)
    return TokenStore(folder)


def _write(folder: Path, chunks: Iterable[list[Example]], vocabularies: tuple[int, int]) -> dict[str, Any]:
    with ExitStack() as stack:
        writers: list[_SideWriter] = []
        pairs = 0
        for chunk in filter(None, chunks):
            if not writers:
                names = ("source",) if chunk[0].target is None else ("source", "target")
                writers = [_writer(chunk[0], folder, *named, stack) for named in zip(names, vocabularies)]
            pairs += len(chunk)
            for writer in writers:
                writer.write([getattr(example, writer.name) for example in chunk])
        if not pairs:
            raise UserError(f"there is no sentence pair to write to {folder.parent}: the corpus is empty")
    return {
        "pairs": pairs,
        "longest": max(writer.longest for writer in writers),
        "sides": {writer.name: writer.about() for writer in writers},
    }


def _writer(example: Example, folder: Path, name: str, vocabulary: int, stack: ExitStack) -> _SideWriter:
    first = getattr(example, name)
    if isinstance(first, np.ndarray):
        return _VectorWriter(folder, name, first.shape[1], stack)
    return _SideWriter(folder, name, vocabulary, stack)


class _SideWriter:
    def __init__(self, folder: Path, name: str, vocabulary: int, stack: ExitStack) -> None:
        self.name = name
        self.dtype = np.dtype(np.uint16 if vocabulary <= 2**16 else np.uint32)
        self.tokens = self.longest = 0
        paths = [folder / f"{name}.{kind}" for kind in ("tokens", "lengths", "offsets")]
        self.files: list[BinaryIO] = [stack.enter_context(path.open("wb")) for path in paths]

    def about(self) -> dict[str, Any]:
        return {"dtype": self.dtype.name, "tokens": self.tokens}

    def write(self, rows: list[Any]) -> None:
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        ends = self.tokens + np.cumsum(lengths, dtype=np.int64)
        tokens = self.flat(rows, int(ends[-1]) - self.tokens)
        for file, array in zip(self.files, (tokens, lengths, ends - lengths)):
            file.write(array.data)
        self.tokens = int(ends[-1])
        self.longest = max(self.longest, int(lengths.max()))

    def flat(self, rows: list[Any], count: int) -> NDArray[Any]:
        """The rows one after the other."""
        return np.fromiter(chain.from_iterable(rows), self.dtype, count)


class _VectorWriter(_SideWriter):
    """A side of vectors, float32."""

    def __init__(self, folder: Path, name: str, features: int, stack: ExitStack) -> None:
        super().__init__(folder, name, 0, stack)
        self.dtype, self.features = np.dtype(np.float32), features

    def about(self) -> dict[str, Any]:
        return super().about() | {"features": self.features}

    def flat(self, rows: list[Any], count: int) -> NDArray[Any]:
        return np.concatenate(rows).astype(self.dtype).reshape(-1)


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "store.json").read_bytes())
    except FileNotFoundError:
        raise UserError(f"{folder} holds no token store: train a new run from its files") from None
    except (OSError, ValueError):
        raise _broken(folder) from None
    if not isinstance(about, dict):
        raise _broken(folder)
    if about.get("version") != VERSION:
        raise UserError(
            f"{folder} is a token store of version {about.get('version')}, but this program reads version {VERSION}: "
            f"train a new run from the same files"
        )
    return about


def _broken(folder: Path) -> UserError:
    return UserError(f"the token store {folder} is damaged or incomplete: train a new run from the same files")
