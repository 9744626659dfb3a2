"""`dragoman sweep`: try settings on one corpus, keep training the best configurations, and rank all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_device, check_training
from dragoman.cli.compare import parse_seeds
from dragoman.cli.options import Json, program_name
from dragoman.cli.train import TRAIN_OPTIONS
from dragoman.console import log, print_json, print_lines
from dragoman.errors import UserError, unknown_name

if TYPE_CHECKING:
    from dragoman.api.sweep_runs import SweepRequest
    from dragoman.training.sweep_state import SweepResult

#: options of `sweep` that set a setting of all runs
SWEEP_OPTIONS = {option: name for option, name in TRAIN_OPTIONS.items() if option not in ("--seed", "--device")}


@dataclass(frozen=True)
class SpaceOptions:
    """Which configurations are tried, and with which random seeds they are trained."""

    set_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUES",
            help="Setting to vary, with values separated by commas (training.batch_tokens=1024,4096) or a range for "
            "--random, here on a logarithmic scale (training.learning_rate=1e-4..1e-2:log); :3 at its end makes "
            "a grid of 3 values. A single value is used in all runs. Repeatable.",
        ),
    ] = None
    space: Annotated[
        Path | None, "YAML file of settings with lists of values and ranges, instead of --set.", "FILE"
    ] = None
    random: Annotated[
        int | None,
        typer.Option(
            help="Try this many configurations (combinations of values), drawn at random. Default: all combinations.",
            metavar="N",
        ),
    ] = None
    sample_seed: Annotated[int | None, "Random seed with which configurations are drawn. Default: 1."] = None
    seeds: Annotated[
        str | None, "Random seeds of the trainings, comma-separated; the mean over them is compared. Default: 1."
    ] = None


@dataclass(frozen=True)
class HalvingOptions:
    """How long configurations are trained, and how many at a time."""

    factor: Annotated[
        int | None,
        "Successive halving: in each round, only the best 1/FACTOR of the configurations are trained further, to "
        "FACTOR times their training so far. Default: 3.",
    ] = None
    no_halving: Annotated[bool, "Train every configuration completely."] = False
    validation_sentences: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of validation sentences that each run translates, to compare the runs by a "
            "metric. Default: 1000.",
            min=1,
        ),
    ] = None
    parallel: Annotated[str, "Number of runs that are trained at a time; auto: by memory and cores.", "N"] = "auto"
    device: Annotated[str, "Device: auto, cpu, cuda, cuda:N or mps; auto and cuda use all GPUs."] = "auto"
    retry_failed: Annotated[bool, "Train those runs of the sweep again that have failed."] = False

    def num_parallel(self) -> int | None:
        """Return the number of runs to train at a time; None for auto: as many as memory and cores allow.

        Another value of --parallel than auto or a positive integer is a UserError.
        """
        if self.parallel == "auto":
            return None
        if not self.parallel.isdecimal() or int(self.parallel) < 1:
            raise UserError(f"--parallel must be auto or a number of runs, such as 4, got {self.parallel!r}")
        return int(self.parallel)


@dataclass(frozen=True)
class ResultOptions:
    """How the result is printed."""

    show: Annotated[bool, "Only print the table of the sweep in the folder, which may still be running."] = False
    table: Annotated[str, "Format of the table: text, csv, markdown or latex."] = "text"
    as_json: Json = False

    def check(self) -> None:
        """Raise a UserError for an unknown format of the table."""
        formats = ("text", "csv", "markdown", "latex")
        if self.table not in formats:
            raise unknown_name("format of the table", self.table, formats)

    def print(self, result: SweepResult) -> None:
        """Print all configurations from best to worst, then in text a summary: the best next to the default one."""
        if self.as_json:
            print_json(result.to_dict())
            return
        print(result.table(self.table))
        if self.table == "text" and result.ranking[0].score is not None:  # None: none has a score yet
            print_lines(["", *result.summary()])


def sweep(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder to create for a new sweep (runs with different settings), or of the one to continue."
        ),
    ],
    settings: Annotated[dict[str, Any], SWEEP_OPTIONS],
    space: SpaceOptions,
    halving: HalvingOptions,
    output: ResultOptions,
) -> None:
    """Try settings on one corpus, and rank the configurations by the validation metric.

    All combinations of the given values, or a random sample, are trained a little; the best third is trained further,
    and so on up to the whole budget (successive halving). The default configuration takes part to the end, so that the
    table tells how far it is from the best. Runs are processes of their own; several share a GPU or the cores. Ctrl-C
    saves everything, and 'dragoman sweep FOLDER' continues. The best run becomes FOLDER/best.
    """
    output.check()
    if output.show:
        from dragoman.training.sweep_state import SweepResult, SweepState

        output.print(SweepResult.of(folder, SweepState.load(folder)))
        return
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:  # set by torchrun
        raise UserError(
            "a sweep starts its own processes: leave out torchrun; --parallel sets how many runs are trained at a time"
        )
    parallel = halving.num_parallel()
    check_device(halving.device)

    from dragoman.api.sweep_runs import SweepRequest, run_sweep

    is_continued = not (settings or space.set_settings or space.space)  # without settings: as saved in the folder
    options = _given_options(space, halving)
    request = SweepRequest.load(folder, **options) if is_continued else _request(settings, space, options)
    if not is_continued:
        _check_default(folder, request)
    try:
        result = run_sweep(folder, request, parallel, halving.device, halving.retry_failed)
    except KeyboardInterrupt:
        log(f"everything is saved; continue with:  {program_name()} sweep {folder}")
        raise
    output.print(result)


def _given_options(space: SpaceOptions, halving: HalvingOptions) -> dict[str, Any]:
    """Return the fields of a `SweepRequest`, apart from its settings, for which there is an option on the command line.

    Others have their defaults in a new sweep, and the saved values in one that is continued.
    """
    values = {
        "samples": space.random,
        "sample_seed": space.sample_seed,
        "seeds": None if space.seeds is None else tuple(parse_seeds(space.seeds)),
        "factor": halving.factor,
        "validation_sentences": halving.validation_sentences,
    }
    given = {name: value for name, value in values.items() if value is not None}
    return given | ({"factor": None} if halving.no_halving else {})


def _request(settings: dict[str, Any], space: SpaceOptions, options: dict[str, Any]) -> SweepRequest:
    """Return what a new sweep tries, from the values of its options; wrong and repeated settings are a UserError.

    `settings` have one value for all runs, by their dotted names; `space` has those to vary. `options` are further
    fields of the request.
    """
    from dragoman.api.sweep_runs import SweepRequest
    from dragoman.training.sweep_space import Values, parse_space, read_space

    values: dict[str, Values] = {name: [value] for name, value in settings.items()}  # values to try of each setting
    for more_values in (read_space(space.space) if space.space else {}, parse_space(space.set_settings or [])):
        if repeated := [name for name in more_values if name in values]:
            raise UserError(
                f"the setting {repeated[0]} is given twice, by an option of its own, --set or --space: name all its "
                "values in one place"
            )
        values |= more_values
    return SweepRequest.create(values, **options)


def _check_default(folder: Path, request: SweepRequest) -> None:
    """Raise a UserError if the settings that all runs of a new sweep in `folder` share are wrong.

    They are wrong if they name no training text, or files, systems or devices that do not exist. Values of the settings
    that the sweep varies are not checked here.
    """
    from dragoman.config import Config, replace_settings

    config = replace_settings(Config(), request.settings)
    if not config.data.source:
        raise UserError("no training text: give --source and --target (or --source alone for a TSV file)")
    check_training(folder / "runs" / "new", config)  # a run folder that does not exist, as it has to be
