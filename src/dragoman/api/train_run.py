"""Training from Python: `dragoman.train`, and its steps for the command line."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dragoman import config as configuration
from dragoman import console
from dragoman.api.events import MessageEvent, StepEvent, TrainingCallback, ValidationEvent
from dragoman.api.parent_models import open_parent
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.models import ModelSpec
from dragoman.parts.spec import Spec
from dragoman.processes import OrderedMap
from dragoman.run import Run, load, read_spec
from dragoman.run_files import CONFIG_FILE, is_ensemble_folder
from dragoman.systems import SYSTEMS, PaperTraining, System, VocabularySizes
from dragoman.training.display import Display, SilentDisplay
from dragoman.training.parallel import ProcessGroup, accumulate_for_processes
from dragoman.training.prepare import PreparedRun, prepare_run
from dragoman.training.recipes import IMPORTED_MODEL_RATE
from dragoman.training.recording_display import RecordingDisplay
from dragoman.training.trainer import Trainer, TrainingOutcome
from dragoman.training.training_budget import change_resumed_run
from dragoman.training.validation import ValidationResult

Paths = str | Path | Sequence[str | Path]
SystemLike = str | ModelSpec | Callable[..., ModelSpec]
SIZES = ("tiny", "small", "base", "big")


def train(
    folder: str | Path | None = None,
    *,
    source: Paths = (),
    target: Paths = (),
    valid_source: Paths = (),
    valid_target: Paths = (),
    system: SystemLike | None = None,
    size: str | None = None,
    settings: Mapping[str, Any] | None = None,
    config: Config | None = None,
    custom_parts: Sequence[type[Spec]] = (),
    callback: TrainingCallback | None = None,
    resume: bool = False,
    seeds: int | None = None,
) -> Run:
    """Train a model and return it, ready to translate.

    Everything that is not set is chosen from the amount of data and the device, as by `dragoman train`.

    Args:
        folder: run folder to create; by default a new one under `runs`, named after the system.
        source: training source files: text with one sentence per line, TSV, JSON lines, .npz and .npy, or lists and
            folders of image or sound files.
        target: training target files, line by line with `source`. Omit for TSV, JSON lines and language models.
        valid_source: validation source files. By default training pairs are held out.
        valid_target: validation target files.
        system: name of a system (`dragoman systems`), a spec, or a function that returns a spec for the sizes of the
            vocabularies: `(VocabularySizes, *, name=default, …) -> Spec`. Its keyword arguments are settings.
        size: tiny, small, base or big, for named systems.
        settings: further settings by their dotted names: `{"training.steps": 1000}`. See docs/settings.md.
        config: a complete configuration, on which the arguments above are applied.
        custom_parts: classes of custom parts that the spec contains. `dragoman.load` needs them too.
        callback: called with every `StepEvent`, `ValidationEvent` and `MessageEvent`. By default progress is shown on
            standard error.
        resume: continue the run in `folder`. With more `training.steps`, `epochs` or `minutes` it is extended.
        seeds: train this many runs with the seeds 1, 2, … into the folders seed1, seed2, … of `folder`.

    Returns:
        The run with its best checkpoint; the ensemble of all runs with `seeds`.

    Examples:
        >>> run = dragoman.train(
        ...     folder, source=corpus / "train.en", target=corpus / "train.de", system="bahdanau", size="tiny",
        ...     settings={"training.steps": 3, "text.vocab_size": 400, "system.settings.model_dim": 16},
        ...     callback=lambda event: None,
        ... )
        >>> run.checkpoint
        '000003'
    """
    from dragoman.api.seed_training import resume_seeds, start_seeds  # imports this module

    files = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target}
    changes: dict[str, Any] = {f"data.{name}": _path_list(paths) for name, paths in files.items() if paths}
    changes |= {"system.size": size} if size is not None else {}
    changes |= dict(settings or {})
    system_name, custom_system = _name_and_definition(system)
    if resume:
        if folder is None:
            raise UserError("resume=True continues an existing run: pass its folder as the first argument")
        folder = Path(folder)
        if is_ensemble_folder(folder):
            resume_seeds(folder, changes, seeds, custom_parts=custom_parts, callback=callback)
        else:
            resume_training(folder, changes, custom_parts=custom_parts, callback=callback)
    else:
        changes |= {"system.name": system_name} if system_name is not None else {}
        config = configuration.replace_settings(config or Config(), changes)
        folder = _new_folder(config.system.name or "transformer") if folder is None else Path(folder)
        if seeds is None:
            start_training(folder, config, custom_system=custom_system, custom_parts=custom_parts, callback=callback)
        else:
            start_seeds(
                folder, config, seeds, custom_system=custom_system, custom_parts=custom_parts, callback=callback
            )
    return load(folder, custom_parts=custom_parts)


def start_training(
    folder: Path,
    config: Config,
    *,
    custom_system: System | None = None,
    custom_parts: Sequence[type[Spec]] = (),
    callback: TrainingCallback | None = None,
) -> TrainingOutcome | None:
    """Prepare and train a new run.

    Args:
        folder: run folder to create.
        config: settings; those that are None are chosen.
        custom_system: definition of the system `config.system.name`, if it is not a built-in one.
        custom_parts: classes of custom parts.
        callback: receives events; by default progress is shown on standard error.

    Returns:
        The outcome, or None in all but the first of several processes.
    """

    def prepare(processes: ProcessGroup) -> None:
        """Prepare the run folder (tokenizers, data, configuration); called by the first of several processes."""
        adapted, choices = accumulate_for_processes(config, processes)  # at least one batch per process and step
        with temporarily_registered(config.system.name, custom_system):
            prepared = prepare_run(folder, adapted, log, custom_parts, open_parent=open_parent)
        log_preparation(prepared, choices, log)

    log = log_function(callback)
    return _train(folder, prepare, custom_parts, callback)


def prepare_training(
    folder: Path, config: Config, *, processes: int = 1, parallel: OrderedMap | None = None
) -> PreparedRun:
    """Prepare a new run (tokenizers, data, configuration) without training it, and log the report on its data.

    Args:
        folder: run folder to create.
        config: settings; those that are None are chosen.
        processes: number of processes that will train the run; each gets at least one batch per step.
        parallel: maps a function over chunks of text, by default with `data.num_workers` processes.
    """
    adapted, choices = accumulate_for_processes(config, ProcessGroup(world_size=processes))
    prepared = prepare_run(folder, adapted, console.log, open_parent=open_parent, parallel=parallel)
    log_preparation(prepared, choices, console.log)
    return prepared


def prepare_on_trial(config: Config, callback: TrainingCallback | None = None) -> PreparedRun:
    """Prepare a run in a temporary folder, log the report on its data and its settings, and delete it again."""
    log = log_function(callback)
    with TemporaryDirectory(prefix="dragoman-") as folder:
        prepared = prepare_run(Path(folder) / "run", config, log, open_parent=open_parent)
    log_preparation(prepared, [], log)
    return prepared


def resume_training(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    custom_parts: Sequence[type[Spec]] = (),
    callback: TrainingCallback | None = None,
    command: str = "dragoman train",
) -> TrainingOutcome | None:
    """Continue a run where it stopped.

    Args:
        folder: run folder.
        settings: changes of the limits (training.steps, epochs, minutes, patience), the device or the parallelism.
        custom_parts: classes of custom parts.
        callback: receives events; by default progress is shown on standard error.
        command: beginning of a command that trains this run, for messages.

    Returns:
        The outcome, or None in all but the first of several processes.
    """

    def read_config(processes: ProcessGroup) -> Config:
        """Write the changed settings into the run's config.yaml, and return its configuration."""
        read_spec(folder, custom_parts)  # raises a UserError if it is not a run
        return change_resumed_run(folder, settings) if settings else configuration.from_yaml(folder / CONFIG_FILE)

    return _train(folder, read_config, custom_parts, callback, command)


