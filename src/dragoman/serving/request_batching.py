"""Queues of requests: one thread per run translates sentences of many requests together, another inspects sentences."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dragoman.run import Run, Translation
from dragoman.search import SearchConfig
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import RequestRecord, request_record
from dragoman.serving.service_metrics import Metrics
from dragoman.serving.service_settings import BatchingSettings

Result = TypeVar("Result")
MAX_SENTENCES_PER_TURN = 16  # that a request puts into a batch before other requests get their turn


@dataclass(frozen=True)
class DecodeOptions:
    """How sentences are translated; sentences with equal options share a batch."""

    search: SearchConfig
    alignment: bool = False
    token_scores: bool = False
    prefix: str = ""  # of the translation of the first sentence
    languages: tuple[str | None, str | None] = (None, None)  # source and target of a multilingual model

    @property
    def needs_own_batch(self) -> bool:
        """Whether sentences of other requests must not join the batch.

        A prefix belongs to the first sentence of a request, and random draws are seeded by the sentence index.
        """
        return bool(self.prefix) or self.search.is_random


@dataclass
class TranslationJob:
    """The sentences of a request, and its progress."""

    sentences: Sequence[str]
    token_counts: Sequence[int]  # source tokens of each sentence
    options: DecodeOptions
    future: Future[list[Translation]] = field(default_factory=Future)
    arrival_time: float = field(default_factory=time.monotonic)
    record: RequestRecord = field(default_factory=request_record)
    num_batched: int = 0  # sentences that were put into batches
    results: dict[int, Translation] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        """Number of sentences not yet in a batch; 0 if the request was answered or canceled."""
        return 0 if self.future.done() else len(self.sentences) - self.num_batched

    @property
    def remaining_tokens(self) -> int:
        """Number of source tokens of the sentences not yet in a batch."""
        return sum(self.token_counts[self.num_batched :])

    def add_result(self, index: int, translation: Translation) -> None:
        """Store the translation of a sentence; the last one completes the request."""
        self.results[index] = translation
        if len(self.results) == len(self.sentences):
            with suppress(InvalidStateError):  # the request was canceled
                self.future.set_result([self.results[i] for i in range(len(self.sentences))])

    def record_queue_time(self) -> None:
        """Record how long the request has waited, when its first batch is translated."""
        if self.record.queue_seconds is None:
            self.record.queue_seconds = time.monotonic() - self.arrival_time

    def fail(self, error: Exception) -> None:
        """Answer the request with an error, unless it is answered or canceled already."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


Batch = list[tuple[TranslationJob, int]]  # jobs with the index of a sentence


