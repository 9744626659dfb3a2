"""Checkpoint selection: which validation metric decides, and which of two validations is better."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dragoman.errors import UserError
from dragoman.objectives import Objective

DECODED = ("bleu", "chrf", "exact_match")  # metrics of decoded sentences
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match"}
BLEU_ORDER = 4  # corpus BLEU is 0 where no sentence has as many words
#: scripts written without spaces: Thai to Myanmar, Khmer, kana and CJK ideographs
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


class ValidationScore(NamedTuple):
    """A validation's score: higher is better, and of two equal metrics the one with the lower loss."""

    metric: float
    negative_loss: float


def default_metric(objective: type[Objective] | Objective, references: Sequence[str]) -> tuple[str, str]:
    """The metric that suits the objective and the references of the decoded validation sentences, and why."""
    if objective.selection_metric not in DECODED:
        return objective.selection_metric, "what this objective is about"
    if not references:
        return "loss", "no validation sentences are decoded"
    if _most(references, lambda text: len(text.split()) < BLEU_ORDER):
        if _most(references, lambda text: UNSPACED.search(text) is not None):
            return "chrf", "the target script has no spaces between words"
        return "exact_match", f"most validation references have fewer than {BLEU_ORDER} words, where BLEU is 0"
    return objective.selection_metric, "of the decoded validation sentences"


def check_metric(metric: str, references: Sequence[str]) -> None:
    """Refuse a metric of decoded sentences where none are decoded."""
    if metric in DECODED and not references:
        raise UserError(
            f"training.selection_metric is {metric}, but no validation sentences are decoded (by this objective, or "
            "because training.validation_sentences is 0): set training.selection_metric=loss"
        )


def _most(texts: Sequence[str], condition: Callable[[str], bool]) -> bool:
    return 2 * sum(condition(text) for text in texts) > len(texts)
