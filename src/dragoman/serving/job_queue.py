"""Queues of work for the device: short jobs before long ones, with ageing, and a fair share for each client."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dragoman.preemption import preemptible
from dragoman.serving.client_shares import ClientShares
from dragoman.serving.device_scheduler import DeviceScheduler, Turn
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import RequestRecord, request_record

MAX_SHORT_COST = 4096  # in tokens; jobs that cost more run in the background
LONG_COST = MAX_SHORT_COST + 1  # of a job that is to run in the background, whatever it costs
AGEING_COST_PER_SECOND = 4096  # by which the rank of a waiting job improves
PRIORITY_COST = 100 * MAX_SHORT_COST  # advantage of a job with a priority that is higher by 1

AnyResult = TypeVar("AnyResult")


class CanceledError(Exception):
    """All jobs of a batch were canceled while it ran."""


@dataclass(eq=False, kw_only=True)
class Job(Generic[AnyResult]):
    """Work for the device: a request, or a part of it."""

    cost: int  # estimated, in tokens that are read or generated
    future: Future[AnyResult] = field(default_factory=Future)
    arrival_time: float = field(default_factory=time.monotonic)
    record: RequestRecord = field(default_factory=request_record)  # of the request: its client and priority
    rank_cost: float = 0.0  # cost of this job and of cheaper ones of its client, when it arrived

    @property
    def is_long(self) -> bool:
        """Whether the job costs so much that it runs in the background, where short jobs can interrupt it."""
        return self.cost > MAX_SHORT_COST

    @property
    def is_waiting(self) -> bool:
        """Whether the job stays in the queue: until it is answered or canceled, or all of its work has begun.

        Subclasses know whether work has begun; here it counts as not begun.
        """
        return not self.future.done()

    def rank(self, now: float) -> float:
        """Return the sort key of the queue, in tokens, lowest first.

        It is the cost of the job and of cheaper jobs of its client (`rank_cost`), reduced by the time that the job has
        waited until `now` (as in time.monotonic) and by its priority.
        """
        seconds_waited = now - self.arrival_time
        return self.rank_cost - AGEING_COST_PER_SECOND * seconds_waited - PRIORITY_COST * self.record.priority

    def fail(self, error: Exception) -> None:
        """Answer the request with an error, unless it was answered or canceled already."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def record_queue_time(self) -> None:
        """Record how long the request has waited; called when work on it begins, and has no effect later."""
        if self.record.queue_seconds is None:  # of the jobs of a request, the first one counts
            self.record.queue_seconds = time.monotonic() - self.arrival_time


AnyJob = TypeVar("AnyJob", bound=Job[Any])


@dataclass(frozen=True)
class QueueLimits:
    """What the queues of a service share: the device, and limits on what waits for it."""

    device: DeviceScheduler
    shares: ClientShares  # costs of waiting and running jobs
    clients_per_address: int = 16


