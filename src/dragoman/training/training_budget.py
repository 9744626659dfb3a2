"""When training stops: budgets of steps, epochs and time, patience, and the extension of finished runs.

A run whose budget is used up can be extended: a budget given with --resume replaces all earlier ones. A schedule that
had decayed to its end (cosine, stable, or any schedule fitted to a time budget) then restarts at that step with a
warmup; others continue as if the larger budget had been given from the start. The step of the extension is written to
config.yaml (`training.extended_at`), so that an interrupted extension is resumed like any other training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman import config as configuration
from dragoman.config import Config, TrainingConfig
from dragoman.errors import UserError
from dragoman.run import select_device
from dragoman.run.search_choice import DECODING_COST
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, has_checkpoint
from dragoman.storage import write_file
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.schedule import ScheduleInputs, fraction_used, schedule_start, warmup_steps

BUDGETS = ("steps", "epochs", "minutes")
CHANGEABLE = (*BUDGETS, "patience", "keep_history", "device", "parallelism", "mirror")  # when a run is resumed
MAX_RESERVED_TIME = 0.2  # fraction of a time budget for the validations at the end
VALIDATIONS_PER_BUDGET = 10  # in a time budget
MAX_VALIDATION_INTERVAL = 600  # seconds, in a time budget
MIN_TRAINING_PER_VALIDATION = 4  # in a time budget: times the duration of a validation


def pluralize(number: float, noun: str) -> str:
    """Format a count: `1 step`, `1,548 steps`."""
    return f"{number:,g} {noun}" if number == 1 else f"{number:,.10g} {noun}s"


def stop_reason(training: TrainingConfig, state: TrainState) -> str | None:
    """Return why training stops in this state, such as "reached 2,000 steps"; None if it continues."""
    if training.steps is not None and state.step >= training.steps:
        return f"reached {pluralize(training.steps, 'step')}"
    if training.epochs is not None and state.data_position.epoch >= training.epochs:
        return f"reached {pluralize(training.epochs, 'epoch')}"
    if training.minutes is not None and state.time_used >= 1:
        return f"reached {pluralize(training.minutes, 'minute')}"
    if training.patience is not None and state.validations_since_best >= training.patience:
        return f"no improvement in {pluralize(state.validations_since_best, 'validation')}"
    return None


@dataclass(frozen=True)
class TrainingBudget:
    """How much of a run's budget is used, and what depends on it."""

    config: Config
    steps_per_epoch: int
    validates_average: bool  # the averaged weights are validated after the last checkpoint
    chooses_search: bool  # at the end, beam size and length penalty are chosen on the validation set

    @property
    def training(self) -> TrainingConfig:
        """The section `training` of the configuration."""
        return self.config.training

    @property
    def steps(self) -> int | None:
        """Step at which the budget of steps or epochs is used up, whichever is first; None if there is neither."""
        by_epochs = None if self.training.epochs is None else self.training.epochs * self.steps_per_epoch
        return min((limit for limit in (self.training.steps, by_epochs) if limit is not None), default=None)

    def update_budget(self, state: TrainState) -> None:
        """Adapt a saved training state in place, if the run was extended, or its time budget has changed.

        An extension starts to count the patience again; both recompute the used fraction of a time budget.
        """
        extended = state.extended_at != self.training.extended_at
        if extended:
            state.extended_at, state.validations_since_best = self.training.extended_at, 0
        if extended or state.minutes != self.training.minutes:
            state.minutes, state.time_used, state.validation_time_used = self.training.minutes, 0.0, 0.0
            # a schedule that restarts at an extension is fitted to the rest of the time
            schedule_restarts = self.training.minutes is not None and schedule_start(self.training) > 0
            state.start_seconds = state.seconds if schedule_restarts else 0.0
            self.update_time_used(state, state.seconds)

    def update_time_used(self, state: TrainState, seconds: float) -> None:
        """Set `state.time_used`, the fraction of the time budget that is used after `seconds` of training.

        The time of the validations at the end, and of choosing the search, is reserved, as estimated from the last
        validation. After an extension, the time counts from `state.start_seconds`. The fraction never decreases.
        Without a time budget (`training.minutes`), nothing changes.
        """
        if self.training.minutes is not None:
            budget = self._budget_seconds(state)
            # at the end: of the last step, of the average of checkpoints; choosing the search costs as much as several
            validations = (2 if self.validates_average else 1) + (DECODING_COST if self.chooses_search else 0)
            reserved = min(validations * state.validation_seconds, MAX_RESERVED_TIME * budget)
            fraction = (seconds - state.start_seconds) / max(1e-9, budget - reserved)
            state.time_used = max(state.time_used, min(1.0, fraction))

    def record_validation(self, state: TrainState, seconds: float) -> None:
        """Record in `state` that a validation took `seconds`, and the fraction of the time budget used at its end.

        Nothing is recorded without a time budget.
        """
        if self.training.minutes is not None:
            state.validation_seconds = seconds
            used = self.fraction_used(state) or 0.0
            state.validation_time_used = used + seconds / max(1e-9, self._budget_seconds(state))

    def validation_due(self, state: TrainState) -> bool:
        """Whether to validate: every `validation_interval` steps, or ten times in a time budget.

        In a time budget, an interval set by the user counts. Otherwise there is a validation at least every ten
        minutes, unless validations would then take more than about a fifth of the time.
        """
        set_by_user = "training.validation_interval" not in self.config.chosen  # `chosen` has the automatic settings
        if self.training.minutes is None or set_by_user:
            return state.step % (self.training.validation_interval or 1) == 0
        budget = self._budget_seconds(state)
        interval = min(budget / VALIDATIONS_PER_BUDGET, MAX_VALIDATION_INTERVAL)  # in seconds
        interval = max(MIN_TRAINING_PER_VALIDATION * state.validation_seconds, interval)
        since_last = (self.fraction_used(state) or 0.0) - state.validation_time_used  # fraction of the budget
        return since_last >= interval / max(1e-9, budget)

    def schedule_inputs(self, state: TrainState) -> ScheduleInputs:
        """Return what the learning-rate schedule depends on besides the step, such as the length of the training.

        The warmup may be shortened to a tenth of a time budget if the user has not set it.
        """
        time_used = None if self.training.minutes is None else state.time_used
        limits_warmup = "training.warmup_steps" in self.config.chosen  # `chosen` has the automatic settings
        return ScheduleInputs(
            total_steps=self.steps,
            steps_per_epoch=self.steps_per_epoch,
            reductions=state.reductions,
            time_used=time_used,
            limits_warmup=limits_warmup,
        )

    def fraction_used(self, state: TrainState) -> float | None:
        """Return the used fraction of the budget (steps, epochs, minutes) that ends first; None without a budget."""
        return fraction_used(self.training, state.step, self.schedule_inputs(state))

    def resume_message(self, state: TrainState, command: str) -> str:
        """Describe what resuming a run does: that it is complete, continues, or is extended.

        `command` is the command that trains the run, such as "dragoman train RUN".
        """
        step, training = state.step, self.training
        if reason := stop_reason(training, state):
            return (
                f"the run is complete: {reason}. To train further, give a larger budget, such as: "
                f"{command} --resume --steps {2 * max(1, step)}"
            )
        budgets = {name.removesuffix("s"): getattr(training, name) for name in BUDGETS}  # by unit, such as "step"
        limits = [pluralize(value, name) for name, value in budgets.items() if value is not None]
        until = f" until {' or '.join(limits)}" if limits else ""
        if not step or step != training.extended_at:  # not at the step where a finished run was extended
            return f"resuming at step {step:,}{until}"
        if not schedule_start(training):  # the schedule has no end, and so does not restart
            return f"extending the run from step {step:,}{until}: the schedule {training.schedule} continues"
        warmup = "a tenth of the time" if training.minutes else pluralize(warmup_steps(training, self.steps), "step")
        return (
            f"extending the run from step {step:,}{until}: the schedule {training.schedule} restarts with a warmup of "
            f"{warmup}"
        )

    def _budget_seconds(self, state: TrainState) -> float:
        """Return the seconds of the time budget; if the run was extended by it, only those of the extension."""
        return 60 * (self.training.minutes or 0.0) - state.start_seconds


