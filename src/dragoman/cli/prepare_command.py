"""`dragoman prepare`: everything before the first step of a training, on several processes or machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.checks import check_training
from dragoman.cli.options import Json, Settings
from dragoman.cli.train import TRAIN_OPTIONS, train_command
from dragoman.console import log, print_json


def prepare(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run folder to create, for the settings, the tokenizer and the tokenized corpora."
        ),
    ],
    settings: Annotated[dict[str, Any], TRAIN_OPTIONS],
    config: Annotated[Path | None, "YAML file of settings, as for 'train'."] = None,
    set_settings: Settings = None,
    on: Annotated[
        str,
        "Where the text is cleaned, counted and tokenized: local, ray (a cluster on this machine) or ray://HOST:PORT.",
        "PLACE",
    ] = "local",
    num_workers: Annotated[
        int | None,
        typer.Option(
            help="Number of processes, or with --on ray of Ray tasks, that prepare the text. Default: derived "
            "from the number of cores and the amount of text.",
            min=1,
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            help="Number of processes, usually one per GPU, that will train the run later. If "
            "training.gradient_accumulation is lower, it is raised to this number, so that each process has a batch "
            "per optimizer step.",
            min=1,
        ),
    ] = 1,
    as_json: Json = False,
) -> None:
    """Prepare a training: clean and tokenize the corpora, and choose all settings, without training.

    'dragoman train RUN --resume', also with torchrun, then trains the run. The files are the same for any number of
    workers, here or on a Ray cluster.
    """
    from dragoman import config as configuration

    base = configuration.Config()
    if config:  # settings that were chosen automatically for another run are chosen anew
        base = configuration.without_automatic_settings(configuration.from_yaml(config))
    resolved = configuration.replace_settings(base, settings | configuration.parse_settings(set_settings or []))
    check_training(run, resolved)

    from dragoman.api.train_run import prepare_training
    from dragoman.bulk import executor_from_text

    executor = executor_from_text(on, num_workers)
    # maps a function over parts of the text; None: in local processes, whose number depends on the amount of text
    parallel = None if on == "local" and num_workers is None else executor.map_in_order
    prepared = prepare_training(run, resolved, processes=processes, parallel=parallel)
    log(f"train it with:  {train_command(run)} --resume")
    if as_json:
        print_json(prepared.to_dict())
