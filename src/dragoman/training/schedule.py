"""Learning-rate schedules: a linear warm-up, then a way down; each a formula of the step, so that resuming is exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.config import TrainingConfig
from dragoman.errors import UserError


@dataclass(frozen=True)
class Horizon:
    """How far it is, in steps: to the end of the training, and through the data once."""

    steps: int | None = None
    epoch: int | None = None
    reductions: int = 0  # times that the schedule `plateau` has reduced the rate


def inverse_sqrt(step: int, config: TrainingConfig, horizon: Horizon) -> float:
    """√(warmup / step) after the warm-up (Vaswani et al. 2017, §5.3)."""
    return math.sqrt(_warmup(config) / step)


def cosine(step: int, config: TrainingConfig, horizon: Horizon) -> float:
    """½ (1 + cos π·progress) from the warm-up to the last step (Loshchilov & Hutter 2017)."""
    return _above(config, 0.5 * (1 + math.cos(math.pi * _progress(step, _warmup(config), _end(config, horizon)))))


def linear(step: int, config: TrainingConfig, horizon: Horizon) -> float:
    """1 − progress from the warm-up to the last step (Devlin et al. 2019, §A.2)."""
    return _above(config, 1 - _progress(step, _warmup(config), _end(config, horizon)))


def constant(step: int, config: TrainingConfig, horizon: Horizon) -> float:
    """1 after the warm-up."""
    return 1.0


def stable(step: int, config: TrainingConfig, horizon: Horizon) -> float:
    """1, and 1 − √progress over the last `decay` of the steps: warm-up, stable, decay (Hu et al. 2024, §4).

    The way down is not the paper's exponential one but that of Hägele et al. (2024, §3), who found it better than a
    linear one at every length.
    """
    end = _end(config, horizon)
    start = max(_warmup(config), end - round(config.decay * end))
    return _above(config, 1 - math.sqrt(_progress(step, start, end)))


def halving(step: int, config: TrainingConfig, horizon: Horizon) -> float:
    """1 for `hold` epochs, then halved, and again after every `halve_every` of an epoch.

    Every epoch after five in Luong et al. (2015, §4.1), every half epoch after five in Sutskever et al. (2014, §3.4).
    """
    if horizon.epoch is None:
        raise UserError("the schedule halving must know the steps of an epoch, which are not known: choose another one")
    past = (step - 1) / horizon.epoch - config.value("hold")  # epochs
    return 1.0 if past < 0 else 0.5 ** (1 + math.floor(past / config.value("halve_every")))


def plateau(step: int, config: TrainingConfig, horizon: Horizon) -> float:
    """Reduced by `plateau_factor` after each validation whose loss is not the lowest so far (Gehring et al. 2017)."""
    return config.value("plateau_factor") ** horizon.reductions


SCHEDULES: dict[str, Callable[[int, TrainingConfig, Horizon], float]] = {
    "inverse-sqrt": inverse_sqrt,
    "cosine": cosine,
    "constant": constant,
    "stable": stable,
    "halving": halving,
    "linear": linear,
    "plateau": plateau,
}


def learning_rate(config: TrainingConfig, step: int, horizon: Horizon | None = None) -> float:
    """The learning rate of a step, counted from 1; unless told, the end is that of `training.steps`."""
    peak, warmup = config.learning_rate or 0.0, _warmup(config)
    if step <= warmup:
        start = config.value("warmup_start")
        return peak * (start + (1 - start) * step / warmup)
    return peak * SCHEDULES[config.schedule or "inverse-sqrt"](step, config, horizon or Horizon(config.steps))


def _warmup(config: TrainingConfig) -> int:
    return max(1, config.warmup or 1)


def _above(config: TrainingConfig, share: float) -> float:
    """A share that falls from 1 to 0, made to end at `final_rate`."""
    final = config.value("final_rate")
    return final + (1 - final) * share


def _end(config: TrainingConfig, horizon: Horizon) -> int:
    if horizon.steps is None:
        raise UserError(f"the schedule {config.schedule} must know its end: set training.steps, or choose inverse-sqrt")
    return horizon.steps


def _progress(step: int, start: int, end: int) -> float:
    """From 0 at `start` to 1 at `end`."""
    return min(1.0, max(0, step - start) / max(1, end - start))
