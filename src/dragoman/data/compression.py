"""Decompression of gzip, bzip2, xz and Zstandard files, which are recognized by their first bytes, not their names."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from dragoman.errors import UserError

BUFFER_BYTES = 2**18
ZSTD_CHUNK_BYTES = 2**12  # of compressed data: one call must not decompress to gigabytes
MAX_ZSTD_WINDOW_BYTES = 2**31  # that of `zstd --ultra --long=31`
MAGIC_BYTES = 10  # that decide about the compression of a file


class Compression(NamedTuple):
    """A kind of compression: how it is called, how it is recognized, and what decompresses it."""

    name: str
    suffix: str
    matches: Callable[[bytes], bool]  # whether the first bytes of a file are those of such a file
    open: Callable[[IO[bytes]], Any]  # compressed file → file with the decompressed bytes


def _open_zstd(file: IO[bytes]) -> io.RawIOBase:
    """Return a reader of a Zstandard file, by the package zstandard; raise a UserError if that is missing."""
    try:
        import zstandard
    except ImportError:
        raise UserError(
            f"{file.name} is compressed with Zstandard, which needs the package zstandard: install it with pip "
            "install 'dragoman[zstd]', or decompress the file with zstd -d"
        ) from None
    return _ZstdReader(file, zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES))


class _ZstdReader(io.RawIOBase):
    """The decompressed bytes of all frames of a Zstandard file; unlike that of zstandard, truncation is an error."""

    def __init__(self, file: IO[bytes], decompressor: Any) -> None:
        """Read `file` with a zstandard.ZstdDecompressor."""
        self.file, self.decompressor = file, decompressor
        self.frame = decompressor.decompressobj()
        self.is_inside_frame = False
        self.decompressed = memoryview(b"")  # bytes that were not read yet

    def readable(self) -> bool:
        """Return True, as io.RawIOBase requires of files that can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Write the next decompressed bytes into `buffer`, and return their number, 0 at the end of the file.

        A file that ends within a Zstandard frame, an independent part of compressed data, is an EOFError.
        """
        while not self.decompressed:  # until there are bytes that were not read yet
            chunk = self.file.read(ZSTD_CHUNK_BYTES)
            if not chunk:
                if self.is_inside_frame:
                    raise EOFError("the file ended before the end of a frame")
                return 0
            self.decompressed = memoryview(b"".join(self._decompress(chunk)))
        size = min(len(buffer), len(self.decompressed))
        buffer[:size], self.decompressed = self.decompressed[:size], self.decompressed[size:]
        return size

    def _decompress(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decompressed bytes of a chunk, in which Zstandard frames (independent parts) may end and begin."""
        while chunk:
            self.is_inside_frame = True
            yield self.frame.decompress(chunk)
            chunk = b""
            if self.frame.eof:  # the rest of the chunk belongs to the next frame
                chunk, self.is_inside_frame = self.frame.unused_data, False
                self.frame = self.decompressor.decompressobj()


COMPRESSIONS = (
    Compression("gzip", ".gz", lambda head: head[:2] == b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    Compression("xz", ".xz", lambda head: head[:6] == b"\xfd7zXZ\0", lzma.LZMAFile),
    Compression(
        "bzip2",
        ".bz2",  # the bytes after the header begin a block, or end an empty file
        lambda head: head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"),
        bz2.BZ2File,
    ),
    Compression("Zstandard", ".zst", lambda head: head[:4] == b"\x28\xb5\x2f\xfd", _open_zstd),
)


def without_compression_suffix(name: str) -> str:
    """Return a file name without the suffix of its compression (.gz, .xz, .bz2 or .zst), if it has one."""
    for compression in COMPRESSIONS:
        if name.lower().endswith(compression.suffix):
            return name[: -len(compression.suffix)]
    return name


def file_extension(name: str) -> str:
    """Return the extension of a file, without a dot and without that of its compression: "de" for train.de.gz."""
    return Path(without_compression_suffix(name)).suffix.removeprefix(".")


@contextmanager
def decompressed(file: io.BufferedReader, path: Path) -> Iterator[io.BufferedReader]:
    """Yield a reader of the decompressed content of an open file, or the file itself if it is not compressed.

    The first bytes show the compression; `path` names the file in errors. Broken data, which is found when the content
    is read, is a UserError.
    """
    head = file.peek(MAGIC_BYTES)
    compression = next((compression for compression in COMPRESSIONS if compression.matches(head)), None)
    if compression is None:
        yield file
        return
    try:
        yield io.BufferedReader(cast(io.RawIOBase, compression.open(file)), BUFFER_BYTES)
    except Exception as error:
        if not _is_broken_data(error):
            raise
        raise UserError(
            f"{path} is not valid {compression.name} data ({error}): download or compress it again"
        ) from None


def _is_broken_data(error: Exception) -> bool:
    """Whether an error says that compressed data (gzip, bzip2, xz or Zstandard) is broken.

    Others say, for example, that the file cannot be read.
    """
    data_errors = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)
    is_bzip2_error = isinstance(error, OSError) and error.errno is None  # errors of the system have a number
    is_zstd_error = type(error).__name__ == "ZstdError"  # by name, since the package may be missing
    return isinstance(error, data_errors) or is_bzip2_error or is_zstd_error
