"""The queue of a run: sentences of many requests are translated together, short requests first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field

from dragoman.run import Run, StreamedTokens, Translation
from dragoman.search import SearchConfig
from dragoman.serving.job_queue import MAX_SHORT_COST, CanceledError, Job, JobQueue, QueueLimits
from dragoman.serving.service_metrics import Metrics
from dragoman.serving.service_settings import BatchingSettings

STREAM_INTERVAL_SECONDS = 0.05  # between two parts of a streamed translation


@dataclass(frozen=True)
class DecodeOptions:
    """How sentences are translated; sentences of several requests with equal options share a batch."""

    search: SearchConfig
    alignment: bool = False
    token_scores: bool = False
    prefix: str = ""  # of the translation of the first sentence
    languages: tuple[str | None, str | None] = (None, None)  # source and target of a multilingual model
    is_streamed: bool = False  # parts of translations are passed on while they are generated

    @property
    def needs_own_batch(self) -> bool:
        """Whether sentences of other requests must not join the batch.

        A prefix belongs to the first sentence of a request, and random draws are seeded by the sentence index.
        """
        return bool(self.prefix) or self.search.is_random

    def cost(self, tokens: int) -> int:
        """Return the estimated cost, in tokens, of translating `tokens` source tokens: tokens · (1 + hypotheses).

        The encoder reads every token, and the decoder generates about as many tokens for each hypothesis. A decoding
        step, which is the piece of work after which a long request is interrupted, costs one token per hypothesis.
        """
        return max(1, tokens) * (1 + self.search.rows_per_source)


@dataclass(eq=False, kw_only=True)
class TranslationJob(Job[list[Translation]]):
    """The sentences of a request, and its progress."""

    sentences: Sequence[str]
    token_counts: Sequence[int]  # source tokens of each sentence
    options: DecodeOptions
    on_tokens: Callable[[int, StreamedTokens], None] | None = None  # called with the number of a sentence and its parts
    cost: int = 0
    num_batched: int = 0  # sentences that were put into batches
    results: dict[int, Translation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Set the cost, by which the queue orders jobs, from the number of source tokens and the search."""
        self.cost = self.options.cost(sum(self.token_counts))

    @property
    def is_waiting(self) -> bool:
        """Whether some sentences are not in a batch yet; false if the request was answered or canceled."""
        return not self.future.done() and self.num_batched < len(self.sentences)

    @property
    def remaining_tokens(self) -> int:
        """Number of source tokens of the sentences that are not in a batch yet; the first `num_batched` are."""
        return sum(self.token_counts[self.num_batched :])

    def add_part(self, index: int, part: StreamedTokens) -> None:
        """Pass a new part of the translation of sentence `index` to `on_tokens`, which streams it to the client.

        The last part of a sentence has its whole translation, which is stored.
        """
        if self.on_tokens is not None and not self.future.done():
            self.on_tokens(index, part)
        if part.translation is not None:
            self.add_result(index, part.translation)

    def add_result(self, index: int, translation: Translation) -> None:
        """Store the translation of sentence `index`; when all sentences have one, the request is answered."""
        self.results[index] = translation
        if len(self.results) == len(self.sentences):
            with suppress(InvalidStateError):  # the request was canceled
                self.future.set_result([self.results[index] for index in range(len(self.sentences))])


Batch = list[tuple[TranslationJob, int]]  # jobs with the index of a sentence


