"""Budgets of steps, epochs and time, and what it means to go on after them."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest_training import hook_step, small_config
from test_resume import Quiet, assert_equal, contents, train

from dragoman.config import Config, TrainingConfig, from_yaml, without_automatic_settings
from dragoman.data import DataPosition
from dragoman.errors import UserError
from dragoman.run_files import CONFIG_FILE, read_metrics
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer
from dragoman.training.training_budget import change_resumed_run, pluralize, stop_reason


def say(text: str) -> None:
    pass


@pytest.mark.parametrize(
    ("training", "progress", "reason"),
    [
        ({"steps": 1}, TrainState(step=1), "reached 1 step"),
        ({"steps": 1548}, TrainState(step=1548), "reached 1,548 steps"),
        ({"steps": 1548}, TrainState(step=1547), None),
        ({"epochs": 1}, TrainState(data_position=DataPosition(1)), "reached 1 epoch"),
        ({"epochs": 50}, TrainState(data_position=DataPosition(50)), "reached 50 epochs"),
        ({"minutes": 1}, TrainState(time_used=1.0), "reached 1 minute"),
        ({"minutes": 0.5}, TrainState(seconds=29, time_used=1.0), "reached 0.5 minutes"),
        ({"minutes": 2}, TrainState(seconds=100, time_used=0.9), None),
        ({"patience": 8}, TrainState(validations_since_best=8), "no improvement in 8 validations"),
        ({"patience": 1}, TrainState(validations_since_best=1), "no improvement in 1 validation"),
    ],
)
def test_stop_reasons(training: dict[str, Any], progress: TrainState, reason: str | None) -> None:
    assert stop_reason(TrainingConfig(**training), progress) == reason


def test_pluralize() -> None:
    assert [pluralize(1, "step"), pluralize(1.0, "minute"), pluralize(2.5, "minute")] == [
        "1 step",
        "1 minute",
        "2.5 minutes",
    ]
    assert pluralize(1234567, "step") == "1,234,567 steps"


# ---- what is chosen


def chosen(corpus: Path, folder: Path, **training: Any) -> Config:
    unset: dict[str, Any] = {"warmup_steps": None, "learning_rate": None, "validation_interval": None, "steps": None}
    return prepare_run(folder, small_config(corpus, **unset | training), say).config


@pytest.mark.parametrize("steps", [5, 30, 700])
def test_default_warmup_is_a_fraction_of_the_steps(steps: int, corpus: Path, tmp_path: Path) -> None:
    assert chosen(corpus, tmp_path / "run", steps=steps).training.warmup_steps == max(1, steps // 10)


def test_epoch_budget(corpus: Path, tmp_path: Path) -> None:
    training = chosen(corpus, tmp_path / "run", epochs=3, schedule="cosine").training
    assert (training.steps, training.epochs) == (None, 3)
    trainer = Trainer(tmp_path / "run", Quiet())
    assert trainer.budget.steps == 3 * trainer.budget.steps_per_epoch
    progress = trainer.train().state
    assert progress.data_position.epoch == 3
    rates = [record["learning_rate"] for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert rates[-1] < 0.1 * max(rates)


# ---- a budget of time


class Clock:
    """Stands still, but for what is told to take time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Timed(Trainer):
    """Every step and every validation takes as many seconds as told."""

    def __init__(self, folder: Path, clock: Clock, step: float, validation: float, stop: int | None = None) -> None:
        super().__init__(folder, Quiet())
        self.clock, self.stop, self.rates = clock, stop, []
        self.took, validate = step, self.validator.validate

        def slow() -> Any:
            self.clock.now += validation
            return validate()

        self.validator.validate = slow  # type: ignore[method-assign]
        hook_step(self, self._spend, self._record)

    def _spend(self) -> None:
        self.clock.now += self.took

    def _record(self, rate: float) -> None:
        self.rates: list[float] = [*self.rates, rate]
        self.interrupted = self.state.step + 1 == self.stop


