"""Checkpoint selection: which validation metric selects the best checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dragoman.errors import UserError
from dragoman.objectives import Objective

GENERATION_METRICS = ("bleu", "chrf", "exact_match")
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match"}
BLEU_ORDER = 4  # corpus BLEU is 0 if no sentence has this many words
#: scripts written without spaces: Thai to Myanmar, Khmer, kana and CJK ideographs
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


class ValidationScore(NamedTuple):
    """Score of a validation: higher is better; between equal metrics the lower loss decides."""

    metric: float
    negative_loss: float


def default_metric(objective: type[Objective], references: Sequence[str]) -> tuple[str, str]:
    """Return the metric that suits the objective and the decoded validation references, and the reason."""
    metric = objective.selection_metric
    if metric not in GENERATION_METRICS:
        return metric, "the metric of this objective"
    if not references:
        return "loss", "no validation sentences are decoded"
    if _in_majority(references, lambda text: len(text.split()) < BLEU_ORDER):
        if _in_majority(references, lambda text: UNSPACED.search(text) is not None):
            return "chrf", "the target script has no spaces between words"
        return "exact_match", f"most validation references have fewer than {BLEU_ORDER} words, where BLEU is 0"
    return metric, "of the decoded validation sentences"


def check_metric(metric: str, references: Sequence[str]) -> None:
    """Raise a UserError for a metric of decoded sentences if none are decoded."""
    if metric in GENERATION_METRICS and not references:
        raise UserError(
            f"training.selection_metric is {metric}, but no validation sentences are decoded (by this objective, or "
            "because training.validation_sentences is 0): set training.selection_metric=loss"
        )


def _in_majority(texts: Sequence[str], condition: Callable[[str], bool]) -> bool:
    return 2 * sum(condition(text) for text in texts) > len(texts)
