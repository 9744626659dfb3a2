"""A queue of inspections, which run one at a time between the batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dragoman.serving.request_parsing import RequestError

Result = TypeVar("Result")


class InspectionQueue:
    """Runs inspections in one thread, holding the device lock; a canceled inspection that still waits is skipped."""

    def __init__(self, device_lock: threading.Lock, max_pending: int) -> None:
        self.device_lock, self.max_pending = device_lock, max_pending
        self._executor = ThreadPoolExecutor(1, "inspection")
        self._futures: set[Future[Any]] = set()

    @property
    def pending(self) -> int:
        return sum(not future.done() for future in tuple(self._futures))

    async def __call__(self, work: Callable[[], Result]) -> Result:
        self._futures = {future for future in self._futures if not future.done()}
        if len(self._futures) >= self.max_pending:
            raise RequestError(503, f"{self.max_pending} inspections are waiting: try again in a moment", retry_after=1)
        try:
            future = self._executor.submit(self._run, work)
        except RuntimeError:  # the executor was shut down
            raise RequestError(503, "the service is being stopped", retry_after=5) from None
        self._futures.add(future)
        return await asyncio.wrap_future(future)

    def _run(self, work: Callable[[], Result]) -> Result:
        with self.device_lock:
            return work()

    def close(self) -> None:
        """Finish accepted inspections."""
        self._executor.shutdown()
