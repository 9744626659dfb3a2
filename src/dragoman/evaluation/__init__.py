"""Evaluation: BLEU, chrF, TER, perplexity, error rates, alignment error, significance tests and tables."""

from dragoman.evaluation.error_rates import (
    Link,
    alignment_error_rate,
    exact_match,
    parse_pharaoh,
    parse_sure_and_possible,
)
from dragoman.evaluation.likelihood import LIKELIHOOD_METRICS, likelihood_metric, perplexity
from dragoman.evaluation.metric_score import MetricScore
from dragoman.evaluation.significance import paired_bootstrap
from dragoman.evaluation.table import MeanStd, format_csv, format_latex, format_table
from dragoman.evaluation.text_metrics import (
    TEXT_METRICS,
    bleu,
    check_metric_names,
    chrf,
    evaluate,
    score_by_length,
    ter,
)

__all__ = ["LIKELIHOOD_METRICS", "TEXT_METRICS", "Link", "MeanStd", "MetricScore", "alignment_error_rate", "bleu"]
__all__ += ["check_metric_names", "chrf", "evaluate", "exact_match", "format_csv", "format_latex", "format_table"]
__all__ += ["likelihood_metric", "paired_bootstrap", "parse_pharaoh", "parse_sure_and_possible", "perplexity"]
__all__ += ["score_by_length", "ter"]
