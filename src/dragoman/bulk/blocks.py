"""Blocks of input files: consecutive rows that one worker processes as a whole.

Block n of a file of lines has the lines that begin in bytes n·B to (n + 1)·B of the decompressed text. A block of a
plain file is found by seeking; a compressed file is read from its beginning, and gives the same blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from dragoman.bulk.file_storage import file_size, is_compressed, open_binary, open_stream

MAX_BULK_LINE_BYTES = 1 << 20  # a longer line is an error, and is not kept in memory

Line = bytes | None  # None: longer than MAX_BULK_LINE_BYTES


@dataclass(frozen=True)
class BlockTask:
    """What one worker does at a time: a block of a file, or all blocks of a compressed file."""

    file: int  # index of the input file
    block: int | None  # None: all blocks


@dataclass(frozen=True)
class BulkInput:
    """An input file of lines.

    Attributes:
        location, name: path or URL of the file, and the name of its output.
        size: bytes, compressed or not.
        num_blocks: None for a compressed file, whose text has to be read to count them.
        block_bytes: bytes of text in a block.
    """

    location: str
    name: str
    size: int
    num_blocks: int | None
    block_bytes: int

    @classmethod
    def describe(cls, location: str, name: str, block_bytes: int) -> BulkInput:
        """Describe the file at `location`, whose output gets `name`; a UserError if it cannot be opened."""
        size = file_size(location)
        # rounded up; None: a compressed file must be read to count its blocks
        num_blocks = None if is_compressed(location) else -(-size // block_bytes)
        return cls(location, name, size=size, num_blocks=num_blocks, block_bytes=block_bytes)

    def first_index(self, block: int) -> int:
        """Return the index of the first row of a block, from which its rows are counted on; it seeds sampling.

        The indices of a file have gaps between blocks, but no two rows have the same.
        """
        return block * self.block_bytes  # not below the number of lines before it: a line has at least one byte

    def block_size(self, block: int) -> float:
        """Return the size of a block in bytes of the file; the last one may be smaller than the others."""
        return float(min(self.block_bytes, self.size - block * self.block_bytes))

    def read_block(self, block: int) -> Sequence[Any]:
        """Return the lines of a block of a plain file: those that begin in its bytes; the last may end after them."""
        begin, end = block * self.block_bytes, (block + 1) * self.block_bytes
        with open_binary(self.location) as stream:
            position = 0
            if begin:
                # skip the line that began before the block; it is only a newline if the next one begins at `begin`
                stream.seek(begin - 1)
                _, num_bytes = _read_line(stream)
                position = begin - 1 + num_bytes
            lines: list[Line] = []
            while position < end:
                line, num_bytes = _read_line(stream)
                if not num_bytes:  # the end of the file
                    break
                lines.append(line)
                position += num_bytes
        return lines

    def read_blocks(self) -> Iterator[Sequence[Any]]:
        """Yield the lines of each block of a file, which may be compressed, from its beginning.

        A line belongs to the block of `block_bytes` decompressed bytes in which it begins.
        """
        with open_stream(self.location) as stream:
            lines: list[Line] = []
            position, end = 0, self.block_bytes  # bytes: of the next line, and of the end of the block
            while True:
                while position >= end:  # several times if the last line reached over whole blocks, which have no lines
                    yield lines
                    lines, end = [], end + self.block_bytes
                line, num_bytes = _read_line(stream)
                if not num_bytes:
                    break
                lines.append(line)
                position += num_bytes
            if lines:
                yield lines


def _read_line(stream: BinaryIO) -> tuple[Line, int]:
    """Return the next line without its newline, and the number of bytes that were read: 0 at the end of the file.

    Of a line with more than MAX_BULK_LINE_BYTES, None is returned; it is read in pieces that are not kept.
    """
    line = stream.readline(MAX_BULK_LINE_BYTES)
    num_bytes = len(line)
    if line.endswith(b"\n") or num_bytes < MAX_BULK_LINE_BYTES:  # a complete line, or the last one of the file
        return line.removesuffix(b"\n").removesuffix(b"\r"), num_bytes
    while chunk := stream.readline(MAX_BULK_LINE_BYTES):
        num_bytes += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return None, num_bytes