def change_resumed_run(folder: Path, settings: Mapping[str, Any]) -> Config:
    """Change settings of a run that is resumed in its config file, and return its configuration.

    `settings` are new values by dotted name: of budgets (steps, epochs, minutes), patience, history, device,
    parallelism and mirror; others raise a UserError, and so do budgets that are used up already. New budgets replace
    all budgets of the run. A run that was complete is extended.
    """
    saved = configuration.from_yaml(folder / CONFIG_FILE)
    allowed, budgets = ([f"training.{name}" for name in names] for names in (CHANGEABLE, BUDGETS))
    removed = dict.fromkeys(budgets) if any(name in settings for name in budgets) else {}
    changed = configuration.replace_settings(saved, removed | dict(settings))
    if forbidden := [name for name in settings if name not in allowed]:
        raise UserError(
            f"--resume can change only {', '.join(allowed)}, but {forbidden[0]} was given: leave it out, or train a "
            "new run"
        )
    select_device(changed.training.device)  # raises a UserError if it does not exist
    # `chosen` lists the automatic settings: budgets that are replaced are no longer among them
    changed = replace(changed, chosen={name: value for name, value in saved.chosen.items() if name not in removed})
    before, after = (tuple(getattr(config.training, name) for name in BUDGETS) for config in (saved, changed))
    last = folder / CHECKPOINT_DIR / "last"
    if before != after and has_checkpoint(folder, "last"):
        state = TrainState.load(last)
        _check_budget(changed.training, state)
        # was it complete? `state` is from the last checkpoint: a budget that nothing was trained with does not count
        if stop_reason(saved.training, state):
            changed = replace(changed, training=replace(changed.training, extended_at=state.step))
    write_file(folder / CONFIG_FILE, configuration.to_yaml(changed))
    return changed


def _check_budget(training: TrainingConfig, state: TrainState) -> None:
    """Raise a UserError if a budget of steps, epochs or minutes is already used up by a run in this state."""
    used_amounts = {"steps": state.step, "epochs": state.data_position.epoch, "minutes": state.seconds / 60}
    for unit, used in used_amounts.items():
        budget = getattr(training, unit)
        if budget is not None and budget <= used:
            trained = pluralize(round(used, 2), unit.removesuffix("s"))
            raise UserError(
                f"the run has already trained for {trained}, and --{unit} counts from the start of the run, but is "
                f"only {budget:g}: give a larger value"
            )
