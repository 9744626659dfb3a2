"""Training with several seeds: runs that differ only in their random numbers, and their ensemble.

The folder holds one run per seed, `ensemble.json` with their names and results, and `config.yaml` with the search
settings of the ensemble. `dragoman.load` opens it as an ensemble.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import config as configuration
from dragoman import data
from dragoman.api.evaluate_run import evaluate
from dragoman.api.events import TrainingCallback
from dragoman.api.parent_models import open_parent
from dragoman.api.seed_processes import train_in_processes
from dragoman.api.train_run import log_function, resume_training
from dragoman.api.training_task import log_preparation, temporarily_registered
from dragoman.api.tune_search import validation_store
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.evaluation import MeanStd, format_table
from dragoman.objectives import objective_class
from dragoman.parts.spec import Spec
from dragoman.run import Run, load
from dragoman.run.search_choice import (
    MIN_CHOICE_SENTENCES,
    choose_search,
    store_choice,
    unset_search_settings,
    without_search_choice,
)
from dragoman.run_files import (
    CONFIG_FILE,
    ENSEMBLE_FILE,
    ENSEMBLE_VERSION,
    check_new_folder,
    check_run_folder,
    ensemble_members,
    is_ensemble_folder,
    is_run_folder,
    read_ensemble,
)
from dragoman.storage import atomic_folder, write_file
from dragoman.systems import System
from dragoman.training.preparation_cache import PreparationCache
from dragoman.training.prepare import PreparedRun, prepare_run
from dragoman.training.resolve import make_corpora
from dragoman.training.training_budget import change_resumed_run
from dragoman.training.validation import TEACHER_FORCED_METRICS, decoding_metric
from dragoman.training.validation_corpora import stored_sentences

Log = Callable[[str], None]


@dataclass(frozen=True)
class SeedsOutcome:
    """How a training with several seeds ended.

    Attributes:
        folder: folder of the runs, which `dragoman.load` opens as their ensemble.
        interrupted: whether it was interrupted by the user and can be resumed.
        report: scores of each run, their mean and standard deviation, and those of the ensemble; empty if interrupted.
    """

    folder: Path
    interrupted: bool
    report: dict[str, Any]

    def lines(self) -> list[str]:
        """Return the report as the lines of a table; none if the training was interrupted."""
        return report_lines(self.report) if self.report else []


def start_seeds(
    folder: Path,
    config: Config,
    num_seeds: int,
    *,
    parallel: int = 1,
    custom_system: System | None = None,
    custom_parts: Sequence[type[Spec]] = (),
    callback: TrainingCallback | None = None,
) -> SeedsOutcome:
    """Prepare and train runs that differ only in their seed, and report their scores and those of their ensemble.

    Args:
        folder: folder to create; it gets the runs seed1, seed2, …
        config: settings of all runs; their seeds are `training.seed`, the next number, …
        num_seeds: number of runs.
        parallel: number of runs that are trained at a time, each in a process of its own.
        custom_system: definition of the system `config.system.name`, if it is not a built-in one.
        custom_parts: classes of custom parts.
        callback: receives events; by default progress is shown on standard error.
    """
    _check_single_process()
    check_new_folder(folder)
    log = log_function(callback)
    with atomic_folder(folder) as partial, temporarily_registered(config.system.name, custom_system):
        names = _prepare_seeds(partial, config, num_seeds, custom_parts, log)
        # the ensemble starts with the search settings that all runs share
        shutil.copyfile(partial / names[0] / CONFIG_FILE, partial / CONFIG_FILE)
        _write_ensemble(partial, members=names, finished={}, report={})
    return _train_seeds(folder, parallel, custom_parts, callback)


def resume_seeds(
    folder: Path,
    settings: Mapping[str, Any],
    num_seeds: int | None = None,
    *,
    parallel: int = 1,
    custom_parts: Sequence[type[Spec]] = (),
    callback: TrainingCallback | None = None,
) -> SeedsOutcome:
    """Continue a training with several seeds: runs that are not finished, new seeds, or all with a larger budget.

    Args:
        folder: folder of the runs; that of a single run is a UserError.
        settings: changes of the limits (training.steps, epochs, minutes, patience) or the device, for all runs. All
            runs are then resumed, even finished ones.
        num_seeds: number of runs, if there are to be more than before; None: as many as there are.
        parallel: number of runs that are trained at a time, each in a process of its own.
        custom_parts: classes of custom parts.
        callback: receives events; by default progress is shown on standard error.
    """
    _check_single_process()
    if not is_ensemble_folder(folder):
        check_run_folder(folder)  # raises a UserError if the folder is not a run
        raise UserError(
            f"{folder} holds a single run, not several seeds: leave --seeds out to continue this run, or choose a new "
            "folder to train several seeds"
        )
    document = read_ensemble(folder)
    members, log = ensemble_members(folder), log_function(callback)
    if num_seeds is not None and num_seeds < len(members):
        raise UserError(
            f"{folder} already has {len(members)} runs with different seeds, but --seeds asks for only {num_seeds}: "
            f"set --seeds to {len(members)} or more, or leave --seeds out to keep the number of runs"
        )
    if settings:
        configs = [change_resumed_run(member, settings) for member in members]
        # the ensemble has the settings of the first run, without the beam size and length penalty chosen for that run
        # alone: the report chooses them anew for the ensemble
        write_file(folder / CONFIG_FILE, configuration.to_yaml(without_search_choice(configs[0])))
        document |= {"finished": {}, "report": {}}  # training goes on, so earlier results no longer hold
    if num_seeds is not None and num_seeds > len(members):
        # settings that were chosen automatically for the first run are chosen anew for the new ones
        user_config = configuration.without_automatic_settings(configuration.from_yaml(members[0] / CONFIG_FILE))
        # the report, with means over all runs, is written again when the new ones are finished
        document |= {"members": _prepare_seeds(folder, user_config, num_seeds, custom_parts, log), "report": {}}
    _write_ensemble(folder, document["members"], document["finished"], document["report"])
    return _train_seeds(folder, parallel, custom_parts, callback)


def _check_single_process() -> None:
    """Raise a UserError under torchrun: each process would train all seeds."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "--seeds cannot be used under torchrun: leave torchrun out (--parallel N trains N seeds at a time), or "
            "train each seed with a torchrun command of its own and --seed"
        )


