"""Metrics of texts: BLEU, chrF and TER by sacreBLEU, and all metrics by name.

A score is comparable only with its signature (Post 2018, A Call for Clarity in Reporting BLEU Scores).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.comet import comet, comet_by_sentence
from dragoman.evaluation.error_rates import (
    Counts,
    bracket_f1,
    bracket_f1_counts,
    edit_counts,
    exact_match,
    exact_match_counts,
    item_error_rate,
    mismatch_counts,
    phoneme_error_rate,
    span_f1,
    span_f1_counts,
    token_accuracy,
    word_error_rate,
)
from dragoman.evaluation.metric_score import MetricScore, References, check_equal_counts, reference_lists
from dragoman.evaluation.rouge import rouge, rouge_by_sentence

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

# sacreBLEU takes a fifth of a second to import, and error rates do not need it: it is imported where it is used.


def bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    effective_order: bool = False,
) -> MetricScore:
    """BLEU: geometric mean of n-gram precisions times the brevity penalty, from 0 to 100 (Papineni et al. 2002).

        BLEU = 100 · min(1, exp(1 − r/c)) · (p₁ p₂ p₃ p₄)^¼,   c, r: hypothesis and closest reference length

    `effective_order` omits the orders n for which no hypothesis has n words, so that a corpus of very short sentences
    does not score 0.
    """
    from sacrebleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise unknown_name("BLEU tokenizer", tokenize, BLEU.TOKENIZERS)
    try:
        # `force` silences the warning about tokenized text when the user says that it is tokenized
        metric = BLEU(lowercase, force=tokenize == "none", tokenize=tokenize, effective_order=effective_order)
    except (ImportError, RuntimeError) as error:  # a tokenizer that needs another package
        message = " ".join(str(error).split())
        raise UserError(f"the BLEU tokenizer {tokenize!r} is not available: {message}") from error
    result = _corpus_score(metric, hypotheses, references)
    detail = {f"precision_{n}": float(precision) for n, precision in enumerate(result.precisions, 1)} | {
        "brevity_penalty": result.bp,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
    }
    return MetricScore("BLEU", result.score, "higher", signature=str(metric.get_signature()), detail=detail)


def chrf(
    hypotheses: Sequence[str], references: References, *, word_order: int = 0, lowercase: bool = False
) -> MetricScore:
    """chrF: F-score of character n-grams (n ≤ 6) with β = 2, from 0 to 100 (Popović 2015).

        chrF_β = 100 · (1 + β²) P R / (β² P + R),   P, R: mean precision and recall over n

    `word_order` 2 gives chrF++, which also counts words and word pairs (Popović 2017).
    """
    from sacrebleu import CHRF

    metric = CHRF(word_order=word_order, lowercase=lowercase)
    result = _corpus_score(metric, hypotheses, references)
    return MetricScore("chrF" + "+" * word_order, result.score, "higher", signature=str(metric.get_signature()))


def ter(
    hypotheses: Sequence[str], references: References, *, normalized: bool = False, lowercase: bool = True
) -> MetricScore:
    """Translation edit rate: insertions, deletions, substitutions and shifts in % of the reference words.

        TER = 100 · edits to the closest reference / mean reference length

    Snover et al. (2006). Case is ignored by default, as in sacreBLEU and Tercom.
    """
    from sacrebleu import TER

    metric = TER(normalized=normalized, case_sensitive=not lowercase)
    result = _corpus_score(metric, hypotheses, references)
    detail = {"edits": result.num_edits, "reference_length": result.ref_length}
    return MetricScore("TER", result.score, "lower", unit="%", signature=str(metric.get_signature()), detail=detail)


def reference_streams(hypotheses: Sequence[str], references: References) -> list[tuple[str | None, ...]]:
    """Return sacreBLEU's reference streams: all first references, all second ones, …; None for a missing one."""
    return list(zip_longest(*reference_lists(hypotheses, references)))


def _corpus_score(metric: Metric, hypotheses: Sequence[str], references: References) -> Any:
    """Return sacreBLEU's score object (score and statistics) of all hypotheses together."""
    # sacreBLEU documents None for a missing reference, but its annotations do not allow it
    streams: list[Any] = reference_streams(hypotheses, references)
    return metric.corpus_score(hypotheses, streams)


Floats = NDArray[np.float64]


class SentenceStatistics(NamedTuple):
    """What a corpus score is computed from.

    Attributes:
        table: a row of numbers for each sentence, such as n-gram matches; shape (sentences, statistics).
        corpus_score: function from the sum of rows to the score of a corpus.
    """

    table: Floats
    corpus_score: Callable[[Floats], float]