@pytest.fixture(scope="module")
def timed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one minute, with a cosine and everything else chosen for it."""
    folder = tmp_path_factory.mktemp("timed") / "run"
    chosen(corpus, folder, minutes=1, schedule="cosine", learning_rate=0.01, validation_sentences=1)
    return folder


def copy_of(folder: Path, path: Path) -> Path:
    shutil.copytree(folder, path)
    return path


@pytest.mark.parametrize("step", [0.8, 2.5])
def test_schedule_fits_the_time(step: float, timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Timed(copy_of(timed, tmp_path / "run"), Clock(monkeypatch), step, validation=1.0)
    outcome = trainer.train()
    rates = trainer.rates
    assert outcome.reason == "reached 1 minute"
    assert outcome.state.seconds <= 60 + 2.5  # with the last validation, but for the step at hand
    assert max(rates) > 0.009
    assert rates.index(max(rates)) <= 0.2 * len(rates) + 1
    assert rates[-1] < 0.05 * max(rates)
    validations = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "valid"]
    assert 5 <= len(validations) <= 11


def test_validations_take_a_bounded_fraction_of_the_time(
    timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Timed(copy_of(timed, tmp_path / "run"), Clock(monkeypatch), 0.5, validation=4.0)
    progress = trainer.train().state
    validations = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "valid"]
    assert 4.0 * len(validations) <= 0.3 * 60
    assert progress.seconds <= 61


def test_killed_timed_run_resumes_from_the_recorded_time(
    timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that reads the same, it is bit-equal to a run that was not killed."""
    clock = Clock(monkeypatch)
    Timed(copy_of(timed, tmp_path / "whole"), clock, 2.0, 1.0).train()
    Timed(copy_of(timed, tmp_path / "cut"), clock, 2.0, 1.0, stop=13).train()
    clock.now += 1e6  # time in which nothing is trained does not count
    Timed(tmp_path / "cut", clock, 2.0, 1.0).train()
    assert_equal(contents(tmp_path / "whole"), contents(tmp_path / "cut"))


