"""How well a model expects the text: perplexity."""

from __future__ import annotations

import math

from dragoman.errors import UserError
from dragoman.evaluation.score import Score


def perplexity(total_log_probability: float, tokens: int) -> Score:
    """The number of equally likely tokens among which the model would be as unsure as it is: 1 is certainty.

        perplexity = exp(−(1/N) Σ ln p(yₜ | y₍<ₜ₎, x))

    Logarithms are natural. Perplexities compare only over the same tokens: another tokenizer gives another N.
    """
    if tokens <= 0:
        raise UserError(f"perplexity needs at least one token, but there are {tokens}")
    cross_entropy = -total_log_probability / tokens
    try:
        value = math.exp(cross_entropy)
    except OverflowError:  # a token of vanishing probability; exp of infinity itself does not overflow
        value = math.inf
    return Score("perplexity", value, "lower", detail={"cross_entropy": cross_entropy, "tokens": tokens})
