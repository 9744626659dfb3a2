"""Blocks of input files: consecutive lines that one worker processes as a whole.

Block n of a file has the lines that begin in bytes n·B to (n + 1)·B of the decompressed text. A block of a plain file
is found by seeking; a compressed file is read from its beginning, and gives the same blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from dragoman.bulk.file_storage import file_size, is_compressed, open_binary, open_stream

MAX_BULK_LINE_BYTES = 1 << 20  # a longer line is an error, and is not kept in memory


@dataclass(frozen=True)
class BulkInput:
    """An input file: where it is, how its output is called, and whether its blocks can be read one by one."""

    location: str
    name: str
    size: int
    seekable: bool

    @classmethod
    def describe(cls, location: str, name: str) -> BulkInput:
        """Describe a file; a UserError if it cannot be opened."""
        return cls(location, name, file_size(location), not is_compressed(location))

    def num_blocks(self, block_bytes: int) -> int | None:
        """Count the blocks of the file; None for a compressed file, whose text has to be read to count them."""
        return -(-self.size // block_bytes) if self.seekable else None


@dataclass(frozen=True)
class BlockTask:
    """What one worker does at a time: a block of a plain file, or all blocks of a compressed file."""

    file: int  # index of the input file
    block: int | None  # None: all blocks


Line = bytes | None  # None: longer than MAX_BULK_LINE_BYTES


def read_block(source: BulkInput, block: int, block_bytes: int) -> list[Line]:
    """Read the lines of a block of a plain file."""
    begin, end = block * block_bytes, (block + 1) * block_bytes
    with open_binary(source.location) as stream:
        position = 0
        if begin:
            stream.seek(begin - 1)
            position = begin - 1 + _read_line(stream)[1]  # the rest of the line that began before
        lines = []
        while position < end:
            line, num_bytes = _read_line(stream)
            if not num_bytes:
                break
            lines.append(line)
            position += num_bytes
    return lines


def read_blocks(source: BulkInput, block_bytes: int) -> Iterator[list[Line]]:
    """Yield the lines of each block of a file, which may be compressed, from its beginning."""
    with open_stream(source.location) as stream:
        lines: list[Line] = []
        position, end = 0, block_bytes
        while True:
            while position >= end:  # a block without lines follows a long line
                yield lines
                lines, end = [], end + block_bytes
            line, num_bytes = _read_line(stream)
            if not num_bytes:
                break
            lines.append(line)
            position += num_bytes
        if lines:
            yield lines


def _read_line(stream: BinaryIO) -> tuple[Line, int]:
    """Return the next line without its newline, and its number of bytes: 0 at the end of the file."""
    line = stream.readline(MAX_BULK_LINE_BYTES)
    num_bytes = len(line)
    if line.endswith(b"\n") or num_bytes < MAX_BULK_LINE_BYTES:
        return line.removesuffix(b"\n").removesuffix(b"\r"), num_bytes
    while chunk := stream.readline(MAX_BULK_LINE_BYTES):
        num_bytes += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return None, num_bytes
