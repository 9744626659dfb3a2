"""Loading of runs, and reloading of those that have changed while requests are answered."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from dragoman.errors import UserError
from dragoman.memory import return_freed_memory
from dragoman.run import Run
from dragoman.run.language_pair import LanguagePair, infer_language_pair
from dragoman.serving.run_versions import run_version
from dragoman.serving.service_log import logger

if TYPE_CHECKING:
    from dragoman.serving.request_record import RequestRecord
    from dragoman.serving.served_run import ServedRun
    from dragoman.serving.service import Service

WATCH_INTERVAL_SECONDS = 10.0  # between two looks at the files of watched runs
POLL_SECONDS = 0.05  # between looks at the requests that still use an old version
GRACE_SECONDS = 10.0  # added to the time limit of requests, after which an old version is closed in any case


@dataclass(frozen=True)
class RunSource:
    """Where a run comes from, so that it can be loaded again.

    Attributes:
        folder: the run folder, or a checkpoint of another library
        pair: its languages; None: inferred from the run
        checkpoint: name of the checkpoint, such as best
        open_run: loads the checkpoint of a folder
    """

    folder: Path
    pair: LanguagePair | None
    checkpoint: str
    open_run: Callable[[Path], Run]

    @property
    def version(self) -> str:
        """The version that is on disk now."""
        return run_version(self.folder, self.checkpoint)

    def load(self) -> tuple[Run, LanguagePair | None]:
        """Load the run; return it and its languages (None: unknown)."""
        run = self.open_run(self.folder)
        return run, self.pair or infer_language_pair(run)


@dataclass(frozen=True)
class ReloadResult:
    """What became of a run, or of another file, when the service was told to reload."""

    result: Literal["reloaded", "unchanged", "failed"]
    version: str = ""  # that answers requests now
    error: str = ""


class RunReloader:
    """Replaces runs whose files have changed, without dropping requests.

    The new version is loaded and warmed up in the background, so for a while both are in memory. Then it replaces the
    old one in one step. Requests that have begun before may still use the old version; when the last of them has been
    answered, it is freed. If the new version cannot be loaded, the old one stays.
    """

    def __init__(self, service: Service) -> None:
        """Reload the runs of a service, and other files, such as that of API keys.

        Who needs such a file adds a function that reads it again to `file_readers`, by name.
        """
        self.service = service
        self.file_readers: dict[str, Callable[[], None]] = {}
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._retiring: list[threading.Thread] = []
        self._failed_versions: dict[str, str] = {}  # run → version that cannot be loaded: `watch` tries it once only

    def reload(self) -> dict[str, ReloadResult]:
        """Reload all runs and files that have changed; return what became of each. Failures are logged."""
        self.service.wait_until_started()
        with self._lock:
            results = {name: self._reload_run(served) for name, served in self.service.runs.items()}
            results |= {name: self._reload_file(name, read) for name, read in self.file_readers.items()}
        if all(result.result == "unchanged" for result in results.values()):
            logger.info("no run has changed")
        return results

    def watch(self) -> None:
        """Start a thread that reloads runs when they have a newer version on disk."""
        threading.Thread(target=self._watch, name="watching runs", daemon=True).start()

    def close(self) -> None:
        """Stop watching, and wait until requests to old versions have been answered."""
        self._stopped.set()
        for thread in self._retiring:
            thread.join()

    def _watch(self) -> None:
        """Look for newer versions every few seconds, and load them: the function of the watching thread."""
        self.service.wait_until_started()
        while not self._stopped.wait(WATCH_INTERVAL_SECONDS):
            with self._lock:
                for served in self.service.runs.values():
                    self._reload_run(served, retry=False)

    def _reload_run(self, served: ServedRun, retry: bool = True) -> ReloadResult:
        """Load the version of a run that is on disk, if it differs from the served one, and replace that.

        A version that could not be loaded before is tried again only with `retry`.
        """
        name, version = served.name, ""
        if served.source is None:  # the service was given a loaded run, whose origin it does not know
            return ReloadResult("unchanged", served.version)
        try:
            version = served.source.version
            if version == served.version or (version == self._failed_versions.get(name) and not retry):
                return ReloadResult("unchanged", served.version)
            logger.info(f"{name}: loading version {version}")
            new = self.service.load_run(name, served.source)
        except Exception as error:  # whatever is wrong with the new version, the old one goes on
            if retry or self._failed_versions.get(name) != version:
                self.service.metrics.reloads.labels(name, "failed").inc()
                traceback = None if isinstance(error, UserError | OSError) else error  # those are no faults of the code
                logger.error(f"{name}: version {served.version} stays: {error}", exc_info=traceback)
            self._failed_versions[name] = version
            return ReloadResult("failed", served.version, self.service.public_message(error))
        if self._stopped.is_set():  # the service was stopped while the run was loaded
            new.batcher.close()
            return ReloadResult("unchanged", served.version)
        self.service.install_run(new)
        self.service.metrics.reloads.labels(name, "reloaded").inc()
        logger.info(f"{name}: version {new.version} replaces {served.version}")
        self._retire(served)
        return ReloadResult("reloaded", new.version)

    def _reload_file(self, name: str, read: Callable[[], None]) -> ReloadResult:
        """Call `read`, which reads a file such as that of API keys again; `name` names it in the log."""
        try:
            read()
        except UserError as error:
            logger.error(f"{name}: not reloaded: {error}")
            return ReloadResult("failed", error=str(error))
        logger.info(f"{name}: reloaded")
        return ReloadResult("reloaded")

    def _retire(self, served: ServedRun) -> None:
        """Start a thread that frees an old version of a run when no request uses it any more."""
        requests = set(self.service.active_requests)  # these may use it; later ones get the new version
        # the version is passed in a list, from which `_free` takes it, so that the thread does not keep it in memory
        thread = threading.Thread(target=self._free, args=([served], requests), name=f"freeing {served.name}")
        self._retiring = [*(old for old in self._retiring if old.is_alive()), thread]
        thread.start()

    def _free(self, old: list[ServedRun], requests: set[RequestRecord]) -> None:
        """Wait until `requests` have been answered, then close the queue of an old version and free its memory.

        It waits no longer than requests may take. The version is taken out of the list `old`, so that nothing refers to
        it any more.
        """
        served = old.pop()
        limits = self.service.limits
        deadline = time.monotonic() + max(limits.timeout, limits.file_timeout) + GRACE_SECONDS
        while requests & self.service.active_requests and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        served.batcher.close()
        name, version, on_gpu = served.name, served.version, served.run.device.type == "cuda"
        del served
        with self.service.device.turn():  # CUDA graphs must not be freed while another one is captured
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
        return_freed_memory()
        logger.info(f"{name}: version {version} is freed")
