"""Evaluation of a run on a test set: `dragoman.evaluate` and `Run.evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dragoman import console, evaluation
from dragoman.api import PSEUDO_PERPLEXITY
from dragoman.errors import UserError, unknown_name
from dragoman.evaluation import Link, MetricScore, PairedTestResult
from dragoman.evaluation.metric_score import check_equal_counts
from dragoman.evaluation.significance import NUM_PAIRED_SAMPLES
from dragoman.run import Run, Source
from dragoman.run.sources import normalize_text
from dragoman.search import SearchConfig
from dragoman.text.normalization import TextNormalizer

GoldAlignments = Sequence[tuple[frozenset[Link], frozenset[Link]]]
"""For each sentence pair its sure and its possible alignment links, pairs of source and target word."""


@dataclass
class EvaluationResult:
    """Scores of a run on a test set.

    Attributes:
        scores: value and signature of each metric, by its name.
        hypotheses: the translations or tags that were scored; None if the references were scored.
        references: the references that they were compared with, normalized as the text of the run.
        comparisons: paired tests against another run or its translations, one for each metric of texts.
    """

    scores: dict[str, MetricScore] = field(default_factory=dict)
    hypotheses: list[str] | None = None
    references: list[list[str]] = field(default_factory=list)
    comparisons: list[PairedTestResult] = field(default_factory=list)

    def __getitem__(self, metric: str) -> float:
        """The value of a metric by its name, such as "bleu", in any spelling: "exact_match", "exact-match", "exact".

        A metric that was not computed is a KeyError.
        """
        for name, score in self.scores.items():
            if evaluation.metric_name(name) == evaluation.metric_name(metric):
                return score.value
        raise KeyError(metric)

    def __str__(self) -> str:
        """Return the scores, one per line."""
        return "\n".join(map(str, self.scores.values()))


def evaluate(
    run: Run | str | Path,
    sources: Sequence[Source],
    references: Sequence[str] | Sequence[Sequence[str]] | None = None,
    metrics: Sequence[str] = (),
    *,
    search: SearchConfig | None = None,
    alignments: GoldAlignments | None = None,
    translate: bool = False,
    against: Run | str | Path | Sequence[str] | None = None,
    test: str = "bootstrap",
    resamples: int = NUM_PAIRED_SAMPLES,
    log: Callable[[str], None] | None = None,
    features: Sequence[str] | None = None,
) -> EvaluationResult:
    """Translate, tag or classify a test set and score the result, or compute the perplexity of text.

    Args:
        run: a run, or its folder.
        sources: sources of the test set; the texts for a language model.
        references: a reference for each source, or a list of references for each; None for text alone.
        metrics: names of metrics: bleu (bleu=TOKENIZER), chrf, chrf++, ter, rouge-1, rouge-2, rouge-l (and
            rouge-l-stem …), comet, exact-match, accuracy, span-f1, bracket-f1, wer, ser, per, cer, ier, perplexity,
            word-perplexity, bits-per-character, pseudo-perplexity. Empty: those that suit the run and the references.
        search: search configuration; the run's own by default.
        alignments: for each sentence pair the sure and the possible links of its gold word alignment; they add the
            alignment error rate, of the references.
        translate: translate even if no metric needs translations, to get them as `EvaluationResult.hypotheses`.
        against: another run, its folder, or a list of translations: adds tests of the difference of each metric.
        test: paired test of the difference: bootstrap or randomization.
        resamples: number of resamples or random trials of the test.
        log: receives messages about progress; by default they are printed on standard error.
        features: features of each source, such as the morphological ones 'V;PST', for a run trained with features;
            None: no features.

    An unknown test or metric, or numbers of sources and references that differ, are a UserError.

    Examples:
        >>> result = dragoman.evaluate(run, ["The dog sleeps."], ["Der Hund schläft."], metrics=["exact"])
        >>> 0 <= result["exact"] <= 100
        True
    """
    if not isinstance(run, Run):
        from dragoman import load

        run = load(run)
    if test not in evaluation.PAIRED_TESTS:
        raise unknown_name("paired test", test, evaluation.PAIRED_TESTS)
    reference_lists = [[text] if isinstance(text, str) else list(text) for text in references or []]  # of each source
    sources = run.with_features(sources, features)  # features are appended to the text of each source
    if reference_lists:
        check_equal_counts(len(sources), "sources", len(reference_lists), "references")
    evaluator = _Evaluator(
        run, list(sources), references=reference_lists, metrics=list(metrics), log=log or console.log
    )
    if not any(reference_lists):
        evaluator.score_text(alignments, translate)
    elif run.model.can_generate:
        evaluator.score_translations(search, alignments, translate)
    else:  # a tagger or a classifier
        evaluator.score_labels(alignments)
    if against is not None:
        evaluator.compare(against, search, test, resamples)
    return evaluator.result


@dataclass
class _Evaluator:
    """Scores a run on a test set, one group of metrics after the other, and collects the result."""

    run: Run
    sources: list[Any]
    references: list[list[str]]  # of each source
    metrics: list[str]
    log: Callable[[str], None]
    result: EvaluationResult = field(default_factory=EvaluationResult)

    def score_translations(
        self, search: SearchConfig | None, alignments: GoldAlignments | None, translate: bool
    ) -> None:
        """Score the run's translations, and the probability and word alignment that it gives to the references.

        Translations and probabilities are computed only if a metric needs them.

        Args:
            search: search configuration of the translations; None: the run's default.
            alignments: gold alignments, for the alignment error rate; None leaves it out.
            translate: translate even if no metric needs translations.
        """
        run, metrics = self.run, self.metrics or list(self._suitable_metrics())
        if not self.metrics and not run.ensemble_members:  # only single models compute probabilities of given texts
            metrics += ["perplexity"]
        supported = (*evaluation.TEXT_METRICS, *evaluation.LIKELIHOOD_METRICS)
        self._check_metrics(metrics, supported, f"{run.folder}, which translates")
        if translate or any(map(evaluation.is_text_metric, metrics)):
            self.log(f"translating {len(self.sources):,} sentences ({run.checkpoint})")
            translations = run.translate(self.sources, search=search or run.default_search, alignment=False)
            # normalized (Unicode form, case) as the text on which the run was trained
            references = [[normalize_text(run, text) for text in texts] for texts in self.references]
            self._score_against_references([translation.text for translation in translations], references, metrics)
        if likelihoods := [name for name in metrics if evaluation.metric_name(name) in evaluation.LIKELIHOOD_METRICS]:
            sources = [source for source, texts in zip(self.sources, self.references) for _ in texts]
            targets = [text for texts in self.references for text in texts]  # all references of every source
            self._score_likelihoods(likelihoods, sources, targets)
        if alignments is not None:
            self._score_alignments(alignments)

    def _suitable_metrics(self) -> tuple[str, ...]:
        """Choose metrics that suit the references, and log the choice with its reason.

        The metric that selected the best checkpoint comes first, unless it is the token accuracy or the loss.
        """
        choice = evaluation.choose_metrics(evaluation.first_references(self.references), self._source_texts() or [])
        metrics, reason = choice.metrics, choice.reason
        selection_metric = evaluation.metric_name(self.run.config.training.selection_metric)
        # "accuracy" in a validation is that of teacher-forced tokens, unlike the metric of texts of that name
        if selection_metric in evaluation.TEXT_METRICS and selection_metric != "accuracy":
            metrics = evaluation.metrics_around(selection_metric, choice)  # it and others for the same kind of task
            reason = f"{selection_metric} selected the checkpoint; {reason}"
        self.log(f"metrics: {', '.join(metrics)} ({reason}; others: --metrics)")
        return metrics

    def _with_bleu_tokenizer(self, name: str) -> str:
        """Return the name of a metric; to "bleu", add the tokenizer that validation has used: "bleu=ja-mecab"."""
        tokenizer = self.run.config.training.bleu_tokenizer
        return f"bleu={tokenizer}" if name == "bleu" and tokenizer != "auto" else name

    def score_labels(self, alignments: GoldAlignments | None) -> None:
        """Predict the tags of words, or the label of each text, and compare them with the references.

        A model that predicts labels has no word alignments: `alignments` (gold ones) other than None are a UserError.
        """
        run, metrics = self.run, self.metrics or ["accuracy", "exact-match"]
        self._check_metrics(metrics, evaluation.TEXT_METRICS, f"{run.folder}, which predicts labels")
        if alignments is not None:
            raise UserError(
                f"the run {run.folder} predicts labels and has no word alignments: leave out --alignments (gold word "
                "alignments)"
            )
        self.log(f"labeling {len(self.sources):,} sentences ({run.checkpoint})")
        # one space between labels, as in the predictions
        references = [[" ".join(labels.split()) for labels in texts] for texts in self.references]
        self._score_against_references(run.predict_labels(self.sources), references, metrics)

    def score_text(self, alignments: GoldAlignments | None, translate: bool) -> None:
        """Compute the perplexity of the sources, which are texts without references, by a (masked) language model.

        Such a model has no alignments and translations: `alignments` other than None and `translate` are a UserError,
        and so is a run that translates, which needs references.
        """
        run = self.run
        if not run.is_language_model and run.model.can_generate:
            raise UserError(
                f"the run {run.folder} translates, but the test set has no references: give them with --reference (in "
                "Python: references)"
            )
        if translate or alignments is not None:
            raise UserError(
                f"the run {run.folder} is a language model, which scores texts and generates no translations: leave "
                "out --output and --alignments"
            )
        if run.model.can_generate:
            metrics = self.metrics or list(evaluation.LIKELIHOOD_METRICS)
            self._check_metrics(metrics, evaluation.LIKELIHOOD_METRICS, "text without references")
            self._score_likelihoods(metrics, sources=None, targets=self.sources)
            return
        self._check_metrics(self.metrics, (PSEUDO_PERPLEXITY,), "text without references and a masked language model")
        self.log(f"masking every token of {len(self.sources):,} lines ({run.checkpoint})")
        scored = run.score_masked(self.sources)
        tokens = sum(len(text.tokens) for text in scored)
        score = evaluation.perplexity(sum(text.score for text in scored), tokens)  # text.score: its log-probability
        self.result.scores[PSEUDO_PERPLEXITY] = replace(score, name=PSEUDO_PERPLEXITY)

    def _check_metrics(self, metrics: Sequence[str], supported: Iterable[str], subject: str) -> None:
        """Raise a UserError if a metric is not in `supported`; its message calls what is evaluated `subject`."""
        for name in metrics:
            base_name, variant, _ = evaluation.metric_name(name).partition("=")  # "bleu=char" is a variant of "bleu"
            if base_name not in supported or (variant and not evaluation.is_text_metric(name)):
                raise UserError(
                    f"the metric {name} cannot be computed for {subject}: use one of {', '.join(supported)}"
                )

    def _score_against_references(
        self, hypotheses: list[str], references: list[list[str]], metrics: Sequence[str]
    ) -> None:
        """Compute the metrics that compare texts with references, such as BLEU, and store them in the result.

        Names of other metrics in `metrics`, such as perplexity, are ignored. The texts are stored, too. `references`
        holds a list for each hypothesis.
        """
        self.result.hypotheses, self.result.references = hypotheses, references
        # signatures also name the normalization of the run's text, such as lower case
        normalizer = TextNormalizer.from_settings(self.run.config.text)
        for name in filter(evaluation.is_text_metric, metrics):
            metric = evaluation.text_metric(self._with_bleu_tokenizer(name))
            score = metric(hypotheses, references, self._source_texts())  # sources: for COMET
            self.result.scores[name] = replace(score, signature=normalizer.signature(score.signature))

    def compare(
        self, against: Run | str | Path | Sequence[str], search: SearchConfig | None, test: str, resamples: int
    ) -> None:
        """Test whether the run differs from a baseline, for every metric of texts that has been computed.

        The baseline `against` is a run, its folder, or a list of its translations; a run translates with `search`
        (None: its default). The test is "bootstrap" or "randomization", with `resamples` resamples or trials. It is a
        UserError if no metric of texts has been computed.
        """
        metrics = list(filter(evaluation.is_text_metric, self.result.scores))
        if self.result.hypotheses is None or not metrics:
            raise UserError(
                "the significance test against a baseline (argument `against`) needs a metric that compares "
                "translations with references, but `metrics` has none: add one, such as 'bleu'"
            )
        baseline: Sequence[str] | None
        if isinstance(against, (Run, str, Path)):
            # a multilingual baseline gets the languages of this run
            other = self.run.open_run(against if isinstance(against, Run) else str(against))
            first_metric = metrics[:1]  # one metric of texts is enough to get the translations
            baseline = evaluate(
                other, self.sources, self.references, first_metric, search=search, log=self.log
            ).hypotheses
        else:
            baseline = against
        assert baseline is not None  # a metric of texts needs hypotheses
        comparisons = evaluation.paired_test(
            baseline,
            self.result.hypotheses,
            self.result.references,
            sources=self._source_texts(),
            metrics=[self._with_bleu_tokenizer(name) for name in metrics],
            method=test,
            samples=resamples,
        )
        # named as in the scores: "bleu", without its tokenizer
        self.result.comparisons = [row._replace(metric=name) for name, row in zip(metrics, comparisons)]

    def _source_texts(self) -> list[str] | None:
        """Return the sources, or None if they are images or speech."""
        return self.sources if all(isinstance(source, str) for source in self.sources) else None

    def _score_likelihoods(self, metrics: Sequence[str], sources: list[Any] | None, targets: list[str]) -> None:
        """Compute metrics such as perplexity from the model's probability of the targets, given the sources.

        `sources` is None for a language model. Texts with more tokens than the model has positions are skipped; their
        number is in the details of the scores.
        """
        scorable = self._indices_within_max_length(sources, targets)
        texts = [targets[i] for i in scorable]
        scored = self.run.score(None if sources is None else [sources[i] for i in scorable], texts)
        # text.score is the log-probability of the whole text
        log_probability, tokens = sum(text.score for text in scored), sum(len(text.tokens) for text in scored)
        skipped = {"skipped": len(targets) - len(scorable)} if len(scorable) < len(targets) else {}
        for name in metrics:
            score = evaluation.likelihood_metric(name, log_probability, tokens, texts)
            self.result.scores[name] = replace(score, detail={**score.detail, **skipped})

    def _score_alignments(self, gold: GoldAlignments) -> None:
        """Align each source with its first reference by attention weights, and compute the alignment error rate.

        A model without cross-attention gets a message instead of a score. `gold` has for each source its sure and its
        possible links. Sources without a reference, and pairs beyond the model's maximum length, are left out.
        """
        check_equal_counts(len(self.sources), "sources", len(gold), "gold alignments")
        rows = zip(self.sources, self.references, gold)
        sources, targets, links = map(list, zip(*((source, texts[0], pair) for source, texts, pair in rows if texts)))
        scorable = self._indices_within_max_length(sources, targets)
        alignments = self.run.align([sources[i] for i in scorable], [targets[i] for i in scorable])
        if alignments is None:
            self.log("no alignment error rate: this system has no attention from decoder to encoder")
            return
        sure, possible = map(list, zip(*(links[i] for i in scorable)))
        self.result.scores["alignment-error-rate"] = evaluation.alignment_error_rate(alignments, sure, possible)

    def _indices_within_max_length(self, sources: list[Any] | None, targets: list[str]) -> list[int]:
        """Return the indices of the targets with at most as many tokens as the model has (learned) positions.

        `sources` is None for a language model. The number of the others is logged; if all are too long, a UserError is
        raised.
        """
        scorable = [i for i, fits in enumerate(self.run.within_max_length(sources, targets)) if fits]
        if not scorable:
            raise UserError(
                f"no line can be scored, because each has more tokens than the model in {self.run.folder} has learned "
                "position embeddings: split the lines into shorter ones"
            )
        if len(scorable) < len(targets):
            self.log(
                f"skipped {len(targets) - len(scorable):,} lines with more tokens than the model has learned positions"
            )
        return scorable
