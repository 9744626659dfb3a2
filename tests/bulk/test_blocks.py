"""Blocks of input files: every line is in exactly one block, whether it is found by seeking or by reading."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.bulk import blocks
from dragoman.bulk.blocks import BulkInput


def described(path: Path, block_bytes: int) -> BulkInput:
    return BulkInput.describe(str(path), path.name, block_bytes)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line)), size=st.integers(1, 40))
def test_every_line_is_in_one_block(lines: list[bytes], size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    content = b"".join(line + b"\n" for line in lines)
    plain, packed = folder / "a.txt", folder / "a.txt.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content, mtime=0))
    source = described(plain, size)
    assert source.num_blocks is not None
    by_seeking = [source.read_block(block) for block in range(source.num_blocks)]
    indices = [source.first_index(block) + n for block, rows in enumerate(by_seeking) for n in range(len(rows))]
    assert len(set(indices)) == len(indices)
    expected = [line.removesuffix(b"\r") for line in lines]
    assert [line for block in by_seeking for line in block] == expected
    by_reading = list(described(packed, size).read_blocks())
    while by_seeking and not by_seeking[-1]:
        by_seeking.pop()  # blocks without lines at the end of a file
    while by_reading and not by_reading[-1]:
        by_reading.pop()
    assert by_reading == by_seeking


def test_last_line_without_newline_and_long_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BULK_LINE_BYTES", 10)
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\r\n" + b"x" * 35 + b"\nend")
    source = described(path, 8)
    assert source.num_blocks is not None
    lines = [line for block in range(source.num_blocks) for line in source.read_block(block)]
    assert lines == [b"short", None, b"end"]
