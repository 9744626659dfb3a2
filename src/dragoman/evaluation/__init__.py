"""How good it is: BLEU, chrF, TER, perplexity, error rates, alignment error, and the tables that compare them."""

from dragoman.evaluation.alignment_error import (
    Link,
    alignment_error_rate,
    format_pharaoh,
    parse_pharaoh,
    parse_sure_and_possible,
)
from dragoman.evaluation.error_rates import (
    edit_distance,
    exact_match,
    item_error_rate,
    phoneme_error_rate,
    token_accuracy,
    word_error_rate,
)
from dragoman.evaluation.likelihood import (
    LIKELIHOOD_METRICS,
    bits_per_character,
    likelihood_metric,
    perplexity,
    word_perplexity,
)
from dragoman.evaluation.metric_score import MetricScore, References
from dragoman.evaluation.metrics_by_name import METRICS, MetricFunction, check_metric_names, evaluate
from dragoman.evaluation.paired_comparison import LengthBucket, PairedBootstrapResult, paired_bootstrap, score_by_length
from dragoman.evaluation.significance import (
    BootstrapScores,
    bootstrap_scores,
    contrast_test,
    holm_correction,
    student_t_p_value,
)
from dragoman.evaluation.table import MeanStd, format_csv, format_latex, format_table
from dragoman.evaluation.translation_metrics import bleu, chrf, ter

__all__ = [
    "LIKELIHOOD_METRICS",
    "METRICS",
    "BootstrapScores",
    "LengthBucket",
    "Link",
    "MeanStd",
    "MetricFunction",
    "MetricScore",
    "PairedBootstrapResult",
    "References",
    "alignment_error_rate",
    "bits_per_character",
    "bleu",
    "bootstrap_scores",
    "check_metric_names",
    "chrf",
    "contrast_test",
    "edit_distance",
    "evaluate",
    "exact_match",
    "format_csv",
    "format_latex",
    "format_pharaoh",
    "format_table",
    "holm_correction",
    "item_error_rate",
    "likelihood_metric",
    "paired_bootstrap",
    "parse_pharaoh",
    "parse_sure_and_possible",
    "perplexity",
    "phoneme_error_rate",
    "score_by_length",
    "student_t_p_value",
    "ter",
    "token_accuracy",
    "word_error_rate",
    "word_perplexity",
]