@dataclass(frozen=True)
class TextMetric:
    """A metric of hypotheses and their references, and of the sources if `needs_sources`.

    Both functions take the hypotheses, the references and, if needed, the sources.

    Attributes:
        function: returns the score of a corpus.
        statistics: returns the statistics of each sentence, which significance tests resample.
    """

    function: Callable[..., MetricScore]
    statistics: Callable[..., SentenceStatistics]
    needs_sources: bool = False

    def __call__(
        self, hypotheses: Sequence[str], references: References, sources: Sequence[str] | None = None
    ) -> MetricScore:
        """Score a corpus; only some metrics (COMET) need the sources."""
        return self.function(hypotheses, references, *self._source_arguments(sources))

    def sentence_statistics(
        self, hypotheses: Sequence[str], references: References, sources: Sequence[str] | None = None
    ) -> SentenceStatistics:
        """Return numbers of each sentence, such as n-gram matches, and the function from their sum to the corpus score.

        Significance tests add up the sentences of a resampled corpus.
        """
        return self.statistics(hypotheses, references, *self._source_arguments(sources))

    def _source_arguments(self, sources: Sequence[str] | None) -> list[Sequence[str]]:
        """Return the sources as a list of further arguments, which is empty if the metric does not use them."""
        if self.needs_sources and sources is None:
            raise UserError("COMET compares translations with their sources: name the source file with --source")
        return [sources] if self.needs_sources and sources is not None else []


def _sacrebleu_statistics(name: str, **options: Any) -> Callable[..., SentenceStatistics]:
    """Return a function that computes the sentence statistics of a metric: sacreBLEU's class `name` with `options`."""

    def statistics(hypotheses: Sequence[str], references: References) -> SentenceStatistics:
        """Return sacreBLEU's statistics of each sentence, and the function from their sum to the score."""
        import sacrebleu

        metric = getattr(sacrebleu, name)(**options)
        table = metric._extract_corpus_statistics(hypotheses, reference_streams(hypotheses, references))
        return SentenceStatistics(
            np.array(table, np.float64), lambda sums: float(metric._compute_score_from_stats(sums).score)
        )

    return statistics


def _rate_statistics(
    counts: Callable[[Sequence[str], References], Counts], complement: bool = False
) -> Callable[..., SentenceStatistics]:
    """Return a function that computes the sentence statistics of a rate: Σ counts / Σ lengths in percent.

    `counts` returns (count, length) of each sentence. With `complement`, the metric is 100 − the rate.
    """

    def rate(sums: Floats) -> float:
        """Return the rate, or its complement, from the sums of counts and lengths."""
        percent = 100 * float(sums[0] / max(sums[1], 1))
        return 100 - percent if complement else percent

    return lambda hypotheses, references: SentenceStatistics(np.array(counts(hypotheses, references), np.float64), rate)


def _mean_statistics(scores: Callable[..., Sequence[float]]) -> Callable[..., SentenceStatistics]:
    """Return a function that computes the sentence statistics of a metric that is a mean: the score and 1.

    `scores` returns the score of each sentence.
    """

    def statistics(*texts: Sequence[Any]) -> SentenceStatistics:
        """Return (score, 1) of each sentence; the score of a corpus is the ratio of the sums."""
        values = np.array(scores(*texts), np.float64)
        return SentenceStatistics(np.stack([values, np.ones_like(values)], 1), lambda sums: float(sums[0] / sums[1]))

    return statistics


def _rouge_metric(kind: str, stem: bool = False) -> TextMetric:
    """Return a ROUGE metric: kind rouge1, rouge2 or rougeL, of words or, with `stem`, of English stems."""
    return TextMetric(
        partial(rouge, kind=kind, stem=stem),
        _mean_statistics(lambda *texts: rouge_by_sentence(*texts, kind=kind, stem=stem)[0]),
    )


def _comet_metric(model: str = "") -> TextMetric:
    """Return COMET with the model of this folder or checkpoint; empty is the default model."""
    by_sentence = partial(comet_by_sentence, model=model)
    return TextMetric(partial(comet, model=model), _mean_statistics(by_sentence), needs_sources=True)


