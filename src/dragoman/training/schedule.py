"""Learning-rate schedules: a linear warmup, then a decay by the step or by the used fraction of the budget.

With a budget of steps or epochs the fraction depends on the step alone, so that resuming is exact. With a time budget
it is measured and saved in the training state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.config import TrainingConfig
from dragoman.errors import UserError

MAX_WARMUP_TIME = 0.1  # fraction of a time budget
SCHEDULES_WITH_END = ("cosine", "linear", "stable")


@dataclass(frozen=True)
class ScheduleInputs:
    """What a learning-rate schedule depends on besides settings and step, above all the length of the training."""

    total_steps: int | None = None  # at the end of the training; None if unknown
    steps_per_epoch: int | None = None
    reductions: int = 0  # of the learning rate by the schedule `plateau`
    time_used: float | None = None  # fraction of the time budget
    limits_warmup: bool = False  # the warmup takes at most a tenth of the time


class SchedulePoint:
    """A step in units of the schedule, and the factor of the learning rate there by each schedule.

    Attributes:
        warmup_progress: the step divided by the number of warmup steps: 1 where the warmup ends.
        epochs: passes over the data before the step; None if their length is unknown.
        fraction_used: used fraction of the training budget; None if it is unknown when training ends.
    """

    def __init__(self, config: TrainingConfig, step: int, inputs: ScheduleInputs) -> None:
        """Locate a step (counted from 1) within the warmup, the epochs and the budget of a training.

        `inputs` has what is known about the length of the training. The warmup takes `warmup_steps`, but at most a
        tenth of a time budget if the user has not set it (`inputs.limits_warmup`).
        """
        self.config, self.inputs = config, inputs
        steps_after_start = step - schedule_start(config)  # the schedule restarts where a finished run was extended
        self.warmup_progress = steps_after_start / warmup_steps(config, inputs.total_steps)  # 1 where the warmup ends
        if inputs.limits_warmup and inputs.time_used is not None:
            self.warmup_progress = max(self.warmup_progress, inputs.time_used / MAX_WARMUP_TIME)
        self.epochs = None if inputs.steps_per_epoch is None else (step - 1) / inputs.steps_per_epoch
        self.fraction_used = fraction_used(config, step, inputs)

    @property
    def used(self) -> float:
        """Used fraction of the training budget (steps, epochs or minutes); a UserError is raised if there is none."""
        if self.fraction_used is None:
            raise UserError(
                f"training.schedule={self.config.schedule} needs to know when training ends: set training.steps, "
                "training.epochs or training.minutes, or choose training.schedule=inverse-sqrt"
            )
        return self.fraction_used

    @property
    def warmup_end(self) -> float:
        """Fraction of the training budget at which the warmup ends, extrapolated from this step.

        It assumes that all steps take equally long. `warmup_progress` is 1 at the end of the warmup.
        """
        return self.used / self.warmup_progress

    def inverse_sqrt(self) -> float:
        """Return the factor of the peak learning rate after the warmup: √(warmup / step) (Vaswani et al. 2017, §5.3).

        With `training.hold_steps`, it stays 1 for so many steps after the warmup, and is then √((warmup + hold) / step)
        (Shazeer et al. 2017, §E). `warmup_progress` is step / warmup, and `hold_end` is in the same unit.
        """
        hold_end = 1 + self.config.resolved("hold_steps") / warmup_steps(self.config, self.inputs.total_steps)
        return 1 / math.sqrt(max(1.0, self.warmup_progress / hold_end))

    def cosine(self) -> float:
        """Return the factor of the peak learning rate after the warmup: ½ (1 + cos π·progress).

        The progress grows from 0 at the end of the warmup to 1 at the end of training (Loshchilov & Hutter 2017). The
        factor ends at `training.final_rate_factor` instead of 0.
        """
        progress = self._progress_from(self.warmup_end)
        return self._scale_to_final_rate(0.5 * (1 + math.cos(math.pi * progress)))

    def linear(self) -> float:
        """Return the factor of the peak learning rate after the warmup: 1 − progress (Devlin et al. 2019, §A.2).

        The progress grows from 0 at the end of the warmup to 1 at the end of training. The factor ends at
        `training.final_rate_factor` instead of 0.
        """
        return self._scale_to_final_rate(1 - self._progress_from(self.warmup_end))

    def constant(self) -> float:
        """Return the factor of the peak learning rate: 1 after the warmup."""
        return 1.0

    def stable(self) -> float:
        """Return the factor of the peak learning rate: 1, then 1 − √progress in the last `decay_fraction` of training.

        This is the schedule "warmup, stable, decay" (Hu et al. 2024, §4). The decay is not the paper's exponential one
        but that of Hägele et al. (2024, §3), which they found better than a linear one at every length. The factor ends
        at `training.final_rate_factor` instead of 0.
        """
        decay_start = max(self.warmup_end, 1 - self.config.decay_fraction)
        return self._scale_to_final_rate(1 - math.sqrt(self._progress_from(decay_start)))

    def halving(self) -> float:
        """Return the factor of the peak learning rate: 1 in the first `halving_start_epoch` epochs, then ½, ¼, ….

        It is halved every `halving_interval` epochs: every epoch after five in Luong et al. (2015, §4.1), every half
        epoch after five in Sutskever et al. (2014, §3.4).
        """
        if self.epochs is None:
            raise UserError(
                "training.schedule=halving needs the number of optimizer steps per epoch, which is unknown: choose "
                "another training.schedule, such as inverse-sqrt"
            )
        epochs_after_start = self.epochs - self.config.resolved("halving_start_epoch")
        if epochs_after_start < 0:
            return 1.0
        # + 1: halved for the first time as soon as these epochs are over
        return 0.5 ** (1 + math.floor(epochs_after_start / self.config.resolved("halving_interval")))

    def plateau(self) -> float:
        """Return the factor of the peak learning rate: `plateau_factor` ** (validations without a lower loss).

        This is the schedule of Gehring et al. (2017).
        """
        return self.config.resolved("plateau_factor") ** self.inputs.reductions

    def _scale_to_final_rate(self, factor: float) -> float:
        """Map a factor that falls from 1 to 0 linearly to one that falls from 1 to `training.final_rate_factor`."""
        final = self.config.resolved("final_rate_factor")
        return final + (1 - final) * factor

    def _progress_from(self, start: float) -> float:
        """Return 0 until the fraction `start` of the training budget is used, then grow linearly to 1 at its end."""
        return min(1.0, max(0.0, self.used - start) / max(1e-9, 1 - start))


SCHEDULES: dict[str, Callable[[SchedulePoint], float]] = {
    "inverse-sqrt": SchedulePoint.inverse_sqrt,
    "cosine": SchedulePoint.cosine,
    "constant": SchedulePoint.constant,
    "stable": SchedulePoint.stable,
    "halving": SchedulePoint.halving,
    "linear": SchedulePoint.linear,
    "plateau": SchedulePoint.plateau,
}


def learning_rate(config: TrainingConfig, step: int, inputs: ScheduleInputs | None = None) -> float:
    """Return the learning rate of a step, counted from 1: a linear warmup, then `training.schedule`.

    `inputs` has what is known about the length of the training; by default it ends at `training.steps`.
    """
    point = SchedulePoint(config, step, inputs or ScheduleInputs(total_steps=config.steps))
    peak = config.learning_rate or 0.0
    if point.warmup_progress <= 1:  # the step is within the warmup
        start_factor = config.resolved("warmup_start_factor")  # of the peak, where the warmup starts
        return peak * (start_factor + (1 - start_factor) * point.warmup_progress)
    return peak * SCHEDULES[config.schedule or "inverse-sqrt"](point)


def fraction_used(config: TrainingConfig, step: int, inputs: ScheduleInputs) -> float | None:
    """Return the fraction of the training budget that is used at `step`; None if only patience ends training.

    `inputs` has the total number of steps and the used fraction of the time budget, if they are known; the larger
    fraction counts, because training ends with the first of both budgets. For an extended run, only the extension
    counts if the schedule restarts there.
    """
    start, fractions = schedule_start(config), [inputs.time_used]
    if inputs.total_steps is not None:
        fractions.append((step - start) / max(1, inputs.total_steps - start))
    known_fractions = [fraction for fraction in fractions if fraction is not None]
    return min(1.0, max(known_fractions)) if known_fractions else None


def schedule_start(config: TrainingConfig) -> int:
    """Return the step at which the schedule starts: 0, or where a finished run was last extended.

    A schedule without an end, such as inverse-sqrt, continues through extensions, unless it is fitted to a time budget.
    """
    ends = config.schedule in SCHEDULES_WITH_END or config.minutes is not None
    return config.extended_at if ends else 0


def warmup_steps(config: TrainingConfig, total_steps: int | None) -> int:
    """Return the number of warmup steps: `training.warmup_steps`, at least 1.

    If the schedule restarts where a finished run was extended, they are at most a tenth of the steps from there to the
    end of training, `total_steps` (None: unknown).
    """
    start, warmup = schedule_start(config), max(1, config.warmup_steps or 1)
    if not start or total_steps is None:
        return warmup
    return max(1, min(warmup, (total_steps - start) // 10))