def test_timed_run_can_be_extended(timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    first = Timed(copy_of(timed, tmp_path / "run"), clock, 2.0, 1.0)
    before = first.train().state.seconds
    with pytest.raises(UserError, match=r"has already trained for .*, and --minutes counts from the start of the run"):
        change_resumed_run(tmp_path / "run", {"training.minutes": 0.5})
    change_resumed_run(tmp_path / "run", {"training.minutes": 2})
    trainer = Timed(tmp_path / "run", clock, 2.0, 1.0)
    assert "restarts with a warmup of a tenth of the time" in trainer.budget.resume_message(trainer.state, "train")
    outcome = trainer.train()
    assert (outcome.reason, first.rates[-1] < 0.001) == ("reached 2 minutes", True)
    assert 100 < outcome.state.seconds <= 123
    assert before < 63
    rates = trainer.rates
    assert max(rates) > 0.009 > 10 * rates[-1]
    assert rates.index(max(rates)) <= 0.25 * len(rates)


def test_a_budget_without_any_training_is_replaced(
    timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had never been given, even if it would have ended at once, with its last seconds for a validation."""
    interrupted = Timed(copy_of(timed, tmp_path / "once"), Clock(monkeypatch), 2.0, 4.0, stop=12).train().state
    assert interrupted.validation_seconds == 4.0
    soon = {"training.minutes": (interrupted.seconds + 1) / 60}
    change_resumed_run(copy_of(tmp_path / "once", tmp_path / "twice"), soon)
    configs = [change_resumed_run(tmp_path / name, {"training.minutes": 3}) for name in ("once", "twice")]
    assert configs[0] == configs[1]
    assert configs[0].training.extended_at == 0


# ---- going on after the end


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that did its 10 steps, by a cosine."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    settings = {"steps": 10, "validation_interval": 4, "schedule": "cosine", "warmup_steps": 5}
    prepare_run(folder, small_config(corpus, **settings), say)
    train(folder)
    return folder


def test_resuming_a_finished_run_explains_how_to_extend_it(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    trainer = Trainer(folder, Quiet())
    said = trainer.budget.resume_message(trainer.state, "dragoman train run")
    assert said.startswith("the run is complete: reached 10 steps")
    assert said.endswith("dragoman train run --resume --steps 20")
    assert trainer.train().state.step == 10


@pytest.mark.parametrize("budget", [{"training.steps": 30}, {"training.epochs": 2}])
def test_finished_run_is_extended(budget: dict[str, int], finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    config = change_resumed_run(folder, budget)
    assert config == from_yaml(folder / CONFIG_FILE)
    assert (config.training.extended_at, config.training.steps) == (10, budget.get("training.steps"))
    trainer = Trainer(folder, Quiet())
    assert "extending the run from step 10 until" in trainer.budget.resume_message(trainer.state, "train")
    rates: list[float] = []
    hook_step(trainer, after=rates.append)
    progress = trainer.train().state
    assert progress.step == 30 or progress.data_position.epoch == 2
    assert len(rates) == progress.step - 10
    assert rates[0] < max(rates) == pytest.approx(0.01)  # warmed up again
    assert rates.index(max(rates)) < 5
    assert rates[-1] < 0.001


def test_killed_extension_resumes_bit_equal(finished: Path, tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        change_resumed_run(copy_of(finished, tmp_path / name), {"training.steps": 22})
    train(tmp_path / "whole")
    train(tmp_path / "cut", stop_after=11)
    change_resumed_run(tmp_path / "cut", {"training.steps": 22})  # the same command once more changes nothing
    train(tmp_path / "cut", stop_after=17)
    train(tmp_path / "cut")
    assert from_yaml(tmp_path / "cut" / CONFIG_FILE).training.extended_at == 10
    assert_equal(contents(tmp_path / "whole"), contents(tmp_path / "cut"))


def test_schedule_without_an_end_continues(corpus: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"validation_interval": 5, "schedule": "inverse-sqrt", "average_checkpoints": False}
    prepare_run(tmp_path / "whole", small_config(corpus, steps=15, **settings), say)
    prepare_run(tmp_path / "short", small_config(corpus, steps=10, **settings), say)
    train(tmp_path / "whole")
    train(tmp_path / "short")
    change_resumed_run(tmp_path / "short", {"training.steps": 15})
    train(tmp_path / "short")
    whole, extended = contents(tmp_path / "whole"), contents(tmp_path / "short")
    extended["values"]["progress"]["extended_at"] = 0
    assert_equal(whole, extended)


def test_extension_resets_patience(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    change_resumed_run(folder, {"training.steps": 12, "training.patience": 1})
    assert Trainer(folder, Quiet()).state.validations_since_best == 0


def test_unfinished_run_continues_to_another_end(corpus: Path, tmp_path: Path) -> None:
    prepare_run(tmp_path / "run", small_config(corpus, steps=10, schedule="cosine"), say)
    train(tmp_path / "run", stop_after=6)
    config = change_resumed_run(tmp_path / "run", {"training.steps": 20})
    assert (config.training.steps, config.training.extended_at) == (20, 0)
    trainer = Trainer(tmp_path / "run", Quiet())
    assert trainer.budget.resume_message(trainer.state, "train") == "resuming at step 5 until 20 steps"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"training.steps": 9},
            r"has already trained for 10 steps, and --steps counts .* is only 9: give a larger value",
        ),
        ({"training.learning_rate": 1.0}, "training.learning_rate was given: leave it out, or train a new run"),
    ],
)
def test_invalid_changes_are_errors(settings: dict[str, Any], sentence: str, finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    before = (folder / CONFIG_FILE).read_text()
    with pytest.raises(UserError, match=sentence):
        change_resumed_run(folder, settings)
    assert (folder / CONFIG_FILE).read_text() == before


# ---- the configuration of another run


def test_automatic_settings_are_chosen_again_for_another_run(corpus: Path, tmp_path: Path) -> None:
    given = chosen_nothing(corpus)
    tiny = prepare_run(tmp_path / "tiny", given, say).config
    for setting in (
        "training.batch_tokens",
        "training.warmup_steps",
        "training.learning_rate",
        "system.settings.pre_norm",
    ):
        assert setting in tiny.chosen
    assert "training.seed" not in tiny.chosen
    again = without_automatic_settings(from_yaml(tmp_path / "tiny" / CONFIG_FILE))
    assert replace(again, data=given.data) == given  # but for the files, by their full names
    kept = from_yaml(tmp_path / "tiny" / CONFIG_FILE)  # changed by hand: no longer what was chosen
    kept = replace(kept, training=replace(kept.training, learning_rate=0.5, extended_at=7))
    assert without_automatic_settings(kept) == replace(again, training=replace(again.training, learning_rate=0.5))
    wider = replace(again, system=replace(again.system, settings={"model_dim": 64, "layers": 1}))
    config = prepare_run(tmp_path / "wider", wider, say).config
    assert (tiny.training.learning_rate, config.training.learning_rate) == (1.5 / 16, 1.5 / 64)


def chosen_nothing(corpus: Path) -> Config:
    """Nothing but the system and its width is set."""
    small = small_config(corpus)
    system = replace(small.system, settings={"model_dim": 16, "layers": 1, "heads": 2})
    return replace(Config(data=small.data, system=system), training=TrainingConfig(device="cpu", seed=3))