def _prepare_seeds(
    folder: Path, config: Config, num_seeds: int, custom_parts: Sequence[type[Spec]], log: Log
) -> list[str]:
    """Prepare the runs seed1, seed2, … in `folder` that do not exist yet, and return the names of all.

    The first seed is `training.seed`. The runs share tokenizers and tokenized data (in a cache), and the batch size if
    it is measured. Only the first preparation is logged.
    """
    cache, first = PreparationCache(), config.training.seed
    names = [f"seed{seed}" for seed in range(first, first + num_seeds)]
    prepared: PreparedRun | None = None  # the first run that is prepared here
    for seed, name in enumerate(names, first):
        if is_run_folder(folder / name):
            continue
        seed_config = configuration.replace_settings(config, {"training.seed": seed})
        run_log: Log = log if prepared is None else lambda text: None
        run = prepare_run(
            folder / name, seed_config, run_log, custom_parts=custom_parts, cache=cache, open_parent=open_parent
        )
        if prepared is not None:
            continue
        prepared = run
        log_preparation(prepared, choices=(), log=log)
        if config.training.auto_batch_size:  # measured once, for all seeds
            batch_tokens = prepared.config.training.batch_tokens
            measured = {"training.auto_batch_size": False, "training.batch_tokens": batch_tokens}
            config = configuration.replace_settings(config, measured)
    return names


