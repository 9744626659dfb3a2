"""The intermediate results of attention, with the formulas of the layer that computes them."""

from __future__ import annotations

from dataclasses import replace

from dragoman.parts.tracing import Quantity

QUERY = Quantity(
    "query", "HTE", "W_Q x", "What this position looks for: its vector, multiplied by the query matrix of the head."
)
KEY = Quantity("keys", "HSE", "W_K x", "What every position offers to be found by: one vector each.")
VALUE = Quantity("values", "HSE", "W_V x", "What every position passes on to those that attend to it.")
SCORES = Quantity(
    "scores", "HTS", "q·k / √d", "How well each key matches the query: one number per key, larger is better."
)
SCORE_BIAS = Quantity(
    "position bias", "HTS", "b", "A bias for the distance between query and key, which is added to each score."
)
MASK = Quantity(
    "mask",
    "TS",
    "1: visible",
    "Which keys this position may see. The scores of all others become −∞, so that they get no weight: a decoder must "
    "not see tokens that come later.",
)
WEIGHTS = Quantity(
    "attention weights",
    "HTS",
    "softmax(scores)",
    "The softmax turns scores into shares that sum to 100 %: how much this position takes from each key.",
)
HEAD_OUTPUT = Quantity(
    "weighted sum",
    "HTE",
    "Σ weight · v",
    "The values, multiplied by their weights and added up: the result of the head.",
)
TERMS = Quantity(
    "terms of the scores",
    "SE",
    "q ⊙ k / √d",
    "Query and key are compared element by element; the sum of a row is the score of its key. Positive elements speak "
    "for the key, negative ones against it.",
)

#: query, keys, values and scores
AttentionQuantities = tuple[Quantity, Quantity, Quantity, Quantity]


def attention_quantities(
    projections: tuple[str, str, str],
    *,
    scale: float | None = None,
    is_normalized: bool = False,
    rotates: bool = False,
    rotates_values: bool = False,
) -> AttentionQuantities:
    """Describe query, keys, values and scores of an attention layer: names, formulas and explanations for a user.

    Args:
        projections: formulas of query, keys and values, such as W_Q x + b_Q
        scale: factor of the scores; None: 1/√d
        is_normalized: whether query and keys are normalized
        rotates: whether query and keys are rotated by their positions, R(position)
        rotates_values: whether values are rotated, too; ignored without `rotates`
    """
    quantities = []
    for base, formula in zip((QUERY, KEY, VALUE), projections):
        explanation = base.explanation
        if is_normalized and base is not VALUE:
            formula = f"norm({formula})"
            explanation += " The norm gives it a standard size."
        if rotates and (base is not VALUE or rotates_values):  # sums, such as W_Q x + b_Q, are put in parentheses
            formula = (
                f"R(position) {f'({formula})' if ' + ' in formula and not formula.startswith('norm(') else formula}"
            )
            explanation += (
                " R rotates pairs of elements by angles that grow with the position, so that a score depends on the "
                "distance between query and key."
            )
        quantities.append(replace(base, formula=formula, explanation=explanation))
    query, key, value = quantities
    return query, key, value, replace(SCORES, formula=score_formula(scale))


def projection_formulas(query: str, memory: str, bias: bool) -> tuple[str, str, str]:
    """Return the formulas of query, key and value, such as W_Q x + b_Q; without `bias` W_Q x.

    `query` is the symbol of the vector from which the query is computed, such as "x", `memory` that of key and value.
    """

    def projection(name: str, vector: str) -> str:
        """Return the formula of one projection, such as W_Q x + b_Q."""
        return f"W_{name} {vector} + b_{name}" if bias else f"W_{name} {vector}"

    return projection("Q", query), projection("K", memory), projection("V", memory)


def score_formula(scale: float | None) -> str:
    """Return the formula of attention scores, such as "q·k / √d" if the scale is None, or "0.5 q·k"."""
    if scale is None:
        return SCORES.formula
    return "q·k" if scale == 1 else f"{scale:.3g} q·k"


def term_quantity(scores: Quantity) -> Quantity:
    """Describe the elementwise products q ⊙ k whose sums are attention scores, for a user who looks at the terms.

    `scores` is the description of these scores; in the formula of their terms, "·" becomes "⊙".
    """
    return replace(TERMS, formula=scores.formula.replace("·", " ⊙ "))
