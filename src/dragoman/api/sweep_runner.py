"""The course of a sweep: prepare all runs, train them rung by rung in several processes, and link the best one."""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from dragoman.api.sweep_display import SweepDisplay
from dragoman.api.sweep_process import Event, EventQueue, StartWorker, Worker, WorkerProcess
from dragoman.console import format_duration
from dragoman.errors import UserError
from dragoman.processes import available_cpus
from dragoman.storage import remove_folder, replace_symlink
from dragoman.training.sweep_space import short_names
from dragoman.training.sweep_state import RungResult, SweepResult, SweepRun, SweepState

RUNS_FOLDER, LOGS_FOLDER, BEST_LINK = "runs", "logs", "best"
SIGKILL = 9  # which Python does not name on Windows
MAX_RUNS_PER_GPU = 8  # more share a GPU without being faster
PARALLEL_MEMORY_SHARE = 0.8  # of the free memory, for all trainings of a device together
GIB = 2**30
PROCESS_MEMORY = {"cuda": 1.5 * GIB, "cpu": 0.7 * GIB}  # of a process besides the training: CUDA context, libraries
MEMORY_FACTOR = 1.5  # of the estimate of a training, for the allocator and for decoding
PREPARATION = "preparation"  # name of the job that prepares all runs


def choose_parallel(device: dict[str, Any], memory: int, cpus: int) -> int:
    """Return how many runs to train at a time, each of which needs `memory` bytes by estimate.

    Every run has at least one CPU. `device` describes the devices: their kind, names, and the free memory of each.
    """
    needed = PROCESS_MEMORY.get(device["kind"], PROCESS_MEMORY["cpu"]) + MEMORY_FACTOR * memory
    fitting = int(PARALLEL_MEMORY_SHARE * device["memory"] // needed)
    if device["kind"] == "cuda":
        fitting = len(device["devices"]) * min(MAX_RUNS_PER_GPU, fitting)
    return max(1, min(cpus, fitting))


class SweepRunner:
    """Carries out a sweep, from wherever its saved state is.

    Args:
        folder: of the sweep, with the state of its runs.
        settings: of all runs, by their dotted names.
        parallel: number of runs that are trained at a time; None: by memory and cores.
        validation_sentences: number of sentences that are decoded to compare runs.
        start_worker: starts a job in a process of its own.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        parallel: int | None = None,
        validation_sentences: int = 1000,
        start_worker: StartWorker = WorkerProcess,
    ) -> None:
        """Read the state of the sweep."""
        self.folder, self.settings, self.requested_parallel = folder, settings, parallel
        self.validation_sentences, self.start_worker = validation_sentences, start_worker
        self.state = SweepState.load(folder)
        self.events: EventQueue = Queue()
        self.workers: dict[str, Worker] = {}  # by the name of the run
        self.devices: dict[str, str] = {}  # of each active run
        # kind, names and free memory of the devices, until the preparation has reported them
        self.device: dict[str, Any] = {"kind": "cpu", "devices": ["auto"], "memory": 0}
        self.by_name = {run.name: run for run in self.state.runs}
        self.has_ended: set[str] = set()  # active runs that have reported how they ended
        self.retries: deque[SweepRun] = deque()  # runs without enough memory, to be trained alone
        self.retried: set[str] = set()  # names of the runs that were in `retries`
        self.display = SweepDisplay(self.state)

    def run(self) -> SweepResult:
        """Carry out the sweep, and return its result."""
        for name in (RUNS_FOLDER, LOGS_FOLDER):
            (self.folder / name).mkdir(exist_ok=True)
        try:
            with self.display:
                self._prepare()
                self.parallel = self.requested_parallel or self._choose_parallel()
                for rung, fraction in enumerate(self.state.rungs):
                    self._train_rung(rung, fraction)
        except KeyboardInterrupt:
            self.display.message(
                f"{len(self.workers)} processes save their work and end; press Ctrl-C again to end them immediately"
            )
            raise
        finally:
            self._stop_workers()
            self.state.save(self.folder)
        result = SweepResult.of(self.folder, self.state)
        replace_symlink(self.folder / BEST_LINK, f"{RUNS_FOLDER}/{result.best.best_run.name}")
        return result

    def reset_failed_runs(self) -> None:
        """Let failed runs be trained again, from their last checkpoints if they have any."""
        for run in self.state.runs:
            if run.status == "failed":
                run.status, run.error = ("paused" if run.results else "unprepared"), ""

    # ---- preparation

    def _prepare(self) -> None:
        """Prepare the folders of all runs, in one process; raise a UserError if the default configuration fails."""
        pending = [run for run in self.state.runs if run.status == "unprepared"]
        if self.state.is_complete() and not pending:
            return
        self.display.show_status(f"preparing {len(pending)} runs")
        jobs = [
            {
                "name": run.name,
                "folder": str(self._run_folder(run)),
                "settings": self.state.configurations[run.configuration] | {"training.seed": run.seed},
                "is_default": not self.state.configurations[run.configuration],
            }
            for run in pending
        ]
        job = {"kind": "prepare", "settings": self.settings, "runs": jobs}
        self._start(PREPARATION, job, available_cpus())
        while self.workers:
            self._handle_next_event()
        unprepared = [run for run in pending if run.status == "unprepared"]
        if unprepared:
            raise UserError(
                f"{unprepared[0].name} could not be prepared: see {self.folder / LOGS_FOLDER / PREPARATION}.log, and "
                "repeat the command"
            )

    def _record_prepared(self, run: SweepRun, event: Event) -> None:
        """Record a prepared run; one whose resolved settings equal those of an earlier one is removed again."""
        state = self.state
        swept = {name for settings in state.configurations.values() for name in settings}
        run.settings = {name: value for name, value in event["settings"].items() if name in swept}
        run.parameters, run.memory, run.digest = event["parameters"], event["memory"], event["digest"]
        if not state.metric:
            state.metric, state.metric_title = event["metric"], event["metric_title"]
        same = next((other for other in state.runs if other is not run and other.digest == run.digest), None)
        run.status = "prepared"
        if same is not None and same.status != "duplicate":
            run.status, run.same_as = "duplicate", same.configuration
            remove_folder(self._run_folder(run))
            message = f"{self._describe(run)} has the same settings as {self._describe(same)}, and is not trained again"
            self.display.message(message)

    def _choose_parallel(self) -> int:
        """Choose the number of runs to train at a time by the largest estimate of their memory."""
        return choose_parallel(self.device, max(run.memory for run in self.state.runs), available_cpus())

    # ---- training

    def _train_rung(self, rung: int, fraction: float) -> None:
        """Train the configurations that compete at a rung up to its fraction of their budgets."""
        names = self.state.competitors(rung)
        runs = [run for name in names for run in self.state.runs_of(name)]
        waiting = deque(run for run in runs if not run.has_reached(fraction))
        if not waiting:
            return
        self.display.start_rung(rung, fraction, len(runs), len(waiting), self.parallel)
        while waiting or self.workers or self.retries:
            if not waiting and not self.workers:
                self._start_run(self.retries.popleft(), fraction)
            while waiting and len(self.workers) < self.parallel:
                self._start_run(waiting.popleft(), fraction)
            self._handle_next_event()

    def _start_run(self, run: SweepRun, fraction: float) -> None:
        """Start to train a run up to a fraction of its budget, on the device with the fewest active runs."""
        devices = self.device["devices"]
        used = list(self.devices.values())
        self.devices[run.name] = min(devices, key=used.count)
        job = {"kind": "train", "folder": str(self._run_folder(run)), "fraction": fraction}
        job |= {"device": self.devices[run.name], "metric": self.state.metric, "sentences": self.validation_sentences}
        self._start(run.name, job, max(1, available_cpus() // self.parallel))
        self.display.start_run(run, self._describe(run))

    def _start(self, name: str, job: dict[str, Any], threads: int) -> None:
        """Start a job in a process of its own."""
        log_file = self.folder / LOGS_FOLDER / f"{name}.log"
        self.workers[name] = self.start_worker(name, job, log_file, threads, self.events)

    def _handle_next_event(self) -> None:
        """Wait for the next event of a worker, and record it."""
        try:
            name, event = self.events.get(timeout=1.0)
        except Empty:
            self.display.refresh()
            return
        run = self.by_name.get(event.get("run", name))
        match event["event"]:
            case "progress":
                self.display.show_progress(name, event)
            case "message":
                self.display.show_status(event["text"])
            case "device":
                self.device = event
            case "prepared" if run is not None:
                self._record_prepared(run, event)
                self.state.save(self.folder)
            case "unprepared" if run is not None:
                if not self.state.configurations[run.configuration]:
                    raise UserError(event["error"])
                self._fail(run, event["error"])
            case "result" if run is not None:
                self._record_result(run, event)
            case "failed" if run is not None:
                self._record_failure(run, event)
            case "failed":
                log_file = self.folder / LOGS_FOLDER / f"{PREPARATION}.log"
                raise UserError(f"the runs could not be prepared: {event['error']}; see {log_file}")
            case "interrupted":
                self.has_ended.add(name)
            case "exit":
                self._record_exit(name, run, event["code"])

    def _record_result(self, run: SweepRun, event: Event) -> None:
        """Record the score of a run at a rung."""
        values = event["result"]
        result = RungResult(**values | {"score": tuple(values["score"])})
        run.results = [*(earlier for earlier in run.results if earlier.fraction < result.fraction), result]
        run.status = "finished" if event["finished"] else "paused"
        self.has_ended.add(run.name)
        self.state.save(self.folder)
        title, value = self.state.metric_title, result.metrics[self.state.metric]
        reason = f" ({event['reason']})" if event["finished"] else ""
        self.display.finish_run(
            run,
            self._describe(run),
            f"{result.step:,} steps, {format_duration(result.seconds)}{reason}: validation {title} {value:.2f}",
        )

    def _record_failure(self, run: SweepRun, event: Event) -> None:
        """Record why a run failed; without enough memory it is tried once more alone, if it was not alone before."""
        self.has_ended.add(run.name)
        if event["out_of_memory"] and self.parallel > 1 and run.name not in self.retried:
            self.retried.add(run.name)
            self.retries.append(run)
            self.display.message(f"{self._describe(run)}: not enough memory; it is tried again alone")
        else:
            self._fail(run, event["error"])

    def _record_exit(self, name: str, run: SweepRun | None, code: int) -> None:
        """Forget a worker whose process has ended; one that has not said how it ended has failed."""
        del self.workers[name]
        self.devices.pop(name, None)
        self.display.remove_run(name)
        if run is not None and name not in self.has_ended:
            killed = code == -SIGKILL  # by the system, which has no memory left
            end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            error = f"its process {end}: see {self.folder / LOGS_FOLDER / name}.log"
            self._record_failure(run, {"error": error, "out_of_memory": killed})
        self.has_ended.discard(name)

    def _fail(self, run: SweepRun, error: str) -> None:
        """Record the error of a run."""
        run.status, run.error = "failed", error
        self.state.save(self.folder)
        self.display.finish_run(run, self._describe(run), f"failed: {error}")

    def _stop_workers(self) -> None:
        """Let all workers save their work and end; a second Ctrl-C ends them at once."""
        try:
            for worker in self.workers.values():
                worker.stop()
            self.has_ended |= set(self.workers)  # none of them has failed
            while self.workers:
                self._handle_next_event()
        finally:
            for worker in self.workers.values():
                worker.kill()

    def _run_folder(self, run: SweepRun) -> Path:
        """Return the folder of a run."""
        return self.folder / RUNS_FOLDER / run.name

    def _describe(self, run: SweepRun) -> str:
        """Return the name of a run with its changed settings: "003-seed1 (dropout=0.1)"."""
        changed = self.state.configurations[run.configuration]
        names = short_names(list(changed))
        settings = ", ".join(f"{names[name]}={value}" for name, value in changed.items())
        return f"{run.name} ({settings})" if settings else run.name
