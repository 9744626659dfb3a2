"""The service: the runs that are served, selection of a run, and limits on requests."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, Literal, TypeVar

from fastapi import Request

from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.run.language_pair import LanguagePair
from dragoman.run.translation_warnings import checker_of
from dragoman.search import SearchConfig, search_from_dict
from dragoman.search.search_config import DEFAULT_MAX_LENGTH
from dragoman.serving.alignment_queue import AlignmentQueue
from dragoman.serving.analysis_settings import AnalysisSettings
from dragoman.serving.api_keys import ApiKey, ApiKeys
from dragoman.serving.client_shares import ClientShares
from dragoman.serving.device_scheduler import DeviceScheduler
from dragoman.serving.document_store import DocumentStore
from dragoman.serving.inspection_queue import InspectionQueue
from dragoman.serving.job_queue import QueueLimits
from dragoman.serving.quotas import Quotas
from dragoman.serving.request_batching import Batcher
from dragoman.serving.request_guard import RateLimiter
from dragoman.serving.request_parsing import (
    RequestError,
    RequestFields,
    cancel_on_disconnect,
    read_fields,
    request_api_key,
)
from dragoman.serving.request_record import RequestRecord, request_record
from dragoman.serving.run_reloading import RunReloader, RunSource
from dragoman.serving.run_selection import RunSelector
from dragoman.serving.run_versions import run_version
from dragoman.serving.schemas import ApiRequest
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service_metrics import Metrics
from dragoman.serving.service_settings import BatchingSettings, ServiceLimits
from dragoman.serving.suggestions import SuggestionFile

RequestType = TypeVar("RequestType", bound=ApiRequest)
Result = TypeVar("Result")
STREAM_POLL_SECONDS = 0.02  # between two attempts to begin a stream


class Service(RunSelector):
    """All served runs, with their limits, API keys and metrics."""

    def __init__(
        self,
        runs: Iterable[tuple[Run, LanguagePair | None] | RunSource],
        limits: ServiceLimits | None = None,
        batching: BatchingSettings | None = None,
        keys: ApiKeys | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """Serve runs; one that does not translate text is a UserError. Only one run decodes at a time.

        Args:
            runs: a RunSource is loaded when the service starts, and can be reloaded. Loaded runs are given with their
                languages (None: unknown); a multilingual run serves all its languages, and these are its default.
            limits, batching: None: the defaults.
            keys: accepted API keys; None: no key is needed.
            quotas: counts what API keys have used; None: in memory only.
        """
        super().__init__()
        self.limits, self.keys, self.metrics = limits or ServiceLimits(), keys or ApiKeys(), Metrics()
        self.quotas = quotas or Quotas()
        per_address = self.limits.clients_per_address  # an address may use as much as this number of clients
        self.rate_limiter = RateLimiter(self.limits.requests_per_minute, per_address)
        self.device = DeviceScheduler()
        self.streams = ClientShares(self.limits.max_streams, self.limits.max_client_streams, per_address)
        # inf: all clients together have no limit
        pending_costs = ClientShares(math.inf, self.limits.max_pending_cost, per_address)
        self._queue_limits = QueueLimits(self.device, shares=pending_costs, clients_per_address=per_address)
        self.inspections = InspectionQueue(self._queue_limits, self.limits.max_inspections)
        self.aligner = AlignmentQueue(self.device)
        self.documents = DocumentStore(self.limits.max_stored_bytes)
        self.suggestions: SuggestionFile | None = None  # none are accepted
        self.analysis = AnalysisSettings()
        self._batching = batching or BatchingSettings()
        self._sources: dict[str, RunSource] = {}
        self.reloader = RunReloader(self)
        self.active_requests: set[RequestRecord] = set()  # requests that are being answered
        self._state: Literal["starting", "ready", "stopping"] = "starting"
        self._started = threading.Event()
        for item in runs:
            if isinstance(item, RunSource):
                self._sources[self._unique_name(item.folder.resolve().name)] = item
            else:
                run, pair = item
                name = self._unique_name(run.folder.resolve().name)
                self.runs[name] = self._served_run(name, run, pair, run_version(run.folder, run.checkpoint))
        if not self.runs and not self._sources:
            raise UserError("there is no run to serve: name at least one run folder")
        self.metrics.inspections.set_function(lambda: self.inspections.pending)
        self.metrics.ready.set_function(lambda: self.readiness == "ready")

    @property
    def run_names(self) -> list[str]:
        """The names of all runs, also of those that are not loaded yet."""
        return list(dict.fromkeys([*self.runs, *self._sources]))

    def source_version(self, name: str) -> str:
        """Return the version on disk of the run `name`, which may be newer than the one that is loaded."""
        return self._sources[name].version

    def _unique_name(self, name: str) -> str:
        """Return `name`, or if another run has this name, `name` with a number: name-2, name-3 …"""
        unique_name, number = name, 1
        while unique_name in self.run_names:
            number += 1
            unique_name = f"{name}-{number}"
        return unique_name

    def _served_run(
        self, name: str, run: Run, pair: LanguagePair | None, version: str, source: RunSource | None = None
    ) -> ServedRun:
        """Return a run with a queue that is not started yet; one that does not translate text is a UserError.

        `pair` are its languages (None: unknown), or the default languages of a multilingual run; `source` says where
        it can be loaded again.
        """
        run.check_usage("translate")
        # its sources are images or speech, or it generates no text
        if run.model.source_features is not None or not run.model.can_generate:
            raise UserError(
                f"the run {run.folder} does not translate text into text, and only such runs can be served: leave it "
                "out"
            )
        batcher = Batcher(run, name, self._queue_limits, self._batching, self.limits.max_queue, self.metrics)
        served = ServedRun(name, run, pair, batcher, version, source)
        # a multilingual run: set to the given languages, or else (None) to those that it has as its default
        if served.language_codes is not None and (pair is not None or served.language_codes.has_default):
            served = served.for_languages(*(pair or (None, None)))
        return served

    def load_run(self, name: str, source: RunSource) -> ServedRun:
        """Load a run, warm it up, and start its queue; `install_run` then lets it answer requests."""
        version = source.version  # read before the files, so that the next reload notices a change in the meantime
        run, pair = source.load()
        served = self._served_run(name, run, pair, version, source)
        self._start_run(served)
        return served

    def _start_run(self, served: ServedRun) -> None:
        """Translate a text to warm a run up, learn what warnings about translations need, and start its queue.

        Such warnings compare a translation with what is usual for the run, such as the ratio of lengths.
        """
        with self.device.turn():
            # packs the weights before a request; a multilingual run needs two languages, whichever they are
            served.with_any_languages().run.translate(["a"], alignment=False)
        checker_of(served.run).learn_what_is_usual()
        served.batcher.start()

    def install_run(self, served: ServedRun) -> None:
        """Let a run whose queue was started answer requests, instead of the one with the same name if there is one."""
        old = self.runs.get(served.name)
        if old is not None and old is not served:
            self.metrics.run_info.remove(old.name, old.version, old.run.checkpoint)
        self.metrics.run_info.labels(served.name, served.version, served.run.checkpoint).set(1)
        self.runs = {**self.runs, served.name: served}  # a new dict, because other threads may iterate over the old one

    def public_message(self, error: Exception) -> str:
        """Return an error message with the names of runs instead of their folders, which are private."""
        text = str(error)
        for name, served in self.runs.items():
            text = text.replace(str(served.run.folder), name)
        return text

    def start(self) -> None:
        """Load and warm up every run, train the language detector, and start the threads that translate requests.

        A route whose runs have different languages is a UserError. The detector learns from runs with one known pair.
        """
        loaded = {name: self.load_run(name, source) for name, source in self._sources.items()}
        for served in self.runs.values():
            self._start_run(served)
        for served in (*self.runs.values(), *loaded.values()):
            if not served.is_multilingual and served.pair is not None:
                self.detector.learn_from_run(served.run, *served.pair)
            self.install_run(served)
        self.check_route_languages()
        self.inspections.start()
        self.quotas.start()
        if self._state == "starting":
            self._state = "ready"
        self._started.set()

    def wait_until_started(self) -> None:
        """Wait until the runs are loaded."""
        self._started.wait()

    def begin_to_stop(self) -> None:
        """Report that the service is not ready any more; requests are still accepted."""
        self._state = "stopping"

    @property
    def readiness(self) -> Literal["ready", "starting", "stopping", "full"]:
        """Whether requests are accepted: not while runs are being loaded, all queues are full, or the service stops."""
        if self._state == "ready" and all(served.batcher.is_full for served in self.runs.values()):
            return "full"
        return self._state

    def close(self) -> None:
        """Finish accepted requests, and stop all threads; also save what API keys have used (quotas)."""
        self.begin_to_stop()
        self.reloader.close()
        for served in self.runs.values():
            served.batcher.close()
        self.inspections.close()
        self.aligner.close()
        self.quotas.close()

    # ---- limits

    def reject_if_full(self) -> None:
        """Reject a request (503) before it is parsed if the queues of all runs are full."""
        if all(served.batcher.is_full for served in self.runs.values()):
            raise RequestError(503, "too many requests are waiting already: try again in a moment", retry_after=1)

    async def accept(self, request: Request, model: type[RequestType]) -> RequestType:
        """Return the fields of a request as `model`, and count its characters for the quota of its API key.

        It is rejected without a valid API key, above the rate limit or a quota, with invalid fields or too much text.
        """
        fields = (await self.read_authorized(request, read_fields(request))).validate(model)
        if len(fields.texts) > self.limits.max_texts:
            raise RequestError(400, f"a request may have {self.limits.max_texts} texts, but has {len(fields.texts):,}")
        characters, limit = sum(map(len, fields.texts)), self.limits.max_characters
        # for the log, and for routes that divide requests among runs by their texts
        request_record().texts, request_record().characters = fields.texts, characters
        if characters > limit:
            raise RequestError(400, f"a request may have {limit:,} characters, but has {characters:,}")
        self.count_characters(request, fields.api_key, characters)
        return fields

    async def read_authorized(self, request: Request, reading: Awaitable[RequestFields]) -> RequestFields:
        """Await `reading`, and return the fields that it reads from the request; reject it without a valid API key.

        A client without a valid key gets the error about the key, not one about fields that cannot be read.
        """
        try:
            fields = await reading
        except RequestError:
            self.authorize(request)  # raises the error about the key, if that is missing or invalid
            raise
        self.authorize(request, fields.api_key)
        return fields

    def count_characters(self, request: Request, key: str | None, characters: int) -> None:
        """Count the characters of an authorized request; reject it if that exceeds the daily quota of its API key.

        `key` is the field api_key of the request, which may also have the key in a header. A request that the service
        fails to answer does not count.
        """
        record, api_key = request_record(), self.keys.find(request_api_key(request, key))
        record.characters = characters
        if api_key is not None:
            day = self.quotas.use_characters(api_key, characters)
            record.on_failure = lambda: self.quotas.return_characters(api_key, characters, day)
        self.metrics.characters.inc(characters)

    def authorize(self, request: Request, key: str | None = None) -> ApiKey | None:
        """Reject a request without a valid API key (403), or above the rate limit of its client or key (429).

        The key is `key` (the field api_key), or else that of the header. Its name and priority are recorded for the
        request.

        Returns:
            The key of the request with its quotas and rights; None if it has none and needs none.
        """
        key, record = request_api_key(request, key), request_record()
        api_key = self.keys.find(key)
        if not self.keys.accepts(key):
            raise RequestError(403, "an API key is required" if key is None else "the API key is invalid")
        if api_key is None:
            self.rate_limiter.check(record)
            return None
        record.client, record.priority = api_key.name, api_key.priority
        if api_key.requests_per_minute is None:  # the key has the limit of the service
            self.rate_limiter.check(record)
        else:
            self.quotas.check_rate(api_key)
        return api_key

    def authorized_run(self, request: Request, name: str) -> Run:
        """Return the run with this name; reject requests without a valid API key (403) and unknown runs (404)."""
        self.authorize(request)
        try:
            return self.run_by_name(name).run
        except RequestError as error:
            raise RequestError(404, error.message) from None

    async def inspect(self, request: Request, compute: Callable[[], Result], cost: int = 1) -> Result:
        """Call `compute` in a thread of inspections, and return its result.

        It is stopped when it takes longer than `limits.timeout` or the client disconnects. `cost` is an estimate in
        tokens: inspections of low cost come first.
        """
        return await cancel_on_disconnect(request, self.inspections(compute, cost), self.limits.timeout)

    @asynccontextmanager
    async def stream_slot(self) -> AsyncIterator[None]:
        """Count a streamed translation of the present request within the context.

        If too many are streamed, wait up to `limits.stream_wait` seconds for one to end, then reject the request (503).
        """
        record, deadline = request_record(), time.monotonic() + self.limits.stream_wait
        while exceeded := self.streams.acquire(record, 1):
            if time.monotonic() > deadline:
                shares = self.streams
                limit = {"total": shares.total, "address": shares.per_address, "client": shares.per_client}[exceeded]
                owner = {"total": "", "address": " for this address or API key", "client": " for this client"}[exceeded]
                raise RequestError(
                    503,
                    f"{limit:g} translations are being streamed{owner} already: try again, or use /v1/translate",
                    retry_after=2,
                )
            await asyncio.sleep(STREAM_POLL_SECONDS)
        try:
            with self.metrics.streams.track_inprogress():
                yield
        finally:
            self.streams.release(record, 1)

    def validate_search(self, served: ServedRun, description: dict[str, Any]) -> SearchConfig:
        """Parse the search of a request, such as {"kind": "Beam", "size": 8}, and check its limits.

        A search is rejected if it uses other runs (such as a language model), if its cost has no bound (exact search),
        or if it has more hypotheses or longer translations than allowed.
        """
        search = search_from_dict(description, "the field 'search'")
        if search.other_runs or not search.is_bounded:
            kind = type(search).__name__
            raise RequestError(400, f"supported searches are 'Beam', 'Sample' and 'MinimumBayesRisk', not {kind!r}")
        # the limit of the run, but not below the usual one
        max_tokens = max(served.run.config.search.max_target_length, DEFAULT_MAX_LENGTH)
        max_hypotheses = self.limits.max_hypotheses
        for token_search in search.token_searches:  # itself, or those that find its candidates
            hypotheses, length = token_search.rows_per_source, token_search.length_limit.max or 0  # 0: not given
            if hypotheses > max_hypotheses:
                raise RequestError(400, f"a search may have {max_hypotheses} hypotheses, not {hypotheses:,}")
            if length > max_tokens:
                raise RequestError(
                    400, f"translations may have {max_tokens:,} tokens, but the search allows {length:,}"
                )
        return search

    def search_for(self, served: ServedRun, description: dict[str, Any] | None, n_best: int | None) -> SearchConfig:
        """Return the search of a request: that of its `description`, a beam search for `n_best`, or the default one.

        Giving both is a RequestError, as is an `n_best` above `limits.max_hypotheses` or a search that is not allowed.
        """
        if description is not None and n_best is not None:
            raise RequestError(400, "'n_best' and 'search' cannot be combined: set n_best in the search")
        if n_best is not None:
            if n_best > self.limits.max_hypotheses:
                limit = self.limits.max_hypotheses
                raise RequestError(400, f"at most {limit} translations of a sentence can be requested, not {n_best:,}")
            return served.beam_search(n_best)
        return served.run.default_search if description is None else self.validate_search(served, description)

    def streaming_run(self, served: ServedRun) -> Run:
        """Return a copy of the run, with the same weights, for a search that takes turns with those of batches.

        It has no cached search engines, because the batches use those of the run.
        """
        run = copy(served.run)
        run.engine_cache = None  # a cached engine serves one search at a time; None: a new one for each search
        return run