class Batcher(JobQueue[TranslationJob]):
    """A run with a queue of requests, which are translated in batches up to a token budget.

    The next batch is collected while one is translated. An idle run waits `delay_seconds` after a request for others
    to join it. A batch is translated while no other run or inspection uses the device, because several computations on
    one machine would slow each other down.
    """

    def __init__(
        self, run: Run, name: str, limits: QueueLimits, batching: BatchingSettings, max_queue: int, metrics: Metrics
    ) -> None:
        """Create the queue of a run that is served under `name`, with at most `max_queue` waiting requests.

        `limits` has what all queues of a service share: the device, and how much a client may have pending. `batching`
        says when a batch is full; `metrics` are those of the service for Prometheus.
        """
        super().__init__(thread_name=f"translating {name}", limits=limits, max_queue=max_queue)
        self.run, self.run_name, self.batching, self.metrics = run, name, batching, metrics
        # Long requests are interrupted by short ones. Search engines, which the run caches, serve one search at a time,
        # so those of long requests need a cache of their own.
        self.background_run = copy(run)
        if self.background_run.engine_cache is not None:  # None: engines are not cached
            self.background_run.engine_cache = {}

    def start(self) -> None:
        """Start the threads that translate the queued requests."""
        self.metrics.queue.labels(self.run_name).set_function(lambda: len(self._jobs))
        super().start()

    # ---- in the threads

    def delay(self, jobs: Sequence[TranslationJob]) -> float:
        """Return the seconds until the oldest of the jobs has waited `batching.delay_seconds` for others to join it.

        That is 0 if the jobs fill a batch, and negative if the time is over.
        """
        if sum(job.remaining_tokens for job in jobs) >= self._token_budget(jobs[0].options):
            return 0.0
        return min(job.arrival_time for job in jobs) + self.batching.delay_seconds - time.monotonic()

    def _token_budget(self, options: DecodeOptions) -> int:
        """Return the maximum number of source tokens of a batch: fewer if a source has many hypotheses (rows).

        On a CPU, a batch costs at most as much as a short request, so that the next ones do not wait for long. A number
        that the operator has set (`batching.max_tokens`) is used as it is.
        """
        if self.batching.max_tokens:
            return self.batching.max_tokens
        budget = self.run.config.search.batch_tokens // options.search.rows_per_source
        if self.run.device.type == "cpu":
            budget = min(budget, MAX_SHORT_COST // options.cost(tokens=1))  # the cost is proportional to the tokens
        return max(1, budget)

    def take_batch(self, jobs: Sequence[TranslationJob]) -> Batch:
        """Take sentences of the first request, and then of others with equal options, up to the token budget.

        `jobs` are ordered by rank; each has the sentences of a request. The batch is a list of pairs (job, index of a
        sentence); it is empty if all of them were canceled in the meantime.
        """
        options, batch = jobs[0].options, Batch()
        budget = self._token_budget(options)
        for job in [jobs[0]] if options.needs_own_batch else [job for job in jobs if job.options == options]:
            while job.is_waiting:  # some of its sentences are in no batch yet; the first `num_batched` are
                tokens = job.token_counts[job.num_batched]
                if batch and tokens > budget:  # a sentence that is longer than the budget gets a batch of its own
                    return batch
                batch.append((job, job.num_batched))
                job.num_batched += 1
                budget -= tokens
        return batch

    def run_batch(self, batch: Batch, is_long: bool) -> None:
        """Translate a batch; if that fails, translate each of its requests alone, so that only the faulty one fails.

        A batch of long jobs (`is_long`) runs in the background, where short ones interrupt it. A batch that succeeds is
        counted in the metrics.
        """
        start = time.monotonic()
        try:
            self._translate(batch, is_long)
        except CanceledError:  # nobody waits for its requests any more
            return
        except Exception as error:
            jobs = list({id(job): job for job, _ in batch}.values())  # without duplicates
            if len(jobs) == 1:
                jobs[0].fail(error)
            else:
                for job in jobs:
                    self.run_batch([entry for entry in batch if entry[0] is job], is_long)
            return
        self.metrics.sentences.labels(self.run_name).inc(len(batch))
        self.metrics.batch_seconds.labels(self.run_name).observe(time.monotonic() - start)
        self.metrics.batch_sentences.labels(self.run_name).observe(len(batch))

    def _translate(self, batch: Batch, is_long: bool) -> None:
        """Translate the sentences of a batch, pairs (job, index of a sentence of it), and pass the results to the jobs.

        Batches of long jobs (`is_long`) use the device in the background, and a copy of the run with its own engines.
        """
        jobs = [job for job, _ in batch]
        options = jobs[0].options  # the same for all sentences of a batch
        texts = [job.sentences[index] for job, index in batch]
        # the prefix is that of the first sentence of the request, which has this batch to itself
        prefixes = [options.prefix if index == 0 else "" for _, index in batch] if options.prefix else None
        run = (self.background_run if is_long else self.run).with_languages(*options.languages)
        first_index = batch[0][1] if options.needs_own_batch else 0  # random draws are seeded by the sentence index
        with self.limits.device.turn(is_background=is_long) as turn, self.use_device(turn, jobs):
            for job in jobs:
                job.record_queue_time()
            if options.is_streamed:
                parts = run.stream_batch(
                    texts,
                    options.search,
                    alignment=options.alignment,
                    prefixes=prefixes,
                    first_index=first_index,
                    interval=STREAM_INTERVAL_SECONDS,
                )
                for number, part in parts:  # `number` counts the sentences of the batch
                    job, index = batch[number]
                    job.add_part(index, part)
                return
            translations = list(
                run.translate_stream(
                    texts,
                    options.search,
                    alignment=options.alignment,
                    first_index=first_index,
                    prefixes=prefixes,
                    token_scores=options.token_scores,
                )
            )
        for (job, index), translation in zip(batch, translations, strict=True):
            job.add_result(index, translation)
