"""Work done by copies of this process, which share its memory: the weights of a model are there but once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Any, TypeVar

import torch

from dragoman.errors import UserError
from dragoman.processes import available_cpus

T = TypeVar("T")
R = TypeVar("R")

_work: Callable[[Any], Any] | None = None  # copies find it here: it need not be sent to them
_items: Sequence[Any] = ()


def check_workers(workers: int, device: torch.device) -> None:
    """Refuse what copies of a process cannot do."""
    if workers < 1:
        raise UserError(f"{workers} workers can do nothing: ask for at least one")
    if workers > 1 and device.type != "cpu":
        raise UserError(f"workers share the cores of a CPU, but the run is on {device}: leave them out")
    if workers > 1 and "fork" not in multiprocessing.get_all_start_methods():
        raise UserError("workers are copies of a process, which this system cannot make: leave them out")


def shared(work: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """The same as `map(work, items)`, done by so many copies of this process, each with its share of the cores.

    Results come in order, and must be picklable. The copies end with this process, even if it is killed.
    """
    global _work, _items
    if workers == 1 or len(items) < 2:
        yield from map(work, items)
        return
    _work, _items = work, items
    count = min(workers, len(items))
    threads = max(1, available_cpus() // workers)
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _begin, (threads,))
    try:
        with warnings.catch_warnings():  # copies begin nothing that waits for other threads of this process
            warnings.filterwarnings("ignore", message=".*multi-threaded", category=DeprecationWarning)
            promised = [pool.submit(_do, number) for number in range(len(items))]
        for one in promised:
            yield one.result()
    except BrokenProcessPool:
        raise UserError(
            f"one of {workers} workers has ended before its work was done: there may be too little memory for them"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        _work, _items = None, ()


def _begin(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    torch.set_num_threads(threads)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(number: int) -> Any:
    assert _work is not None
    return _work(_items[number])
