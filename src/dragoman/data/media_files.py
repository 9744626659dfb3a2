"""Media files: images and recordings in place of source text, named one per line of a list, or found in a folder.

A list is a text file with one path per line, or TSV or JSON lines with a path and a text. Paths are relative to the
folder of the list. In a folder, files are sorted by path; the name of a subfolder is the text of the files in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.config import FeatureConfig
from dragoman.data.corpus import Corpus, SentencePair
from dragoman.data.image_patches import patch_dim, read_patches
from dragoman.data.log_mel import read_log_mel
from dragoman.data.text_files import open_file, read_lines
from dragoman.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class MediaReader(NamedTuple):
    """How files of one kind become vectors."""

    read: Callable[[BinaryIO, str, FeatureConfig], NDArray[np.float32]]  # (file, name, settings) → vectors, S F
    feature_dim: Callable[[FeatureConfig], int]  # numbers per vector


_IMAGES = MediaReader(read_patches, patch_dim)
_SOUND = MediaReader(read_log_mel, lambda settings: settings.mel_bins)
MEDIA_READERS = {".png": _IMAGES, ".jpg": _IMAGES, ".jpeg": _IMAGES, ".wav": _SOUND}  # by suffix


@dataclass(frozen=True)
class MediaFile:
    """An image or sound file. `np.asarray` reads it and returns its vectors, S F."""

    path: Path
    settings: FeatureConfig
    location: str = ""  # where a list names it, "images.txt, line 3: "; prefix of its name in error messages

    @property
    def name(self) -> str:
        """The file in error messages: its path, after the place where a list names it."""
        return f"{self.location}{self.path}"

    @property
    def feature_dim(self) -> int:
        """Numbers per vector, which follow from the kind of file and the settings."""
        return self._reader.feature_dim(self.settings)

    @property
    def digest(self) -> str:
        """A description that identifies the content: suffix and hash, such as "png 1f40fc92da241694"."""
        with self._open() as file:
            content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8))
        return f"{self.path.suffix.lower().removeprefix('.')} {content.hexdigest()}"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Compute the vectors of the file, S F; numpy's protocol for conversion. Whatever `copy`, the array is new."""
        with self._open() as file:
            return self._reader.read(file, self.name, self.settings).astype(dtype or np.float32)

    @property
    def _reader(self) -> MediaReader:
        """The reader for the suffix of the file; a suffix that is not of an image or sound file is a UserError."""
        if reader := MEDIA_READERS.get(self.path.suffix.lower()):
            return reader
        raise UserError(
            f"{self.name} does not have the suffix of an image or sound file: expected one of "
            f"{', '.join(MEDIA_READERS)}"
        )

    def _open(self) -> Any:
        """Open the file for reading; raise a UserError if it is not a file with a known suffix."""
        _ = self._reader  # raises the error about the suffix
        if not self.path.is_file():
            problem = "is a folder" if self.path.is_dir() else "does not exist"
            raise UserError(
                f"{self.name} {problem}: expected an image or sound file (paths in a list of files are relative to the "
                "folder of the list)"
            )
        return open_file(self.path)


def read_media_pairs(corpus: Corpus) -> Iterator[SentencePair]:
    """Yield the path of each image or sound file of a folder or list, as source, with its text as target.

    Paths in a list are relative to the folder of the list.
    """
    if corpus.source.is_dir():
        yield from _folder_pairs(corpus)
        return
    for pair in corpus.file_format.read_pairs(corpus):
        yield pair._replace(source=str(_resolve(corpus, pair.source, pair.line)))


def read_media_paths(corpus: Corpus) -> Iterator[Path]:
    """Yield the paths of the image or sound files of a folder or list; a missing file is a UserError."""
    if corpus.source.is_dir():
        yield from _folder_files(corpus.source)
        return
    for pair in corpus.read_sources():
        path = _resolve(corpus, pair.source, pair.line)
        if not path.is_file():
            raise UserError(
                f"{corpus.source}, line {pair.line:,}: {path} does not exist: correct the path or remove the line"
            )
        yield path


def open_media(corpus: Corpus, pair: SentencePair) -> MediaFile:
    """Return the image or sound file of a pair whose source is its path; nothing is read yet."""
    location = "" if corpus.source.is_dir() else f"{corpus.source}, line {pair.line:,}: "
    return MediaFile(Path(pair.source), corpus.features or FeatureConfig(), location)


def is_media(path: Path) -> bool:
    """Whether the suffix is that of an image or sound file."""
    return path.suffix.lower() in MEDIA_READERS


def contains_media(folder: Path) -> bool:
    """Whether there are image or sound files, other than hidden ones, in a folder or its subfolders."""
    return any(map(_is_visible_media, folder.rglob("*")))


def lists_media(corpus: Corpus, texts: list[str]) -> bool:
    """Whether a corpus is a list of image or sound files, given its first sources.

    The first one must be the path of such a file, and at least one of them must exist.
    """
    paths = [corpus.source.parent / text.strip() for text in texts]
    return bool(paths) and is_media(paths[0]) and any(_is_file(path) for path in paths)


def _is_file(path: Path) -> bool:
    """Whether there is a file of this name; False if the name cannot be that of a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def _resolve(corpus: Corpus, text: str, line: int) -> Path:
    """Return the path that line number `line` of a list names (`text`), relative to the folder of the list.

    A blank text is a UserError.
    """
    if not text.strip():
        raise UserError(f"{corpus.source}, line {line:,} names no file: expected the path of an image or sound file")
    return corpus.source.parent / text.strip()


def _folder_files(folder: Path) -> list[Path]:
    """Return the image or sound files of a folder and its subfolders, sorted by path."""
    return sorted(filter(_is_visible_media, folder.rglob("*")))


def _is_visible_media(path: Path) -> bool:
    """Whether there is an image or sound file of this name that is not hidden (its name does not begin with a dot)."""
    return is_media(path) and not path.name.startswith(".") and path.is_file()


def _folder_pairs(corpus: Corpus) -> Iterator[SentencePair]:
    """Yield the paths of the image or sound files of a folder, each with its text as the target.

    The text of file n, in the order of paths, is line n of the target file, or without one the name of the outermost
    subfolder that contains it. A file without text, or a line without file, is a UserError.
    """
    files = _folder_files(corpus.source)
    if corpus.target is None:
        for number, path in enumerate(files, 1):
            if path.parent == corpus.source:
                raise UserError(
                    f"the image or sound file {path} has no text: put it into a subfolder named after its label, or "
                    "name a target file (data.target) with one line per file"
                )
            subfolder = path.relative_to(corpus.source).parts[0]
            yield SentencePair(str(path), subfolder, corpus=corpus.name, line=number)
        return
    for number, (path, target_line) in enumerate(zip_longest(files, read_lines(corpus.target)), 1):
        if path is None or target_line is None:
            lines = sum(1 for _ in read_lines(corpus.target))
            raise UserError(
                f"{corpus.source} has {len(files):,} image or sound files but {corpus.target} has {lines:,} lines: "
                "expected one target line per file"
            )
        _, text = target_line  # line number, text
        yield SentencePair(str(path), text, corpus=corpus.name, line=number)
