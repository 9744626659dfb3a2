"""Metrics of translations: BLEU, chrF and TER by sacreBLEU, and all metrics by name.

A score is comparable only with its signature (Post 2018, A Call for Clarity in Reporting BLEU Scores).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.error_rates import (
    exact_match,
    item_error_rate,
    phoneme_error_rate,
    token_accuracy,
    word_error_rate,
)
from dragoman.evaluation.metric_score import MetricScore, References, check_equal_counts, reference_lists

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
    """Return sacreBLEU's score object of a corpus."""
    # sacreBLEU documents None for a missing reference, but its annotations do not allow it
    streams: list[Any] = reference_streams(hypotheses, references)
    return metric.corpus_score(hypotheses, streams)


MetricFunction = Callable[[Sequence[str], References], MetricScore]

TEXT_METRICS: Mapping[str, MetricFunction] = {
    "bleu": bleu,
    "chrf": chrf,
    "chrf++": partial(chrf, word_order=2),
    "ter": ter,
    "exact": exact_match,
    "accuracy": token_accuracy,
    "wer": word_error_rate,
    "per": phoneme_error_rate,
    "ier": item_error_rate,
}


def check_metric_names(names: Iterable[str], other_metrics: Iterable[str] = ()) -> None:
    """Raise a UserError for a name that is neither in TEXT_METRICS nor in `other_metrics`."""
    supported = [*TEXT_METRICS, *other_metrics]
    for name in names:
        if name not in supported:
            raise unknown_name("metric", name, supported)


def evaluate(names: Iterable[str], hypotheses: Sequence[str], references: References) -> dict[str, MetricScore]:
    """Compute the metrics of these names (keys of TEXT_METRICS) for the same hypotheses; return scores by name."""
    names = list(names)
    check_metric_names(names)
    return {name: TEXT_METRICS[name](hypotheses, references) for name in names}


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
    between = [str(high) if low + 1 == high else f"{low + 1} to {high}" for low, high in pairwise(edges)]
    labels = [f"up to {edges[0]}", *between, f"over {edges[-1]}"]
    members: list[list[int]] = [[] for _ in labels]
    for index, source in enumerate(sources):
        members[bisect_left(edges, len(source.split()))].append(index)
    buckets = []
    for label, indices in zip(labels, members):
        if indices:
            bucket_hypotheses, bucket_references = [hypotheses[i] for i in indices], [lists[i] for i in indices]
            exact = exact_match(bucket_hypotheses, bucket_references)
            # a bucket may not have a sentence of four words
            quality = bleu(bucket_hypotheses, bucket_references, effective_order=True)
            buckets.append(LengthBucket(label, len(indices), exact.value, quality.value))
    return buckets
