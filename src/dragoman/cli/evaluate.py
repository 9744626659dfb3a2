"""`dragoman evaluate`: score a run, or translations of other systems, on a test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.api import PSEUDO_PERPLEXITY
from dragoman.cli.inputs import FileLayout, Input, check_counts, group_by_source, read_pairs, read_texts
from dragoman.cli.options import BeamSize, Json, LengthPenalty, ModelOptions, beam_config, choose_languages
from dragoman.console import log, print_json
from dragoman.errors import UserError, unknown_name
from dragoman.memory import keep_freed_memory

if TYPE_CHECKING:
    from dragoman.evaluation import Link, MetricScore, PairedTestResult


def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="Run folder of the model to evaluate; omit it to score translations of another system "
            "(--hypothesis or --lead).",
        ),
    ] = None,
    source: Annotated[
        Path | None, "Sources of the test set, or a file with sources and references, such as TSV or CSV."
    ] = None,
    reference: Annotated[list[Path] | None, "File of reference translations. Repeat for several."] = None,
    hypothesis: Annotated[
        list[Path] | None, "Score these translations instead of a run's. Repeat to compare systems with the first."
    ] = None,
    lead: Annotated[
        bool, "Score the first sentence of each source, a baseline of summarization; it precedes any --hypothesis."
    ] = False,
    metrics: Annotated[
        str | None,
        "Comma-separated: bleu (or bleu=TOKENIZER, such as bleu=ja-mecab), chrf, chrf++, ter, rouge-1, rouge-2, "
        "rouge-l (with -stem: of English stems), comet (or comet=MODEL_FOLDER), exact-match, accuracy, span-f1, "
        "bracket-f1, the error rates wer (of words), ser (symbols), per (phonemes), cer (characters) and ier (items), "
        "perplexity, word-perplexity, bits-per-character, pseudo-perplexity. Default: those that suit the run and the "
        "references.",
    ] = None,
    against: Annotated[
        Path | None, "Another run, or a file of translations: test whether the scores differ significantly."
    ] = None,
    test: Annotated[
        str, "Significance test of --against and of several --hypothesis: bootstrap or randomization."
    ] = "bootstrap",
    resamples: Annotated[
        int,
        typer.Option(
            help="Number of bootstrap resamples, or of trials of approximate randomization, in the significance "
            "test (--test).",
            min=2,
        ),
    ] = 1000,
    alignments: Annotated[
        Path | None, "Gold word alignments, line by line (0-0 1-2: source-target word, from 0): adds the error rate."
    ] = None,
    by_length: Annotated[bool, "Add a table of scores by source length."] = False,
    grouped: Annotated[
        bool,
        typer.Option(
            "--group-by-source",
            help="Treat all lines with the same source as one test item with several accepted references, such as "
            "the pronunciations of a word.",
        ),
    ] = False,
    output: Annotated[Path | None, "Write the translations to this file."] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    *,
    layout: FileLayout,
    as_json: Json = False,
    model: ModelOptions,
) -> None:
    """Translate or tag a test set and score the result, or score translations of other systems.

    Every score is printed with its signature. With several references, BLEU, chrF and TER follow sacreBLEU, exact
    match accepts any reference, error rates use the closest one, and perplexity is over all of them. A language model
    needs text only; its perplexity includes the EOS of every line.
    """
    from dragoman import evaluation

    names = [name.strip() for name in (metrics or "").split(",") if name.strip()]
    evaluation.check_metric_names(names, (*evaluation.LIKELIHOOD_METRICS, PSEUDO_PERPLEXITY))
    if (run is None) != bool(hypothesis or lead):
        found = "neither" if run is None else "both"
        raise UserError(
            "expected either the run folder of a model to evaluate, or translations to score (--hypothesis FILE, or "
            f"--lead for the first sentence of each source), but got {found}: give one of the two"
        )
    run_options = {
        "--output": output,
        "--beam-size": beam_size,
        "--length-penalty": length_penalty,
        "--alignments": alignments,
        "--against": against,
    }
    _check_options(run, run_options, output, test, against, metrics=names)
    if run is not None:
        model.check(run)
    layout = layout.for_run(run)
    test_set = read_test_set(source, reference or [], layout)
    if grouped:
        test_set = test_set.grouped()
    if by_length and not (test_set.sources and all(isinstance(text, str) for text in test_set.sources)):
        raise UserError("--by-length groups scores by the length of the source: name the source texts with --source")
    gold = None if alignments is None else test_set.read_alignments(alignments)
    printer = ScorePrinter(test_set, by_length, as_json, test)
    if run is None:
        _evaluate_files(hypothesis or [], lead, layout, test_set, names, resamples, printer)
        return
    from dragoman.api.evaluate_run import evaluate as evaluate_run
    from dragoman.storage import write_file

    baseline: Path | list[str] | None = against
    if against is not None and not against.is_dir():
        baseline = test_set.read_hypotheses(against, layout)
    keep_freed_memory()  # in the process, which makes translation on a CPU faster
    loaded = choose_languages(model.load(run), layout.source_language, layout.target_language)
    has_search = beam_size is not None or length_penalty is not None
    result = evaluate_run(
        loaded,
        test_set.sources or [],
        test_set.references,
        names,
        search=beam_config(loaded, beam_size, length_penalty) if has_search else None,
        alignments=gold,
        translate=output is not None,
        against=baseline,
        test=test,
        resamples=resamples,
    )
    if output is not None:
        write_file(output, "".join(f"{text}\n" for text in result.hypotheses or []))
    comparisons = {str(run): result.comparisons} if against is not None else {}
    printer([(None, list(result.scores.values()), result.hypotheses)], str(against), comparisons)


def _check_options(
    run: Path | None,
    run_options: Mapping[str, Any],
    output: Path | None,
    test: str,
    against: Path | None,
    metrics: list[str],
) -> None:
    """Raise a UserError for wrong options, and options that contradict each other, before any file is read.

    `run` is None if files of translations are scored. `run_options` are the options that need a run, by name, None if
    they are not given. The others are the values of --output, --test, --against and --metrics (empty: not given).
    """
    from dragoman import evaluation

    if run is None and (unused := [name for name, value in run_options.items() if value is not None]):
        raise UserError(
            f"{unused[0]} applies to the translations of a run: leave it out with --hypothesis, which scores a file, "
            "or with --lead, which scores the first sentence of each source"
        )
    if output is not None and not output.parent.is_dir():
        raise UserError(f"{output} cannot be written: create the folder {output.parent} first")
    if test not in evaluation.PAIRED_TESTS:
        raise unknown_name("value of --test", test, evaluation.PAIRED_TESTS)
    if against is not None and metrics and not any(map(evaluation.is_text_metric, metrics)):
        raise UserError(
            "--against tests differences in metrics that compare translations with references, but --metrics names "
            "none of these: add one, such as bleu"
        )


@dataclass(frozen=True)
class TestSet:
    """A test set: sources (None if only references were given) and the references of each."""

    sources: list[Any] | None
    references: list[list[str]]  # of each source; empty lists for text alone
    line_counts: list[tuple[Path, int]]  # each file and its number of lines
    #: after `grouped`, the index of the first line of each item (a source with all its references); None: not grouped
    first_lines: list[int] | None = None

    def grouped(self) -> TestSet:
        """Return a test set in which all lines with the same source are one item: the source and their references.

        Missing sources, and sources that are no texts, are a UserError.
        """
        if not self.sources or not all(isinstance(source, str) for source in self.sources):
            raise UserError(
                "--group-by-source collects the references of equal sources: name the source texts with --source"
            )
        sources, references, first_lines = group_by_source(self.sources, self.references)
        return replace(self, sources=sources, references=references, first_lines=first_lines)

    def lines_of_items(self, lines: list[str]) -> list[str]:
        """Select a line for each item of the test set from the lines of a file.

        They are all lines or, if lines with equal sources were grouped to items, the first line of each group.
        """
        return lines if self.first_lines is None else [lines[index] for index in self.first_lines]

    def read_hypotheses(self, path: Path, layout: FileLayout) -> list[str]:
        """Read a file of translations with as many lines as the test set; return one translation per item.

        `layout` has the format of the file. Another number of lines is a UserError.
        """
        lines = read_texts(path, layout.format)
        check_counts([*self.line_counts, (path, len(lines))])
        return self.lines_of_items(lines)

    def read_alignments(self, path: Path) -> list[tuple[frozenset[Link], frozenset[Link]]]:
        """Read gold word alignments: the sure and the possible links of each sentence pair.

        "0-0 1?2" has a sure link of the first words, and a possible link of the second source word to the third target
        word; all sure links are possible, too. A test set without sources, or without exactly one reference of each,
        and a file with another number of lines are a UserError.
        """
        from dragoman.evaluation import parse_sure_and_possible

        if not self.sources or any(len(texts) != 1 for texts in self.references):
            raise UserError(
                "--alignments (gold word alignments) needs a test set of sentence pairs: name one source file with "
                "--source and one reference file with --reference"
            )
        lines = read_texts(path, "text")
        gold = [parse_sure_and_possible(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
        check_counts([*self.line_counts, (path, len(gold))])
        return gold


def read_test_set(source: Path | None, references: list[Path], layout: FileLayout) -> TestSet:
    """Read the files of a test set: a source file and any number of reference files, or one file with both.

    `layout` has their format and columns. With `source` None there are only references; a source without references is
    text alone, such as that of a language model. No file at all, or files with different numbers of lines, are a
    UserError.
    """
    from dragoman.data.data_formats import has_references
    from dragoman.data.text_files import check_file

    if source is not None:
        layout.corpus(source).check()
    for path in references:
        check_file(path)
    sources: list[Any] | None
    columns: list[list[str]]  # the references in each file
    if source is None:
        if not references:
            raise UserError(
                "no test set is given: name its files with --source and --reference, or one file with sources and "
                "references, such as TSV, with --source alone"
            )
        sources, columns = None, [read_texts(path, layout.format) for path in references]
    elif references or has_references(layout.corpus(source)):
        sources, first = read_pairs(source, references[0] if references else None, layout, "--reference")
        columns = [first, *(read_texts(path, layout.format) for path in references[1:])]
    else:
        sources = list(Input(source, layout).sources())
        return TestSet(sources, [[] for _ in sources], [(source, len(sources))])
    files = [source] if source and not references else references  # that hold the references
    line_counts = [(path, len(lines)) for path, lines in zip(files, columns)]
    check_counts(line_counts)
    return TestSet(sources, [list(texts) for texts in zip(*columns)], line_counts)


def _suitable_metrics(test_set: TestSet) -> list[str]:
    """Return the names of the metrics that suit the references and their sources, and log them with the reason."""
    from dragoman import evaluation

    sources = [source for source in test_set.sources or [] if isinstance(source, str)]
    choice = evaluation.choose_metrics(evaluation.first_references(test_set.references), sources)
    log(f"metrics: {', '.join(choice.metrics)} ({choice.reason}; others: --metrics)")
    return list(choice.metrics)


def _lead_sentences(test_set: TestSet) -> list[str]:
    """Return the first sentence of each source (the lead); raise a UserError unless the test set has source texts."""
    from dragoman import evaluation

    if not test_set.sources or not all(isinstance(text, str) for text in test_set.sources):
        raise UserError("--lead scores the first sentence of each source: name the source texts with --source")
    return evaluation.lead_sentences(test_set.sources)


def _evaluate_files(
    files: list[Path],
    lead: bool,
    layout: FileLayout,
    test_set: TestSet,
    names: list[str],
    resamples: int,
    printer: ScorePrinter,
) -> None:
    """Score files of translations, test each against the first one, and print the results.

    A test set without references, and metrics that need a model, such as perplexity, are a UserError.

    Args:
        files: files of translations.
        lead: put the first sentence of each source, a baseline of summarization, before the files.
        layout: format of the files.
        test_set: what they are scored on.
        names: metrics; empty: those that suit the references.
        resamples: number of resamples (or random trials) of each significance test.
        printer: prints the scores and tests; it also says which test.
    """
    from dragoman import evaluation

    texts = [test_set.read_hypotheses(path, layout) for path in files]  # of each file
    if lead:
        files, texts = [Path("first sentence"), *files], [_lead_sentences(test_set), *texts]
    if not any(test_set.references):
        raise UserError("--hypothesis needs reference translations: name them with --reference")
    names = names or _suitable_metrics(test_set)
    if model_metrics := [name for name in names if not evaluation.is_text_metric(name)]:
        raise UserError(
            f"the metric {model_metrics[0]} needs a model, whose probabilities it measures: evaluate a run instead of "
            "a file of translations (--hypothesis), or choose other --metrics"
        )
    references, sources = test_set.references, test_set.sources
    scores = [list(evaluation.evaluate(names, hypotheses, references, sources).values()) for hypotheses in texts]
    comparisons = {
        str(file): evaluation.paired_test(
            texts[0], hypotheses, references, sources=sources, metrics=names, method=printer.test, samples=resamples
        )
        for file, hypotheses in zip(files[1:], texts[1:])
    }
    printer(list(zip(map(str, files), scores, texts)), str(files[0]), comparisons)


@dataclass(frozen=True)
class ScorePrinter:
    """Prints scores as text or JSON.

    Attributes:
        test_set: what the systems were scored on.
        by_length: whether to add a table of scores by source length in words.
        as_json: whether to print one JSON document instead of text.
        test: name of the paired test between systems.
    """

    test_set: TestSet
    by_length: bool
    as_json: bool
    test: str

    def __call__(
        self,
        systems: Sequence[tuple[str | None, list[MetricScore], list[str] | None]],
        baseline: str,
        comparisons: dict[str, list[PairedTestResult]],
    ) -> None:
        """Print the scores of systems, and how they compare with a baseline.

        Args:
            systems: file name (None for a run), scores, and hypotheses (None if there are none) of each system.
            baseline: name of the run or file that the others are compared with; not used without comparisons.
            comparisons: by the name of each other system, its paired tests against the baseline, one per metric. Empty:
                nothing is compared.
        """
        from dragoman import evaluation

        documents: list[dict[str, Any]] = []  # one for each system
        for name, scores, hypotheses in systems:
            document: dict[str, Any] = {} if name is None else {"hypothesis": name}
            document["scores"] = [asdict(score) for score in scores]
            documents.append(document | {"by_length": self._length_table(hypotheses)})
        if self.as_json:
            result = documents[0] if len(documents) == 1 else {"systems": documents}
            if comparisons:
                tests = {name: [row._asdict() for row in rows] for name, rows in comparisons.items()}
                result |= {"baseline": baseline, "test": self.test, "comparisons": tests}
            print_json(result)
            return
        for (name, scores, _), document in zip(systems, documents):
            if len(systems) > 1:
                print(f"{name}:")
            for score in scores:
                print(score)
            if document["by_length"]:
                print()
                print(evaluation.format_table(document["by_length"]))
        for name, rows in comparisons.items():
            print(f"\n{name} against {baseline}, paired {self.test} test, 95 % intervals in brackets:")
            print(evaluation.format_table([_comparison_row(row) for row in rows]))

    def _length_table(self, hypotheses: list[str] | None) -> list[dict[str, Any]]:
        """Return a row of scores for each range of source lengths in words, such as "6 to 10".

        There are none if --by-length was not given, or hypotheses or sources are missing.
        """
        from dragoman import evaluation

        if not self.by_length or hypotheses is None or self.test_set.sources is None:
            return []
        buckets = evaluation.score_by_length(self.test_set.sources, hypotheses, self.test_set.references)
        return [bucket._asdict() for bucket in buckets]


def _comparison_row(result: PairedTestResult) -> dict[str, str]:
    """Format a paired test as a row of a table: scores and difference with 95 % intervals, and the p-value."""
    from dragoman.evaluation.significance import format_p_value

    def with_interval(score: str, interval: tuple[float, float], sign: str = "") -> str:
        """Append an interval in brackets to a score; `sign` "+" writes the sign of positive limits, too."""
        low, high = interval
        return f"{score} [{low:{sign}.2f}, {high:{sign}.2f}]"

    return {
        "metric": result.metric,
        "baseline": with_interval(f"{result.baseline:.2f}", result.baseline_interval),
        "system": with_interval(f"{result.system:.2f}", result.system_interval),
        "difference": with_interval(f"{result.difference:+.2f}", result.difference_interval, "+"),
        "p": format_p_value(result.p_value).removeprefix("p = ").removeprefix("p "),  # "0.013", or "< 0.001"
    }