def _write_ensemble(
    folder: Path, members: Sequence[str], finished: Mapping[str, Mapping[str, Any]], report: Mapping[str, Any]
) -> None:
    """Write `ensemble.json` into the folder of the runs.

    Args:
        folder: folder of the runs.
        members: names of all runs.
        finished: best validation (scores by metric) of each finished run, by its name.
        report: result of `make_report`; empty until all runs are finished.
    """
    content = {
        "version": ENSEMBLE_VERSION,
        "about": "runs that differ only in their seed; 'dragoman translate' with this folder uses their ensemble",
        "members": members,
        "finished": finished,
        "report": report,
    }
    write_file(folder / ENSEMBLE_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _train_seeds(
    folder: Path, parallel: int, custom_parts: Sequence[type[Spec]], callback: TrainingCallback | None
) -> SeedsOutcome:
    """Train the runs in a folder that are not finished, `parallel` at a time, and write the report when all are.

    With `parallel` above 1, runs are trained in other processes, which `custom_parts` and `callback` cannot reach: they
    are a UserError. The report is not made again if `ensemble.json` has one.
    """
    log, document = log_function(callback), read_ensemble(folder)
    members = ensemble_members(folder)
    remaining = [member for member in members if member.name not in document["finished"]]

    def record(member: Path, best: dict[str, Any]) -> None:
        """Write into `ensemble.json` that a run is finished; `best` is its best validation, metrics by name."""
        document["finished"][member.name] = best
        _write_ensemble(folder, document["members"], document["finished"], report={})

    if parallel > 1 and len(remaining) > 1:
        if custom_parts or callback is not None:
            raise UserError(
                f"custom_parts and callback exist only in this process, but parallel={parallel} trains the seeds in "
                "other processes: set parallel to 1"
            )
        interrupted = train_in_processes(remaining, parallel, record, log)
    else:
        interrupted = False
        for member in remaining:
            log(f"{member.name} ({members.index(member) + 1} of {len(members)})")
            outcome = resume_training(member, settings={}, custom_parts=custom_parts, callback=callback)
            if outcome is None or outcome.interrupted:  # None: only if several processes train a run
                interrupted = True
                break
            record(member, outcome.best)
    if interrupted:
        return SeedsOutcome(folder, interrupted=True, report={})
    if not document["report"]:
        log("scoring the runs and their ensemble")
        document["report"] = make_report(folder, document["finished"], custom_parts, log)
        _write_ensemble(folder, document["members"], document["finished"], document["report"])
    return SeedsOutcome(folder, interrupted=False, report=document["report"])


# ---- the report


def make_report(
    folder: Path, finished: Mapping[str, Mapping[str, Any]], custom_parts: Sequence[type[Spec]], log: Log
) -> dict[str, Any]:
    """Score the runs and their ensemble on the validation set, and on the test set if the configuration has one.

    `finished` has the best validation of each run by its name: scores by metric. The search settings of the ensemble
    are chosen on the validation set. An ensemble is scored only if the training objective generates text.

    Returns:
        {"validation": {metric: {run: score}}, "test": {metric: {run: score}}}, with "ensemble" as the last run.
    """
    members = ensemble_members(folder)
    config = configuration.from_yaml(members[0] / CONFIG_FILE)
    metric = config.training.selection_metric
    validation = {metric: {member.name: finished[member.name][metric] for member in members}}
    ensemble = None
    if objective_class(config.objective.name or "translation").generates:
        ensemble = load(folder, custom_parts=custom_parts)
        score = _validate_ensemble(ensemble, metric)
        if score is not None:
            validation[metric]["ensemble"] = score
    test: dict[str, dict[str, float]] = {}
    if test_set := _read_test_set(config):
        sources, references = test_set
        for name in (*(member.name for member in members), "ensemble"):
            run = ensemble if name == "ensemble" else load(folder / name, custom_parts=custom_parts)
            if run is not None:  # there is an ensemble
                for metric_name, test_score in evaluate(run, sources, references, log=log).scores.items():
                    test.setdefault(metric_name, {})[name] = test_score.value
    return {"validation": validation, "test": test}


def _validate_ensemble(ensemble: Run, metric: str) -> float | None:
    """Choose the search settings of an ensemble (stored in its config.yaml), and return its score by `metric`.

    It translates as many validation sentences as its runs decode in their validations. The result is None if these
    decode none, or if `metric` is one that is computed without decoding, such as the loss.
    """
    num_sentences = ensemble.config.training.validation_sentences or 0
    store = validation_store(ensemble)  # tokenized validation set
    if metric in TEACHER_FORCED_METRICS or not num_sentences:
        return None
    # `tags`: for each source the symbol before the sources of its corpus, "" for none
    sources, tags, references = stored_sentences(ensemble, store, num_sentences)
    metric_function = decoding_metric(ensemble, sources, references)
    # search settings that the user has left open are chosen if there are enough sentences
    if unset_search_settings(ensemble.config) and len(sources) >= MIN_CHOICE_SENTENCES:
        choice = choose_search(ensemble, sources, references, metric_function, tags)
        ensemble.config = store_choice(ensemble.folder, choice)
        # with the default settings, as in the validations of the runs: the chosen ones were selected by this score
        return choice.default.score
    texts = [translation.text for translation in ensemble.translate(sources, alignment=False, tag=tags)]
    return metric_function(texts, references).value


def _read_test_set(config: Config) -> tuple[list[Any], list[str]] | None:
    """Read the test files (data.test_source, data.test_target); return their sources and references.

    The result is None without test files, or if these have no references.
    """
    corpora = make_corpora(config, prefix="test_")
    if not corpora:
        return None
    pairs = list(data.detect_data_format(corpora[0]).read(corpora))
    if any(pair.target is None for pair in pairs):
        return None
    # `features` are the vectors of an image or recording, None for text
    sources = [pair.source_with_features if pair.features is None else pair.features for pair in pairs]
    return sources, [pair.target or "" for pair in pairs]


def report_lines(report: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return the lines of a table with one row per run, their mean and standard deviation, and the ensemble.

    `report` is `{"validation" or "test": {metric: {run: score}}}`, where "ensemble" is one of the runs.
    """
    rows: dict[str, dict[str, object]] = {}
    means: dict[str, object] = {}
    for part, scores_by_metric in report.items():
        for metric, scores in scores_by_metric.items():
            for run, score in scores.items():
                rows.setdefault(run, {"run": run})[f"{part} {metric}"] = MeanStd(score)  # formatted as the means
            means[f"{part} {metric}"] = MeanStd.of([score for run, score in scores.items() if run != "ensemble"])
    ensemble = [rows.pop("ensemble")] if "ensemble" in rows else []
    return format_table([*rows.values(), {"run": "mean ± std", **means}, *ensemble]).splitlines()
