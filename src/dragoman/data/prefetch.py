"""Work ahead: the next items are made in a thread while the present one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T], depth: int = 2) -> Generator[T, None, None]:
    """The same items in the same order, at most `depth` of them made ahead in a background thread.

    An exception of `items` is raised here, after the items before it. Closing this generator ends the thread.
    """
    ready: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()
    room = Semaphore(depth)
    closed = False

    def work() -> None:
        try:
            while room.acquire() and not closed:
                ready.put((next(items),))
        except BaseException as error:
            ready.put(error)

    thread = Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while isinstance(item := ready.get(), tuple):
            room.release()
            yield item[0]
        if not isinstance(item, StopIteration):
            raise item
    finally:
        closed = True
        room.release()
        thread.join()
