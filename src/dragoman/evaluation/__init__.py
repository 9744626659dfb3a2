"""How good it is: BLEU, chrF, TER, perplexity, error rates, alignment error, and the tables that compare them."""

from dragoman.evaluation.alignment import (
    Link,
    alignment_error_rate,
    format_pharaoh,
    parse_pharaoh,
    parse_sure_and_possible,
)
from dragoman.evaluation.comparison import Comparison, LengthBand, by_length, compare
from dragoman.evaluation.error_rates import (
    edit_distance,
    exact_match,
    item_error_rate,
    phoneme_error_rate,
    token_accuracy,
    word_error_rate,
)
from dragoman.evaluation.likelihood import LIKELIHOODS, bits_per_character, likelihood, perplexity, word_perplexity
from dragoman.evaluation.measures import MEASURES, Measure, check, evaluate
from dragoman.evaluation.score import References, Score
from dragoman.evaluation.significance import Resampled, contrast_test, holm, resample, student_t_p_value
from dragoman.evaluation.table import Estimate, csv_table, latex_table, table
from dragoman.evaluation.translation import bleu, chrf, ter

__all__ = [
    "LIKELIHOODS",
    "MEASURES",
    "Comparison",
    "Estimate",
    "LengthBand",
    "Link",
    "Measure",
    "References",
    "Resampled",
    "Score",
    "alignment_error_rate",
    "bits_per_character",
    "bleu",
    "by_length",
    "check",
    "chrf",
    "compare",
    "contrast_test",
    "csv_table",
    "edit_distance",
    "evaluate",
    "exact_match",
    "format_pharaoh",
    "holm",
    "item_error_rate",
    "latex_table",
    "likelihood",
    "parse_pharaoh",
    "parse_sure_and_possible",
    "perplexity",
    "phoneme_error_rate",
    "resample",
    "student_t_p_value",
    "table",
    "ter",
    "token_accuracy",
    "word_error_rate",
    "word_perplexity",
]
