"""Looks into sentences and runs, one at a time, between the batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dragoman.serving.request_error import RequestError

Answer = TypeVar("Answer")


class InspectionQueue:
    """A thread with a queue of its own: whatever is looked at, others wait for one look at most.

    `device` is held meanwhile, as batches do. Whoever is cancelled while waiting costs nothing.
    """

    def __init__(self, device: threading.Lock, most: int) -> None:
        self.device, self.most = device, most
        self._thread = ThreadPoolExecutor(1, "looking")
        self._accepted: set[Future[Any]] = set()

    @property
    def pending(self) -> int:
        return sum(not one.done() for one in tuple(self._accepted))

    async def __call__(self, work: Callable[[], Answer]) -> Answer:
        self._accepted = {one for one in self._accepted if not one.done()}
        if len(self._accepted) >= self.most:
            raise RequestError(503, f"{self.most} looks are waited for already: try again in a moment", retry_after=1)
        try:
            future = self._thread.submit(self._look, work)
        except RuntimeError:  # it was closed
            raise RequestError(503, "the service is being stopped", retry_after=5) from None
        self._accepted.add(future)
        return await asyncio.wrap_future(future)

    def _look(self, work: Callable[[], Answer]) -> Answer:
        with self.device:
            return work()

    def close(self) -> None:
        """Finish what was accepted."""
        self._thread.shutdown()
