"""Process pools: ordered parallel maps over spawned processes, or over forks that share the memory of this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from types import FrameType
from typing import Any, Protocol, TypeVar

from dragoman.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedMap(Protocol):
    """A function like `map`, which may compute the results in parallel, and yields them in order."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        """Yield `function(item)` for each item, in the order of the items."""
        ...


#: environment variables with the number of threads, which libraries read when they are imported
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")

#: signals that ask a process to end: Ctrl-C, the system or its parent, and on Windows Ctrl-Break
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
#: arguments of subprocess.Popen for a process that Ctrl-C does not reach, but `interrupt_process` does
OWN_GROUP: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    if os.name == "nt"
    else {"start_new_session": True}
)
MAX_PENDING_PER_WORKER = 2  # tasks, so that no worker waits for the slowest one

FEWER_WORKERS = (  # what to do if a worker process has ended
    "there may be too little memory (lower data.num_workers), or the calling script has no "
    "'if __name__ == \"__main__\":' (set data.num_workers to 1)"
)

# Set in worker processes: by the initializer of spawned ones, inherited by forks.
_function: Callable[[Any], Any] | None = None
_items: Sequence[Any] = ()


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def interrupt_process(process: subprocess.Popen[Any]) -> None:
    """Ask a process that was started in a group of its own (`Popen(**OWN_GROUP)`) to end, as Ctrl-C does."""
    process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGINT))


def parallel_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, remedy: str = FEWER_WORKERS
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order, computed by spawned processes if there is more than one worker.

    Only a few items per worker are pending at a time, so that memory does not grow with their number. `function` is
    pickled once per process. The processes end with this one, even if it is killed; one that ends early is a UserError,
    with what the user can do about it (`remedy`).
    """
    if workers == 1:
        yield from map(function, items)
        return
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_spawned, initargs=(function,)
    )
    try:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(_apply, item))
            if len(pending) > MAX_PENDING_PER_WORKER * workers:
                yield pending.popleft().result()  # waits for the oldest item, which keeps the results in order
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise UserError(f"one of {workers} worker processes has ended unexpectedly: {remedy}") from None
    finally:
        pool.shutdown(cancel_futures=True)


def process_map(workers: int) -> OrderedMap:
    """Return `parallel_map` with this number of processes."""
    return partial(parallel_map, workers=workers)


def fork_map(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int, initialize: Callable[[int], None]
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order, computed by forks of this process.

    With one worker, or fewer than two items, this process computes them. Forks share the memory of this process, such
    as the weights of a model; only results are pickled. They end with this process, even if it is killed; one that ends
    before is a UserError.

    Args:
        function: computes the result of an item.
        items: the items; forks inherit them, too.
        workers: maximum number of forks; there are not more than items.
        initialize: called in each fork with the number of CPUs that it may use.
    """
    global _function, _items
    if workers == 1 or len(items) < 2:
        yield from map(function, items)
        return
    _function, _items = function, items  # forks inherit these globals
    cpus_per_worker = max(1, available_cpus() // workers)
    pool = ProcessPoolExecutor(
        min(workers, len(items)),
        multiprocessing.get_context("fork"),
        initializer=_start_forked,
        initargs=(initialize, cpus_per_worker),
    )
    try:
        with warnings.catch_warnings():  # forks do not use locks that other threads of this process may hold
            warnings.filterwarnings("ignore", message=".*multi-threaded", category=DeprecationWarning)
            futures = [pool.submit(_apply_to_index, index) for index in range(len(items))]
        for future in futures:
            yield future.result()
    except BrokenProcessPool:
        raise UserError(
            f"one of {workers} worker processes has ended unexpectedly, perhaps for lack of memory: use fewer worker "
            "processes (--num-workers)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        _function, _items = None, ()


def _start_spawned(function: Callable[[Any], Any]) -> None:
    """Initialize a spawned worker: keep the function of its pool, which `_apply` applies to items."""
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per process is enough
    _end_with_parent()


def _start_forked(initialize: Callable[[int], None], cpus: int) -> None:
    """Initialize a forked worker: `initialize` is called with the number of CPUs that it may use."""
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
    os._exit(1)  # at once: sys.exit() would end this thread only


def _apply(item: Any) -> Any:
    """Apply the function of the pool (`_function`, set when the worker started) to an item."""
    assert _function is not None
    return _function(item)


def _apply_to_index(index: int) -> Any:
    """Apply the function of the pool to the item with this index in `_items`, which a forked worker inherits."""
    return _apply(_items[index])


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Inside the context, the first stop signal (such as Ctrl-C) calls `stop`; a second one raises KeyboardInterrupt.

    Nothing is changed if the caller runs in another thread than the main one, which alone can handle signals.
    """
    received = False

    def handle(number: int, frame: FrameType | None) -> None:
        """Call `stop` at the first signal; raise a KeyboardInterrupt at the next."""
        nonlocal received
        if received:
            raise KeyboardInterrupt
        received = True
        stop()

    previous = {}
    with suppress(ValueError):  # not in the main thread
        previous = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
