"""Prefetching changes when items are made, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest

from dragoman.data import prefetch


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


def test_items_keep_their_order_and_the_thread_ends() -> None:
    assert list(prefetch(iter(range(100)))) == list(range(100))
    assert list(prefetch(iter([]))) == []
    assert threads() == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("broken data")

    ahead = prefetch(failing())
    assert (next(ahead), next(ahead)) == (1, 2)
    with pytest.raises(ValueError, match="broken data"):
        next(ahead)
    assert threads() == []


def test_no_more_than_depth_items_are_made_ahead() -> None:
    made: list[int] = []
    waiting = threading.Event()

    def items() -> Iterator[int]:
        for number in count():
            made.append(number)
            if number == 3:
                waiting.set()
            yield number

    ahead = prefetch(items(), depth=3)
    assert next(ahead) == 0
    assert waiting.wait(300)
    assert made == [0, 1, 2, 3]  # the one in use and three more
    ahead.close()


def test_closing_early_ends_the_thread() -> None:
    ahead = prefetch(count())
    assert next(ahead) == 0
    assert len(threads()) == 1
    ahead.close()
    assert threads() == []
    with pytest.raises(StopIteration):
        next(ahead)
