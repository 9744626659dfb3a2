"""Opening files and reading lines, plain or compressed, with errors that name the file, the line and the remedy."""

from __future__ import annotations

import codecs
import difflib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from dragoman.data.compression import decompressed, without_compression_suffix
from dragoman.errors import UserError

MAX_LINE_BYTES = 2**24  # a file without newlines must not be read into memory
HEAD_BYTES = 4096  # of a file, which show whether it is text
MAX_NUL_SHARE = 0.05  # of these bytes: text has none, UTF-16 and most binary files have more
#: the first bytes of files that are taken for text by mistake, what they are, and what to do
_BINARY_KINDS = {
    b"PK\x03\x04": ("a ZIP archive", "unpack it first"),
    b"%PDF": ("a PDF document", "extract its text first"),
    b"\x89PNG": ("a PNG image", "name a list or a folder of images"),
    b"\xff\xd8\xff": ("a JPEG image", "name a list or a folder of images"),
    b"PAR1\x15": ("a Parquet file", "add --format parquet"),
    b"ARROW1": ("an Arrow file", "name the folder that datasets.save_to_disk wrote, or convert it to Parquet"),
    b"SQLite format 3": ("an SQLite database", "export the texts first"),
}
_OTHER_ENCODINGS = (  # UTF-32 first: its byte order mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@contextmanager
def open_file(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes; raise a UserError if that fails."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: {_suggestion(path)}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name a file in it") from None
    except PermissionError:
        raise UserError(
            f"you have no permission to read the file {path}: change its permissions, or use another file"
        ) from None
    except OSError as error:
        raise UserError(
            f"the file {path} cannot be read ({error.strerror or error}): check its disk, or use another file"
        ) from None


def check_file(path: Path) -> None:
    """Raise a UserError if a file cannot be opened; a pipe, which can be opened only once, is not checked."""
    if not path.is_fifo():
        with open_file(path):
            pass


@contextmanager
def open_decompressed(path: Path) -> Iterator[io.BufferedReader]:
    """Open a plain or compressed file for reading its decompressed bytes; raise a UserError if that fails."""
    with open_file(path) as file, decompressed(file, path) as content:
        yield content


def read_raw_lines(path: Path, allow_empty: bool = False) -> Iterator[bytes]:
    """Read the lines of a file, without line ends and byte order mark; raise a UserError if it is not text.

    Only a line feed ends a line: U+2028, form feeds and similar characters are part of a sentence. An empty file is a
    UserError unless `allow_empty`.
    """
    with open_decompressed(path) as stream:
        check_is_text(stream.peek(HEAD_BYTES)[:HEAD_BYTES], path)
        yield from split_lines(stream, path, allow_empty)


def split_lines(stream: BinaryIO, path: Path, allow_empty: bool = False) -> Iterator[bytes]:
    """Yield the lines of an open file, without line ends and byte order mark; `path` names the file in errors.

    An empty file is a UserError unless `allow_empty`; a line longer than MAX_LINE_BYTES (16 MiB) always is.
    """
    number = 0
    for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES), b""), 1):
        if len(line) == MAX_LINE_BYTES and line[-1:] != b"\n":
            raise UserError(f"{path}, line {number:,} is longer than 16 MiB: expected one sentence per line")
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        yield line.removesuffix(b"\n").removesuffix(b"\r")
    if not number and not allow_empty:
        raise UserError(f"{path} is empty: expected one sentence per line")


def check_is_text(head: bytes, path: Path) -> None:
    """Raise a UserError if a file is binary, or in another encoding than UTF-8, as far as its first bytes tell."""
    for byte_order_mark, encoding in _OTHER_ENCODINGS:
        if head.startswith(byte_order_mark):
            raise UserError(_conversion_message(path, encoding))
    for first_bytes, (kind, advice) in _BINARY_KINDS.items():
        if head.startswith(first_bytes):
            raise UserError(f"expected a text file, but {path} is {kind}: {advice}")
    if head.count(0) > MAX_NUL_SHARE * len(head):  # bytes that are 0 do not occur in text
        even, odd = head[::2].count(0), head[1::2].count(0)  # of Latin text in UTF-16 every second byte is 0
        if min(even, odd) * 10 < max(even, odd):
            raise UserError(_conversion_message(path, "UTF-16LE" if odd > even else "UTF-16BE"))
        raise UserError(
            f"{path} is a binary file: expected UTF-8 text, or a file in a supported binary format with its suffix, "
            "such as .parquet"
        )


def _conversion_message(path: Path, encoding: str) -> str:
    """Return the message about a file that is not in UTF-8, but in `encoding`, with the command that converts it."""
    return (
        f"{path} is encoded in {encoding}, but text must be UTF-8: convert it with "
        f"iconv -f {encoding} -t UTF-8 {path.name} > {path.stem}.utf8{path.suffix}"
    )


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
    """Return the end of the message about a missing file: a similar name in its folder, or other advice."""
    try:
        names = [file.name for file in path.parent.iterdir()]
    except OSError:
        return f"its folder {path.parent} is missing, correct the path"
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    # the path may be the stem of a Moses corpus: `corpus` where there are corpus.de and corpus.en
    languages = sorted(suffix for name in names if (suffix := _language_suffix(name, path.name)))
    if len(languages) > 1:
        return f"for the files of {path.name} in {' and '.join(languages[:2])}, add --from and --to with languages"
    return f"did you mean {near[0]}?" if near else "correct the path"


def _language_suffix(name: str, stem: str) -> str:
    """Return the language in the name of a file of a Moses corpus, such as `de` in corpus.de.gz; "" if it has none."""
    suffix = without_compression_suffix(name).removeprefix(f"{stem}.")
    return suffix if name.startswith(f"{stem}.") and 2 <= len(suffix) <= 3 and suffix.isalpha() else ""
