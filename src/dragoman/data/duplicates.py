"""Counting repetitions among more numbers than memory holds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

MAX_HASHES_IN_MEMORY = 2**22  # numbers that are kept in memory: 32 MiB, and as much again while they are sorted
NUM_RANGES = 2**12  # of numbers that are put together one after the other at the end


class DuplicateCounter:
    """How many of some evenly spread 64-bit numbers repeat an earlier one.

    When memory is full it is sorted and appended to a nameless file, which is gone when the process is, with the places
    where every range of numbers begins; at the end each range is read from all such runs and sorted once more. So
    memory stays below three times ROOM up to 2³⁴ numbers, and the file takes 8 bytes a number.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.waiting: list[NDArray[np.uint64]] = []
        self.count_waiting = self.written = 0
        self.file: IO[bytes] | None = None
        self.runs: list[NDArray[np.int64]] = []  # of each run, where its ranges begin in the file, and where it ends

    def add(self, numbers: NDArray[np.uint64]) -> None:
        self.waiting.append(numbers)
        self.count_waiting += len(numbers)
        if self.count_waiting >= MAX_HASHES_IN_MEMORY:
            self._write()

    def count(self) -> int:
        """How many, at the end: nothing can be added any more."""
        if self.file is None:
            return _repeats(self.waiting)
        self._write()
        with self.file:
            return sum(_repeats([self._range(run, number) for run in self.runs]) for number in range(NUM_RANGES))

    def _write(self) -> None:
        self.file = self.file or tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (count closes it)
        run = np.sort(np.concatenate([np.empty(0, np.uint64), *self.waiting]))
        edges = np.arange(NUM_RANGES, dtype=np.uint64) * np.uint64(2**64 // NUM_RANGES)
        self.runs.append(self.written + np.append(np.searchsorted(run, edges), len(run)))
        self.file.seek(8 * self.written)
        self.file.write(run.data)
        self.written += len(run)
        self.waiting, self.count_waiting = [], 0

    def _range(self, run: NDArray[np.int64], number: int) -> NDArray[np.uint64]:
        assert self.file is not None
        self.file.seek(8 * int(run[number]))
        return np.frombuffer(self.file.read(8 * int(run[number + 1] - run[number])), np.uint64)


def _repeats(some: list[NDArray[np.uint64]]) -> int:
    numbers = np.sort(np.concatenate([np.empty(0, np.uint64), *some]))
    return int((numbers[1:] == numbers[:-1]).sum())
