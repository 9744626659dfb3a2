"""`dragoman recipe`: list the recipes of tasks, or carry one out from the data to the score."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_training
from dragoman.cli.inputs import FileLayout, read_pairs
from dragoman.cli.options import Json, Settings, program_name
from dragoman.cli.train import finish, resume_run
from dragoman.console import log, print_json, print_lines
from dragoman.data.task_recipes import TRAIN, VALID, TaskFigure, TaskRecipe, load_recipe, recipe_names
from dragoman.data.task_recipes.corpus_files import file_address, prepare_splits
from dragoman.errors import UserError, unknown_name
from dragoman.run_files import is_run_folder

if TYPE_CHECKING:
    from dragoman.evaluation import MetricScore

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
BASELINES = ("lead",)


def complete_recipes(incomplete: str) -> list[str]:
    """Shell completion: recipes with this beginning."""
    return [name for name in recipe_names() if name.startswith(incomplete)]


def recipe(
    settings: Annotated[dict[str, Any], RECIPE_OPTIONS],
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a recipe, or a .toml file of your own. Default: list all recipes.",
            autocompletion=complete_recipes,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Folder to create for the run. Default: describe the recipe only."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the corpus, files plain or gzipped; missing files are downloaded or generated there. "
            "Default: data/NAME.",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[str | None, "Variant of the corpus, such as a language pair. Default: the first one."] = None,
    set_settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Train and score a known task with one command.

    A recipe names a corpus, settings, metrics and published results. The corpus is taken from --data, downloaded or
    generated. Then the model is trained and scored on the test sets, next to the published figures. The same command
    continues an interrupted run; for a finished one it only scores.
    """
    if name is None:
        _list_recipes(as_json)
        return
    chosen = load_recipe(name)
    variant = chosen.check_variant(variant)
    if run is None:
        _describe(chosen, as_json)
        return

    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("a recipe runs in one process: leave out torchrun, or use 'dragoman train' with the same files")

    from dragoman import config as configuration
    from dragoman.evaluation import check_metric_names
    from dragoman.evaluation.likelihood import LIKELIHOOD_METRICS

    check_metric_names(chosen.metrics, LIKELIHOOD_METRICS)
    if chosen.baseline and chosen.baseline not in BASELINES:
        raise unknown_name(f"baseline of the recipe {chosen.name}", chosen.baseline, BASELINES)
    own_settings = settings | configuration.parse_settings(set_settings or [])
    config = configuration.replace_settings(configuration.Config(), chosen.settings | own_settings)
    folder = data or DATA_FOLDER / chosen.name
    files = prepare_splits(chosen, variant, folder, log)
    if is_run_folder(run):
        _check_same_data(run, files)
        outcome = resume_run(run, own_settings)
    else:
        config = configuration.replace_settings(config, _data_settings(files))
        check_training(run, config)
        from dragoman.api.train_run import start_training

        outcome = start_training(run, config)
    assert outcome is not None  # there is one process
    finish(run, outcome, as_json=False)
    if outcome.interrupted:
        raise typer.Exit(130)
    results = _evaluate(chosen, variant, run, files)
    if as_json:
        rows = [result.to_dict() for result in results]
        print_json({"recipe": chosen.name, "variant": variant, "run": str(run), "results": rows})
    else:
        print_lines(_result_lines(results))


def _check_same_data(run: Path, files: dict[str, tuple[Path, Path | None]]) -> None:
    """Raise a UserError if an existing run was trained on other files than those of the recipe."""
    from dragoman import config as configuration
    from dragoman.run_files import CONFIG_FILE

    trained = configuration.from_yaml(run / CONFIG_FILE).data.source
    if trained != tuple(_data_settings(files)["data.source"]):
        raise UserError(f"{run} was trained on {', '.join(trained)}, not on this corpus: choose another folder")


def _data_settings(files: dict[str, tuple[Path, Path | None]]) -> dict[str, Any]:
    """Return the settings that name the files of the training and validation set, as absolute paths."""
    settings: dict[str, Any] = {}
    for split, prefix in ((TRAIN, "data."), (VALID, "data.valid_")):
        if split in files:
            for side, path in zip(("source", "target"), files[split]):
                settings |= {f"{prefix}{side}": [str(path.resolve())]} if path else {}
    return settings


@dataclass(frozen=True)
class RecipeResult:
    """A score on a test set, next to the published and our earlier figures."""

    test: str
    system: str  # "this run", or a baseline
    score: MetricScore
    published: Sequence[TaskFigure] = ()
    measured: Sequence[TaskFigure] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return asdict(self)

    def row(self) -> dict[str, Any]:
        """Return the result as a row of a table."""
        return {
            "test set": self.test,
            "system": self.system,
            "metric": f"{self.score.name}{f' ({self.score.unit})' if self.score.unit else ''}",
            "score": self.score.value,
            "published": ", ".join(f"{figure.value:g}" for figure in self.published) or None,
            "ours": ", ".join(f"{figure.value:g}" for figure in self.measured) or None,
        }


