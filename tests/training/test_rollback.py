"""Training that diverges is rolled back to its last good checkpoint, and goes on from there with other data."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest_training import hook_step, small_config
from test_resume import Quiet, assert_equal, contents

from dragoman import checkpoint
from dragoman.data import Batch, DataPosition
from dragoman.errors import UserError
from dragoman.objectives import Loss, Objective
from dragoman.run_files import read_metrics
from dragoman.training import trainer as training
from dragoman.training.prepare import prepare_run
from dragoman.training.train_step import StepBatches
from dragoman.training.trainer import MAX_ROLLBACKS, Trainer

Change = Callable[[Loss], Loss]


class Listening(Quiet):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


def higher(loss: Loss) -> Loss:
    return Loss(loss.total + 5 * loss.num_labels, loss.num_labels, loss.metrics)


def non_finite(loss: Loss) -> Loss:
    return Loss(loss.total * math.nan, loss.num_labels, loss.metrics)


class Changed(Objective):
    """The training's own objective, with a loss that is changed where the data is bad."""

    def __init__(self, own: Objective, change: Change) -> None:
        torch.nn.Module.__init__(self)
        self.own, self.change, self.bad = own, change, False

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        loss = self.own(batch, step)
        return self.change(loss) if self.bad else loss


class Stumbling(Trainer):
    """Stumbles over the data from one batch of the first epoch up to another."""

    def __init__(self, folder: Path, change: Change, first: int = 7, last: int = 12, stop: int | None = None) -> None:
        super().__init__(folder, Listening())
        self.bad, self.stop = (DataPosition(0, 0, first), DataPosition(0, 0, last)), stop
        self.changed = Changed(self.objective, change)
        self.train_step.objective = self.changed
        self.walked: list[DataPosition] = []
        self.after_rollback: dict[str, Any] = {}
        hook_step(self, after=self._walk)

    def _share_counts(self, batches: StepBatches) -> tuple[StepBatches, bool]:
        plan = super()._share_counts(batches)
        self.position = plan[0].next_position
        first, last = self.bad
        here = (self.position.epoch, self.position.batch)
        self.changed.bad = (first.epoch, first.batch) <= here <= (last.epoch, last.batch)
        return plan

    def _walk(self, rate: float) -> None:
        self.walked.append(self.position)
        self.interrupted = len(self.walked) == self.stop

    def _roll_back(self, what: str, loss: float) -> None:
        super()._roll_back(what, loss)
        weights = {name: weight.clone() for name, weight in checkpoint.named_weights(self.model).items()}
        self.after_rollback = {"weights": weights, "step": self.state.step, "position": self.state.data_position}

    @property
    def said(self) -> list[str]:
        assert isinstance(self.display, Listening)
        return self.display.said

    @property
    def rollbacks(self) -> list[str]:
        return [text for text in self.said if "rollback" in text]


@pytest.fixture(autouse=True)
def readings_every_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LOG_INTERVAL_STEPS", 2)


SETTINGS: dict[str, Any] = {
    "steps": 16,
    "validation_interval": 3,
    "patience": None,
    "keep_checkpoints": 5,
    "average_checkpoints": False,
}


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rollback") / "prepared"
    prepare_run(folder, small_config(corpus, **SETTINGS), lambda text: None)
    return folder


def run_of(prepared: Path, tmp_path: Path, name: str = "run") -> Path:
    shutil.copytree(prepared, tmp_path / name)
    return tmp_path / name


#: what happens to the loss of the data that is bad, and at which step it is noticed
NOTICED = [(higher, 12, "divergence, the loss rose to"), (non_finite, 8, "non-finite loss")]


@pytest.mark.parametrize(("change", "noticed", "what"), NOTICED)
def test_rollback_continues_with_the_next_data(
    change: Change, noticed: int, what: str, prepared: Path, tmp_path: Path
) -> None:
    """Checkpoints at 3, 6 and 9: at 9 the loss had risen already."""
    trainer = Stumbling(run_of(prepared, tmp_path), change, last=noticed)
    outcome = trainer.train()
    (note,) = trainer.rollbacks
    assert note.startswith(f"step {noticed}: {what}")
    assert "rollback to step 6" in note
    if change is non_finite:
        assert any("step 8: 2 steps skipped: non-finite gradient" in text for text in trainer.said)
    saved = checkpoint.read_tensors(tmp_path / "run" / "checkpoints" / "000006", "model")
    for name, weight in trainer.after_rollback["weights"].items():
        assert torch.equal(weight, saved[name])
    assert trainer.after_rollback["step"] == 6
    assert trainer.after_rollback["position"] == trainer.walked[noticed - 1]
    assert len(trainer.walked) == len(set(trainer.walked)) == 16 + noticed - 6  # no data twice
    assert outcome.state.step == 16
    steps = [record["step"] for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert steps == [2, 4, 6, 8, 10, 12, 14, 16]
    assert all(record["loss"] < 10 for record in read_metrics(tmp_path / "run"))


def test_no_rollback_without_divergence(prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), higher, first=10**6, last=10**6)
    assert trainer.train().state.rollbacks == 0
    assert trainer.rollbacks == []


