"""Feature files: sequences of vectors in place of source text, such as image patches or audio frames.

A file is `.npy`, an array of examples × length × features, or `.npz` with `values`, the vectors of all examples
concatenated, and `lengths`, the number of vectors of each example. Uncompressed arrays are memory-mapped, compressed
ones are read. Pickled objects are never loaded.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import Corpus, SentencePair
from dragoman.data.media_files import open_media, read_media_pairs
from dragoman.data.text_files import open_file, read_lines
from dragoman.errors import UserError

FeatureArray = NDArray[np.float32]
_NUMBER_KINDS = "fiub"  # the kinds of numpy's dtypes that are numbers: floating-point, signed, unsigned, boolean


def read_feature_pairs(corpus: Corpus) -> Iterator[SentencePair]:
    """Read examples (S vectors of F numbers, or media files) with their texts; a digest stands for source text.

    The vectors of media files are computed when they are encoded, not in the passes over the texts before. Media files
    whose vectors have different sizes, and a target file with another number of lines than examples, are UserErrors.
    """
    if corpus.has_media:
        dim = feature_dim(corpus)
        for pair in read_media_pairs(corpus):
            media = open_media(corpus, pair)
            if media.feature_dim != dim:
                raise UserError(
                    f"{media.name} has vectors of {media.feature_dim} numbers, but the first file of the list has "
                    f"vectors of {dim}: keep images and sound in separate lists"
                )
            yield pair._replace(source=media.digest, features=media)
        return
    if corpus.target is None:
        raise UserError(
            f"{corpus.source} has only feature vectors of the sources, no target texts: name the file with their "
            "target texts, too (data.target)"
        )
    source = FeatureFile(corpus.source)
    for features, target in zip_longest(source, read_lines(corpus.target)):
        if features is None or target is None:
            lines = sum(1 for _ in read_lines(corpus.target))
            raise UserError(
                f"{corpus.source} has {len(source):,} examples but {corpus.target} has {lines:,} lines: expected one "
                "target line per example"
            )
        line, text = target
        digest = blake2b(np.ascontiguousarray(features).data, digest_size=8).hexdigest()
        description = f"{describe_features(features)} {digest}" if len(features) else ""  # "": an empty source
        yield SentencePair(description, text, corpus.name, line, features=features)


def feature_dim(corpus: Corpus) -> int:
    """Return how many numbers a feature vector of a corpus has; for images and sound, those of the first file."""
    if not corpus.has_media:
        return FeatureFile(corpus.source).dim
    return open_media(corpus, next(read_media_pairs(corpus))).feature_dim


def describe_features(features: NDArray[Any]) -> str:
    """Describe the feature vectors of a source, S F, by their shape, such as 12×80 for 12 vectors of 80 numbers."""
    return f"{len(features)}×{features.shape[-1]}"


def check_features(features: Any, size: int, name: str = "a source") -> FeatureArray:
    """Convert one example to float32, S F; raise a UserError unless its vectors consist of `size` finite numbers.

    `name` is that of the example in error messages.
    """
    if isinstance(features, str):
        raise UserError(
            f"this model reads vectors of {size} features, not text: pass arrays, an .npz file, or a list of image or "
            "sound files"
        )
    array = np.asarray(features)
    if array.dtype.kind not in _NUMBER_KINDS:
        raise UserError(f"the feature array of {name} must be numbers, but has the type {array.dtype}: convert it")
    if array.ndim != 2 or array.shape[1] != size:
        shape = " × ".join(map(str, array.shape))
        raise UserError(
            f"the feature array of {name} must have the shape number of vectors × {size}, but has shape {shape}: pass "
            "such an array"
        )
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise UserError(f"the feature array of {name} contains NaN or infinite values: clean the data first")
    return array


class FeatureFile:
    """The examples of a feature file; iteration yields arrays of shape S F."""

    def __init__(self, path: Path) -> None:
        """Open the file; raise a UserError if it has no vectors."""
        self.path = path
        self.values, self.lengths = _open_examples(path)  # vectors of all examples, N F; vectors of each example
        self.dim: int = self.values.shape[-1]  # numbers per vector
        if not len(self.lengths) or not self.dim:
            raise _invalid_file(path, "is empty")

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[FeatureArray]:
        """Yield the float32 vectors of every example, S F."""
        end = 0  # of the present example among the vectors of all examples
        for number, length in enumerate(self.lengths.tolist(), 1):
            start, end = end, end + length
            yield check_features(self.values[start:end], size=self.dim, name=f"{self.path}, example {number:,}")


def _open_examples(path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return all vectors of a feature file, N F, and the number of vectors of each example.

    An .npy file has one array, examples × length × features; an .npz file has the arrays `values` and `lengths`. N is
    the number of vectors of all examples, F their size. Other arrays, or lengths that do not add up, are a UserError.
    """
    arrays = _open_arrays(path)
    if "" in arrays:  # the array of an .npy file
        array = arrays[""]
        if array.ndim != 3 or array.dtype.kind not in _NUMBER_KINDS:
            raise _invalid_file(path, f"contains an array of {_describe_array(array)}")
        count, length, features = array.shape
        return array.reshape(count * length, features), np.full(count, length)
    if missing := [name for name in ("values", "lengths") if name not in arrays]:
        raise _invalid_file(path, f"has no array {missing[0]!r}, only {sorted(arrays)}")
    values, lengths = arrays["values"], arrays["lengths"]
    if values.ndim != 2 or values.dtype.kind not in _NUMBER_KINDS:
        actual = _describe_array(values)
        raise UserError(
            f"{path}: the array 'values' must be numbers of shape vectors × features, but is {actual}: write the file "
            "again"
        )
    are_integers = lengths.ndim == 1 and lengths.dtype.kind in "iu"
    if not are_integers or (lengths.astype(np.int64) < 0).any():
        actual = f"{_describe_array(lengths)}{f' with {lengths.min()}' if are_integers else ''}"
        raise UserError(
            f"{path}: the array 'lengths' must hold the number of vectors of each example as integers of at least 0, "
            f"but is {actual}: write the file again"
        )
    if (num_vectors := int(lengths.sum())) != len(values):
        raise UserError(
            f"{path}: the array 'lengths' adds up to {num_vectors:,} vectors, but the array 'values' has "
            f"{len(values):,}: write the file with equal numbers"
        )
    return values, lengths.astype(np.int64)


