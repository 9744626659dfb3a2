"""Points at which a long computation may be interrupted, so that others can use the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_on_step: ContextVar[Callable[[], None] | None] = ContextVar("on_step", default=None)


@contextmanager
def preemptible(on_step: Callable[[], None]) -> Iterator[None]:
    """Call `on_step` after every decoding step of searches in this context; it may wait, or raise an error.

    So a server lets short requests use the device while a long search waits, or ends a search that takes too long.
    """
    token = _on_step.set(on_step)
    try:
        yield
    finally:
        _on_step.reset(token)


def preemption_point() -> None:
    """Call the function that `preemptible` has set, if any; searches call this after every decoding step.

    The function may wait, so that others can use the device, or end the search by an error.
    """
    on_step = _on_step.get()  # of the present thread or task; None: none is set
    if on_step is not None:
        on_step()
