"""A training whose loss rises beyond repair goes back to its last checkpoint, and on from there with other data."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest_training import small_config
from test_resume import Quiet, assert_equal, contents

from dragoman import checkpoint
from dragoman.data import Batch, Position
from dragoman.errors import UserError
from dragoman.objectives import Loss, Objective
from dragoman.run import read_metrics
from dragoman.training.groups import Group
from dragoman.training.prepare import prepare
from dragoman.training.trainer import REWINDS, Trainer

Change = Callable[[Loss], Loss]


class Listening(Quiet):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def higher(loss: Loss) -> Loss:
    return Loss(loss.total + 5 * loss.count, loss.count, loss.parts)


def no_number(loss: Loss) -> Loss:
    return Loss(loss.total * math.nan, loss.count, loss.parts)


class Changed(Objective):
    """The training's own objective, with a loss that is changed where the data is bad."""

    def __init__(self, own: Objective, change: Change) -> None:
        self.own, self.change, self.bad = own, change, False

    def __call__(self, model: Any, batch: Batch, step: int = 0) -> Loss:
        loss = self.own(model, batch, step)
        return self.change(loss) if self.bad else loss


class Stumbling(Trainer):
    """Stumbles over the data from one batch of the first epoch up to another."""

    def __init__(self, folder: Path, change: Change, first: int = 11, last: int = 20, stop: int | None = None) -> None:
        super().__init__(folder, Listening())
        self.bad, self.stop = (Position(0, 0, first), Position(0, 0, last)), stop
        self.changed = Changed(self.objective, change)
        self.stepper.learner.objective = self.changed  # type: ignore[assignment]
        self.walked: list[Position] = []
        self.after_rewinding: dict[str, Any] = {}

    def _step(self, group: Group) -> None:
        first, last = self.bad
        here = (group.after.epoch, group.after.batch)
        self.changed.bad = (first.epoch, first.batch) <= here <= (last.epoch, last.batch)
        super()._step(group)
        self.walked.append(group.after)
        self.interrupted = len(self.walked) == self.stop

    def _rewind(self, loss: float) -> None:
        super()._rewind(loss)
        weights = {name: weight.clone() for name, weight in checkpoint.weights_of(self.model).items()}
        self.after_rewinding = {"weights": weights, "step": self.progress.step, "position": self.progress.position}

    @property
    def said(self) -> list[str]:
        assert isinstance(self.display, Listening)
        return self.display.said


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewinding") / "prepared"
    prepare(folder, small_config(corpus, steps=33, patience=None, keep=5, average=False), lambda text: None)
    return folder


def run_of(prepared: Path, tmp_path: Path, name: str = "run") -> Path:
    shutil.copytree(prepared, tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("change", [higher, no_number])
def test_it_goes_back_and_on_with_other_data(change: Change, prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), change)
    outcome = trainer.train()
    (note,) = (text for text in trainer.said if "going back" in text)
    assert "step 20: the loss rose to" in note
    assert "going back to step 18" in note
    if change is no_number:
        assert "rose to nan" in note
        assert any("10 steps whose gradient was no number" in text for text in trainer.said)
    saved = checkpoint.tensors(tmp_path / "run" / "checkpoints" / "000018", "model")
    for name, weight in trainer.after_rewinding["weights"].items():
        assert torch.equal(weight, saved[name])
    assert trainer.after_rewinding["step"] == 18
    assert trainer.after_rewinding["position"] == trainer.walked[19]  # after the twentieth batch
    assert len(trainer.walked) == len(set(trainer.walked)) == 33 + 2  # no data twice, two steps lost
    assert (outcome.progress.step, outcome.progress.rewinds) == (33, 1)
    steps = [record["step"] for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert steps == [10, 20, 30]
    assert all(record["loss"] < 10 for record in read_metrics(tmp_path / "run"))


def test_without_a_rise_nothing_happens(prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), higher, first=10**6, last=10**6)
    assert trainer.train().progress.rewinds == 0
    assert [text for text in trainer.said if "going back" in text] == []


@pytest.mark.parametrize(("change", "stop"), [(higher, 19), (higher, 20), (higher, 21), (no_number, 27)])
def test_killed_and_resumed_around_it_is_bit_equal(change: Change, stop: int, prepared: Path, tmp_path: Path) -> None:
    whole, cut = run_of(prepared, tmp_path, "whole"), run_of(prepared, tmp_path, "cut")
    Stumbling(whole, change).train()
    Stumbling(cut, change, stop=stop).train()
    Stumbling(cut, change).train()
    assert_equal(contents(whole), contents(cut))


def test_a_process_that_dies_while_going_back_does_so_again(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = run_of(prepared, tmp_path, "whole"), run_of(prepared, tmp_path, "cut")
    Stumbling(whole, higher).train()
    trainer = Stumbling(cut, higher)

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer.keeper, "save_again", die)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    Stumbling(cut, higher).train()
    assert_equal(contents(whole), contents(cut))


def test_after_some_times_it_gives_up(prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), higher, last=10**6)
    with pytest.raises(UserError, match=r"the training loss is .* at step 20: train anew with a lower"):
        trainer.train()
    assert len([text for text in trainer.said if "going back" in text]) == REWINDS
    again = Stumbling(tmp_path / "run", higher, last=10**6)  # resumed, it has not forgotten
    with pytest.raises(UserError, match="the training loss"):
        again.train()
    assert [text for text in again.said if "going back" in text] == []


def test_without_a_checkpoint_there_is_no_going_back(corpus: Path, tmp_path: Path) -> None:
    prepare(tmp_path / "run", small_config(corpus, steps=33, validate_every=30), lambda text: None)
    trainer = Stumbling(tmp_path / "run", no_number, first=1)
    with pytest.raises(UserError, match="the training loss is nan at step 10: train anew with a lower"):
        trainer.train()
    assert not (tmp_path / "run" / "checkpoints" / "last").exists()


def test_a_few_steps_without_a_number_are_left_out(prepared: Path, tmp_path: Path) -> None:
    trainer = Stumbling(run_of(prepared, tmp_path), no_number, first=12, last=14)
    assert trainer.train().progress.rewinds == 0
    assert any("step 20: 3 steps whose gradient was no number changed nothing" in text for text in trainer.said)
    (record,) = (one for one in read_metrics(tmp_path / "run") if one["kind"] == "train" and one["step"] == 20)
    assert record["skipped"] == 3
    assert math.isfinite(record["loss"])


def test_with_a_running_mean_both_go_back(corpus: Path, tmp_path: Path) -> None:
    config = small_config(corpus, steps=33, patience=None, ema=0.9, keep=5, average=False)
    prepare(tmp_path / "whole", config, lambda text: None)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    trainer = Stumbling(tmp_path / "whole", higher)
    trainer.train()
    saved = checkpoint.tensors(tmp_path / "whole" / "checkpoints" / "000018", "trainer")
    for name, weight in trainer.after_rewinding["weights"].items():
        assert torch.equal(weight, saved[f"weight/{name}"])
    Stumbling(tmp_path / "cut", higher, stop=22).train()
    Stumbling(tmp_path / "cut", higher).train()
    assert_equal(contents(tmp_path / "whole"), contents(tmp_path / "cut"))