def _invalid_file(path: Path, problem: str) -> UserError:
    """Return the error for a feature file with a problem, such as "is empty": it says what such a file must contain."""
    return UserError(
        f"the feature file {path} {problem}: expected an array of examples × length × features (.npy), or the arrays "
        "'values' and 'lengths' (.npz)"
    )


def _describe_array(array: NDArray[Any]) -> str:
    """Describe an array by shape and type for messages, such as "10 × 3 of float32"."""
    return f"{' × '.join(map(str, array.shape)) or 'one value'} of {array.dtype}"


def _open_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Open the arrays of an .npy or .npz file, by name; the only array of an .npy file has the name "".

    A file that numpy cannot read is a UserError.
    """
    with open_file(path) as file:
        try:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return {"": _map_array(path, file)}
            with zipfile.ZipFile(file) as archive:
                members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                return {info.filename.removesuffix(".npy"): _open_member(path, archive, info) for info in members}
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise _invalid_file(path, f"cannot be read as numpy arrays ({error})") from None


def _open_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Open the array in a member of an .npz file, which is a ZIP archive: memory-mapped unless it is compressed."""
    if info.compress_type == zipfile.ZIP_STORED:
        with open_file(path) as file:
            # A ZIP member begins with a header, whose bytes 26 to 29 are the lengths of two fields before the array.
            file.seek(info.header_offset + 26)
            file.seek(sum(struct.unpack("<HH", file.read(4))), 1)  # relative to the end of the header
            return _map_array(path, file)
    with archive.open(info) as compressed:
        return np.lib.format.read_array(compressed, allow_pickle=False)


def _map_array(path: Path, file: BinaryIO) -> NDArray[Any]:
    """Memory-map the array of numpy's file format (.npy) that starts at the current position of the file.

    A file of another format, or with pickled objects, is a ValueError.
    """
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
    except ValueError:
        raise ValueError("it has no numpy header") from None
    if version not in headers:
        raise ValueError(f"format version {version} is not supported")
    shape, is_fortran, dtype = headers[version](file)  # whether columns, not rows, are contiguous
    if dtype.hasobject:
        raise ValueError("it contains pickled Python objects, which are never loaded")
    if not np.prod(shape):  # an empty array cannot be mapped
        return np.empty(shape, dtype)
    order: Literal["F", "C"] = "F" if is_fortran else "C"
    return np.memmap(path, dtype, mode="r", offset=file.tell(), shape=shape, order=order)
