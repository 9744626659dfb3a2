"""The queue of inspections: short ones first, and the searches of several sentences together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from dragoman.serving.job_queue import Job, JobQueue, QueueLimits

Result = TypeVar("Result")
MAX_SHARED_SEARCHES = 8  # sentences that are searched together before they are inspected one by one


@dataclass(frozen=True)
class SharedSearch:
    """The search for the translation that is inspected.

    Searches of several requests that have equal keys can be done together, as one batch.
    """

    key: Hashable
    source_ids: Sequence[int]  # tokens of the source
    search_all: Callable[[list[Sequence[int]]], Sequence[Any]]  # token ids of several sources → result for each


@dataclass(eq=False, kw_only=True)
class InspectionJob(Job[Any]):
    """A computation that inspects a run or a sentence."""

    inspect: Callable[[Any], Any]  # called with the result of the shared search, None without one
    render: Callable[[Any], Any] | None = None  # turns the inspection into the result; it does not need the device
    search: SharedSearch | None = None
    is_taken: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether the inspection has not begun."""
        return not self.is_taken and not self.future.done()

    def can_join(self, first: InspectionJob) -> bool:
        """Whether the search of this job can be done in one batch with that of `first`: their keys are equal."""
        return self.search is not None and first.search is not None and self.search.key == first.search.key


class InspectionQueue(JobQueue[InspectionJob]):
    """Runs inspections; a canceled inspection is skipped, or interrupted between decoding steps."""

    def __init__(self, limits: QueueLimits, max_pending: int) -> None:
        """Allow at most `max_pending` inspections that wait or run.

        `limits` has the device that they use, and what a client may have pending.
        """
        super().__init__(thread_name="inspecting", limits=limits, max_queue=max_pending)
        self._running = 0

    @property
    def pending(self) -> int:
        """Number of inspections that wait or run."""
        return len(self._jobs) + self._running

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of inspections wait or run."""
        return self.pending >= self.max_queue

    async def __call__(self, inspect: Callable[[], Result], cost: int = 1) -> Result:
        """Call `inspect` in a thread of inspections and return its result; a RequestError if too many are waiting.

        `cost` is an estimate in tokens: inspections of low cost come first.
        """
        return await self.search_and_inspect(lambda _: inspect(), cost)

    async def search_and_inspect(
        self,
        inspect: Callable[[Any], Any],
        cost: int,
        search: SharedSearch | None = None,
        render: Callable[[Any], Result] | None = None,
    ) -> Result:
        """Inspect a sentence, and return the result.

        Args:
            inspect: computes the inspection; called with the result of `search` if it was done together with those of
                other inspections, and else with None: it then searches by itself.
            cost: estimated, in tokens; inspections of low cost come first.
            search: how the translation is searched for together with those of other inspections; None: it is not.
            render: turns the inspection into the result, such as JSON, while others use the device.
        """
        job = self.submit(InspectionJob(inspect=inspect, cost=cost, search=search, render=render))
        result: Result = await asyncio.wrap_future(job.future)
        return result

    def take_batch(self, jobs: Sequence[InspectionJob]) -> list[InspectionJob]:
        """Take the first of the waiting inspections, and others whose searches can be done together with its own.

        `jobs` are ordered by rank; at most MAX_SHARED_SEARCHES are taken.
        """
        first, *others = jobs
        batch = [first, *[job for job in others if job.can_join(first)][: MAX_SHARED_SEARCHES - 1]]
        for job in batch:
            job.is_taken = True
        self._running += len(batch)
        return batch

    def run_batch(self, batch: list[InspectionJob], is_long: bool) -> None:
        """Search for all jobs together, inspect one after the other, and answer their requests.

        The device is held meanwhile, but `is_long` jobs give way to short ones between decoding steps.
        """
        inspected: list[tuple[InspectionJob, Any]] = []
        with self.limits.device.turn(is_background=is_long) as turn:
            with self.use_device(turn, batch):
                search_results = self._search(batch)
            for job, result in zip(batch, search_results, strict=True):
                try:
                    with self.use_device(turn, [job]):
                        job.record_queue_time()
                        if not job.future.done():
                            inspected.append((job, job.inspect(result)))
                except Exception as error:
                    job.fail(error)
        for job, result in inspected:  # the device is free again
            self._answer(job, result)
        with self._changed:
            self._running -= len(batch)

    def _search(self, batch: list[InspectionJob]) -> Sequence[Any]:
        """Return the results of the searches of the jobs, done as one batch.

        For a single job, or after an error, each result is None: then each job searches by itself, and only the
        faulty one fails.
        """
        searches = [job.search for job in batch if job.search is not None]
        if len(searches) > 1:
            with suppress(Exception):
                return searches[0].search_all([search.source_ids for search in searches])
        return [None] * len(batch)

    def _answer(self, job: InspectionJob, inspection: Any) -> None:
        """Render an inspection and answer the request of its job, unless it was canceled."""
        try:
            result = inspection if job.render is None or job.future.done() else job.render(inspection)
        except Exception as error:
            job.fail(error)
        else:
            with suppress(InvalidStateError):  # canceled
                job.future.set_result(result)
