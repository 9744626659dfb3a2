"""`dragoman recipe`: list the recipes of tasks, or carry one out from the data to the score."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_training
from dragoman.cli.options import Json, Settings, program_name
from dragoman.cli.recipe_results import (
    RecipeResult,
    SplitFiles,
    evaluate_baseline,
    evaluate_run,
    mean_over_seeds,
    mean_over_variants,
    result_lines,
)
from dragoman.cli.train import finish, resume_run
from dragoman.console import log, print_json, print_lines
from dragoman.data.task_recipes import TRAIN, VALID, TaskRecipe, load_recipe, recipe_names
from dragoman.data.task_recipes.corpus_files import file_address, prepare_splits
from dragoman.errors import UserError, unknown_name
from dragoman.run_files import ensemble_members, is_ensemble_folder, is_run_folder

if TYPE_CHECKING:
    from dragoman.config import Config

#: options of `recipe`, and the settings that they set
RECIPE_OPTIONS = {
    "--system": "system.name",
    "--size": "system.size",
    "--steps": "training.steps",
    "--epochs": "training.epochs",
    "--minutes": "training.minutes",
    "--seed": "training.seed",
    "--device": "training.device",
}
DATA_FOLDER = Path("data")  # of downloaded and generated corpora, each in a folder of its own
BASELINES = ("lead",)  # lead: the first sentence of each source, as its summary


def complete_recipes(incomplete: str) -> list[str]:
    """Shell completion: names of recipes that begin with the typed text."""
    return [name for name in recipe_names() if name.startswith(incomplete)]


def recipe(
    settings: Annotated[dict[str, Any], RECIPE_OPTIONS],
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a task recipe (a TOML file that describes a corpus with its training and scoring), or the "
            "path of a .toml file of your own. Default: list all task recipes.",
            autocompletion=complete_recipes,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="Run folder to create for the trained model. Without it, the task recipe (corpus, settings and "
            "published scores) is printed and nothing is trained.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the files of the corpus, plain or gzipped; missing files are downloaded or generated "
            "there. Default: data/NAME, with the name of the task recipe.",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            "--language",
            help="Variant of the task's corpus to train on: a language, a language pair or a split. The name of a "
            "group of variants, such as medium in the task recipe g2p-2021, trains a separate model on each variant of "
            "the group. Default: the first variant.",
            show_default=False,
        ),
    ] = None,
    all_variants: Annotated[bool, "Train a model on each variant of the corpus, in a subfolder of RUN."] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Train this many models with the random seeds 1, 2, …, each in its own subfolder of the run folder; "
            "print the mean and standard deviation of their scores, and the score of their ensemble.",
            min=2,
            show_default=False,
        ),
    ] = None,
    set_settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Train and score a known task with one command.

    A task recipe names a corpus, settings, metrics and published results. The corpus is taken from --data, downloaded
    or generated. Then the model is trained and scored on the test sets, next to the published figures. The same command
    continues an interrupted run; for a finished one it only scores.
    """
    if name is None:
        _list_recipes(as_json)
        return
    chosen = load_recipe(name)
    if all_variants and variant is not None:
        raise UserError(
            "--all-variants trains a model on each variant of the corpus, so that --variant has no effect: leave out "
            "one of these two options"
        )
    # names of variants of the corpus; empty if there is only one form of it
    variants = list(chosen.variants) if all_variants else chosen.select_variants(variant)
    if run is None:
        _describe(chosen, as_json)
        return

    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "'dragoman recipe' trains in one process: start it without torchrun, or run 'torchrun --nproc-per-node N "
            f"-m dragoman train' with the corpus files and settings of the task that 'dragoman recipe {name}' prints"
        )

    from dragoman import config as configuration
    from dragoman.evaluation import check_metric_names
    from dragoman.evaluation.likelihood import LIKELIHOOD_METRICS

    check_metric_names(chosen.metrics, LIKELIHOOD_METRICS)
    if chosen.baseline and chosen.baseline not in BASELINES:
        raise unknown_name(f"baseline of the task recipe {chosen.name}", chosen.baseline, BASELINES)
    own_settings = settings | configuration.parse_settings(set_settings or [])
    if seeds is not None and "training.seed" in own_settings:
        raise UserError(
            "--seeds N trains runs with the random seeds 1, 2, …, N, so that no seed can be chosen: leave out --seed "
            "and --set training.seed"
        )
    config = configuration.replace_settings(configuration.Config(), chosen.settings | own_settings)
    corpus = data or DATA_FOLDER / chosen.name
    # by variant ("" for the only form): source and target file of each split
    files = {one_variant: prepare_splits(chosen, one_variant, corpus, log) for one_variant in variants or [""]}
    results: list[RecipeResult] = []
    for one_variant, splits in files.items():
        folder = run / one_variant if len(files) > 1 else run
        results += _carry_out(chosen, one_variant, folder, splits, config, own_settings, seeds)
    if len(files) > 1:
        results += mean_over_variants(chosen, variant or "all variants", results)
    if as_json:
        rows = [result.to_dict() for result in results]
        default_variant = next(iter(variants), "")
        chosen_variant = variant or ("all" if all_variants else default_variant)
        print_json({"recipe": chosen.name, "variant": chosen_variant, "run": str(run), "results": rows})
    else:
        print_lines(result_lines(results))


