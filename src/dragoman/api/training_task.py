"""A training as one process takes part in it: preparing or resuming a run, training it, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dragoman import config as configuration
from dragoman.api.parent_models import open_parent
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.parts.spec import Spec
from dragoman.run import load, read_spec
from dragoman.run_files import CONFIG_FILE, is_run_folder
from dragoman.systems import SYSTEMS, System
from dragoman.training.display import Display, SilentDisplay
from dragoman.training.parallel import ProcessGroup, accumulate_for_processes
from dragoman.training.prepare import PreparedRun, prepare_run
from dragoman.training.recording_display import RecordingDisplay
from dragoman.training.run_mirror import RunMirror
from dragoman.training.trainer import Trainer, TrainingOutcome
from dragoman.training.training_budget import change_resumed_run

Log = Callable[[str], None]


class TrainingExecutor(Protocol):
    """Where a training runs, if not in this process and those that torchrun has started with it."""

    def train(self, task: TrainingTask, display: Display, log: Log) -> TrainingOutcome | None:
        """Train, and show the progress on the display; messages before that are logged. Returns the outcome."""
        ...


@dataclass(frozen=True)
class TrainingTask:
    """What every process of a training does.

    Attributes:
        folder: the run folder.
        config: settings of a new run; None: the run is resumed.
        changes: settings of a resumed run that are changed, by their dotted names.
        mirror: path or URL of a copy of the run folder, which every checkpoint updates; machines without the run
            folder fetch it. None: that of the run, if it is resumed and has one.
        custom_system: definition of the system `config.system.name`, if it is not a built-in one.
        custom_parts: classes of custom parts.
        command: beginning of a command that trains this run, for the message that says how to resume it.
        resume_if_exists: continue a run that exists already, instead of raising a UserError.
        num_processes: number of processes that will train; each gets a batch in every step of a new run. It may exceed
            the number that has been started, as a cluster can add machines.
    """

    folder: Path
    config: Config | None
    changes: Mapping[str, Any] = field(default_factory=dict)
    mirror: str | None = None
    custom_system: System | None = None
    custom_parts: tuple[type[Spec], ...] = ()
    command: str = "dragoman train"
    resume_if_exists: bool = False
    num_processes: int = 1

    def run(
        self, display: Display, log: Log, stop_requested: Callable[[], bool] = lambda: False
    ) -> TrainingOutcome | None:
        """Prepare the run or resume it from its last checkpoint, train it, and write report.html.

        Args:
            display: shows the progress.
            log: receives messages before training.
            stop_requested: whether to stop after the present step; checked by every process in every step.

        Returns:
            The outcome, or None in all but the first of several processes (rank 0).
        """
        processes = ProcessGroup.join()  # all processes of the training; rank 0 is the first
        with processes.report_lost_process(
            lambda: f"another process ended while {self.folder} was prepared: see its message, and start again"
        ):
            # None for a new run
            resumed_config = processes.on_first_rank(lambda: self._prepare_or_resume(processes, log))
            config = resumed_config or self.config
            mirror = self._mirror_at(config.training.mirror if config else None)
            if mirror is not None:
                processes.wait_for_all(mirror.fetch)  # to machines that do not have the run folder
        recorder = RecordingDisplay(display, self.folder)
        trainer = Trainer(
            self.folder,
            SilentDisplay() if processes.rank else recorder,  # only the first process reports
            config=resumed_config,
            processes=processes,
            custom_parts=self.custom_parts,
            mirror=mirror,
            stop_requested=stop_requested,
        )
        if not processes.rank and resumed_config is not None:
            log(trainer.budget.resume_message(trainer.state, self.command))
        if not processes.rank and trainer.strategy.name:  # "replicated" or "sharded"; "" for a single process
            log(f"training on {processes.world_size} processes with {trainer.strategy.name} weights")
        outcome = trainer.train()
        processes.destroy()
        if processes.rank:
            return None
        from dragoman.lens.run_report import write_report

        write_report(load(self.folder, device="cpu", custom_parts=self.custom_parts))
        recorder.finish("interrupted" if outcome.interrupted else "finished", outcome.reason, outcome.state.step)
        if mirror is not None:
            mirror.publish()
        return outcome

    def _mirror_at(self, location: str | None) -> RunMirror | None:
        """Return the copy (mirror) of the run folder at a path or URL, which need not exist yet; None without one."""
        return None if location is None else RunMirror(self.folder, location)

    def _prepare_or_resume(self, processes: ProcessGroup, log: Log) -> Config | None:
        """On the first process: prepare a new run and return None, or return the configuration of a resumed one.

        A run is resumed if there is no configuration of a new one (`self.config` is None), or if it exists already and
        `resume_if_exists` is set. A mirror is a copy of the run folder at another path or URL, from which machines
        without the folder fetch it. Before a run is resumed, folder and mirror are made equal: the one with the later
        checkpoint is copied to the other.
        """
        folder_has_run, location, changes = is_run_folder(self.folder), self.mirror, self.changes
        if location is not None:  # becomes a setting of the run, so that it need not be given again
            changes = {"training.mirror": location, **changes}
        elif folder_has_run:
            location = configuration.from_yaml(self.folder / CONFIG_FILE).training.mirror
        mirror = self._mirror_at(location)
        mirror_has_run = mirror is not None and mirror.manifest() is not None
        if self.config is not None and not (self.resume_if_exists and (mirror_has_run or folder_has_run)):
            self._prepare(self.config, mirror, processes, log)
            return None
        if mirror is not None:
            mirror.synchronize()
        read_spec(self.folder, self.custom_parts)  # raises a UserError if it is not a run
        if not changes:
            return configuration.from_yaml(self.folder / CONFIG_FILE)
        config = change_resumed_run(self.folder, changes)
        if (mirror := self._mirror_at(config.training.mirror)) is not None:
            mirror.publish()  # the changed configuration, which processes on other machines then fetch from the mirror
        return config

    def _prepare(self, config: Config, mirror: RunMirror | None, processes: ProcessGroup, log: Log) -> None:
        """Prepare the run folder (tokenizers, data, configuration), and copy it to the mirror if there is one."""
        if mirror is not None:
            mirror.check_free()  # raises a UserError if it holds a run already
        # more gradient accumulation, so that each process has a batch; `choices`: changed settings as lines of text
        adapted, choices = accumulate_for_processes(config, max(self.num_processes, processes.world_size))
        with temporarily_registered(config.system.name, self.custom_system):
            prepared = prepare_run(self.folder, adapted, log, self.custom_parts, open_parent=open_parent)
        if mirror is not None:
            mirror.publish()
        log_preparation(prepared, choices, log)


def log_preparation(prepared: PreparedRun, choices: Sequence[str], log: Callable[[str], None]) -> None:
    """Log data statistics, examples, model size, and the settings chosen automatically.

    The last are those of the prepared run after `choices`, lines of text about those chosen before its preparation.
    """
    log("")
    for line in prepared.preflight.lines():
        log(line)
    log("")
    for example in prepared.examples:
        for line in ("example of the training task:", *(f"  {line}" for line in example.lines())):
            log(line)
    if prepared.examples:
        log("")
    system = prepared.config.system
    size = f" ({system.size})" if system.size else ""
    parameters, objective = prepared.parameters, prepared.config.objective.name
    log(f"{system.name}{size}, {parameters.total:,} parameters, objective {objective}")
    if parameters.trained < parameters.total:  # some are frozen
        log(f"{parameters}")
    log("automatic settings:")
    for choice in (*choices, *prepared.choices):
        log(f"  {choice}")
    log("change them with --set NAME=VALUE; 'dragoman systems' lists the systems")
    log("")


@contextmanager
def temporarily_registered(name: str | None, system: System | None) -> Iterator[None]:
    """Add a custom system to the table of systems while a run is prepared; None: it is there already.

    The name of a built-in system is a UserError.
    """
    if name is None or system is None:
        yield
        return
    if name in SYSTEMS:
        raise UserError(f"{name} is a built-in system: give the function that builds your custom system another name")
    SYSTEMS[name] = system
    try:
        yield
    finally:
        del SYSTEMS[name]