class Batcher:
    """A run with a queue of requests, which are translated in batches up to a token budget.

    The next batch is collected while one is translated. An idle run waits `delay_seconds` after a request for others
    to join it. Requests take turns, so that a long text does not delay short ones. `device_lock` is held during a
    translation, because several runs on one machine would slow each other down.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        device_lock: threading.Lock,
        batching: BatchingSettings,
        max_queue: int,
        metrics: Metrics,
    ) -> None:
        """Create the queue of a run that is served under `name`, with at most `max_queue` waiting requests.

        `device_lock` is held during a translation; `batching` says when a batch is full; `metrics` are Prometheus's.
        """
        self.run, self.name, self.device_lock = run, name, device_lock
        self.batching, self.max_queue, self.metrics = batching, max_queue, metrics
        self._changed = threading.Condition()
        self._jobs: deque[TranslationJob] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._translate_batches, name=f"translating {name}", daemon=True)

    def start(self) -> None:
        """Start the thread that translates the queued requests."""
        self.metrics.queue.labels(self.name).set_function(lambda: len(self._jobs))
        self._thread.start()

    def close(self) -> None:
        """Translate accepted requests, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    async def translate(
        self, sentences: Sequence[str], token_counts: Sequence[int], options: DecodeOptions
    ) -> list[Translation]:
        """Queue the sentences of a request and return their translations in order.

        `token_counts` are the numbers of source tokens. If the caller cancels, the request is dropped from the queue.
        """
        if not sentences:
            return []
        job = self.submit(TranslationJob(sentences, token_counts, options))
        return await asyncio.wrap_future(job.future)

    @property
    def is_full(self) -> bool:
        """Whether the queue has reached its maximum number of requests."""
        return len(self._jobs) >= self.max_queue

    def submit(self, job: TranslationJob) -> TranslationJob:
        """Add a request to the queue, or reject it if the queue is full or closed."""
        with self._changed:
            if self._closing:
                raise RequestError(503, "the service is being stopped", retry_after=5)
            if self.is_full:
                self._drop_completed()
            if self.is_full:
                raise RequestError(
                    503, f"{len(self._jobs)} requests are waiting already: try again in a moment", retry_after=1
                )
            self._jobs.append(job)
            self._changed.notify()
        return job

    # ---- in the thread

    def _translate_batches(self) -> None:
        """Translate batches of queued requests until the service closes; the thread of this run does nothing else."""
        try:
            while batch := self._next_batch():
                self._translate(batch)
        except Exception as error:  # requests must not wait for a thread that has ended
            with self._changed:
                self._closing = True
                for job in self._jobs:
                    job.fail(error)
            raise

    def _next_batch(self) -> Batch | None:
        """Wait for the next batch; None when the service is closing and no requests remain.

        A batch is taken when the waiting requests fill it, or the first of them has waited `delay_seconds`.
        """
        with self._changed:
            while True:
                self._drop_completed()
                if self._jobs:
                    deadline = min(job.arrival_time for job in self._jobs) + self.batching.delay_seconds
                    wait = deadline - time.monotonic()
                    if wait > 0 and not self._closing and not self._has_full_batch():
                        self._changed.wait(wait)
                    elif batch := self._take_batch():
                        return batch
                elif self._closing:
                    return None
                else:
                    self._changed.wait()

    def _drop_completed(self) -> None:
        """Remove requests without remaining sentences, canceled ones included, from the queue."""
        self._jobs = deque(job for job in self._jobs if job.remaining)

    def _has_full_batch(self) -> bool:
        """Whether the waiting requests have enough tokens to fill a batch."""
        return sum(job.remaining_tokens for job in self._jobs) >= self._token_budget(self._jobs[0].options)

    def _token_budget(self, options: DecodeOptions) -> int:
        """Return the maximum number of source tokens of a batch: fewer if a source has many hypotheses (rows)."""
        rows = options.search.rows_per_source
        return self.batching.max_tokens or max(1, self.run.config.search.batch_tokens // rows)

    def _take_batch(self) -> Batch:
        """Take sentences of the first request, and in turns of others with equal options, up to the token budget.

        The batch is empty if all of them were canceled in the meantime.
        """
        options = self._jobs[0].options
        budget, batch = self._token_budget(options), Batch()
        jobs = [self._jobs[0]] if options.needs_own_batch else [job for job in self._jobs if job.options == options]
        while jobs and (budget > 0 or not batch):
            job = jobs.pop(0)
            for _ in range(min(MAX_SENTENCES_PER_TURN, job.remaining)):
                tokens = job.token_counts[job.num_batched]
                if batch and tokens > budget:
                    budget = 0
                    break
                batch.append((job, job.num_batched))
                budget, job.num_batched = budget - tokens, job.num_batched + 1
            if job.remaining:
                jobs.append(job)
        self._jobs.rotate(-1)  # the rest of the first request waits for its next turn
        self._drop_completed()
        return batch

    def _translate(self, batch: Batch) -> None:
        """Translate a batch; if that fails, translate each of its requests alone, so that only the faulty one fails."""
        start = time.monotonic()
        try:
            self._run_batch(batch)
        except Exception as error:
            jobs = list({id(job): job for job, _ in batch}.values())  # without duplicates
            if len(jobs) == 1:
                jobs[0].fail(error)
            else:
                for job in jobs:
                    self._translate([(owner, index) for owner, index in batch if owner is job])
            return
        self.metrics.sentences.labels(self.name).inc(len(batch))
        self.metrics.batch_seconds.labels(self.name).observe(time.monotonic() - start)
        self.metrics.batch_sentences.labels(self.name).observe(len(batch))

    def _run_batch(self, batch: Batch) -> None:
        """Translate the sentences of a batch, pairs (request, index of its sentence), and pass on the results."""
        first_job, first_index = batch[0]
        options = first_job.options  # the same for all sentences of a batch
        prefixes = [options.prefix if index == 0 else "" for _, index in batch] if options.prefix else None
        with self.device_lock:
            for job, _ in batch:
                job.record_queue_time()
            translations = list(
                self.run.with_languages(*options.languages).translate_stream(
                    [job.sentences[index] for job, index in batch],
                    options.search,
                    alignment=options.alignment,
                    first_index=first_index if options.needs_own_batch else 0,
                    prefixes=prefixes,
                    token_scores=options.token_scores,
                )
            )
        for (job, index), translation in zip(batch, translations, strict=True):
            job.add_result(index, translation)


class InspectionQueue:
    """Runs inspections in one thread, holding the device lock; a canceled inspection that still waits is skipped."""

    def __init__(self, device_lock: threading.Lock, max_pending: int) -> None:
        """Allow at most `max_pending` inspections that wait or run; `device_lock` is held while one runs."""
        self.device_lock, self.max_pending = device_lock, max_pending
        self._executor = ThreadPoolExecutor(1, "inspection")
        self._futures: set[Future[Any]] = set()

    @property
    def pending(self) -> int:
        """Number of inspections waiting or running."""
        return len(self._futures)

    async def __call__(self, inspect: Callable[[], Result]) -> Result:
        """Call `inspect` in the thread of inspections and return its result; reject it if too many are waiting."""
        if self.pending >= self.max_pending:
            raise RequestError(503, f"{self.max_pending} inspections are waiting: try again in a moment", retry_after=1)
        try:
            future = self._executor.submit(self._run, inspect)
        except RuntimeError:  # the executor was shut down
            raise RequestError(503, "the service is being stopped", retry_after=5) from None
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return await asyncio.wrap_future(future)

    def _run(self, inspect: Callable[[], Result]) -> Result:
        """Call `inspect` while no translation uses the device."""
        with self.device_lock:
            return inspect()

    def close(self) -> None:
        """Finish accepted inspections."""
        self._executor.shutdown()
