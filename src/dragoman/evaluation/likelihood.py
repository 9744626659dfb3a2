"""Metrics of log-probabilities: perplexity per token and per word, and bits per character."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dragoman.errors import UserError
from dragoman.evaluation.metric_score import MetricScore
from dragoman.evaluation.text_metrics import metric_name

LIKELIHOOD_METRICS = ("perplexity", "word-perplexity", "bits-per-character")


def perplexity(total_log_probability: float, tokens: int) -> MetricScore:
    """Perplexity: the exponential of the mean negative log-probability of a token; 1 is certainty.

        perplexity = exp(−(1/N) Σ ln p(yₜ | y₍<ₜ₎, x))

    The sum is `total_log_probability`, and N is `tokens`, the number of all tokens of the texts with each EOS.
    Perplexities are comparable only for the same tokenizer.
    """
    return _perplexity("perplexity", total_log_probability, count=tokens, unit="token")


def word_perplexity(total_log_probability: float, texts: Sequence[str]) -> MetricScore:
    """Perplexity per word, which is comparable across tokenizers: exp(−ln p of all texts / number of words).

    ln p is `total_log_probability`. Words are separated by white space; the EOS of every text counts as a word.
    """
    words = sum(len(text.split()) + 1 for text in texts)  # + 1: EOS
    return _perplexity("word perplexity", total_log_probability, count=words, unit="word")


def bits_per_character(total_log_probability: float, texts: Sequence[str]) -> MetricScore:
    """−log₂ p of the texts per character, which is comparable across tokenizers.

    `total_log_probability` is ln p of all texts. The EOS of every text counts as a character: its line feed.
    """
    characters = sum(len(text) + 1 for text in texts)  # + 1: EOS
    if not characters:
        raise UserError("bits per character cannot be computed, because there are no texts: check the input file")
    value = -total_log_probability / math.log(2) / characters
    return MetricScore("bits per character", value, better="lower", detail={"characters": characters}, decimals=4)


def likelihood_metric(name: str, total_log_probability: float, tokens: int, texts: Sequence[str]) -> MetricScore:
    """Compute perplexity, word-perplexity (also written word_perplexity) or bits-per-character of `texts`.

    `total_log_probability` (natural logarithm) is that of all `tokens` tokens of the texts, each EOS included.
    """
    if name == "perplexity":
        return perplexity(total_log_probability, tokens)
    metric = {"word-perplexity": word_perplexity, "bits-per-character": bits_per_character}[metric_name(name)]
    return metric(total_log_probability, texts)


def _perplexity(metric: str, total_log_probability: float, count: int, unit: str) -> MetricScore:
    """Return exp of the mean negative log-probability per `unit` (token or word), of which there are `count`.

    `metric` is the name of the score.
    """
    if count <= 0:
        raise UserError(f"the metric {metric} needs at least one {unit}, but there is none: check the input file")
    cross_entropy = -total_log_probability / count
    try:
        value = math.exp(cross_entropy)
    except OverflowError:  # a token of vanishing probability; exp of infinity itself does not overflow
        value = math.inf
    return MetricScore(metric, value, better="lower", detail={"cross_entropy": cross_entropy, f"{unit}s": count})
