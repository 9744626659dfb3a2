"""The measures by the names they have on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from dragoman.errors import unknown_name
from dragoman.evaluation.error_rates import (
    exact_match,
    item_error_rate,
    phoneme_error_rate,
    token_accuracy,
    word_error_rate,
)
from dragoman.evaluation.metric_score import MetricScore, References
from dragoman.evaluation.translation_metrics import bleu, chrf, ter

MetricFunction = Callable[[Sequence[str], References], MetricScore]

METRICS: Mapping[str, MetricFunction] = {
    "bleu": bleu,
    "chrf": chrf,
    "chrf++": partial(chrf, word_order=2),
    "ter": ter,
    "exact": exact_match,
    "accuracy": token_accuracy,
    "wer": word_error_rate,
    "per": phoneme_error_rate,
    "ier": item_error_rate,
}


def check_metric_names(names: Iterable[str], other_metrics: Iterable[str] = ()) -> None:
    """Reject a misspelt measure before anything is computed; `others` are known besides those of this module."""
    known = [*METRICS, *other_metrics]
    for name in names:
        if name not in known:
            raise unknown_name("measure", name, known)


def evaluate(names: Iterable[str], hypotheses: Sequence[str], references: References) -> dict[str, MetricScore]:
    """The named measures of the same hypotheses, in the order they were asked for."""
    names = list(names)
    check_metric_names(names)
    return {name: METRICS[name](hypotheses, references) for name in names}
