"""Counting of duplicates among more hashes than fit in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

MAX_HASHES_IN_MEMORY = 2**22  # 32 MiB, and twice that during sorting
NUM_RANGES = 2**12  # of hash values, which are merged one after the other


class DuplicateCounter:
    """Counts how many of a stream of evenly distributed 64-bit hashes repeat an earlier one.

    External sorting: full buffers are sorted and appended to an unnamed temporary file as runs; at the end, each range
    of values is read from all runs and sorted. Up to 2³⁴ hashes, memory stays below three times MAX_HASHES_IN_MEMORY.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.buffer: list[Hashes] = []
        self.buffered = self.written = 0
        self.file: IO[bytes] | None = None
        self.runs: list[NDArray[np.int64]] = []  # of each run: where its ranges start in the file, and its end

    def add(self, hashes: Hashes) -> None:
        self.buffer.append(hashes)
        self.buffered += len(hashes)
        if self.buffered >= MAX_HASHES_IN_MEMORY:
            self._write_run()

    def count(self) -> int:
        """Return the number of duplicates; no more hashes can be added afterwards."""
        if self.file is None:
            return _count_duplicates(self.buffer)
        self._write_run()
        with self.file:
            return sum(_count_duplicates([self._read(run, index) for run in self.runs]) for index in range(NUM_RANGES))

    def _write_run(self) -> None:
        self.file = self.file or tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (closed in count)
        run = np.sort(np.concatenate([np.empty(0, np.uint64), *self.buffer]))
        edges = np.arange(NUM_RANGES, dtype=np.uint64) * np.uint64(2**64 // NUM_RANGES)
        self.runs.append(self.written + np.append(np.searchsorted(run, edges), len(run)))
        self.file.seek(8 * self.written)
        self.file.write(run.data)
        self.written += len(run)
        self.buffer, self.buffered = [], 0

    def _read(self, run: NDArray[np.int64], index: int) -> Hashes:
        assert self.file is not None
        self.file.seek(8 * int(run[index]))
        return np.frombuffer(self.file.read(8 * int(run[index + 1] - run[index])), np.uint64)


def _count_duplicates(arrays: list[Hashes]) -> int:
    hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *arrays]))
    return int((hashes[1:] == hashes[:-1]).sum())
