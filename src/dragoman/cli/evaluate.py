"""`dragoman evaluate`: the scores of a test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.evaluating import PSEUDO, TRANSLATION, Evaluation, TestSet
from dragoman.cli.inputs import FileLayout, Format, SourceKey, TargetKey, check_counts, read_lines
from dragoman.cli.options import Checkpoint, Device, Json, print_json
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory

if TYPE_CHECKING:
    from dragoman.evaluation import MetricScore


def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="The run folder; none with --hypothesis.", show_default=False),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Source text of the test set, or TSV or JSON lines with references.", show_default=False),
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(help="Its translations. Repeat it for several references.", show_default=False),
    ] = None,
    hypothesis: Annotated[
        list[Path] | None,
        typer.Option(
            help="Score these translations, made elsewhere. Repeat it to compare systems with the first.",
            show_default=False,
        ),
    ] = None,
    measures: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: bleu, chrf, chrf++, ter, exact, accuracy, wer, per, ier, perplexity, "
            "word-perplexity, bits-per-character, pseudo-perplexity. By default what suits the run."
        ),
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(help="Gold word alignments (0-0 1-2): adds the alignment error rate of forced translations."),
    ] = None,
    by_length: Annotated[bool, typer.Option("--by-length", help="Add a table of quality by source length.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the translations here.")] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the beam; 1 is greedy search.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="α of log p(y|x) / |y|^α.")] = None,
    format: Format = "",
    source_key: SourceKey = None,
    target_key: TargetKey = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Translate or tag a test set and score it, or score translations made elsewhere.

    Every score comes with its signature. With several references BLEU, chrF and TER are sacreBLEU's, exact match
    accepts any, error rates take the nearest, and perplexity is of all of them. A language model is given text alone,
    and its perplexity is computed, END of every line included.
    """
    from dragoman import evaluation

    names = [name.strip() for name in (measures or "").split(",") if name.strip()]
    evaluation.check_metric_names(names, (*evaluation.LIKELIHOOD_METRICS, PSEUDO))
    if (run is None) == (not hypothesis):
        raise UserError("name a run to evaluate, or translations that were made elsewhere with --hypothesis")
    options = {"--output": output, "--beam": beam, "--length-penalty": length_penalty, "--alignments": alignments}
    if hypothesis and (wrong := [name for name, value in options.items() if value is not None]):
        raise UserError(f"{wrong[0]} is for translations that a run makes: leave it out with --hypothesis")
    if output is not None and not output.parent.is_dir():
        raise UserError(f"{output} cannot be written: there is no folder {output.parent}, make it first")
    if run is not None:
        check_run(run, checkpoint, device)
    test = TestSet.read(source, reference or [], FileLayout(format, source_key, target_key))
    if by_length and not (test.sources and all(isinstance(text, str) for text in test.sources)):
        raise UserError("quality by the length of the source needs sources of text: name them with --source")
    gold = None if alignments is None else test.read_alignments(alignments)
    if hypothesis:
        texts = [read_lines(path, FileLayout(format)) for path in hypothesis]
        check_counts([*test.counts, *((path, len(lines)) for path, lines in zip(hypothesis, texts))])
        _score_hypotheses(hypothesis, texts, test, names or list(TRANSLATION), by_length, as_json)
        return
    assert run is not None
    from dragoman import load

    keep_freed_memory()
    evaluated = Evaluation(test, names, gold, output)
    evaluated.run(load(run, checkpoint, device), beam, length_penalty)
    _print([(None, evaluated.scores, evaluated.hypotheses)], test, by_length, as_json)


def _score_hypotheses(
    files: list[Path], texts: list[list[str]], test: TestSet, names: list[str], by_length: bool, as_json: bool
) -> None:
    """Scores of translations made elsewhere; of several, each is compared with the first by a paired bootstrap."""
    from dragoman import evaluation

    if not any(test.references):
        raise UserError("hypotheses are compared with references: name them with --reference")
    if wrong := [name for name in names if name not in evaluation.METRICS]:
        raise UserError(f"{wrong[0]} is computed by a model: name a run, and no --hypothesis")
    scored = [list(evaluation.evaluate(names, some, test.references).values()) for some in texts]
    tested = [name for name in names if name in ("bleu", "chrf", "ter")]
    comparisons = {
        str(file): evaluation.paired_bootstrap(texts[0], some, test.references, metrics=tested)
        for file, some in zip(files[1:], texts[1:])
        if tested
    }
    systems = [(str(file), scores, some) for file, scores, some in zip(files, scored, texts)]
    _print(systems, test, by_length, as_json, comparisons)


def _print(
    systems: Sequence[tuple[str | None, list[MetricScore], list[str] | None]],
    test: TestSet,
    by_length: bool,
    as_json: bool,
    comparisons: dict[str, list[Any]] | None = None,
) -> None:
    from dragoman import evaluation

    def bands(hypotheses: list[str] | None) -> list[dict[str, Any]]:
        if not by_length or hypotheses is None or test.sources is None:
            return []
        return [band._asdict() for band in evaluation.score_by_length(test.sources, hypotheses, test.references)]

    documents: list[dict[str, Any]] = [
        ({} if name is None else {"hypothesis": name})
        | {"scores": [asdict(score) for score in scores], "by_length": bands(hypotheses)}
        for name, scores, hypotheses in systems
    ]
    compared = {name: [row._asdict() for row in rows] for name, rows in (comparisons or {}).items()}
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"systems": documents, "comparisons": compared})
        return
    for (name, scores, _), document in zip(systems, documents):
        if len(systems) > 1:
            print(f"{name}:")
        for score in scores:
            print(score)
        if document["by_length"]:
            print()
            print(evaluation.format_table(document["by_length"]))
    for name, rows in compared.items():
        print(f"\n{name} against {systems[0][0]}, paired bootstrap:")
        print(
            evaluation.format_table([{key: value for key, value in row.items() if key != "signature"} for row in rows])
        )