TEXT_METRICS: Mapping[str, TextMetric] = {
    "bleu": TextMetric(bleu, _sacrebleu_statistics("BLEU", force=True)),
    "chrf": TextMetric(chrf, _sacrebleu_statistics("CHRF")),
    "chrf++": TextMetric(partial(chrf, word_order=2), _sacrebleu_statistics("CHRF", word_order=2)),
    "ter": TextMetric(ter, _sacrebleu_statistics("TER")),
    "rouge-1": _rouge_metric("rouge1"),
    "rouge-2": _rouge_metric("rouge2"),
    "rouge-l": _rouge_metric("rougeL"),
    "rouge-1-stem": _rouge_metric("rouge1", stem=True),
    "rouge-2-stem": _rouge_metric("rouge2", stem=True),
    "rouge-l-stem": _rouge_metric("rougeL", stem=True),
    "comet": _comet_metric(),
    "exact": TextMetric(exact_match, _rate_statistics(exact_match_counts)),
    "accuracy": TextMetric(token_accuracy, _rate_statistics(mismatch_counts, complement=True)),
    "span-f1": TextMetric(span_f1, _rate_statistics(span_f1_counts)),
    "bracket-f1": TextMetric(bracket_f1, _rate_statistics(bracket_f1_counts)),
    "wer": TextMetric(word_error_rate, _rate_statistics(edit_counts)),
    "per": TextMetric(phoneme_error_rate, _rate_statistics(edit_counts)),
    "ier": TextMetric(item_error_rate, _rate_statistics(exact_match_counts, complement=True)),
}


def is_text_metric(name: str) -> bool:
    """Whether a metric of this name compares texts: a key of TEXT_METRICS, or "comet=MODEL"."""
    return name in TEXT_METRICS or name.startswith("comet=")


def text_metric(name: str) -> TextMetric:
    """Return a metric by its name; "comet=MODEL" is COMET with the model of this folder or checkpoint."""
    if name.startswith("comet="):
        return _comet_metric(name.removeprefix("comet="))
    if name not in TEXT_METRICS:
        raise unknown_name("metric", name, TEXT_METRICS)
    return TEXT_METRICS[name]


def check_metric_names(names: Iterable[str], other_metrics: Iterable[str] = ()) -> None:
    """Raise a UserError for a name that is neither a metric of texts nor in `other_metrics`."""
    supported = [*TEXT_METRICS, *other_metrics]
    for name in names:
        if name not in supported and not is_text_metric(name):
            raise unknown_name("metric", name, supported)


def evaluate(
    names: Iterable[str],
    hypotheses: Sequence[str],
    references: References,
    sources: Sequence[str] | None = None,
) -> dict[str, MetricScore]:
    """Compute the metrics of these names for the same hypotheses; return scores by name. Only COMET needs sources."""
    metrics = {name: text_metric(name) for name in names}
    return {name: metric(hypotheses, references, sources) for name, metric in metrics.items()}


class LengthBucket(NamedTuple):
    """Scores of the sentences whose source has a similar number of words."""

    words: str  # such as "6 to 10"
    sentences: int
    exact_match: float
    bleu: float


def score_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    *,
    edges: Sequence[int] = (5, 10, 15, 20, 30, 40, 50),
) -> list[LengthBucket]:
    """Score sentences by the number of words in the source (Bahdanau et al. 2015, figure 2).

    Each edge is the largest number of words of its bucket; a last bucket holds longer sources. Empty buckets are
    omitted.
    """
    if not edges or any(low >= high for low, high in pairwise(edges)):
        raise UserError(
            "edges, the upper limits of the length buckets, must increase, but are "
            f"{', '.join(map(str, edges)) or 'empty'}"
        )
    lists = reference_lists(hypotheses, references)
    check_equal_counts(len(sources), "sources", len(hypotheses), "hypotheses")
    inner_labels = [str(high) if low + 1 == high else f"{low + 1} to {high}" for low, high in pairwise(edges)]
    labels = [f"up to {edges[0]}", *inner_labels, f"over {edges[-1]}"]
    bucket_indices: list[list[int]] = [[] for _ in labels]  # of sentences
    for index, source in enumerate(sources):
        bucket_indices[bisect_left(edges, len(source.split()))].append(index)
    buckets = []
    for label, indices in zip(labels, bucket_indices):
        if indices:
            bucket_hypotheses, bucket_references = [hypotheses[i] for i in indices], [lists[i] for i in indices]
            exact = exact_match(bucket_hypotheses, bucket_references)
            # effective order: a bucket may have no sentence of four words, and so no 4-grams
            quality = bleu(bucket_hypotheses, bucket_references, effective_order=True)
            buckets.append(LengthBucket(label, len(indices), exact.value, quality.value))
    return buckets
