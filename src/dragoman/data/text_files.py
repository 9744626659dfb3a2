"""Opening files and reading lines, plain or gzipped, with errors that name the file, the line and the remedy."""

from __future__ import annotations

import codecs
import difflib
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from dragoman.errors import UserError

MAX_LINE_BYTES = 2**24  # a file without newlines must not be read into memory
_GZIP_MAGIC = b"\x1f\x8b"  # never starts UTF-8 text, so that the content decides, not the file name


@contextmanager
def open_file(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading; raise a UserError if that fails."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} does not exist{_suggestion(path)}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name a file in it") from None
    except PermissionError:
        raise UserError(f"{path} cannot be read: you have no read permission, change it or use another file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


@contextmanager
def open_decompressed(path: Path) -> Iterator[io.BufferedReader]:
    """Open a plain or gzipped file for reading."""
    with open_file(path) as file:
        try:
            is_gzip = file.peek(2)[:2] == _GZIP_MAGIC
            yield io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), 2**18) if is_gzip else file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is broken gzip ({error}): download or compress it again") from None


def read_raw_lines(path: Path, allow_empty: bool = False) -> Iterator[bytes]:
    """Read the lines of a file, without line ends and byte order mark.

    Only a line feed ends a line: U+2028, form feeds and similar characters are part of a sentence.
    """
    number = 0
    with open_decompressed(path) as stream:
        for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES), b""), 1):
            if len(line) == MAX_LINE_BYTES and line[-1:] != b"\n":
                raise UserError(f"{path}, line {number:,} is longer than 16 MiB: expected one sentence per line")
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield line.removesuffix(b"\n").removesuffix(b"\r")
    if not number and not allow_empty:
        raise UserError(f"{path} is empty: expected one sentence per line")


def read_lines(path: Path, allow_empty: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (number, text) for the lines of a UTF-8 file, numbered from 1; an empty file is a UserError by default."""
    for number, line in enumerate(read_raw_lines(path, allow_empty), 1):
        yield number, decode_line(line, path, number)


def decode_line(line: bytes, path: Path, number: int) -> str:
    """Decode a line from UTF-8; raise a UserError with its number if it is not valid."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number:,} is not UTF-8 (byte {error.start + 1} of the line): convert the file to UTF-8"
        ) from None


def _suggestion(path: Path) -> str:
    """Return the end of the message about a missing file: a similar name in its folder, if there is one."""
    try:
        names = [file.name for file in path.parent.iterdir()]
    except OSError:
        return f": its folder {path.parent} is missing"
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f": did you mean {near[0]}?" if near else ""