def _carry_out(
    recipe: TaskRecipe,
    variant: str,
    folder: Path,
    files: SplitFiles,
    config: Config,
    own_settings: dict[str, Any],
    seeds: int | None,
) -> list[RecipeResult]:
    """Train a variant of a recipe and score it on its test sets; with several seeds, their mean and their ensemble.

    Args:
        recipe: the task, with its metrics and published scores.
        variant: form of the recipe's corpus, such as a language; "" if there is only one.
        folder: of the run, or of the runs with different seeds.
        files: source and target file of the training, validation and test sets.
        config: settings of a new run.
        own_settings: settings that the user has given; an existing run is continued with them.
        seeds: number of runs with different seeds; None: a single run.
    """
    from dragoman import load

    baseline = evaluate_baseline(recipe, variant, files)
    if seeds is None:
        _train(folder, files, config, own_settings)
        return [*evaluate_run(recipe, variant, load(folder), files), *baseline]
    _train_seeds(folder, files, config, own_settings, seeds)
    runs = [load(member) for member in ensemble_members(folder)]
    results = [result for run in runs for result in evaluate_run(recipe, variant, run, files)]
    means = mean_over_seeds(results, len(runs))
    if not runs[0].model.can_generate:  # taggers have no ensemble
        return [*means, *baseline]
    ensemble = evaluate_run(recipe, variant, runs[0].ensemble(*runs[1:]), files)
    ensemble_results = [replace(result, system=f"ensemble of {len(runs)} seeds") for result in ensemble]
    return [*means, *ensemble_results, *baseline]


def _train_seeds(folder: Path, files: SplitFiles, config: Config, own_settings: dict[str, Any], seeds: int) -> None:
    """Train runs with different seeds, as 'train --seeds' does, or continue them; an interruption ends the program.

    `files` are the training and validation files of the recipe, `seeds` is the number of runs. New runs have the
    settings `config`; existing ones get the user's `own_settings`.
    """
    from dragoman.api.seed_training import resume_seeds, start_seeds
    from dragoman.config import replace_settings

    if is_ensemble_folder(folder):
        _check_same_data(folder, files)
        outcome = resume_seeds(folder, own_settings, seeds)
    else:
        config = replace_settings(config, _data_settings(files))
        check_training(folder, config)
        folder.parent.mkdir(parents=True, exist_ok=True)
        outcome = start_seeds(folder, config, seeds)
    if outcome.interrupted:
        raise typer.Exit(130)


def _train(run: Path, files: SplitFiles, config: Config, own_settings: dict[str, Any]) -> None:
    """Train a run on the training and validation files of a recipe, or continue it; an interruption ends the program.

    A new run has the settings `config`; an existing one gets the user's `own_settings`.
    """
    from dragoman.config import replace_settings

    if is_run_folder(run):
        _check_same_data(run, files)
        outcome = resume_run(run, own_settings)
    else:
        config = replace_settings(config, _data_settings(files))
        check_training(run, config)
        from dragoman.api.train_run import start_training

        run.parent.mkdir(parents=True, exist_ok=True)
        outcome = start_training(run, config)
    assert outcome is not None  # there is one process
    finish(run, outcome, as_json=False)
    if outcome.interrupted:
        raise typer.Exit(130)


def _check_same_data(run: Path, files: SplitFiles) -> None:
    """Raise a UserError if an existing run (or ensemble of runs) was trained on other source files than the recipe's.

    `files` are the source and target file of each split: training, validation and test sets.
    """
    from dragoman import config as configuration
    from dragoman.run_files import CONFIG_FILE

    trained_files = configuration.from_yaml(run / CONFIG_FILE).data.source
    recipe_files = tuple(_data_settings(files)["data.source"])
    if trained_files != recipe_files:
        raise UserError(
            f"the run in {run} was trained on the file {', '.join(trained_files)}, but the training file of this "
            f"task is {', '.join(recipe_files)}: name a new folder as RUN, or the same corpus with --data and "
            "--variant"
        )


