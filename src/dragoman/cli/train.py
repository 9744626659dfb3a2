"""`dragoman train`: from text files to a trained model."""

from __future__ import annotations

import os
import shlex
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_run, check_training
from dragoman.cli.options import Json, Settings, program_name
from dragoman.console import log, print_json
from dragoman.errors import UserError
from dragoman.run_files import is_ensemble_folder

if TYPE_CHECKING:
    from dragoman.api.seed_training import SeedsOutcome
    from dragoman.api.training_task import TrainingExecutor
    from dragoman.run import Run
    from dragoman.training.trainer import TrainingOutcome

#: options of `train`, and the settings that they set
TRAIN_OPTIONS = {
    "--source": "data.source",
    "--target": "data.target",
    "--valid-source": "data.valid_source",
    "--valid-target": "data.valid_target",
    "--test-source": "data.test_source",
    "--test-target": "data.test_target",
    "--format": "data.format",
    "--source-column": "data.source_column",
    "--target-column": "data.target_column",
    "--features-column": "data.features_column",
    "--source-features": "data.source_features",
    "--valid-source-features": "data.valid_source_features",
    "--header/--no-header": "data.header",
    "--from": "data.source_language",
    "--to": "data.target_language",
    "--languages": "data.corpus_languages",
    "--valid-languages": "data.valid_corpus_languages",
    "--sampling-temperature": "data.sampling_temperature",
    "--clean": "cleaning.enabled",
    "--system": "system.name",
    "--size": "system.size",
    "--objective": "objective.name",
    "--recipe": "training.recipe",
    "--steps": "training.steps",
    "--epochs": "training.epochs",
    "--minutes": "training.minutes",
    "--start-from": "training.start_from",
    "--freeze": "training.freeze",
    "--add-language": "text.add_language",
    "--like": "text.similar_language",
    "--lora-rank": "lora.rank",
    "--tokenizer-from": "text.tokenizer_from",
    "--source-word-vectors": "text.source_word_vectors",
    "--target-word-vectors": "text.target_word_vectors",
    "--keep-history": "training.keep_history",
    "--mirror": "training.mirror",
    "--seed": "training.seed",
    "--device": "training.device",
}


@dataclass(frozen=True)
class TrainingPlace:
    """Where a run is trained."""

    on: Annotated[
        str, "Where to train: local, ray (a cluster on this machine) or ray://HOST:PORT of a cluster.", "PLACE"
    ] = "local"
    num_workers: Annotated[
        int | None,
        typer.Option(
            help="With --on ray: number of training processes. Default: one per GPU of the cluster, or without "
            "GPUs one per --cpus-per-worker CPUs.",
            min=1,
        ),
    ] = None
    cpus_per_worker: Annotated[
        float, typer.Option(help="With --on ray: number of CPUs reserved for each training process.", min=0.1)
    ] = 1.0
    max_restarts: Annotated[
        int,
        typer.Option(
            help="With --on ray: maximum number of times that training restarts from the last checkpoint after a "
            "process or machine is lost.",
            min=0,
        ),
    ] = 3

    def executor(self, is_single_run: bool) -> TrainingExecutor | None:
        """Return the cluster on which to train; None: in this process.

        `is_single_run` is false for a dry run, several seeds, or a training that a page shows, which must stay here and
        are a UserError on a cluster.
        """
        if self.on == "local":
            return None
        if not is_single_run:
            raise UserError(
                f"--on {self.on} trains a single run on a cluster and cannot be combined with --seeds, --dry-run or "
                "--watch: leave out --on, or these options"
            )
        from dragoman.api.ray_training import training_executor

        return training_executor(
            self.on, self.num_workers, cpus_per_worker=self.cpus_per_worker, max_restarts=self.max_restarts
        )


