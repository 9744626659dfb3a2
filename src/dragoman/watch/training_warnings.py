"""Warnings about a training that its log shows: overfitting, skipped steps, large gradients, silence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

OVERFITTING_VALIDATIONS = 3  # with a rising loss, in a row
RECENT_RECORDS = 50  # of training: the last ones, which warnings are about
LARGE_GRADIENT = 10.0  # times the median of recent norms
MIN_RECENT_NORMS = 10  # from which a median is taken
MAX_SILENCE = 120.0  # seconds without a new status

Record = dict[str, Any]


def training_warnings(status: Record, trained: Sequence[Record], validated: Sequence[Record]) -> list[str]:
    """Return warnings about a training as text: overfitting, skipped steps, large gradients, a process that hangs.

    Args:
        status: the state of the training, and the seconds since it last reported one.
        trained: training records of metrics.jsonl.
        validated: its validation records.
    """
    warnings = [_overfitting(validated), _skipped(trained), _large_gradient(trained)]
    silence = float(status.get("seconds_since_update") or 0)
    if status.get("state") == "training" and silence > MAX_SILENCE:
        warnings.append(f"nothing was reported for {silence:.0f} seconds: a long validation, or the process hangs")
    if status.get("state") == "stopped":
        warnings.append("the process has ended without saying why: resume the run with --resume")
    return [text for text in warnings if text]


def _overfitting(validated: Sequence[Record]) -> str:
    """Return a warning if the validation loss rose in each of the last OVERFITTING_VALIDATIONS validations, or ""."""
    recent = validated[-(OVERFITTING_VALIDATIONS + 1) :]  # n rises need n + 1 losses
    losses = [float(record["loss"]) for record in recent if "loss" in record]
    if len(losses) <= OVERFITTING_VALIDATIONS or any(after <= before for before, after in pairwise(losses)):
        return ""
    return f"the validation loss has risen {OVERFITTING_VALIDATIONS} times in a row: the model overfits"


def _skipped(trained: Sequence[Record]) -> str:
    """Return a warning if recent steps were skipped because of a non-finite gradient, "" otherwise."""
    count = sum(int(record.get("skipped", 0)) for record in trained[-RECENT_RECORDS:])
    return f"{count} of the recent steps were skipped: their gradient was not finite" if count else ""


def _large_gradient(trained: Sequence[Record]) -> str:
    """Return a warning if the last gradient norm is above LARGE_GRADIENT times the median of recent ones, or "".

    Fewer than MIN_RECENT_NORMS norms are too few for a median.
    """
    norms = [float(record["gradient_norm"]) for record in trained[-RECENT_RECORDS:] if "gradient_norm" in record]
    if len(norms) < MIN_RECENT_NORMS or norms[-1] <= LARGE_GRADIENT * median(norms):
        return ""
    return f"the gradient norm is {norms[-1]:.3g}, which is {norms[-1] / median(norms):.0f} times the usual one"
