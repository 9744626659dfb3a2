"""Evaluation: BLEU, chrF, TER, ROUGE, COMET, perplexity, error rates, significance tests and tables."""

from dragoman.evaluation.error_rates import (
    Link,
    alignment_error_rate,
    exact_match,
    parse_pharaoh,
    parse_sure_and_possible,
)
from dragoman.evaluation.likelihood import LIKELIHOOD_METRICS, likelihood_metric, perplexity
from dragoman.evaluation.metric_score import MetricScore
from dragoman.evaluation.rouge import lead_sentences
from dragoman.evaluation.significance import PAIRED_TESTS, PairedTestResult, paired_test
from dragoman.evaluation.table import MeanStd, format_csv, format_latex, format_table
from dragoman.evaluation.text_metrics import (
    TEXT_METRICS,
    bleu,
    check_metric_names,
    chrf,
    evaluate,
    is_text_metric,
    score_by_length,
    ter,
)

__all__ = [
    "LIKELIHOOD_METRICS",
    "PAIRED_TESTS",
    "TEXT_METRICS",
    "Link",
    "MeanStd",
    "MetricScore",
    "PairedTestResult",
    "alignment_error_rate",
    "bleu",
]
__all__ += ["check_metric_names", "chrf", "evaluate", "exact_match", "format_csv", "format_latex", "format_table"]
__all__ += [
    "is_text_metric",
    "lead_sentences",
    "likelihood_metric",
    "paired_test",
    "parse_pharaoh",
    "parse_sure_and_possible",
    "perplexity",
]
__all__ += ["score_by_length", "ter"]
