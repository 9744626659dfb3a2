"""The measures of machine translation: BLEU, chrF and TER, computed by sacreBLEU and quoted with its signature.

Post (2018), A Call for Clarity in Reporting BLEU Scores: a score is comparable only with its signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.metric_score import MetricScore, References, reference_lists

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

# sacreBLEU is imported where it is used: it takes a fifth of a second, and error rates and alignments do without it.


def bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    effective_order: bool = False,
) -> MetricScore:
    """BLEU: the geometric mean of the n-gram precisions, times a penalty for being short, from 0 to 100.

        BLEU = 100 · min(1, exp(1 − r/c)) · (p₁ p₂ p₃ p₄)^¼,   c, r: hypothesis and closest reference length

    Papineni et al. (2002). `effective_order` leaves out the orders n for which no hypothesis has n words, so that a
    corpus of very short sentences is not scored 0.
    """
    from sacrebleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise unknown_name("BLEU tokenizer", tokenize, BLEU.TOKENIZERS)
    try:
        # `force` silences the warning about tokenized text where the user has said that it is tokenized.
        metric = BLEU(lowercase, force=tokenize == "none", tokenize=tokenize, effective_order=effective_order)
    except (ImportError, RuntimeError) as error:  # a tokenizer that needs a package beyond sacreBLEU
        raise UserError(
            f"the BLEU tokenizer {tokenize!r} cannot be used here: {' '.join(str(error).split())}"
        ) from error
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
    """chrF: the F-score of character n-grams (n ≤ 6) with recall weighed twice (β = 2), from 0 to 100.

        chrF_β = 100 · (1 + β²) P R / (β² P + R),   P, R: mean precision and recall over n

    Popović (2015); with `word_order` 2 it is chrF++ of Popović (2017), which counts words and word pairs as well.
    """
    from sacrebleu import CHRF

    metric = CHRF(word_order=word_order, lowercase=lowercase)
    result = _corpus_score(metric, hypotheses, references)
    return MetricScore("chrF" + "+" * word_order, result.score, "higher", signature=str(metric.get_signature()))


def ter(
    hypotheses: Sequence[str], references: References, *, normalized: bool = False, lowercase: bool = True
) -> MetricScore:
    """Translation edit rate: insertions, deletions, substitutions and shifts of blocks, in % of the reference words.

        TER = 100 · edits to the nearest reference / mean reference length

    Snover et al. (2006). Unlike BLEU and chrF it ignores case unless told otherwise, as sacreBLEU and Tercom do.
    """
    from sacrebleu import TER

    metric = TER(normalized=normalized, case_sensitive=not lowercase)
    result = _corpus_score(metric, hypotheses, references)
    detail = {"edits": result.num_edits, "reference_length": result.ref_length}
    return MetricScore("TER", result.score, "lower", unit="%", signature=str(metric.get_signature()), detail=detail)


def reference_streams(hypotheses: Sequence[str], references: References) -> list[tuple[str | None, ...]]:
    """The references the way sacreBLEU wants them: all first ones, all second ones, …, None where there is none."""
    return list(zip_longest(*reference_lists(hypotheses, references)))


def _corpus_score(metric: Metric, hypotheses: Sequence[str], references: References) -> Any:
    # sacreBLEU documents None for a missing reference, but its annotations do not know it.
    streams: list[Any] = reference_streams(hypotheses, references)
    return metric.corpus_score(hypotheses, streams)
