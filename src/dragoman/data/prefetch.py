"""Prefetching: a background thread computes the next items while the current one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterator[Item], depth: int = 2) -> Generator[Item, None, None]:
    """Yield the same items in the same order; a background thread computes up to `depth` of them ahead.

    An exception of `items` is raised after the items before it. Closing this generator ends the thread, and waits until
    it has computed its present item.
    """
    # items, each in a tuple of one, which distinguishes it from the exception that ends them
    ready: SimpleQueue[tuple[Item] | BaseException] = SimpleQueue()
    free_slots = Semaphore(depth)
    closed = False

    def compute_items() -> None:
        """Put items into the queue while slots are free, and at the end the exception: StopIteration, or an error."""
        try:
            while free_slots.acquire() and not closed:
                ready.put((next(items),))
        except BaseException as error:
            ready.put(error)

    thread = Thread(target=compute_items, name="prefetch", daemon=True)
    thread.start()
    try:
        while isinstance(item := ready.get(), tuple):
            free_slots.release()
            yield item[0]
        if not isinstance(item, StopIteration):
            raise item
    finally:
        closed = True
        free_slots.release()  # wakes the thread if it waits, so that it sees `closed`
        thread.join()
