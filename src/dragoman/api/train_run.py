"""Training from Python: `dragoman.train`, and its steps for the command line."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dragoman import config as configuration
from dragoman import console
from dragoman.api.events import MessageEvent, StepEvent, TrainingCallback, ValidationEvent
from dragoman.api.parent_models import open_parent
from dragoman.api.ray_training import training_executor
from dragoman.api.training_task import TrainingExecutor, TrainingTask, log_preparation
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.models import ModelSpec
from dragoman.parts.spec import Spec
from dragoman.processes import OrderedMap
from dragoman.run import Run, load, read_spec
from dragoman.run_files import is_ensemble_folder
from dragoman.systems import PaperTraining, System, VocabularySizes
from dragoman.training.display import Display
from dragoman.training.parallel import accumulate_for_processes
from dragoman.training.prepare import PreparedRun, prepare_run
from dragoman.training.recipes import IMPORTED_MODEL_RATE
from dragoman.training.run_mirror import RunMirror
from dragoman.training.trainer import TrainingOutcome
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
    on: str = "local",
    num_workers: int | None = None,
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
        seeds: train this many runs with the seeds 1, 2, … (from `training.seed` on) into the folders seed1, seed2, … of
            `folder`. None: a single run. Several seeds are trained on this machine only (`on="local"`).
        on: where to train: local, ray (a cluster on this machine) or ray://HOST:PORT. See docs/cluster.md.
        num_workers: with `on="ray"`, the number of processes. By default one per GPU of the cluster, or per CPU.

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

    executor = training_executor(on, num_workers)
    if executor is not None and seeds is not None:
        raise UserError(
            f"several seeds (seeds={seeds}) are trained on this machine only: leave out on={on!r}, or train each seed "
            "with a call of its own and the setting training.seed"
        )
    files = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target}
    changes: dict[str, Any] = {f"data.{name}": _path_list(paths) for name, paths in files.items() if paths}
    changes |= {"system.size": size} if size is not None else {}
    changes |= dict(settings or {})
    system_name, custom_system = _name_and_definition(system)
    if resume:
        if folder is None:
            raise UserError("resume=True continues an existing run: pass its folder as the first argument")
        folder = Path(folder)
        if seeds is not None or is_ensemble_folder(folder):
            resume_seeds(folder, changes, seeds, custom_parts=custom_parts, callback=callback)
        else:
            resume_training(folder, changes, custom_parts=custom_parts, callback=callback, executor=executor)
    else:
        changes |= {"system.name": system_name} if system_name is not None else {}
        config = configuration.replace_settings(config or Config(), changes)
        folder = _new_folder(config.system.name or "transformer") if folder is None else Path(folder)
        if seeds is None:
            start_training(
                folder,
                config,
                custom_system=custom_system,
                custom_parts=custom_parts,
                callback=callback,
                executor=executor,
            )
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
    resume_if_exists: bool = False,
    executor: TrainingExecutor | None = None,
) -> TrainingOutcome | None:
    """Prepare and train a new run.

    Args:
        folder: run folder to create.
        config: settings; those that are None are chosen.
        custom_system: definition of the system `config.system.name`, if it is not a built-in one.
        custom_parts: classes of custom parts.
        callback: receives events; by default progress is shown on standard error.
        resume_if_exists: continue the run if the folder, or its copy `training.mirror`, holds one already.
        executor: where to train; by default in this process and those that torchrun has started with it.

    Returns:
        The outcome, or None in all but the first of several processes.
    """
    task = TrainingTask(
        folder,
        config,
        mirror=config.training.mirror,
        custom_system=custom_system,
        custom_parts=tuple(custom_parts),
        resume_if_exists=resume_if_exists,
    )
    return _execute(task, callback, executor)


def prepare_training(
    folder: Path, config: Config, *, processes: int = 1, parallel: OrderedMap | None = None
) -> PreparedRun:
    """Prepare a new run (tokenizers, data, configuration) without training it, and log the report on its data.

    Args:
        folder: run folder to create.
        config: settings; those that are None are chosen.
        processes: number of processes that will train the run; each gets at least one batch per step, for which
            gradient accumulation is raised if necessary.
        parallel: maps a function over chunks of text; None: with `data.num_workers` processes.

    A mirror (`training.mirror`) that holds a run already is a UserError.
    """
    # copy of the run folder in a storage
    mirror = None if config.training.mirror is None else RunMirror(folder, config.training.mirror)
    if mirror is not None:
        mirror.check_free()
    adapted, choices = accumulate_for_processes(config, processes)  # `choices`: changed settings as lines of text
    prepared = prepare_run(folder, adapted, console.log, open_parent=open_parent, parallel=parallel)
    if mirror is not None:
        mirror.publish()
    log_preparation(prepared, choices, console.log)
    return prepared


def prepare_on_trial(config: Config, callback: TrainingCallback | None = None) -> PreparedRun:
    """Prepare a run in a temporary folder, log the report on its data and its settings, and delete it again.

    Messages go to `callback` as events; None: to standard error.
    """
    log = log_function(callback)
    with TemporaryDirectory(prefix="dragoman-") as folder:
        prepared = prepare_run(Path(folder) / "run", config, log, open_parent=open_parent)
    log_preparation(prepared, choices=[], log=log)
    return prepared


def resume_training(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    custom_parts: Sequence[type[Spec]] = (),
    callback: TrainingCallback | None = None,
    command: str = "dragoman train",
    executor: TrainingExecutor | None = None,
) -> TrainingOutcome | None:
    """Continue a run where it stopped.

    Args:
        folder: run folder; it need not exist if `training.mirror` in `settings` names a copy.
        settings: changes of the limits (training.steps, epochs, minutes, patience), the device, the parallelism or the
            mirror.
        custom_parts: classes of custom parts.
        callback: receives events; by default progress is shown on standard error.
        command: beginning of a command that trains this run, for messages.
        executor: where to train; by default in this process and those that torchrun has started with it.

    Returns:
        The outcome, or None in all but the first of several processes.
    """
    mirror = settings.get("training.mirror")
    if mirror is None:  # otherwise the run may have to be copied from the mirror first
        read_spec(folder, custom_parts)  # raises a UserError if it is not a run
    task = TrainingTask(
        folder, config=None, changes=settings, mirror=mirror, custom_parts=tuple(custom_parts), command=command
    )
    return _execute(task, callback, executor)


def _execute(
    task: TrainingTask, callback: TrainingCallback | None, executor: TrainingExecutor | None
) -> TrainingOutcome | None:
    """Train with the executor (None: in this process); report to the callback, or by default on standard error."""
    display = Display(live=sys.stderr.isatty()) if callback is None else CallbackDisplay(callback)
    log = log_function(callback)
    return task.run(display, log) if executor is None else executor.train(task, display, log)


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
        """Pass the result of a validation at `step` on as an event; `best`: it is the best so far."""
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
    """Return the name of a system, and its definition if it is custom (a spec, or a function that returns one).

    A custom system has the name of its function, or "custom" for a spec; None is returned as (None, None): the system
    is chosen automatically. Anything else than a name, a spec or a function is a UserError.
    """
    if system is None or isinstance(system, str):
        return system, None
    if isinstance(system, Spec):
        return "custom", _custom_system(_spec_builder(system))
    if not callable(system):
        raise UserError(
            "the argument system must be the name of a built-in system, a Spec (a model description) or a function "
            f"that returns a Spec, but is {system!r}"
        )
    return system.__name__, _custom_system(system)


def _spec_builder(spec: Any) -> Callable[..., ModelSpec]:
    """Return a function that returns a model's spec (its description) for the vocabulary sizes it is called with."""

    def custom(vocabulary: VocabularySizes) -> ModelSpec:
        """Custom spec."""  # the description of the system
        sizes = {"source_vocab_size": vocabulary.source, "target_vocab_size": vocabulary.target}
        sizes |= {"vocab_size": vocabulary.target}  # of a model with one vocabulary
        field_names = {field.name for field in dataclasses.fields(spec)}
        return replace(spec, **{name: size for name, size in sizes.items() if name in field_names})

    return custom


def _custom_system(builder: Callable[..., ModelSpec]) -> System:
    """Define a system from a function that builds its spec.

    The sizes tiny, small, base and big do not change its hyper-parameters. Its training defaults are those of imported
    models, or with the recipe `textbook` (the settings of a paper) those of the Transformer.
    """
    if not inspect.getdoc(builder):  # a system is described by the docstring of its function
        builder.__doc__ = "Custom system."
    return System(
        builder,
        paper="custom",
        year=date.today().year,
        sizes={size: {} for size in SIZES},
        base_learning_rate=IMPORTED_MODEL_RATE,
        paper_training=PaperTraining("adam", "inverse-sqrt", warmup_steps=4000, noam_factor=1.0),
    )
