"""Work spread over processes, with its results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Any, TypeVar

from dragoman.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
MAX_PENDING_PER_WORKER = 2  # pieces of work a worker that are under way, so that none waits for the slowest

_work: Callable[[Any], Any] | None = None  # what this process was started for


def available_cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel_map(work: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """The same as `map(work, items)`; with more than one worker the work is done by so many processes.

    No more than a few items a worker are under way at a time, so memory does not grow with their number. The processes
    are started afresh (spawned) and are sent `work` once; they end with this one, even if it is killed.
    """
    if workers == 1:
        yield from map(work, items)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (work,))
    try:
        under_way: deque[Future[R]] = deque()
        for item in items:
            under_way.append(pool.submit(_do, item))
            if len(under_way) > MAX_PENDING_PER_WORKER * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            f"one of {workers} worker processes has ended before its work was done: there may be too little memory "
            "(lower data.num_workers), or the calling script has no 'if __name__ == \"__main__\":' "
            "(set data.num_workers to 1)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are enough
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(item: Any) -> Any:
    assert _work is not None
    return _work(item)
