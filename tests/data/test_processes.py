"""Work that is spread over processes gives what it gives in one, in order, and ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data import inspection
from dragoman.data.inspection import DuplicateCounter
from dragoman.errors import UserError
from dragoman.processes import parallel_map


@dataclass(frozen=True)
class Halve:
    refuse: int = 0

    def __call__(self, number: int) -> tuple[int, int]:
        if number == self.refuse:
            raise UserError(f"{number} cannot be")
        if number == -1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number // 2, os.getpid()


def test_results_of_other_processes_are_in_order() -> None:
    results = list(parallel_map(Halve(), iter(range(1, 40)), 2))
    assert [half for half, _ in results] == [number // 2 for number in range(1, 40)]
    assert os.getpid() not in {process for _, process in results}
    assert {process for _, process in parallel_map(Halve(), [1, 2, 3], 1)} == {os.getpid()}


def test_only_a_few_items_are_pending() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(1, 100):
            taken.append(number)
            yield number

    results = parallel_map(Halve(), items(), 2)
    next(results)
    assert len(taken) == 5
    results.close()


def test_exceptions_are_raised_and_a_lost_process_is_reported() -> None:
    with pytest.raises(UserError, match="7 cannot be"):
        list(parallel_map(Halve(refuse=7), range(1, 20), 2))
    with pytest.raises(UserError, match="one of 2 worker processes has ended unexpectedly"):
        list(parallel_map(Halve(), [1, -1, 2, 3], 2))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at Linux' list of processes")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """Two workers say that they are at work, each with a file, and then work for hours."""
    work = [f"(open({str(tmp_path / name)!r}, 'w').close(), __import__('time').sleep(10_000))" for name in "ab"]
    code = (
        "from dragoman.processes import parallel_map\n"
        f"if __name__ == '__main__':\n    list(parallel_map(eval, ['0', '0', *{work!r}], 2))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    while len(list(tmp_path.iterdir())) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    while group(parent.pid):  # ends, or the workers do not
        time.sleep(0.05)


def group(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=12), st.integers(1, 20))
def test_duplicates_are_counted_in_memory_and_on_disk(some: list[list[int]], room: int) -> None:
    flat = [number for numbers in some for number in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspection, "MAX_HASHES_IN_MEMORY", room)
        patch.setattr(inspection, "NUM_RANGES", 16)
        counter = DuplicateCounter()
        for numbers in some:
            counter.add(np.array(numbers, np.uint64) * np.uint64(2**64 // 31))
        assert counter.count() == len(flat) - len(set(flat))