def train(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Folder to create for the run: model, checkpoints and logs; with --resume, the run to continue.",
        ),
    ],
    settings: Annotated[dict[str, Any], TRAIN_OPTIONS],
    config: Annotated[
        Path | None, "YAML file of settings. From a run's config.yaml, only the settings of its user are taken."
    ] = None,
    set_settings: Settings = None,
    resume: Annotated[
        bool, "Continue the run. With more --steps, --epochs or --minutes, extend a finished one."
    ] = False,
    resume_if_exists: Annotated[
        bool,
        "Continue the run, with its saved settings, if it exists: for commands that torchrun or a batch system starts "
        "again.",
    ] = False,
    dry_run: Annotated[
        bool, "Check the data, choose all settings, print the result and exit; no run is created."
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Train this many runs with different random seeds, in the subfolders seed1, seed2, … of RUN. Other "
            "commands use RUN as the ensemble of these runs.",
            min=1,
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option(help="With --seeds: number of runs that are trained at the same time.", min=1)
    ] = 1,
    watch: Annotated[
        bool, "Show the training on a web page of this machine, whose address is printed; see docs/training.md."
    ] = False,
    watch_port: Annotated[
        int,
        typer.Option(
            help="Port of the web page on which --watch shows the training; 0: any free port.", min=0, max=65535
        ),
    ] = 0,
    keep_watching: Annotated[bool, "With --watch: keep showing the web page after the training, until Ctrl-C."] = False,
    *,
    place: TrainingPlace,
    as_json: Json = False,
) -> None:
    """Train a model from text files.

    With source and target files the model learns to translate. With a source file alone it is pretrained: language
    modeling, masked language modeling or denoising. Words and tags as source and target train a tagger, texts and
    labels a classifier (--system classifier), dialogues as JSON lines with "turns" a model that replies.

    Settings that are not given are chosen from the amount of data and the device, and printed. Ctrl-C stops after the
    present step, saves a checkpoint and prints the command that continues.

    On several GPUs or machines: torchrun --nproc-per-node 8 -m dragoman train RUN …, or --on ray://HOST:PORT.
    """
    from dragoman import config as configuration

    settings = settings | configuration.parse_settings(set_settings or [])
    page = _watch_page(run, watch, watch_port, keep_watching, is_single_run=seeds is None and not dry_run)
    executor = place.executor(is_single_run=seeds is None and not dry_run and not watch)
    if resume:
        if dry_run:
            raise UserError(
                "--dry-run checks the data and settings of a new run, but --resume continues an existing run: leave "
                "out one of them"
            )
        if config or any(name.startswith("data.") for name in settings):
            raise UserError(
                "--resume uses the data and settings saved in the run folder: leave out --config and options of data "
                "files, such as --source"
            )
        if seeds is not None or is_ensemble_folder(run):
            from dragoman.api.seed_training import resume_seeds

            finish_seeds(resume_seeds(run, settings, seeds, parallel=parallel), as_json)
            return
        if "training.mirror" not in settings:  # else a missing run is fetched from its copy
            check_run(run)
        with page:
            finish(run, resume_run(run, settings, executor), as_json)
        return
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0  # torchrun has restarted all processes
    resume_if_exists = resume_if_exists or restarted
    base = configuration.Config()
    if config:  # settings that were chosen automatically for another run are chosen anew
        base = configuration.without_automatic_settings(configuration.from_yaml(config))
    resolved = configuration.replace_settings(base, settings)
    is_alone = int(os.environ.get("WORLD_SIZE", 1)) == 1  # else the first process checks, while it prepares
    if is_alone and not resume_if_exists:
        check_training(run, resolved)

    if seeds is not None and not dry_run:
        from dragoman.api.seed_training import start_seeds

        finish_seeds(start_seeds(run, resolved, seeds, parallel=parallel), as_json)
        return

    from dragoman.api.train_run import prepare_on_trial, start_training

    if not dry_run:
        with page:
            outcome = start_training(run, resolved, resume_if_exists=resume_if_exists, executor=executor)
            finish(run, outcome, as_json)
        return
    prepared = prepare_on_trial(resolved)
    if as_json:
        print_json(prepared.to_dict())


def _watch_page(
    run: Path, watch: bool, port: int, keep_watching: bool, is_single_run: bool
) -> AbstractContextManager[None]:
    """Return a context in which a web page shows the training, or one without effect if `watch` is not set.

    The page listens on `port` (0: any free one) and stays after the training if `keep_watching` is set. It cannot show
    several seeds or a dry run, for which `is_single_run` is false: these are a UserError, as are `port` and
    `keep_watching` without `watch`.
    """
    if not watch and (port or keep_watching):
        raise UserError(
            "--watch-port and --keep-watching configure the web page on which --watch shows the training, but --watch "
            "is not given: add it, or leave out both options"
        )
    if watch and (not is_single_run or is_ensemble_folder(run)):
        raise UserError(
            "--watch shows the training of a single run: leave it out with --dry-run and with --seeds; 'dragoman "
            f"watch {run}/seed1' shows the training of one of several seeds"
        )
    if not watch or int(os.environ.get("RANK", 0)) > 0:  # of the processes of torchrun, the first one serves the page
        return nullcontext()

    from dragoman.watch.watch_process import watched
    from dragoman.watch.watch_server import check_packages

    check_packages()  # a missing package is a UserError before the training starts
    return watched(run, port, keep_watching)


