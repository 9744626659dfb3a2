"""Long analyses of runs in the background: test sets sentence by sentence, and diagnoses."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import UserError
from dragoman.lens.diagnosis import diagnose, validation_pairs
from dragoman.lens.test_set_analysis import TestSetAnalysis, TestSetAnalyzer
from dragoman.serving.analysis_settings import NamedTestSet
from dragoman.serving.checkpoint_cache import RecentlyUsed
from dragoman.serving.job_queue import CanceledError
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service
from dragoman.serving.service_log import logger
from dragoman.serving.shared_run import SharedRun

MAX_ANALYZED_SENTENCES = 10_000  # the first ones of a test set
MAX_DIAGNOSED_SENTENCES = 200
MAX_JOBS = 12  # whose results are kept


@dataclass
class AnalysisJob:
    """An analysis that waits, runs, is done or has failed."""

    state: str = "waiting"  # then running, done or failed
    error: str = ""
    analysis: TestSetAnalysis | None = None
    result: dict[str, Any] = field(default_factory=dict)  # of a diagnosis

    @property
    def done(self) -> int:
        """Number of sentences of the test set that have been analyzed so far."""
        return 0 if self.analysis is None else len(self.analysis.sentences)

    @property
    def total(self) -> int:
        """Number of sentences of the test set; 0 before the analysis begins."""
        return 0 if self.analysis is None else self.analysis.total


class AnalysisJobs:
    """Starts an analysis when it is first asked for, one at a time, and keeps its result until the run is reloaded."""

    def __init__(self, service: Service) -> None:
        """Analyze the runs of a service in one thread; the results of the MAX_JOBS jobs used last are kept."""
        self.service = service
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="analysis")
        self._jobs: RecentlyUsed[tuple[Any, ...], AnalysisJob] = RecentlyUsed(MAX_JOBS)  # by kind, run, version …
        # by name and version of the run
        self._validation_sets: RecentlyUsed[tuple[str, str], NamedTestSet] = RecentlyUsed(MAX_JOBS)

    def test_set(self, served: ServedRun) -> NamedTestSet:
        """Return the test set for a served run: that of --test-source for this run, or else its validation sentences.

        A RequestError says that analyses are switched off (403), or that there is neither a test set nor validation
        text (400).
        """
        settings = self.service.analysis
        if not settings.enabled:
            raise RequestError(
                403, "analyses are switched off, because other machines can reach this service: see --analysis"
            )
        if served.name in settings.test_sets:
            return settings.test_sets[served.name]
        try:
            key = (served.name, served.version)  # under which the sentences are cached
            return self._validation_sets.get(key, lambda: _validation_set(served))
        except UserError:
            raise RequestError(
                400, f"the run {served.name} has no validation text: serve it with --test-source and --test-reference"
            ) from None

    def analyze(self, served: ServedRun, test_set_of: ServedRun) -> AnalysisJob:
        """Return the job that analyzes the run `served` on a test set; it is started if this is the first request.

        The test set is that of --test-source, or else the validation sentences of the run `test_set_of`, which may be
        another one: two runs are compared on the same sentences. At most the first MAX_ANALYZED_SENTENCES are used.
        """
        key = ("test set", served.name, served.version, served.run.language_pair, test_set_of.name)

        def work(job: AnalysisJob, run: SharedRun) -> None:
            """Translate the test set and judge each sentence; `job.analysis` grows meanwhile."""
            # from --test-source, each run has its own test set: the same sentences with the columns that it reads
            test_set = self.service.analysis.test_sets.get(served.name) or self.test_set(test_set_of)
            sources = test_set.sources[:MAX_ANALYZED_SENTENCES]
            references = test_set.references[:MAX_ANALYZED_SENTENCES]
            analyzer = TestSetAnalyzer(run, sources, references)
            job.analysis = analyzer.analysis
            analyzer.analyze()

        return self._jobs.get(key, lambda: self._start(served, work))  # a cache, which calls this without an entry

    def diagnose(self, served: ServedRun) -> AnalysisJob:
        """Return the job that diagnoses a run; it is started if this is the first request for it.

        A diagnosis measures known failures of translation, such as hallucination, on the first
        MAX_DIAGNOSED_SENTENCES of the run's test set.
        """
        key = ("diagnosis", served.name, served.version, served.run.language_pair)

        def work(job: AnalysisJob, run: SharedRun) -> None:
            """Diagnose the run, and store the result as JSON values."""
            test_set = self.test_set(served)
            sources = test_set.sources[:MAX_DIAGNOSED_SENTENCES]
            references = test_set.references[:MAX_DIAGNOSED_SENTENCES]
            languages = None if served.pair is None else f"{served.pair.source}-{served.pair.target}"
            job.result = diagnose(run, sources, references, languages=languages).to_dict() | {"run": served.name}

        return self._jobs.get(key, lambda: self._start(served, work))  # a cache, which calls this without an entry

    def _start(self, served: ServedRun, work: Callable[[AnalysisJob, SharedRun], None]) -> AnalysisJob:
        """Return a new job, whose `work` is called in the thread of analyses; an error is stored in the job.

        A run without a test set is a RequestError, which is raised here, before the thread begins.
        """
        self.test_set(served)
        job = AnalysisJob()

        def is_canceled() -> bool:
            """Whether the service is being stopped."""
            return self.service.readiness == "stopping"

        def run_job() -> None:
            """Call `work` with a run that lets requests use the device in between, and record how it ends."""
            job.state = "running"
            try:
                work(job, SharedRun(served.run, self.service.device, is_canceled))
                job.state = "done"
            except CanceledError:
                job.state, job.error = "failed", "the service is being stopped"
            except UserError as error:
                job.state, job.error = "failed", self.service.public_message(error)
            except Exception:
                job.state, job.error = "failed", "the analysis failed: see the log of the service"
                logger.exception("an analysis of the run %s failed", served.name)

        self._executor.submit(run_job)
        return job


def _validation_set(served: ServedRun) -> NamedTestSet:
    """Return the first validation sentences of a run, with references, as a test set; a UserError if it has none."""
    sources, references = validation_pairs(served.run, MAX_ANALYZED_SENTENCES)
    return NamedTestSet(f"validation sentences of {served.name}", sources, references)
