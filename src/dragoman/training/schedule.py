"""Learning-rate schedules: a linear warm-up, then a decay, as functions of the step and the share of the budget used.

With a budget of steps or epochs the share follows from the step alone, so that resuming is exact. With a budget of time
it is what the clock said, recorded in the training state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.config import TrainingConfig
from dragoman.errors import UserError

WARMUP_SHARE = 0.1  # of a budget of time, at most
SCHEDULES_WITH_END = ("cosine", "linear", "stable")  # schedules that must know their end


@dataclass(frozen=True)
class ScheduleHorizon:
    """The length of the training: steps to its end, steps of an epoch, share of the time that is used.

    `fits_warmup`: the warm-up takes at most a tenth of the time, however many steps that is.
    """

    steps: int | None = None
    steps_per_epoch: int | None = None
    reductions: int = 0  # times that the schedule `plateau` has reduced the rate
    time_used: float | None = None
    limits_warmup: bool = False


@dataclass(frozen=True)
class SchedulePoint:
    """Where a step lies: in warm-ups (1: the warm-up is done), epochs, and as a share of the budget, where it has one.

    At a steady pace the warm-up ends at the share `used / warmups`.
    """

    warmups: float
    epochs: float | None
    used: float | None
    reductions: int


def inverse_sqrt(point: SchedulePoint, config: TrainingConfig) -> float:
    """√(warmup / step) after the warm-up (Vaswani et al. 2017, §5.3)."""
    return 1 / math.sqrt(point.warmups)


def cosine(point: SchedulePoint, config: TrainingConfig) -> float:
    """½ (1 + cos π·progress) from the warm-up to the end (Loshchilov & Hutter 2017)."""
    used = _used(point, config)
    return _above(config, 0.5 * (1 + math.cos(math.pi * _progress(used, used / point.warmups))))


def linear(point: SchedulePoint, config: TrainingConfig) -> float:
    """1 − progress from the warm-up to the end (Devlin et al. 2019, §A.2)."""
    used = _used(point, config)
    return _above(config, 1 - _progress(used, used / point.warmups))


def constant(point: SchedulePoint, config: TrainingConfig) -> float:
    """1 after the warm-up."""
    return 1.0


def stable(point: SchedulePoint, config: TrainingConfig) -> float:
    """1, and 1 − √progress over the last `decay` of the budget: warm-up, stable, decay (Hu et al. 2024, §4).

    The decay is not the paper's exponential one but that of Hägele et al. (2024, §3), who found it better than a
    linear one at every length.
    """
    used = _used(point, config)
    return _above(config, 1 - math.sqrt(_progress(used, max(used / point.warmups, 1 - config.decay_fraction))))


def halving(point: SchedulePoint, config: TrainingConfig) -> float:
    """1 for `hold` epochs, then halved, and again after every `halve_every` of an epoch.

    Every epoch after five in Luong et al. (2015, §4.1), every half epoch after five in Sutskever et al. (2014, §3.4).
    """
    if point.epochs is None:
        raise UserError("the schedule halving must know the steps of an epoch, which are not known: choose another one")
    past = point.epochs - config.resolved("halving_start_epoch")
    return 1.0 if past < 0 else 0.5 ** (1 + math.floor(past / config.resolved("halving_interval")))


def plateau(point: SchedulePoint, config: TrainingConfig) -> float:
    """Reduced by `plateau_factor` after each validation whose loss is not the lowest so far (Gehring et al. 2017)."""
    return config.resolved("plateau_factor") ** point.reductions


SCHEDULES: dict[str, Callable[[SchedulePoint, TrainingConfig], float]] = {
    "inverse-sqrt": inverse_sqrt,
    "cosine": cosine,
    "constant": constant,
    "stable": stable,
    "halving": halving,
    "linear": linear,
    "plateau": plateau,
}


def learning_rate(config: TrainingConfig, step: int, horizon: ScheduleHorizon | None = None) -> float:
    """The learning rate of a step, counted from 1; without a horizon the end is that of `training.steps`."""
    point = _point(config, step, horizon or ScheduleHorizon(config.steps))
    peak = config.learning_rate or 0.0
    if point.warmups <= 1:
        start = config.resolved("warmup_start_factor")
        return peak * (start + (1 - start) * point.warmups)
    return peak * SCHEDULES[config.schedule or "inverse-sqrt"](point, config)


def schedule_start(config: TrainingConfig) -> int:
    """The step after which the schedule starts again: where a finished run was extended, if its schedule had an end."""
    ends = config.schedule in SCHEDULES_WITH_END or config.minutes is not None
    return config.extended_at if ends else 0


def warmup_steps(config: TrainingConfig, steps: int | None) -> int:
    """Steps of the warm-up; of one that is done again, at most a tenth of the steps that follow."""
    start, warmup = schedule_start(config), max(1, config.warmup_steps or 1)
    return warmup if not start or steps is None else max(1, min(warmup, (steps - start) // 10))


def _point(config: TrainingConfig, step: int, horizon: ScheduleHorizon) -> SchedulePoint:
    start, shares = schedule_start(config), []
    warmups = (step - start) / warmup_steps(config, horizon.steps)
    if horizon.steps is not None:
        shares.append((step - start) / max(1, horizon.steps - start))
    if horizon.time_used is not None:
        shares.append(horizon.time_used)
        warmups = max(warmups, horizon.time_used / WARMUP_SHARE if horizon.limits_warmup else 0.0)
    epochs = None if horizon.steps_per_epoch is None else (step - 1) / horizon.steps_per_epoch
    return SchedulePoint(warmups, epochs, min(1.0, max(shares)) if shares else None, horizon.reductions)


def _used(point: SchedulePoint, config: TrainingConfig) -> float:
    if point.used is None:
        raise UserError(
            f"the schedule {config.schedule} must know its end: set training.steps, epochs or minutes, or choose "
            "inverse-sqrt"
        )
    return point.used


def _above(config: TrainingConfig, share: float) -> float:
    """A share that falls from 1 to 0, made to end at `final_rate`."""
    final = config.resolved("final_rate_factor")
    return final + (1 - final) * share


def _progress(used: float, start: float) -> float:
    """From 0 at `start` to 1 at the end of the budget."""
    return min(1.0, max(0.0, used - start) / max(1e-9, 1 - start))