def test_single_high_reading_is_no_divergence(prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), higher, first=7, last=8)
    trainer.train()
    assert trainer.rollbacks == []


@pytest.fixture(scope="module")
def uninterrupted(prepared: Path) -> Callable[[Change], dict[str, Any]]:
    """What a training that stumbles, but is not interrupted, leaves."""

    @cache
    def trained(change: Change) -> dict[str, Any]:
        folder = run_of(prepared, prepared.parent, change.__name__)
        Stumbling(folder, change).train()
        return contents(folder)

    return trained


Uninterrupted = Callable[[Change], dict[str, Any]]


@pytest.mark.parametrize(
    ("change", "stop"),
    [
        (higher, 12),
        *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in ((higher, 11), (higher, 13), (non_finite, 15))),
    ],
)
def test_killed_around_a_rollback_is_bit_equal(
    change: Change, stop: int, uninterrupted: Uninterrupted, prepared: Path, tmp_path: Path
) -> None:
    cut = run_of(prepared, tmp_path, "cut")
    Stumbling(cut, change, stop=stop).train()
    Stumbling(cut, change).train()
    assert_equal(uninterrupted(change), contents(cut))


def test_killed_during_a_rollback_repeats_it(
    uninterrupted: Uninterrupted, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = run_of(prepared, tmp_path, "cut")
    trainer = Stumbling(cut, higher)

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer.checkpoints, "update_state", die)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    Stumbling(cut, higher).train()
    assert_equal(uninterrupted(higher), contents(cut))


def test_training_ends_after_several_rollbacks(prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), higher, last=10**6)
    with pytest.raises(UserError, match=r"training diverged: the training loss is .* at step 12.*below 0\.01"):
        trainer.train()
    assert len(trainer.rollbacks) == MAX_ROLLBACKS
    again = Stumbling(tmp_path / "run", higher, last=10**6)  # the count is part of the saved state
    with pytest.raises(UserError, match="training diverged"):
        again.train()
    assert again.rollbacks == []


def test_recovery_resets_the_rollbacks(prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), higher)
    progress = trainer.train().state
    assert len(trainer.rollbacks) == 1
    assert (progress.diverged_at, progress.rollbacks) == (12, 0)  # validated at 15, beyond the divergence


def test_rollback_needs_a_checkpoint(corpus: Path, tmp_path: Path) -> None:
    prepare_run(tmp_path / "run", small_config(corpus, steps=33, validation_interval=30), lambda text: None)
    trainer = Stumbling(tmp_path / "run", non_finite, first=1)
    with pytest.raises(UserError, match="the training loss is nan at step 2"):
        trainer.train()
    assert not (tmp_path / "run" / "checkpoints" / "last").exists()


def test_single_non_finite_step_is_skipped(prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), non_finite, first=8, last=8)
    trainer.train()
    assert trainer.rollbacks == []
    assert "step 8: 1 step skipped: non-finite gradient" in trainer.said
    (record,) = (one for one in read_metrics(tmp_path / "run") if one["kind"] == "train" and one["step"] == 8)
    assert record["skipped"] == 1
    assert math.isfinite(record["loss"])


def test_too_high_learning_rate_diverges(corpus: Path, tmp_path: Path) -> None:
    config = small_config(corpus, **SETTINGS | {"learning_rate": 100.0, "warmup_steps": 30, "clip_norm": 0.0})
    prepare_run(tmp_path / "run", config, lambda text: None)
    trainer = Trainer(tmp_path / "run", Listening())
    with pytest.raises(UserError, match=r"training diverged.*below 100"):
        trainer.train()


def test_rollback_restores_the_weight_average(corpus: Path, tmp_path: Path) -> None:
    prepare_run(tmp_path / "whole", small_config(corpus, **SETTINGS, ema_decay=0.9), lambda text: None)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    trainer = Stumbling(tmp_path / "whole", higher)
    trainer.train()
    saved = checkpoint.read_tensors(tmp_path / "whole" / "checkpoints" / "000006", "trainer")
    for name, weight in trainer.after_rollback["weights"].items():
        assert torch.equal(weight, saved[f"weight/{name}"])
    Stumbling(tmp_path / "cut", higher, stop=14).train()
    Stumbling(tmp_path / "cut", higher).train()
    assert_equal(contents(tmp_path / "whole"), contents(tmp_path / "cut"))
