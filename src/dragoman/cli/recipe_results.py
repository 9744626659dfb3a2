"""Results of recipes: scores of a run on every test set, means over seeds and variants, and their tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.cli.inputs import FileLayout, PairFormat, SourceFormat, read_pairs
from dragoman.data.task_recipes import TaskFigure, TaskRecipe

if TYPE_CHECKING:
    from dragoman.evaluation import MetricScore
    from dragoman.run import Run

SplitFiles = dict[str, tuple[Path, Path | None]]  # source file and target file (None: in the source file) of each split
THIS_RUN = "this run"  # name of the trained run in the column "system"


@dataclass(frozen=True)
class RecipeResult:
    """A score on a test set, next to the published and our earlier figures.

    Attributes:
        test: name of the test set.
        metric: name of the metric, as in the recipe.
        system: "this run", a baseline, or a mean or ensemble of several runs.
        variant: variant of the corpus, or the name of several ones; empty if there is only one form of it.
        category: part of the test set; empty for the whole set.
        deviation: standard deviation over seeds; None for a single run.
        published, measured: published scores, and our earlier ones, by the same metric on the same test set.
    """

    test: str
    metric: str
    system: str
    score: MetricScore
    variant: str = ""
    category: str = ""
    deviation: float | None = None
    published: Sequence[TaskFigure] = ()
    measured: Sequence[TaskFigure] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return asdict(self)

    def row(self) -> dict[str, Any]:
        """Return the result as a row of a table: column name → value. "±" is the standard deviation over seeds."""
        return {
            "variant": self.variant or None,
            "test set": self.test,
            "category": self.category or None,
            "system": self.system,
            "metric": f"{self.score.name}{f' ({self.score.unit})' if self.score.unit else ''}",
            "score": self.score.value,
            "±": self.deviation,
            "published": ", ".join(f"{figure.value:g}" for figure in self.published) or None,
            "ours": ", ".join(f"{figure.value:g}" for figure in self.measured) or None,
        }


def evaluate_run(recipe: TaskRecipe, variant: str, run: Run, files: SplitFiles) -> list[RecipeResult]:
    """Score a run on every test set of a variant of the corpus, by all metrics of the recipe.

    If the recipe names a column of the test file with the category of each line, every category is scored as well, by
    the first metric of texts. `files` are the source and target file of each test set; `variant` is "" if the corpus
    has only one form.
    """
    from dragoman import evaluation
    from dragoman.api.evaluate_run import evaluate

    results = []
    for test in recipe.test_sets:
        test_set = _read_test_set(recipe, test, files, FileLayout().for_run(run.folder))
        evaluated = evaluate(run, test_set.sources, test_set.references, recipe.metrics)
        for metric in recipe.metrics:
            result = RecipeResult(test, metric, THIS_RUN, score=evaluated.scores[metric], variant=variant)
            results.append(_with_figures(result, recipe))
        column = recipe.splits[test].category_column
        if column is not None and evaluated.hypotheses is not None:
            metric = next(filter(evaluation.is_text_metric, recipe.metrics))  # the hypotheses were made for it
            categories = _read_column(files[test][0], column)  # of each line
            items: dict[str, list[int]] = {}  # indices by category; an item may have lines of several categories
            for index, lines in enumerate(test_set.lines):
                for category in {categories[line] for line in lines}:
                    items.setdefault(category, []).append(index)
            for category, indices in sorted(items.items()):
                sources = [test_set.sources[index] for index in indices]
                hypotheses = [evaluated.hypotheses[index] for index in indices]
                expected = [evaluated.references[index] for index in indices]
                (score,) = evaluation.evaluate([metric], hypotheses, expected, sources).values()
                result = RecipeResult(test, metric, THIS_RUN, score, variant=variant, category=category)
                results.append(result)
    return results


def evaluate_baseline(recipe: TaskRecipe, variant: str, files: SplitFiles) -> list[RecipeResult]:
    """Score a baseline of summarization, the first sentence of each source, on every test set by all metrics of texts.

    There are no results if the recipe has no baseline. `files` are the source and target file of each test set;
    `variant` is the variant of the corpus, "" if there is only one.
    """
    from dragoman import evaluation

    results = []
    for test in recipe.test_sets if recipe.baseline else ():
        sources, references, _ = _read_test_set(recipe, test, files, PairFormat())
        metrics = filter(evaluation.is_text_metric, recipe.metrics)
        scores = evaluation.evaluate(metrics, evaluation.lead_sentences(sources), references or [], sources)
        for metric, score in scores.items():
            results.append(RecipeResult(test, metric, system="first sentence", score=score, variant=variant))
    return results


def mean_over_seeds(results: Sequence[RecipeResult], num_seeds: int) -> list[RecipeResult]:
    """Return mean and standard deviation over the seeds of each variant, test set, metric and category.

    `results` are those of all runs, in the order of the seeds; the means have the order of the first run. There are at
    least two runs, `num_seeds`.
    """
    grouped: dict[tuple[str, ...], list[RecipeResult]] = {}
    for result in results:
        grouped.setdefault((result.variant, result.test, result.metric, result.category), []).append(result)
    means = []
    for by_seed in grouped.values():
        values = [result.score.value for result in by_seed]
        first, deviation = by_seed[0], statistics.stdev(values)
        score = replace(first.score, value=statistics.fmean(values), detail={})  # details, such as counts, have no mean
        means.append(replace(first, system=f"mean of {num_seeds} seeds", score=score, deviation=deviation))
    return means


def mean_over_variants(recipe: TaskRecipe, name: str, results: Sequence[RecipeResult]) -> list[RecipeResult]:
    """Return the mean of each metric, system and test set over several variants of the corpus, such as languages.

    `name` is the name of the group of variants, under which the recipe has published means, or "all variants". Results
    on a category, a part of a test set, are left out.
    """
    grouped: dict[tuple[str, ...], list[RecipeResult]] = {}
    for result in results:
        if not result.category:
            grouped.setdefault((result.system, result.test, result.metric), []).append(result)
    means = []
    for by_variant in grouped.values():
        first, value = by_variant[0], statistics.fmean(result.score.value for result in by_variant)
        mean = replace(first, variant=f"mean of {name}", score=replace(first.score, value=value, detail={}))
        # the deviation and the published scores are those of a single variant
        means.append(_with_figures(replace(mean, deviation=None, published=(), measured=()), recipe, name))
    return means


def _with_figures(result: RecipeResult, recipe: TaskRecipe, variant: str | None = None) -> RecipeResult:
    """Return the result with the published scores and our earlier ones by the same metric on the same test set.

    `variant` is the variant of the corpus, or the name of a group of variants, whose scores are looked up in the
    recipe; None: that of the result.
    """
    variant = result.variant if variant is None else variant
    return replace(
        result,
        published=recipe.figures(result.metric, result.test, variant),
        measured=recipe.figures(result.metric, result.test, variant, measured=True),
    )


class _TestSet(NamedTuple):
    """The items of a test set: sources, references of each (None for monolingual text), and lines of each (from 0)."""

    sources: list[Any]
    references: list[list[str]] | None
    lines: list[list[int]]


def _read_test_set(recipe: TaskRecipe, test: str, files: SplitFiles, layout: PairFormat) -> _TestSet:
    """Read the test set that is called `test` in `files`, which have the format `layout`.

    A line is an item. If the recipe groups lines with the same source, they are one item with several references.
    `files` has the source file of each test set, and its target file, None if the source file has both sides.
    """
    from dragoman.data.data_formats import has_references

    source, target = files[test]
    if not has_references(layout.corpus(source, target)):
        texts = [pair.source for pair in layout.corpus(source).read_sources()]
        return _TestSet(texts, references=None, lines=[[line] for line in range(len(texts))])
    sources, targets = read_pairs(source, target, layout)
    lines = [[line] for line in range(len(sources))]
    if recipe.splits[test].group_by_source:
        by_source: dict[str, list[int]] = {}
        for line, text in enumerate(sources):
            by_source.setdefault(text, []).append(line)
        lines = list(by_source.values())
    references = [[targets[line] for line in item] for item in lines]
    return _TestSet([sources[item[0]] for item in lines], references, lines)


def _read_column(path: Path, column: int) -> list[str]:
    """Return the values of a column of a TSV or CSV file; columns are counted from 0."""
    # the column is read as if it were that of the sources
    return [pair.source for pair in SourceFormat(source_column=str(column)).corpus(path).read_sources()]


def result_lines(results: Sequence[RecipeResult]) -> Iterator[str]:
    """Yield the tables of results as text, then where published and our earlier scores come from, then signatures.

    A signature says how a metric was computed, which is needed to quote the score.
    """
    from dragoman.evaluation import format_table

    for has_category in (False, True):  # whole test sets, then parts of them
        rows = [result.row() for result in results if bool(result.category) is has_category]
        if not rows:
            continue
        always_shown = () if has_category else ("published", "ours")  # even if all rows are empty there
        columns = [name for name in rows[0] if name in always_shown or any(row[name] is not None for row in rows)]
        yield "\n" + format_table([{name: row[name] for name in columns} for row in rows])
    has_variants = len({result.variant for result in results}) > 1
    origins: dict[str, None] = {}  # an ordered set of lines
    for result in results:
        where = ", ".join(filter(None, (result.variant if has_variants else "", result.test, result.score.name)))
        for kind, figures in (("published", result.published), ("ours", result.measured)):
            origins |= {f"{kind} {figure.value:g} ({where}): {figure.origin}": None for figure in figures}
    yield from origins
    for name, signature in {result.score.name: result.score.signature for result in results}.items():
        if signature:
            yield f"signature of {name}: {signature}"