class JobQueue(Generic[AnyJob]):
    """A queue of jobs with two threads: one for short jobs, and one for long jobs, which runs in the background.

    Jobs are ordered by their cost and that of cheaper jobs of the same client (shortest job first, within a fair
    share), which decreases while they wait (ageing). Subclasses take batches of jobs and run them.
    """

    def __init__(self, thread_name: str, limits: QueueLimits, max_queue: int) -> None:
        """Create a queue of at most `max_queue` waiting jobs; the names of its threads begin with `thread_name`.

        `limits` has what all queues of a service share: the device, and how much a client may have pending.
        """
        self.limits, self.max_queue = limits, max_queue
        self._changed = threading.Condition()
        self._jobs: list[AnyJob] = []  # in order of arrival
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, args=(is_long,), name=f"{thread_name}, {length}", daemon=True)
            for is_long, length in ((False, "short"), (True, "long"))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish accepted jobs, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    @property
    def is_full(self) -> bool:
        """Whether the queue has reached its maximum number of waiting jobs."""
        return len(self._jobs) >= self.max_queue

    def submit(self, job: AnyJob) -> AnyJob:
        """Add a job to the queue, or reject it if the queue is full or closed, or its client has too much pending."""
        with self._changed:
            if self._closing:
                raise RequestError(503, "the service is being stopped", retry_after=5)
            if self.is_full:
                self._drop_completed()
            if self.is_full:
                raise RequestError(
                    503, f"{len(self._jobs)} requests are waiting already: try again in a moment", retry_after=1
                )
            self._take_share(job)
            job.rank_cost = self._rank_cost(job)  # by which jobs are ordered, besides waiting time and priority
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    def _take_share(self, job: AnyJob) -> None:
        """Count the cost of a job for its client until it is done; reject it if the client has too much pending."""
        shares, cost = self.limits.shares, job.cost  # costs that clients have pending; those of this job
        if cost > shares.per_client:
            raise RequestError(
                400,
                f"the estimated cost of the request, source tokens × (1 + hypotheses), is {cost:,}, but may be at most "
                f"{shares.per_client:,.0f} (--max-pending-cost): send a shorter text or use a smaller beam",
            )
        exceeded = shares.acquire(job.record, cost)
        if exceeded is not None:
            owner = {"total": "all clients", "address": "this address or API key", "client": "this client"}[exceeded]
            limit = {"total": shares.total, "address": shares.per_address, "client": shares.per_client}[exceeded]
            raise RequestError(
                503 if exceeded == "total" else 429,
                f"the waiting requests of {owner} may have an estimated cost of {limit:,.0f} (--max-pending-cost): "
                "wait for an answer before you send more",
                retry_after=5,
            )
        job.future.add_done_callback(lambda _: shares.release(job.record, cost))

    def _rank_cost(self, job: AnyJob) -> float:
        """Return the cost by which a new job is ordered: its own, and that of waiting jobs before it, for a fair share.

        These are the jobs of the same client that cost at most as much. Those of all clients of its address (or API
        key) count, too, divided by the number of clients that an address may have.
        """
        cheaper = [other for other in self._jobs if other.cost <= job.cost and not other.future.done()]
        client_cost = sum(other.cost for other in cheaper if other.record.identity == job.record.identity)
        address_cost = sum(other.cost for other in cheaper if other.record.address_or_key == job.record.address_or_key)
        if not job.record.client_id:  # perhaps several users: only the share of an address can be fair
            client_cost = 0
        return job.cost + max(client_cost, address_cost / self.limits.clients_per_address)

    def _drop_completed(self) -> None:
        """Remove jobs without remaining work, canceled ones included, from the queue."""
        self._jobs = [job for job in self._jobs if job.is_waiting]

    # ---- in the threads

    def _work(self, is_long: bool) -> None:
        """Run batches of short or (`is_long`) of long jobs until the queue closes: the function of its two threads.

        An unexpected error closes the queue, answers all of its jobs, and ends the thread.
        """
        try:
            while batch := self._next_batch(is_long):
                self.run_batch(batch, is_long)
        except Exception as error:  # requests must not wait for a thread that has ended
            with self._changed:
                self._closing = True
                for job in self._jobs:
                    job.fail(error)
            raise

    def _next_batch(self, is_long: bool) -> list[Any] | None:
        """Wait for the next batch of short or of long jobs; None when the queue is closing and no such jobs remain.

        While the queue closes, a batch does not wait for further jobs (`delay`) to join it.
        """
        with self._changed:
            while True:
                self._drop_completed()
                now = time.monotonic()
                jobs = sorted((job for job in self._jobs if job.is_long == is_long), key=lambda job: job.rank(now))
                if jobs:
                    wait = 0.0 if self._closing else self.delay(jobs)
                    if wait > 0:
                        self._changed.wait(wait)  # for further jobs, or until these are taken without them
                    elif batch := self.take_batch(jobs):
                        self._drop_completed()
                        return batch
                elif self._closing:
                    return None
                else:
                    self._changed.wait()

    def use_device(self, turn: Turn, jobs: Sequence[AnyJob]) -> Any:
        """Return a context for searches, which between decoding steps let waiting work use the device.

        `turn` is their present turn on the device. They raise CanceledError if the requests of all `jobs` were answered
        or canceled meanwhile.
        """

        def on_step() -> None:
            """Stop if nobody waits for the result, or else let waiting work use the device."""
            if all(job.future.done() for job in jobs):
                raise CanceledError
            self.limits.device.yield_turn(turn)

        return preemptible(on_step)

    # ---- of subclasses

    def delay(self, jobs: Sequence[AnyJob]) -> float:
        """Return the seconds to wait for further jobs before a batch of these is taken."""
        return 0.0

    def take_batch(self, jobs: Sequence[AnyJob]) -> list[Any]:
        """Take a batch of the waiting jobs, which are ordered by rank, the first one at least.

        The batch is empty if they were canceled meanwhile.
        """
        raise NotImplementedError

    def run_batch(self, batch: list[Any], is_long: bool) -> None:
        """Compute the results of a batch, and answer its requests; a batch of long jobs gives way to short ones."""
        raise NotImplementedError