def _train(
    folder: Path,
    prepare: Callable[[ProcessGroup], Config | None],
    custom_parts: Sequence[type[Spec]],
    callback: TrainingCallback | None,
    command: str = "",
) -> TrainingOutcome | None:
    """Train the run in a folder from its last checkpoint, and write report.html.

    Args:
        folder: the run folder.
        prepare: called first, by one process: prepares a new run, or returns the configuration of a resumed one.
        custom_parts: classes of custom parts.
        callback: receives events; None shows progress on standard error.
        command: beginning of a command that trains this run, for the message about resuming.

    Returns:
        The outcome, or None in all but the first of several processes (rank 0).
    """
    processes = ProcessGroup.join()
    with processes.report_lost_process(
        lambda: f"another process ended while {folder} was prepared: see its message, and start again"
    ):
        resumed_config = processes.on_first_rank(lambda: prepare(processes))
    display = Display(live=sys.stderr.isatty()) if callback is None else CallbackDisplay(callback)
    recorder = RecordingDisplay(display, folder)
    display = SilentDisplay() if processes.rank else recorder
    trainer = Trainer(folder, display, resumed_config, processes, custom_parts)
    log = log_function(callback)
    if not processes.rank and resumed_config is not None:
        log(trainer.budget.resume_message(trainer.state, command))
    if not processes.rank and trainer.strategy.name:
        log(f"training on {processes.world_size} processes with {trainer.strategy.name} weights")
    outcome = trainer.train()
    processes.destroy()
    if processes.rank:
        return None
    from dragoman.lens.run_report import write_report

    write_report(load(folder, device="cpu", custom_parts=custom_parts))
    recorder.finish("interrupted" if outcome.interrupted else "finished", outcome.reason, outcome.state.step)
    return outcome


