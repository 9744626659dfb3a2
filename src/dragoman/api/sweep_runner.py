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
#: bytes that a process needs besides the training, for libraries and on GPUs the CUDA context
PROCESS_MEMORY = {"cuda": 1.5 * GIB, "cpu": 0.7 * GIB}
MEMORY_FACTOR = 1.5  # times the estimate of a training, because of the allocator and of decoding
PREPARATION = "preparation"  # name of the job that prepares all runs


def choose_parallel(device: dict[str, Any], memory: int, cpus: int) -> int:
    """Return how many runs to train at a time, so that all fit into memory and each has at least one of the `cpus`.

    `device` has the "kind" of the devices (cuda, cpu or mps), their names as "devices", and the free bytes of each as
    "memory"; the training of one run needs about `memory` bytes. More than MAX_RUNS_PER_GPU runs do not make a GPU
    faster. The result is at least 1, even if memory is short.
    """
    # a process needs memory for libraries, too, and a training more than the estimate, for the allocator and decoding
    memory_per_run = PROCESS_MEMORY.get(device["kind"], PROCESS_MEMORY["cpu"]) + MEMORY_FACTOR * memory
    max_runs = int(PARALLEL_MEMORY_SHARE * device["memory"] // memory_per_run)
    if device["kind"] == "cuda":
        max_runs = len(device["devices"]) * min(MAX_RUNS_PER_GPU, max_runs)
    return max(1, min(cpus, max_runs))


class SweepRunner:
    """Carries out a sweep, a search for good hyper-parameters, from wherever its saved state is.

    Runs are trained by successive halving: all to a first fraction of their training budget, the best of them to the
    next one, and so on. Such a stage is a rung. Workers are processes that report events, dictionaries with the kind
    of event under "event".

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
        """Read the state of the sweep in `folder`; `settings` are those that all runs share, by dotted names.

        `parallel` runs are trained at a time (None: by memory and cores); `validation_sentences` are decoded to compare
        runs; `start_worker` starts a job in a process.
        """
        self.folder, self.settings, self.requested_parallel = folder, settings, parallel
        self.validation_sentences, self.start_worker = validation_sentences, start_worker
        self.state = SweepState.load(folder)
        self.events: EventQueue = Queue()
        self.workers: dict[str, Worker] = {}  # by the name of the run
        self.device_of_run: dict[str, str] = {}  # name of each active run → its device
        # kind, names and free bytes of the devices; replaced when the preparation reports the actual ones
        self.device_info: dict[str, Any] = {"kind": "cpu", "devices": ["auto"], "memory": 0}
        self.by_name = {run.name: run for run in self.state.runs}
        self.has_ended: set[str] = set()  # active runs that have reported how they ended
        self.retries: deque[SweepRun] = deque()  # runs without enough memory, to be trained alone
        self.retried: set[str] = set()  # names of the runs that were in `retries`
        self.display = SweepDisplay(self.state)

    def run(self) -> SweepResult:
        """Prepare the runs, train them rung by rung (a stage of successive halving), and link the best one as `best`.

        Returns the ranking of the configurations. When it is interrupted or fails, workers save their work, and the
        state of the sweep is saved, too.
        """
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
                # "unprepared": the preparation skips run folders that are complete already
                run.status, run.error = ("paused" if run.results else "unprepared"), ""

    # ---- preparation

    def _prepare(self) -> None:
        """Prepare the folders of all runs, in one process; raise a UserError if the default configuration fails."""
        pending = [run for run in self.state.runs if run.status == "unprepared"]
        if self.state.is_complete() and not pending:
            return
        # if runs are left to train, the job runs even without pending ones: it reports the devices
        self.display.show_status(f"preparing {len(pending)} runs")
        jobs = [
            {
                "name": run.name,
                "folder": str(self._run_folder(run)),
                "settings": self.state.configurations[run.configuration] | {"training.seed": run.seed},
                "is_default": not self.state.configurations[run.configuration],  # it changes no setting
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
                f"the data and settings of the run {unprepared[0].name} of the sweep could not be prepared: correct "
                f"what the log {self.folder / LOGS_FOLDER / PREPARATION}.log reports, and repeat the command"
            )

    def _record_prepared(self, run: SweepRun, event: Event) -> None:
        """Record that a run has been prepared, with its size and the values of the settings that the sweep varies.

        A run that has the same settings as an earlier one, once automatic settings are chosen, is removed again.
        `event` is the report of the worker; its digest is a hash of all settings.
        """
        state = self.state
        varied = {name for settings in state.configurations.values() for name in settings}
        run.settings = {name: value for name, value in event["settings"].items() if name in varied}
        run.parameters, run.memory, run.digest = event["parameters"], event["memory"], event["digest"]
        if not state.metric:  # the first run, which has the default configuration, selects the metric of all
            state.metric, state.metric_title = event["metric"], event["metric_title"]
        twin = next((other for other in state.runs if other is not run and other.digest == run.digest), None)
        run.status = "prepared"
        if twin is not None and twin.status != "duplicate":  # of equal runs one must be trained
            run.status, run.same_as = "duplicate", twin.configuration
            remove_folder(self._run_folder(run))
            message = f"{self._describe(run)} has the same settings as {self._describe(twin)}, and is not trained again"
            self.display.message(message)

    def _choose_parallel(self) -> int:
        """Choose the number of runs to train at a time by the largest memory estimate of any run."""
        return choose_parallel(self.device_info, max(run.memory for run in self.state.runs), available_cpus())

    # ---- training

    def _train_rung(self, rung: int, fraction: float) -> None:
        """Train the configurations that are left at a rung, up to a fraction of their training budgets.

        `rung` is the index, from 0, of the stage of successive halving. Runs that did not have enough memory are
        trained once more at the end, alone.
        """
        configurations = self.state.competitors(rung)
        runs = [run for configuration in configurations for run in self.state.runs_of(configuration)]
        waiting = deque(run for run in runs if not run.has_reached(fraction))
        if not waiting:
            return
        self.display.start_rung(rung, fraction, runs=len(runs), waiting=len(waiting), parallel=self.parallel)
        while waiting or self.workers or self.retries:
            if not waiting and not self.workers:  # a retry has all memory for itself
                self._start_run(self.retries.popleft(), fraction)
            while waiting and len(self.workers) < self.parallel:
                self._start_run(waiting.popleft(), fraction)
            self._handle_next_event()

    def _start_run(self, run: SweepRun, fraction: float) -> None:
        """Start to train a run up to a fraction of its budget, on the device with the fewest active runs."""
        used_devices = list(self.device_of_run.values())
        self.device_of_run[run.name] = min(self.device_info["devices"], key=used_devices.count)
        job = {
            "kind": "train",
            "folder": str(self._run_folder(run)),
            "fraction": fraction,
            "device": self.device_of_run[run.name],
            "metric": self.state.metric,
            "sentences": self.validation_sentences,
        }
        self._start(run.name, job, threads=max(1, available_cpus() // self.parallel))
        self.display.start_run(run, self._describe(run))

    def _start(self, name: str, job: dict[str, Any], threads: int) -> None:
        """Start a job, a dictionary with its kind and arguments, in a process with a number of CPU threads."""
        log_file = self.folder / LOGS_FOLDER / f"{name}.log"
        self.workers[name] = self.start_worker(name, job, log_file, threads, self.events)

    def _handle_next_event(self) -> None:
        """Wait for the next event of a worker, at most a second, and record it according to its kind.

        If the default configuration or the preparation as a whole fails, no run can be trained: a UserError.
        """
        try:
            name, event = self.events.get(timeout=1.0)
        except Empty:
            self.display.refresh()
            return
        # a training job is named after its run; events of the preparation name the run, if they are about one
        run = self.by_name.get(event.get("run", name))
        match event["event"]:
            case "progress":
                self.display.show_progress(name, event)
            case "message":
                self.display.show_status(event["text"])
            case "device":
                self.device_info = event
            case "prepared" if run is not None:
                self._record_prepared(run, event)
                self.state.save(self.folder)
            case "unprepared" if run is not None:
                if not self.state.configurations[run.configuration]:  # the default one: no other can be prepared
                    raise UserError(event["error"])
                self._fail(run, event["error"])
            case "result" if run is not None:
                self._record_result(run, event)
            case "failed" if run is not None:
                self._record_failure(run, event)
            case "failed":  # the preparation of all runs
                log_file = self.folder / LOGS_FOLDER / f"{PREPARATION}.log"
                raise UserError(
                    f"the data and settings of the sweep's runs could not be prepared ({event['error']}): correct "
                    f"what the log {log_file} reports, and repeat the command"
                )
            case "interrupted":
                self.has_ended.add(name)
            case "exit":
                self._record_exit(name, run, event["code"])

    def _record_result(self, run: SweepRun, event: Event) -> None:
        """Record the validation scores of a run that has been trained up to a fraction of its budget, and print them.

        `event` has the fields of a `RungResult`, whether the whole training is finished, and the reason why it ended.
        """
        values = event["result"]
        result = RungResult(**values | {"score": tuple(values["score"])})  # JSON has lists for tuples
        # a run that was trained again replaces its results from this fraction of the budget on
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
        """Record why a run failed.

        A run that did not have enough memory beside others is trained again later, once and alone.
        """
        self.has_ended.add(run.name)
        if event["out_of_memory"] and self.parallel > 1 and run.name not in self.retried:
            self.retried.add(run.name)
            self.retries.append(run)
            self.display.message(f"{self._describe(run)}: not enough memory; it is tried again alone")
        else:
            self._fail(run, event["error"])

    def _record_exit(self, name: str, run: SweepRun | None, code: int) -> None:
        """Remove a worker whose process has ended; its run has failed if it did not report any result or error.

        `code` is the exit code of the process; a negative one is the number of the signal that killed it. `run` is
        None for the process that prepares all runs.
        """
        del self.workers[name]
        self.device_of_run.pop(name, None)
        self.display.remove_run(name)
        if run is not None and name not in self.has_ended:
            end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            error = f"its process {end}: see {self.folder / LOGS_FOLDER / name}.log"
            # the system kills processes when it has no memory left
            self._record_failure(run, {"error": error, "out_of_memory": code == -SIGKILL})
        self.has_ended.discard(name)

    def _fail(self, run: SweepRun, error: str) -> None:
        """Mark a run as failed, with the message `error`, and print it."""
        run.status, run.error = "failed", error
        self.state.save(self.folder)
        self.display.finish_run(run, self._describe(run), f"failed: {error}")

    def _stop_workers(self) -> None:
        """Let all workers save their work and end; a second Ctrl-C ends them at once."""
        try:
            for worker in self.workers.values():
                worker.stop()
            self.has_ended |= set(self.workers)  # workers that end because they were stopped have not failed
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
