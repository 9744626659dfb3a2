"""Sentences of many requests, translated together by one thread for each run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dragoman.run import Run, Translation
from dragoman.search import Sample, SearchConfig
from dragoman.serving.request_error import RequestError
from dragoman.serving.service_metrics import SIZES, Metrics
from dragoman.serving.service_settings import BatchingSettings

MAX_SENTENCES_PER_TURN = 16  # sentences that a request may put into a batch before the others have had their turn


@dataclass(frozen=True)
class DecodeOptions:
    """How sentences are translated; those of one way may go together."""

    search: SearchConfig
    alignment: bool = False
    token_scores: bool = False
    prefix: str = ""  # of the first sentence

    @property
    def needs_own_batch(self) -> bool:
        """Must its sentences be a batch of their own? Draws depend on the number of a sentence among its request's."""
        return bool(self.prefix) or is_stochastic(self.search)


def is_stochastic(search: Any) -> bool:
    """Does chance take part in a search?"""
    parts = (getattr(search, name, None) for name in ("candidates", "references", "search"))
    return isinstance(search, Sample) or any(part is not None and is_stochastic(part) for part in parts)


@dataclass
class TranslationJob:
    """The sentences of a request, their sizes in tokens, and how many of them were taken into batches so far."""

    sentences: Sequence[str]
    token_counts: Sequence[int]
    options: DecodeOptions
    future: Future[list[Translation]] = field(default_factory=Future)
    arrival_time: float = field(default_factory=time.monotonic)
    num_batched: int = 0
    results: dict[int, Translation] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        """How many sentences have not been taken; none of a request that nobody waits for any more."""
        return 0 if self.future.done() else len(self.sentences) - self.num_batched

    @property
    def remaining_tokens(self) -> int:
        return sum(self.token_counts[self.num_batched :])

    def add_result(self, number: int, translation: Translation) -> None:
        self.results[number] = translation
        if len(self.results) == len(self.sentences):
            self._end(lambda: self.future.set_result([self.results[i] for i in range(len(self.sentences))]))

    def fail(self, error: Exception) -> None:
        self._end(lambda: self.future.set_exception(error))

    def _end(self, set_answer: Callable[[], None]) -> None:
        with suppress(InvalidStateError):  # nobody waits for it any more
            set_answer()


Batch = list[tuple[TranslationJob, int]]  # sentences by their number


class Batcher:
    """A run with a queue: what waits is gathered up to a token budget and translated in one call.

    While a batch is translated the next one gathers; a run that has nothing to do waits for a moment after a request
    has come, for others to join it. Requests take turns, so that a long text does not keep short ones waiting. A
    request that was given up is dropped when its turn comes. `device` is held while the run works: several runs on
    one machine would only hinder one another.
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
        self.run, self.name, self.device_lock, self.batching, self.max_queue = (
            run,
            name,
            device_lock,
            batching,
            max_queue,
        )
        self.metrics = metrics
        self._changed = threading.Condition()
        self._jobs: deque[TranslationJob] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=f"translating {name}", daemon=True)
        metrics.gauge("dragoman_queue", "Requests that wait for a run.", lambda: len(self._jobs), run=name)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Translate what was accepted, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    async def translate(
        self, sentences: Sequence[str], token_counts: Sequence[int], options: DecodeOptions
    ) -> list[Translation]:
        """The translations in order; whoever is cancelled while waiting costs no more."""
        if not sentences:
            return []
        return await asyncio.wrap_future(self.submit(TranslationJob(sentences, token_counts, options)).future)

    @property
    def is_full(self) -> bool:
        return len(self._jobs) >= self.max_queue

    def submit(self, job: TranslationJob) -> TranslationJob:
        with self._changed:
            if self._closing:
                raise RequestError(503, "the service is being stopped", retry_after=5)
            if self.is_full:
                self._drop()
            if self.is_full:
                raise RequestError(
                    503, f"{len(self._jobs)} requests are waiting already: try again in a moment", retry_after=1
                )
            self._jobs.append(job)
            self._changed.notify()
        return job

    # ---- in the thread

    def _work(self) -> None:
        while batch := self._gathered():
            self._translate(batch)

    def _gathered(self) -> Batch | None:
        """The next batch, or None when all is done and there will be no more."""
        with self._changed:
            while True:
                self._drop()
                if self._jobs:
                    wait = min(job.arrival_time for job in self._jobs) + self.batching.delay_seconds - time.monotonic()
                    if wait > 0 and not self._closing and not self._full():
                        self._changed.wait(wait)
                    elif batch := self._take():
                        return batch
                elif self._closing:
                    return None
                else:
                    self._changed.wait()

    def _drop(self) -> None:
        self._jobs = deque(job for job in self._jobs if job.remaining)

    def _full(self) -> bool:
        return sum(job.remaining_tokens for job in self._jobs) >= self._budget(self._jobs[0].options)

    def _budget(self, way: DecodeOptions) -> int:
        return self.batching.max_tokens or max(1, self.run.config.search.batch_tokens // way.search.rows_per_source)

    def _take(self) -> Batch:
        """Sentences of the first request and of others that go the same way, in turns, while there is room.

        None where they were given up in this very moment.
        """
        way = self._jobs[0].options
        room, batch = self._budget(way), Batch()
        fellows = [self._jobs[0]] if way.needs_own_batch else [job for job in self._jobs if job.options == way]
        while fellows and (room > 0 or not batch):
            job = fellows.pop(0)
            for _ in range(min(MAX_SENTENCES_PER_TURN, job.remaining)):
                size = job.token_counts[job.num_batched]
                if batch and size > room:
                    room = 0
                    break
                batch.append((job, job.num_batched))
                room, job.num_batched = room - size, job.num_batched + 1
            if job.remaining:
                fellows.append(job)
        self._jobs.rotate(-1)  # what is left of the first waits for its next turn
        self._drop()
        return batch

    def _translate(self, batch: Batch) -> None:
        began = time.monotonic()
        try:
            self._answer(batch)
        except Exception as error:  # whatever it was, it is answered, and the next batch is not concerned
            jobs = {id(job): job for job, _ in batch}
            if len(jobs) == 1:
                batch[0][0].fail(error)
            for job in jobs.values() if len(jobs) > 1 else ():
                self._translate([(one, number) for one, number in batch if one is job])
            return
        self.metrics.count("dragoman_sentences_total", "Sentences that were translated.", len(batch), run=self.name)
        seconds = time.monotonic() - began
        self.metrics.observe("dragoman_batch_seconds", "The time that a batch took.", seconds, run=self.name)
        self.metrics.observe("dragoman_batch_sentences", "Sentences of a batch.", len(batch), SIZES, run=self.name)

    def _answer(self, batch: Batch) -> None:
        way, first = batch[0][0].options, batch[0][1]
        begins = [way.prefix if number == 0 else "" for _, number in batch] if way.prefix else None
        with self.device_lock:
            found = list(
                self.run.translate_stream(
                    [job.sentences[number] for job, number in batch],
                    way.search,
                    alignment=way.alignment,
                    first_index=first if way.needs_own_batch else 0,
                    prefixes=begins,
                    token_scores=way.token_scores,
                )
            )
        for (job, number), translation in zip(batch, found, strict=True):
            job.add_result(number, translation)
