"""Hyper-parameter sweeps from Python: `dragoman.sweep`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.api.sweep_process import StartWorker, WorkerProcess
from dragoman.api.sweep_runner import RUNS_FOLDER, SweepRunner
from dragoman.builtin_names import system_names, system_setting_names
from dragoman.config import Config, replace_settings
from dragoman.errors import UserError, unknown_name
from dragoman.storage import exclusive_run_lock, remove_folder
from dragoman.training.saved_request import save_or_check_request
from dragoman.training.sweep_space import SearchSpace, ValueRange, Values, space_from_mapping
from dragoman.training.sweep_state import STATE_FILE, SweepResult, SweepState

SWEEP_FILE = "sweep.json"  # settings, search space and budget of the sweep
DEFAULT_FACTOR = 3
SCORED_SENTENCES = 1000  # of the validation set
CORPUS_SETTINGS = ("data.source", "data.target", "data.valid_source", "data.valid_target")
EXTENSIBLE = ("space", "samples", "sample_seed", "seeds")  # fields of a request without halving that may change
SYSTEM_SETTINGS = "system.settings."


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep tries, and how.

    Attributes:
        settings: settings of all runs, by their dotted names; the default configuration has no others.
        space: settings with several values or a range.
        samples: number of configurations to draw at random; None: all combinations.
        sample_seed: seed with which configurations are drawn.
        seeds: seeds of the trainings; configurations are compared by their means over these.
        factor: of successive halving: the best 1/factor of the configurations are trained further; None trains every
            configuration completely.
        validation_sentences: number of validation sentences that are decoded to compare runs.
    """

    settings: dict[str, Any]
    space: SearchSpace
    samples: int | None = None
    sample_seed: int = 1
    seeds: tuple[int, ...] = (1,)
    factor: int | None = DEFAULT_FACTOR
    validation_sentences: int = SCORED_SENTENCES

    @staticmethod
    def create(values: Mapping[str, Values], **options: Any) -> SweepRequest:
        """Divide settings into those with one value, which all runs have, and those to vary; check all of them.

        `values` maps dotted names to lists of values or ranges; `options` are further fields of the request.
        """
        fixed = {
            name: items[0] for name, items in values.items() if not isinstance(items, ValueRange) and len(items) == 1
        }
        space = SearchSpace({name: items for name, items in values.items() if name not in fixed})
        for name in CORPUS_SETTINGS:
            if name in fixed:
                paths = [fixed[name]] if isinstance(fixed[name], (str, Path)) else fixed[name]
                # absolute paths: the sweep may be continued from another working directory
                fixed[name] = [str(Path(path).resolve()) for path in paths]
        request = SweepRequest(fixed, space, **options)
        request.check()
        return request

    def check(self) -> None:
        """Raise a UserError for unknown settings, wrong values, and options out of range."""
        replace_settings(Config(), self.settings)
        self.space.check()
        if not self.space.values:
            raise UserError(
                "a sweep varies at least one setting, but no setting has several values: give some, such as --set "
                "training.batch_tokens=1024,4096, or train a single run with 'dragoman train'"
            )
        for name in self.system_candidates():
            if name is not None and name not in system_names():
                raise unknown_name("system", name, system_names())
        for name in self.space.values:
            if name.startswith(SYSTEM_SETTINGS):
                self._check_system_setting(name.removeprefix(SYSTEM_SETTINGS))
        if self.samples is not None and self.samples < 1:
            raise UserError(f"--random, the number of configurations to draw, must be at least 1, got {self.samples}")
        if self.factor is not None and self.factor < 2:
            raise UserError(
                "--factor must be at least 2, because only the best 1/FACTOR of the configurations are trained "
                f"further in each round, but is {self.factor}"
            )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"--seeds must be one or more different integers, such as 1,2,3, but is {list(self.seeds)}")

    def _check_system_setting(self, setting: str) -> None:
        """Raise a UserError unless some system of the sweep has this setting, and the values to try have its type.

        `setting` is a hyper-parameter of systems, such as "dropout".
        """
        from dragoman.systems import SYSTEMS  # imports torch
        from dragoman.systems.system import validate_setting

        if setting not in system_setting_names():
            raise unknown_name("setting of systems", setting, system_setting_names())
        systems = [name for name in self.system_candidates() if name is not None]
        with_setting = [name for name in systems if setting in SYSTEMS[name].settings()]
        if systems and not with_setting:  # no systems are known if the system is chosen automatically
            known = {name for system in systems for name in SYSTEMS[system].settings()}
            raise unknown_name(f"setting of {', '.join(systems)}:", setting, known)
        values = self.space.values[SYSTEM_SETTINGS + setting]
        if isinstance(values, ValueRange):
            values = [values.low, values.high]
        for system in with_setting:
            for value in values:
                validate_setting(f"{system}.{setting}", value, SYSTEMS[system].settings()[setting].annotation)

    def system_candidates(self) -> list[str | None]:
        """Return the systems of the sweep; None stands for the one that is chosen automatically."""
        fixed = self.settings.get("system.name")
        values = self.space.values.get("system.name", [])
        assert isinstance(values, list)  # names have no range
        return list(dict.fromkeys([fixed, *values]))

    def configurations(self) -> list[dict[str, Any]]:
        """Return the changed settings (by dotted name) of every configuration to try.

        The first one is the default configuration, which changes nothing.
        """

        def has_setting(system: str | None, setting: str) -> bool:
            """Whether a system (None: that of all runs) has a setting; True if the system is not known yet.

            It is not known if it is chosen automatically.
            """
            from dragoman.systems import SYSTEMS  # imports torch

            name = system or self.settings.get("system.name")
            return name is None or setting in SYSTEMS[name].settings()

        return self.space.configurations(self.samples, self.sample_seed, has_setting)

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain values for JSON, without the device, which may change when it continues."""
        settings = {name: value for name, value in self.settings.items() if name != "training.device"}
        return asdict(self) | {"settings": settings, "space": self.space.to_plain()}

    @staticmethod
    def load(folder: Path, **options: Any) -> SweepRequest:
        """Read what the sweep in a folder tries (sweep.json), to continue it.

        `options` are fields of the request that are given again, with other values if the sweep is to be extended. A
        folder without a sweep, and wrong values, are a UserError.
        """
        path = folder / SWEEP_FILE
        if not path.exists():
            raise UserError(
                f"{folder} has no sweep to continue: start one with --source, --target and a setting to vary, such as "
                "--set system.size=tiny,small"
            )
        values = json.loads(path.read_text(encoding="utf-8"))
        space = SearchSpace(space_from_mapping(values.pop("space")))
        request = replace(SweepRequest(space=space, seeds=tuple(values.pop("seeds")), **values), **options)
        request.check()
        return request


def sweep(
    folder: str | Path,
    space: Mapping[str, Any] | None = None,
    *,
    source: str | Path | Sequence[str | Path] = (),
    target: str | Path | Sequence[str | Path] = (),
    valid_source: str | Path | Sequence[str | Path] = (),
    valid_target: str | Path | Sequence[str | Path] = (),
    settings: Mapping[str, Any] | None = None,
    samples: int | None = None,
    sample_seed: int = 1,
    seeds: Sequence[int] = (1,),
    factor: int | None = DEFAULT_FACTOR,
    validation_sentences: int = SCORED_SENTENCES,
    parallel: int | None = None,
    device: str = "auto",
    retry_failed: bool = False,
) -> SweepResult:
    """Find good hyper-parameters by successive halving, and return all configurations from best to worst.

    Runs are trained in processes of their own, several at a time. A sweep that was interrupted continues when it is
    called again with the same arguments, or with the folder alone.

    Args:
        folder: folder of the sweep, in which `best` becomes the best run.
        space: settings to vary by their dotted names, each with a list of values or a range such as
            `{"min": 1e-4, "max": 1e-2, "scale": "log"}`. None continues the sweep in `folder`, with the files and
            settings that are saved there.
        source: training source files.
        target: training target files.
        valid_source: validation source files. By default training pairs are held out.
        valid_target: validation target files.
        settings: further settings of all runs by their dotted names.
        samples: number of configurations to draw at random; by default all combinations are tried.
        sample_seed: seed with which configurations are drawn.
        seeds: seeds of the trainings; every configuration is trained with each, and compared by the mean.
        factor: the best 1/factor of the configurations continue after each rung; None trains all of them completely.
        validation_sentences: number of validation sentences that are decoded to compare runs.
        parallel: number of runs that are trained at a time; by default by memory and cores.
        device: auto, cpu, cuda, cuda:N or mps; auto and cuda use all GPUs.
        retry_failed: train failed runs again.

    Files or settings without `space`, and wrong values, are a UserError.

    Returns:
        The ranking, with `rows()`, `table()`, `summary()`, `default_rank` and `default_gap`.

    Examples:
        >>> rates = {"min": 1e-4, "max": 1e-2, "scale": "log"}
        >>> result = dragoman.sweep(  # doctest: +SKIP
        ...     "runs/sweep", {"training.learning_rate": rates}, source="train.en", target="train.de", samples=20
        ... )
        >>> run = dragoman.load(result.folder / "best")  # doctest: +SKIP
    """
    folder = Path(folder)
    files = zip(CORPUS_SETTINGS, (source, target, valid_source, valid_target))
    fixed: dict[str, Values] = {name: [paths] for name, paths in files if paths}
    fixed |= {name: [value] for name, value in (settings or {}).items()}
    options = {
        "samples": samples,
        "sample_seed": sample_seed,
        "seeds": tuple(seeds),
        "factor": factor,
        "validation_sentences": validation_sentences,
    }
    if space is not None:
        request = SweepRequest.create(fixed | space_from_mapping(space), **options)
    elif fixed:
        raise UserError(
            f"the setting {next(iter(fixed))} is given without settings to vary: add the argument `space`, such as "
            f"{{'system.size': ['tiny', 'small']}}, or give only the folder to continue its sweep"
        )
    else:
        # a value that is the default is not given
        given = {name: value for name, value in options.items() if value != getattr(SweepRequest, name)}
        request = SweepRequest.load(folder, **given)
    return run_sweep(folder, request, parallel, device, retry_failed)


def run_sweep(
    folder: Path,
    request: SweepRequest,
    parallel: int | None = None,
    device: str = "auto",
    retry_failed: bool = False,
    start_worker: StartWorker = WorkerProcess,
) -> SweepResult:
    """Carry out a sweep, or continue the one in `folder`; a new one that cannot even be prepared leaves nothing.

    `request` says what is tried; that of an earlier sweep in the folder may only be extended. `parallel` is the number
    of runs that are trained at a time (None: by memory and cores), on `device`; with `retry_failed` failed runs are
    trained again. `start_worker` starts a job, by default in a process of its own.
    """
    existed, is_new = folder.exists(), not (folder / STATE_FILE).exists()
    # hidden files, such as the lock, do not count
    if existed and not (folder / SWEEP_FILE).exists() and any(folder.glob("[!.]*")):
        raise UserError(f"the folder {folder} has files and is not a sweep: choose a new folder, or an empty one")
    configurations = request.configurations()
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_run_lock(folder):
        # with successive halving, all configurations compete from the start; without it, others can be added later
        changeable = EXTENSIBLE if request.factor is None else ()
        is_changed = save_or_check_request(folder / SWEEP_FILE, request.to_dict(), "sweep", changeable)
        if is_new or is_changed:
            state = SweepState.create([], seeds=[], factor=request.factor) if is_new else SweepState.load(folder)
            state.extend(configurations, request.seeds)
            state.save(folder)
        # "auto" is the default of the setting
        settings = request.settings | ({} if device == "auto" else {"training.device": device})
        runner = SweepRunner(folder, settings, parallel, request.validation_sentences, start_worker)
        if retry_failed:
            runner.reset_failed_runs()
        try:
            return runner.run()
        except UserError:
            # model.json marks a run folder that has been prepared
            if is_new and not existed and not any((folder / RUNS_FOLDER).glob("*/model.json")):
                remove_folder(folder)
            raise
