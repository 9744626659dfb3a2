"""When training stops: budgets of steps, epochs and time, patience, and what extends a run beyond them.

A run can be extended when its budget is used up: the budget given with --resume replaces all earlier ones. A schedule
that had decayed to its end (cosine, stable, or any that was fitted to a budget of time) starts again at that step, with
a warm-up; the others go on as if the larger budget had been given from the start. The step of the extension is written
to config.yaml (`training.extended_at`), so that an extension that is interrupted is resumed like any other training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman import checkpoint
from dragoman import config as configuration
from dragoman.config import Config, TrainingConfig
from dragoman.errors import UserError
from dragoman.run import CHECKPOINT_DIR, CONFIG_FILE, select_device
from dragoman.storage import write_file
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.schedule import ScheduleHorizon, schedule_start, warmup_steps

BUDGETS = ("steps", "epochs", "minutes")
CHANGEABLE = (*BUDGETS, "patience", "device", "parallelism")  # when a run is resumed
MAX_RESERVE = 0.2  # of the time, for the validations at the end
VALIDATIONS = 10  # in a budget of time, and
MAX_INTERVAL = 600  # seconds between them at most
VALIDATION_COST = 4  # times as long as a validation takes, training goes on before the next


def pluralize(number: float, noun: str) -> str:
    """`1 step`, `1,548 steps`."""
    return f"{number:,g} {noun}" if number == 1 else f"{number:,.10g} {noun}s"


def stop_reason(training: TrainingConfig, progress: TrainState) -> str | None:
    """Why training stops at this point, if it does."""
    if training.steps is not None and progress.step >= training.steps:
        return f"reached {pluralize(training.steps, 'step')}"
    if training.epochs is not None and progress.data_position.epoch >= training.epochs:
        return f"reached {pluralize(training.epochs, 'epoch')}"
    if training.minutes is not None and progress.time_used >= 1:
        return f"reached {pluralize(training.minutes, 'minute')}"
    if training.patience is not None and progress.validations_since_best >= training.patience:
        return f"no improvement in {pluralize(progress.validations_since_best, 'validation')}"
    return None


@dataclass(frozen=True)
class TrainingBudget:
    """How much of a run's budget is used, and what depends on it."""

    config: Config
    steps_per_epoch: int
    validates_average: bool  # is another validation to follow the last one, of averaged weights?

    @property
    def training(self) -> TrainingConfig:
        return self.config.training

    @property
    def steps(self) -> int | None:
        """The step at which a budget of steps or epochs is used up."""
        by_epochs = None if self.training.epochs is None else self.training.epochs * self.steps_per_epoch
        return min((limit for limit in (self.training.steps, by_epochs) if limit is not None), default=None)

    def update_budget(self, progress: TrainState) -> None:
        """Count anew where the run was extended, or given another time, since the state was saved."""
        extended = progress.extended_at != self.training.extended_at
        if extended:
            progress.extended_at, progress.validations_since_best = self.training.extended_at, 0
        if extended or progress.minutes != self.training.minutes:
            progress.minutes, progress.time_used, progress.validation_time_used = self.training.minutes, 0.0, 0.0
            timed = self.training.minutes is not None and schedule_start(self.training)
            progress.start_seconds = progress.seconds if timed else 0.0
            self.update_time_used(progress, progress.seconds)

    def update_time_used(self, progress: TrainState, seconds: float) -> None:
        """Record the share of a budget of time that is used after so many seconds of training.

        Time for the validations at the end is set aside, by what the last one took. The share never falls.
        """
        if self.training.minutes is not None:
            reserve = min(
                (2 if self.validates_average else 1) * progress.validation_seconds, MAX_RESERVE * self._time(progress)
            )
            share = (seconds - progress.start_seconds) / max(1e-9, self._time(progress) - reserve)
            progress.time_used = max(progress.time_used, min(1.0, share))

    def record_validation(self, progress: TrainState, seconds: float) -> None:
        """Record how long a validation took."""
        if self.training.minutes is not None:
            progress.validation_seconds = seconds
            progress.validation_time_used = (self.fraction_used(progress) or 0.0) + seconds / max(
                1e-9, self._time(progress)
            )

    def validation_due(self, progress: TrainState) -> bool:
        """Every `validate_every` steps; in a budget of time, unless the user has set them, ten times in all.

        Then validations take at most about a fifth of the time.
        """
        if self.training.minutes is None or "training.validation_interval" not in self.config.chosen:
            return progress.step % (self.training.validation_interval or 1) == 0
        time = self._time(progress)
        interval = max(VALIDATION_COST * progress.validation_seconds, min(time / VALIDATIONS, MAX_INTERVAL))
        return (self.fraction_used(progress) or 0.0) - progress.validation_time_used >= interval / max(1e-9, time)

    def horizon(self, progress: TrainState) -> ScheduleHorizon:
        """What the schedule must know."""
        elapsed = None if self.training.minutes is None else progress.time_used
        fits = "training.warmup_steps" in self.config.chosen
        return ScheduleHorizon(self.steps, self.steps_per_epoch, progress.reductions, elapsed, fits)

    def fraction_used(self, progress: TrainState) -> float | None:
        """The share of the budget that is used, by the limit that comes first; None where there is only patience."""
        start, shares = schedule_start(self.training), []
        if self.steps is not None:
            shares.append((progress.step - start) / max(1, self.steps - start))
        if self.training.minutes is not None:
            shares.append(progress.time_used)
        return min(1.0, max(shares)) if shares else None

    def resume_message(self, progress: TrainState, command: str) -> str:
        """What resuming the run means, to be said before it trains."""
        step, training = progress.step, self.training
        if reason := stop_reason(training, progress):
            return (
                f"the run is complete: {reason}. To train further, give a larger budget, such as: "
                f"{command} --resume --steps {2 * max(1, step)}"
            )
        limits = [
            pluralize(getattr(training, name), name[:-1]) for name in BUDGETS if getattr(training, name) is not None
        ]
        until = f" until {' or '.join(limits)}" if limits else ""
        if not step or step != training.extended_at:
            return f"resuming at step {step:,}{until}"
        if not schedule_start(training):
            return f"extending the run from step {step:,}{until}: the schedule {training.schedule} continues"
        warmup = "a tenth of the time" if training.minutes else pluralize(warmup_steps(training, self.steps), "step")
        return (
            f"extending the run from step {step:,}{until}: the schedule {training.schedule} starts again, with a "
            f"warm-up of {warmup}"
        )

    def _time(self, progress: TrainState) -> float:
        """Seconds of a budget of time, from where the schedule starts."""
        return 60 * (self.training.minutes or 0.0) - progress.start_seconds