def _data_settings(files: SplitFiles) -> dict[str, Any]:
    """Return the settings that name the files of the training and validation set, such as "data.valid_source".

    Paths are absolute. There are none for a missing validation set, or for a target that is in the source file.
    """
    settings: dict[str, Any] = {}
    for split, prefix in ((TRAIN, "data."), (VALID, "data.valid_")):
        for side, path in zip(("source", "target"), files.get(split, ())):
            if path is not None:
                settings[f"{prefix}{side}"] = [str(path.resolve())]
    return settings


def _list_recipes(as_json: bool) -> None:
    """Print a table of all recipes with their published and our measured scores, or a JSON list.

    A recipe has a row for each variant of its corpus (such as a language) and each test set with a score by its first
    metric. If there are means over a group of variants, only these are shown. In the table, task and size are in the
    first row of a recipe only; JSON has them in each.
    """
    from dragoman.evaluation import format_table

    rows = []
    for name in recipe_names():
        recipe = load_recipe(name)
        metric = recipe.metrics[0]
        scored = {(score.variant, score.test) for score in recipe.figures_of(metric)}
        group_means = {(variant, test) for variant, test in scored if variant in recipe.groups}
        # without scores there is one row: for the default variant and the first test set, both written as ""
        variants_and_tests = sorted(group_means or scored, key=recipe.figure_order) or [("", "")]
        for index, (variant, test) in enumerate(variants_and_tests):
            published = recipe.figures(metric, test, variant, measured=False)
            measured = recipe.figures(metric, test, variant, measured=True)
            is_first = index == 0 or as_json
            rows.append(
                {
                    "recipe": name,
                    "task": recipe.task if is_first else None,
                    "train / valid / test": recipe.size if is_first else None,
                    "variant": _variant_name(recipe, variant) or None,
                    "test set": test or recipe.test_sets[0],
                    "metric": metric,
                    "published": ", ".join(f"{score.value:g}" for score in published) or None,
                    "ours": ", ".join(f"{score.value:g}" for score in measured) or None,
                    "data": _origin(recipe),
                }
            )
    if as_json:
        print_json(rows)
        return
    print(format_table(rows))
    log(f"\ndescribe one: {program_name()} recipe NAME; run one: {program_name()} recipe NAME RUN [--data FOLDER]")


def _variant_name(recipe: TaskRecipe, variant: str) -> str:
    """Return the name of the corpus variant, such as a language, that a published score belongs to.

    A group of variants stands for the mean of their scores; "" is the default variant.
    """
    return f"mean of {variant}" if variant in recipe.groups else variant or recipe.default_variant


def _origin(recipe: TaskRecipe) -> str:
    """Return where the corpus of a recipe comes from: "generated", "download", or a folder that the user must name."""
    if recipe.generator:
        return "generated"
    return "download" if _is_downloadable(recipe) else "--data FOLDER"


def _is_downloadable(recipe: TaskRecipe) -> bool:
    """Whether the recipe has an address from which to download each file of the corpus, in its default variant."""
    splits = [recipe.split(name, recipe.default_variant) for name in recipe.splits]
    names = [name for split in splits for name in (split.source, split.target) if name]
    return all(file_address(recipe, name) for name in names)


def _describe(recipe: TaskRecipe, as_json: bool) -> None:
    """Print everything about a recipe: corpus, files, settings, published scores, and scores measured by us.

    A recipe is a known task with its corpus; empty facts are left out. With `as_json` all fields are printed as JSON.
    """
    if as_json:
        print_json(asdict(recipe))
        return
    facts = {
        "task": recipe.task,
        "shows": recipe.shows,
        "corpus": recipe.corpus,
        "size": f"{recipe.size} (train / valid / test)",
        "licence": recipe.licence,
        "homepage": recipe.homepage,
        "obtain": recipe.obtain,
        "variants": ", ".join(recipe.variants),
        "groups": "; ".join(f"{name} ({len(variants)} variants)" for name, variants in recipe.groups.items()),
        "metrics": ", ".join(recipe.metrics),
        "settings": ", ".join(f"{name}={value}" for name, value in recipe.settings.items()) or "defaults",
    }
    print(recipe.name)
    print_lines(f"  {fact + ':':11}{text}" for fact, text in facts.items() if text)
    print_lines(  # the target is empty if the source file has both sides
        f"  {split + ':':11}{' and '.join(filter(None, (files.source, files.target)))}"
        for split, files in recipe.splits.items()
    )
    for kind, figures in (("published", recipe.published), ("measured", recipe.measured)):
        for figure in figures:
            where = ", ".join(filter(None, (figure.variant, figure.test)))
            print(
                f"  {kind + ':':11}{figure.metric} {figure.value:g}{f' on {where}' if where else ''} ({figure.origin})"
            )
