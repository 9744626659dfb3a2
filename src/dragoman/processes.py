"""Process pools: ordered parallel maps over spawned processes, or over forks that share the memory of this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Any, TypeVar

from dragoman.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_PENDING_PER_WORKER = 2  # tasks, so that no worker waits for the slowest one

# Set in worker processes: by the initializer of spawned ones, inherited by forks.
_work: Callable[[Any], Any] | None = None
_items: Sequence[Any] = ()


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel_map(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Return `map(work, items)`, computed by spawned processes if there is more than one worker.

    Only a few items per worker are pending at a time, so that memory does not grow with their number. `work` is pickled
    once per process. The processes end with this one, even if it is killed.
    """
    if workers == 1:
        yield from map(work, items)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_spawned, (work,))
    try:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(_run, item))
            if len(pending) > MAX_PENDING_PER_WORKER * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            f"one of {workers} worker processes has ended unexpectedly: there may be too little memory (lower "
            "data.num_workers), or the calling script has no 'if __name__ == \"__main__\":' (set data.num_workers to 1)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def fork_map(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int, initialize: Callable[[int], None]
) -> Iterator[Result]:
    """Return `map(work, items)`, computed by forks of this process if there is more than one worker.

    Forks share the memory of this process, such as the weights of a model; only results are pickled. They end with this
    process, even if it is killed.

    Args:
        initialize: called in each fork with its number of CPUs.
    """
    global _work, _items
    if workers == 1 or len(items) < 2:
        yield from map(work, items)
        return
    _work, _items = work, items
    arguments = (initialize, max(1, available_cpus() // workers))
    pool = ProcessPoolExecutor(min(workers, len(items)), multiprocessing.get_context("fork"), _start_forked, arguments)
    try:
        with warnings.catch_warnings():  # forks do not use locks that other threads of this process may hold
            warnings.filterwarnings("ignore", message=".*multi-threaded", category=DeprecationWarning)
            futures = [pool.submit(_run_item, index) for index in range(len(items))]
        for future in futures:
            yield future.result()
    except BrokenProcessPool:
        raise UserError(
            f"one of {workers} worker processes has ended unexpectedly, perhaps for lack of memory: use fewer workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        _work, _items = None, ()


def _start_spawned(work: Callable[[Any], Any]) -> None:
    """Initialize a spawned process: keep the function that it applies to items."""
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per process is enough
    _end_with_parent()


def _start_forked(initialize: Callable[[int], None], cpus: int) -> None:
    """Initialize a forked process: `initialize` is called with the number of CPUs that it may use."""
    initialize(cpus)
    _end_with_parent()


def _end_with_parent() -> None:
    """Let the parent handle Ctrl-C, and end this process when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    """Wait until the parent process ends, then end this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(item: Any) -> Any:
    """Apply the function of the pool (`_work`, set when the worker started) to an item."""
    assert _work is not None
    return _work(item)


def _run_item(index: int) -> Any:
    """Apply the function of the pool to the item with this index in `_items`, which a forked worker inherits."""
    return _run(_items[index])