def log_preparation(prepared: PreparedRun, choices: Sequence[str], log: Callable[[str], None]) -> None:
    """Log the data statistics, examples, model size and automatic settings of a prepared run.

    `choices` are further lines about automatic settings, such as "batch_tokens 4096 (…)".
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
    if parameters.trained < parameters.total:
        log(f"{parameters}")
    log("automatic settings:")
    for choice in (*choices, *prepared.choices):
        log(f"  {choice}")
    log("change them with --set NAME=VALUE; 'dragoman systems' lists the systems")
    log("")


class CallbackDisplay(Display):
    """Reports the progress of a training to a callback."""

    def __init__(self, callback: TrainingCallback) -> None:
        """Report every message, step and validation as an event to `callback`."""
        super().__init__()
        self.callback = callback

    def message(self, text: str) -> None:
        """Pass a message on as an event."""
        self.callback(MessageEvent(text))

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        """Pass a training record of metrics.jsonl on as an event; `fraction` is the used part of the budget."""
        names = ("step", "epoch", "loss", "learning_rate", "tokens_per_second")
        self.callback(StepEvent(**{name: record[name] for name in names}, fraction_done=fraction))

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Pass the result of a validation on as an event."""
        self.callback(ValidationEvent(step, result.loss, result.perplexity, dict(result.metrics), best))


def log_function(callback: TrainingCallback | None) -> Callable[[str], None]:
    """Return a function that logs a line: to the console, or to the callback if there is one."""
    return console.log if callback is None else lambda text: callback(MessageEvent(text))


def _path_list(paths: Paths) -> list[str]:
    """Return one path, or each of several, as a list of strings."""
    return [str(paths)] if isinstance(paths, (str, Path)) else [str(path) for path in paths]


def _new_folder(name: str) -> Path:
    """Return the first of runs/NAME, runs/NAME-2, … that does not exist, and create the folder runs."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{name}-{number}")
    folder.parent.mkdir(exist_ok=True)
    return folder


def _name_and_definition(system: SystemLike | None) -> tuple[str | None, System | None]:
    """Return the name of a system, and its definition if it is custom (a spec, or a function that returns one)."""
    if system is None or isinstance(system, str):
        return system, None
    if isinstance(system, Spec):
        return "custom", _custom_system(_spec_builder(system))
    if not callable(system):
        raise UserError(f"the argument system must be a name, a spec or a function that returns a spec, got {system!r}")
    return system.__name__, _custom_system(system)


def _spec_builder(spec: Any) -> Callable[..., ModelSpec]:
    """Return a function that returns a model's spec (its description) for the vocabulary sizes it is called with."""

    def custom(vocabulary: VocabularySizes) -> ModelSpec:
        """Custom spec."""
        sizes = {"source_vocab_size": vocabulary.source, "target_vocab_size": vocabulary.target}
        sizes |= {"vocab_size": vocabulary.target}
        field_names = {field.name for field in dataclasses.fields(spec)}
        return replace(spec, **{name: size for name, size in sizes.items() if name in field_names})

    return custom


def _custom_system(builder: Callable[..., ModelSpec]) -> System:
    """Define a system from a function that builds its spec.

    All sizes are equal. Its training defaults are those of imported models, or with the recipe `textbook` (the settings
    of a paper) those of the Transformer.
    """
    if not inspect.getdoc(builder):
        builder.__doc__ = "Custom system."
    return System(
        builder,
        paper="custom",
        year=date.today().year,
        sizes={size: {} for size in SIZES},
        base_learning_rate=IMPORTED_MODEL_RATE,
        paper_training=PaperTraining("adam", "inverse-sqrt", warmup_steps=4000, noam_factor=1.0),
    )


@contextmanager
def temporarily_registered(name: str | None, system: System | None) -> Iterator[None]:
    """Add a custom system under this name to the table of systems while the block runs; nothing to do for None."""
    if name is None or system is None:
        yield
        return
    if name in SYSTEMS:
        raise UserError(f"{name} is a built-in system: give the function of your system another name")
    SYSTEMS[name] = system
    try:
        yield
    finally:
        del SYSTEMS[name]