def _evaluate(
    recipe: TaskRecipe, variant: str, run: Path, files: dict[str, tuple[Path, Path | None]]
) -> list[RecipeResult]:
    """Score the run, and the baseline if the recipe has one, on every test set."""
    from dragoman import evaluation, load
    from dragoman.api.evaluate_run import evaluate

    loaded = load(run)
    results = []
    for test in recipe.test_sets:
        sources, references = _read_test_set(
            *files[test], FileLayout().for_run(run), recipe.splits[test].group_by_source
        )
        for metric, score in evaluate(loaded, sources, references, recipe.metrics).scores.items():
            published = recipe.figures(metric, test, variant)
            measured = recipe.figures(metric, test, variant, measured=True)
            results.append(RecipeResult(test, "this run", score, published, measured))
        if recipe.baseline and references is not None:
            scores = evaluation.evaluate(recipe.metrics, evaluation.lead_sentences(sources), references)
            results += [RecipeResult(test, "first sentence", score) for score in scores.values()]
    return results


def _read_test_set(
    source: Path, target: Path | None, layout: FileLayout, group_by_source: bool
) -> tuple[list[Any], list[list[str]] | None]:
    """Read the sources of a test set and the references of each; no references for monolingual text."""
    from dragoman.data.corpus import Corpus
    from dragoman.data.data_formats import has_references

    if not has_references(Corpus(source, target)):
        return [pair.source for pair in Corpus(source).read_sources()], None
    sources, targets = read_pairs(source, target, layout)
    if not group_by_source:
        return sources, [[text] for text in targets]
    grouped: dict[str, list[str]] = {}
    for text, reference in zip(sources, targets):
        grouped.setdefault(text, []).append(reference)
    return list(grouped), list(grouped.values())


def _result_lines(results: list[RecipeResult]) -> Iterator[str]:
    """Yield the table of results, the origin of the other figures, and the signatures that are needed to quote it."""
    from dragoman.evaluation import format_table

    yield "\n" + format_table([result.row() for result in results])
    for result in results:
        for kind, figures in (("published", result.published), ("ours", result.measured)):
            for figure in figures:
                yield f"{kind} {figure.value:g} ({result.test}, {result.score.name}): {figure.origin}"
    for name, signature in {result.score.name: result.score.signature for result in results}.items():
        if signature:
            yield f"signature of {name}: {signature}"


def _list_recipes(as_json: bool) -> None:
    """Print all recipes with the first metric, its published and our figure on the first test set."""
    from dragoman.evaluation import format_table

    rows = []
    for name in recipe_names():
        recipe = load_recipe(name)
        metric = recipe.metrics[0]
        published, measured = recipe.figures(metric), recipe.figures(metric, measured=True)
        rows.append(
            {
                "recipe": name,
                "task": recipe.task,
                "corpus": recipe.corpus,
                "train / valid / test": recipe.size,
                "metric": metric,
                "published": ", ".join(f"{figure.value:g}" for figure in published) or None,
                "ours": ", ".join(f"{figure.value:g}" for figure in measured) or None,
                "data": "generated" if recipe.generator else "download" if _downloadable(recipe) else "--data FOLDER",
            }
        )
    if as_json:
        print_json(rows)
        return
    print(format_table(rows))
    log(f"\ndescribe one: {program_name()} recipe NAME; run one: {program_name()} recipe NAME RUN [--data FOLDER]")


def _downloadable(recipe: TaskRecipe) -> bool:
    """Whether all files of the default variant have a known address."""
    splits = [recipe.split(name, recipe.default_variant) for name in recipe.splits]
    names = [name for split in splits for name in (split.source, split.target) if name]
    return all(file_address(recipe, name) for name in names)


def _describe(recipe: TaskRecipe, as_json: bool) -> None:
    """Print everything about a recipe: corpus, files, settings and figures."""
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
        "metrics": ", ".join(recipe.metrics),
        "settings": ", ".join(f"{name}={value}" for name, value in recipe.settings.items()) or "defaults",
    }
    print(recipe.name)
    print_lines(f"  {fact + ':':11}{text}" for fact, text in facts.items() if text)
    print_lines(
        f"  {split + ':':11}{' and '.join(filter(None, (files.source, files.target)))}"
        for split, files in recipe.splits.items()
    )
    for kind, figures in (("published", recipe.published), ("measured", recipe.measured)):
        for figure in figures:
            where = ", ".join(filter(None, (figure.variant, figure.test)))
            print(
                f"  {kind + ':':11}{figure.metric} {figure.value:g}{f' on {where}' if where else ''} ({figure.origin})"
            )
