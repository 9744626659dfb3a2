"""Sources that are no text: sequences of vectors, such as the patches of images or the frames of recordings.

They stand in a file of numpy's: `.npy`, an array of examples × length × features, or `.npz` with `values`, the vectors
of all examples one after the other, and `lengths`, how many of them each example has. What is stored as it is, is
mapped and not read into memory; what is compressed is read. Nothing in such a file is ever executed.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import Corpus, SentencePair, open_file, read_lines
from dragoman.errors import UserError

FeatureArray = NDArray[np.float32]
EXPECTED = "an array of examples × length × features (.npy) or 'values' and 'lengths' (.npz) is expected"


def read_feature_pairs(corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
    """The examples of all corpora, one after the other, each with its line of text.

    What stands for the source as text is its shape and a digest, by which examples can be told apart.
    """
    for corpus in corpora:
        if corpus.target is None:
            raise UserError(f"{corpus.source} holds sources alone: name the text that goes with it as target")
        source = FeatureFile(corpus.source)
        for signal, line in zip_longest(source, read_lines(corpus.target)):
            if signal is None or line is None:
                lines = sum(1 for _ in read_lines(corpus.target))
                raise UserError(
                    f"{corpus.source} has {len(source):,} examples but {corpus.target} has {lines:,} lines: one line "
                    "an example is expected"
                )
            digest = blake2b(np.ascontiguousarray(signal).data, digest_size=8).hexdigest()
            yield SentencePair(
                f"{describe_features(signal)} {digest}" if len(signal) else "", line[1], corpus.name, line[0], signal
            )


def describe_features(signal: NDArray[Any]) -> str:
    """A few words that stand for a source that cannot be printed."""
    return f"{len(signal)}×{signal.shape[-1]}"


def check_features(signal: Any, features: int, name: str = "a source") -> FeatureArray:
    """One example as float32, S F, if it is one of such vectors."""
    if isinstance(signal, str):
        raise UserError(f"this run reads vectors of {features} numbers, not text: give it arrays, or an .npz file")
    array = np.asarray(signal)
    if array.dtype.kind not in "fiub" or array.ndim != 2 or array.shape[1] != features:
        raise UserError(
            f"{name} must be numbers of shape length × {features}, but has shape {' × '.join(map(str, array.shape))}"
        )
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds values that are no numbers (NaN or infinite): clean the data first")
    return array


class FeatureFile:
    """The examples of a file, in order; `features` is how many numbers a vector has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values, self.lengths = _open(path)
        self.features: int = self.values.shape[-1]
        if not len(self.lengths) or not self.features:
            raise UserError(f"{path} is empty: {EXPECTED}")

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[FeatureArray]:
        start = 0
        for number, length in enumerate(self.lengths.tolist(), 1):
            end = start + length
            yield check_features(self.values[start:end], self.features, f"{self.path}, example {number:,}")
            start = end


def _open(path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """N F vectors, and how many of them belong to each example."""
    arrays = _arrays(path)
    if "" in arrays:
        array = arrays[""]
        if array.ndim != 3 or array.dtype.kind not in "fiub":
            raise UserError(f"{path} holds an array of {_shape(array)}: {EXPECTED}")
        count, length, features = array.shape
        return array.reshape(count * length, features), np.full(count, length)
    if missing := [name for name in ("values", "lengths") if name not in arrays]:
        raise UserError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'} but no {missing[0]}: {EXPECTED}")
    values, lengths = arrays["values"], arrays["lengths"]
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise UserError(f"{path}: 'values' must be numbers of shape vectors × features, but is {_shape(values)}")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths.astype(np.int64) < 0).any():
        raise UserError(
            f"{path}: 'lengths' must be whole numbers of at least 0, one an example, but is {_shape(lengths)}"
        )
    if (total := int(lengths.sum())) != len(values):
        raise UserError(f"{path}: the lengths add up to {total:,} vectors, but there are {len(values):,}")
    return values, lengths.astype(np.int64)


def _shape(array: NDArray[Any]) -> str:
    return f"{' × '.join(map(str, array.shape)) or 'one value'} of {array.dtype}"


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name; that of a `.npy` file has none."""
    with open_file(path) as file:
        try:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return {"": _mapped(path, file)}
            with zipfile.ZipFile(file) as archive:
                members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                return {info.filename.removesuffix(".npy"): _member(path, archive, info) for info in members}
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{path} cannot be read as arrays of numpy ({error}): {EXPECTED}") from None


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """One array of an archive, mapped where it is stored as it is."""
    if info.compress_type == zipfile.ZIP_STORED:
        with open_file(path) as file:
            file.seek(info.header_offset + 26)  # the lengths of the name and of what else stands before the array
            file.seek(sum(struct.unpack("<HH", file.read(4))), 1)
            return _mapped(path, file)
    with archive.open(info) as packed:
        return np.lib.format.read_array(packed, allow_pickle=False)


def _mapped(path: Path, file: BinaryIO) -> NDArray[Any]:
    """The array that begins here, mapped into memory."""
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
    except ValueError:
        raise ValueError("it does not begin like one") from None
    if version not in headers:
        raise ValueError(f"format {version} is not known")
    shape, fortran, dtype = headers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds objects of Python, which are never loaded")
    if not np.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
