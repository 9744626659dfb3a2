"""Test sets, and the scores of a run on one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.inputs import FileLayout, Input, check_counts, check_file, read_lines, read_pairs
from dragoman.cli.options import beam_config, log
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.evaluation import Link, MetricScore
    from dragoman.run import Run, ScoredText

    Gold = list[tuple[frozenset[Link], frozenset[Link]]]  # sure and possible links of each sentence

TRANSLATION = ("bleu", "chrf", "ter", "exact")
PSEUDO = "pseudo-perplexity"


@dataclass(frozen=True)
class TestSet:
    """Sources, if there are any, and for each the list of its references, which is empty for text alone."""

    sources: list[Any] | None
    references: list[list[str]]
    counts: list[tuple[Path, int]]  # files and their lines

    @staticmethod
    def read(source: Path | None, references: list[Path], columns: FileLayout) -> TestSet:
        for path in [*([source] if source else []), *references]:
            check_file(path)
        if source is None:
            if not references:
                raise UserError("name the test set: --source and --reference, or --source alone for TSV and JSON lines")
            sources, streams = None, [read_lines(path, columns) for path in references]
        elif references or _holds_targets(source, columns):
            sources, first = read_pairs(source, references[0] if references else None, columns, "--reference")
            streams = [first, *(read_lines(path, columns) for path in references[1:])]
        else:
            sources, streams = list(Input(source, columns).sources()), []
        files = [source] if source and not references else references
        counts = [(path, len(lines)) for path, lines in zip(files, streams)]
        if counts:
            check_counts(counts)
        else:
            assert source is not None
            counts = [(source, len(sources or []))]
        lists = [list(some) for some in zip(*streams)] if streams else [[] for _ in sources or []]
        return TestSet(sources, lists, counts)

    def read_alignments(self, path: Path) -> Gold:
        from dragoman.evaluation import parse_sure_and_possible

        if not self.sources or any(len(some) != 1 for some in self.references):
            raise UserError("alignments are between sources and one reference each: name one --source and --reference")
        lines = read_lines(path, FileLayout("text"))
        gold = [parse_sure_and_possible(line, f"{path}, line {n}") for n, line in enumerate(lines, 1)]
        check_counts([*self.counts, (path, len(gold))])
        return gold

    @property
    def streams(self) -> list[list[str]]:
        """All first references, all second ones, …"""
        return [list(some) for some in zip(*self.references)]


def _holds_targets(source: Path, columns: FileLayout) -> bool:
    from dragoman.data.data_formats import has_references

    return has_references(columns.corpus(source))


class Evaluation:
    """The scores of a run on a test set, and the hypotheses that were scored, if it made any.

    `names` are measures; without any, those that suit the run are computed.
    """

    def __init__(self, test: TestSet, names: list[str], gold: Gold | None, output: Path | None) -> None:
        self.test, self.names, self.gold, self.output = test, names, gold, output
        self.scores: list[MetricScore] = []
        self.hypotheses: list[str] | None = None

    def run(self, run: Run, beam: int | None, length_penalty: float | None) -> None:
        if not any(self.test.references):
            self._score_text(run)
        elif run.model.can_generate:
            self._translate(run, beam, length_penalty)
        else:
            self._tag(run)

    def _translate(self, run: Run, beam: int | None, length_penalty: float | None) -> None:
        from dragoman import evaluation
        from dragoman.run.sources import normalize_text

        names = self.names or [*TRANSLATION, "perplexity"]
        self._check(names, (*evaluation.METRICS, *evaluation.LIKELIHOOD_METRICS), f"{run.folder}, which translates")
        settings = run.default_search
        if beam is not None or length_penalty is not None:
            settings = beam_config(run, beam, length_penalty)
        if self._needs_output(names):
            log(f"translating {len(self.test.sources or []):,} sentences ({run.checkpoint})")
            found = run.translate(self.test.sources or [], search=settings, alignment=False)
            references = [[normalize_text(run, text) for text in some] for some in self.test.references]
            self._compare([one.text for one in found], references, names)
        if wanted := [name for name in names if name in evaluation.LIKELIHOOD_METRICS]:
            targets = [text for stream in self.test.streams for text in stream]
            self._likelihoods(run, wanted, (self.test.sources or []) * len(self.test.streams), targets)
        if self.gold is not None:
            self._align(run, self.gold)

    def _tag(self, run: Run) -> None:
        from dragoman import evaluation

        names = self.names or ["accuracy", "exact"]
        self._check(names, evaluation.METRICS, f"{run.folder}, which tags words")
        if self.gold is not None:
            raise UserError(f"{run.folder} tags words and aligns none: leave --alignments out")
        sources = self.test.sources or []
        log(f"tagging {len(sources):,} sentences ({run.checkpoint})")
        tagged = [" ".join(sentence.tags) for sentence in run.tag(sources)]
        self._compare(tagged, [[" ".join(tags.split()) for tags in some] for some in self.test.references], names)

    def _score_text(self, run: Run) -> None:
        """Perplexities of text alone, by a language model or one of masked words."""
        from dragoman import evaluation

        if not run.is_language_model and run.model.can_generate:
            raise UserError(f"{run.folder} translates, but the test set has no references: name them with --reference")
        if self.output is not None or self.gold is not None:
            raise UserError("text alone is scored, not translated: leave --output and --alignments out")
        texts = self.test.sources or []
        if run.model.can_generate:
            names = self.names or list(evaluation.LIKELIHOOD_METRICS)
            self._check(names, evaluation.LIKELIHOOD_METRICS, "text without references")
            self._likelihoods(run, names, None, texts)
            return
        self._check(self.names, (PSEUDO,), "text without references and a model of masked words")
        log(f"masking every token of {len(texts):,} lines in turn ({run.checkpoint})")
        scored = run.score_masked(texts)
        found = evaluation.perplexity(sum(one.score for one in scored), sum(len(one.tokens) for one in scored))
        self.scores.append(replace(found, name=PSEUDO))

    def _check(self, names: Sequence[str], known: Iterable[str], what: str) -> None:
        for name in names:
            if name not in known:
                raise UserError(f"{name} cannot be computed of {what}: use {', '.join(known)}")

    def _needs_output(self, names: Sequence[str]) -> bool:
        from dragoman.evaluation import METRICS

        return self.output is not None or any(name in METRICS for name in names)

    def _compare(self, hypotheses: list[str], references: list[list[str]], names: Sequence[str]) -> None:
        from dragoman import evaluation
        from dragoman.storage import write_file

        self.hypotheses = hypotheses
        if self.output is not None:
            write_file(self.output, "".join(f"{text}\n" for text in hypotheses))
        wanted = [name for name in names if name in evaluation.METRICS]
        self.scores += evaluation.evaluate(wanted, hypotheses, references).values()

    def _likelihoods(self, run: Run, names: Sequence[str], sources: list[Any] | None, targets: list[str]) -> None:
        from dragoman import evaluation

        kept = self._that_fit(run, sources, targets)
        texts = [targets[i] for i in kept]
        scored: list[ScoredText] = run.score(None if sources is None else [sources[i] for i in kept], texts)
        total, tokens = sum(one.score for one in scored), sum(len(one.tokens) for one in scored)
        skipped = {"skipped": len(targets) - len(kept)} if len(kept) < len(targets) else {}
        for name in names:
            score = evaluation.likelihood_metric(name, total, tokens, texts)
            self.scores.append(replace(score, detail={**score.detail, **skipped}))

    def _align(self, run: Run, gold: Gold) -> None:
        from dragoman import evaluation

        sources, targets = self.test.sources or [], self.test.streams[0]
        kept = self._that_fit(run, sources, targets)
        found = run.align([sources[i] for i in kept], [targets[i] for i in kept])
        if found is None:
            log("no alignments: no part of this system looks from a decoder at an encoder")
            return
        sure, possible = ([gold[i][kind] for i in kept] for kind in (0, 1))
        self.scores.append(evaluation.alignment_error_rate(found, sure, possible))

    def _that_fit(self, run: Run, sources: list[Any] | None, targets: list[str]) -> list[int]:
        """The numbers of the targets that the model has positions for."""
        kept = [i for i, fits in enumerate(run.within_max_length(sources, targets)) if fits]
        if not kept:
            raise UserError(f"no line can be scored: all are longer than the positions of {run.folder}")
        if len(kept) < len(targets):
            log(f"{len(targets) - len(kept):,} lines are longer than the model's positions and were not scored")
        return kept