def change_resumed_run(folder: Path, settings: Mapping[str, Any]) -> Config:
    """Change the settings of a run that is to be resumed: budgets, patience, device and distribution.

    Budgets that are given replace those that the run had. A run that was complete is extended.
    """
    saved = configuration.from_yaml(folder / CONFIG_FILE)
    names, budgets = ([f"training.{name}" for name in some] for some in (CHANGEABLE, BUDGETS))
    replaced = dict.fromkeys(budgets) if any(name in settings for name in budgets) else {}
    changed = configuration.replace_settings(saved, replaced | dict(settings))
    if others := [name for name in settings if name not in names]:
        raise UserError(
            f"a run that is resumed can change only {', '.join(names)}, but {others[0]} was given: for other settings "
            "train a new run"
        )
    select_device(changed.training.device)
    changed = replace(changed, chosen={name: old for name, old in saved.chosen.items() if name not in replaced})
    before, after = (tuple(getattr(config.training, name) for name in BUDGETS) for config in (saved, changed))
    last = folder / CHECKPOINT_DIR / "last"
    if before != after and last.exists():
        progress = TrainState.from_dict(checkpoint.read_values(last)["progress"])
        _check_budget(changed.training, progress)
        TrainingBudget(saved, 1, False).update_budget(progress)
        if stop_reason(saved.training, progress):
            changed = replace(changed, training=replace(changed.training, extended_at=progress.step))
    write_file(folder / CONFIG_FILE, configuration.to_yaml(changed))
    return changed


def _check_budget(training: TrainingConfig, progress: TrainState) -> None:
    """Refuse a budget that is used up already."""
    used = {"steps": progress.step, "epochs": progress.data_position.epoch, "minutes": progress.seconds / 60}
    for name, done in used.items():
        limit = getattr(training, name)
        if limit is not None and limit <= done:
            raise UserError(
                f"the run has trained for {pluralize(round(done, 2), name[:-1])} already, and --{name} counts from its "
                f"beginning, but is {limit:g}: give more"
            )