def finish_seeds(outcome: SeedsOutcome, as_json: bool) -> None:
    """Print the scores of runs with different seeds and of their ensemble.

    If the training was interrupted, the command that continues it comes first.
    """
    if outcome.interrupted:
        log(f"everything is saved; continue with:  {train_command(outcome.folder)} --resume")
    for line in outcome.lines():
        log(line)
    if as_json:
        print_json({"run": str(outcome.folder), "interrupted": outcome.interrupted, **outcome.report})


def resume_run(run: Path, settings: dict[str, Any], executor: TrainingExecutor | None = None) -> TrainingOutcome | None:
    """Continue the training of a run, with other values of some settings, by their dotted names.

    `executor` is where to train; None: in this process. Returns how the training ended; None in all but the first of
    several processes.
    """
    from dragoman.api.train_run import resume_training

    return resume_training(run, settings, command=train_command(run), executor=executor)


def train_command(run: Path) -> str:
    """Return the command that trains a run, as messages quote it: "dragoman train RUN"."""
    return f"{program_name()} train {shlex.quote(str(run))}"


def next_commands(run: Run) -> dict[str, str]:
    """Return commands to suggest for a trained run, by their purpose: "use it" and "fine-tune", if they apply.

    Names of files in capitals are placeholders. `run.usage` is the command that uses the run, such as `translate`, None
    if it is unknown. Only a model that was pretrained on text, without targets, is suggested for fine-tuning.
    """
    from dragoman.data.corpus import FEATURE_SUFFIXES
    from dragoman.data.data_formats import DATA_FORMATS

    commands = {}
    if run.usage is not None:
        # the input file in the command: of vectors, or a list of image or sound files, for a model that reads vectors;
        # of words with features such as V;PST; or "" for plain text, of which the command has an example
        sources = run.config.data.source
        has_arrays = not sources or Path(sources[0]).suffix in FEATURE_SUFFIXES
        vector_file = "FILE.npz" if has_arrays else "LIST_OF_FILES.txt"
        text_file = "WORDS_AND_FEATURES.tsv" if run.source_tokenizer.features else ""
        file = text_file if run.model.source_features is None else vector_file
        commands["use it"] = run.usage.hint(program_name(), str(run.folder), file)
    data_format = DATA_FORMATS[run.objective.data_format] if run.objective else None
    if data_format is not None and not (data_format.has_target or data_format.is_dialogue):  # pretrained on text
        # an encoder, which generates no text, becomes a tagger
        files = "--source FILE --target FILE" if run.model.can_generate else "--source WORDS_AND_TAGS.tsv"
        commands["fine-tune"] = f"{program_name()} train NEW_RUN --start-from {shlex.quote(str(run.folder))} {files}"
    return commands


def finish(run: Path, outcome: TrainingOutcome | None, as_json: bool) -> None:
    """Print the result of a training: why it stopped, the best validation, and commands to go on with.

    `outcome` is None in all but the first of several processes, which print nothing.
    """
    if outcome is None:
        return
    from dragoman.run import load
    from dragoman.training.display import format_metrics

    loaded = load(run, device="cpu")
    commands = next_commands(loaded)
    log(f"step {outcome.state.step:,}: stopped: {outcome.reason}")
    if outcome.interrupted:
        log(f"everything is saved; continue with:  {train_command(run)} --resume")
    else:
        if best := outcome.best:  # the record of the best validation; empty if there was none
            averaged = best["kind"] == "averaged"
            name = f"average of {best['checkpoints']} checkpoints" if averaged else f"step {best['step']:,}"
            log(f"best: {name}, validation {format_metrics(best)}, perplexity {best['perplexity']:.2f}")
        log(f"report:     {run}/report.html")
        for purpose, command in commands.items():
            log(f"{purpose + ':':12}{command}")
    if as_json:
        usage = loaded.usage.command if loaded.usage else None
        print_json({"run": str(run), "command": usage, "next_commands": commands, **outcome.to_dict()})
