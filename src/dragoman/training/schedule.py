"""Learning-rate schedules: a linear warm-up, then a way down."""

from __future__ import annotations

import math
from collections.abc import Callable

from dragoman.config import TrainingConfig


def inverse_sqrt(step: int, warmup: int, steps: int) -> float:
    """√(warmup / step) after the warm-up (Vaswani et al. 2017, §5.3)."""
    return math.sqrt(warmup / step)


def cosine(step: int, warmup: int, steps: int) -> float:
    """½ (1 + cos π·progress) from the warm-up to the last step (Loshchilov & Hutter 2017)."""
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.5 * (1 + math.cos(math.pi * progress))


def constant(step: int, warmup: int, steps: int) -> float:
    """1 after the warm-up."""
    return 1.0


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "inverse-sqrt": inverse_sqrt,
    "cosine": cosine,
    "constant": constant,
}


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of a step, counted from 1."""
    peak, warmup = config.learning_rate or 0.0, max(1, config.warmup or 1)
    if step <= warmup:
        return peak * step / warmup
    return peak * SCHEDULES[config.schedule](step, warmup, config.steps or step)
