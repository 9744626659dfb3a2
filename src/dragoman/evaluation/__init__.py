"""Evaluation: BLEU, chrF, TER, ROUGE, COMET, perplexity, error rates, significance tests and tables."""

from dragoman.evaluation.error_rates import (
    Link,
    alignment_error_rate,
    exact_match,
    parse_pharaoh,
    parse_sure_and_possible,
)
from dragoman.evaluation.likelihood import LIKELIHOOD_METRICS, likelihood_metric, perplexity
from dragoman.evaluation.metric_choice import (
    MetricChoice,
    choose_bleu_tokenizer,
    choose_metrics,
    error_rate_for,
    metrics_around,
)
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
    first_references,
    is_text_metric,
    metric_key,
    metric_name,
    score_by_length,
    ter,
    text_metric,
)

__all__ = ["LIKELIHOOD_METRICS", "PAIRED_TESTS", "TEXT_METRICS", "Link", "MeanStd", "MetricChoice", "MetricScore"]
__all__ += ["PairedTestResult", "alignment_error_rate", "bleu", "check_metric_names", "choose_bleu_tokenizer"]
__all__ += ["choose_metrics", "chrf", "error_rate_for", "evaluate", "first_references", "metric_key", "metric_name"]
__all__ += ["exact_match", "format_csv", "format_latex", "format_table", "metrics_around", "text_metric"]
__all__ += ["is_text_metric", "lead_sentences", "likelihood_metric", "paired_test", "parse_pharaoh"]
__all__ += ["parse_sure_and_possible", "perplexity", "score_by_length", "ter"]
