"""Checkpoints of the history: which steps they have, that they equal the others, and that they change nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from conftest_training import small_config

from dragoman import checkpoint
from dragoman.run_files import checkpoint_names, checkpoints_by_step, history_steps
from dragoman.training.display import SilentDisplay
from dragoman.training.history_checkpoints import HistoryCheckpoints, is_history_step
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


def test_steps_are_rounded_powers_of_the_square_root_of_two() -> None:
    expected = {0, *(round(math.sqrt(2) ** k) for k in range(20))}
    assert {step for step in range(725) if is_history_step(step)} == expected


def test_too_many_are_thinned_and_the_ends_stay(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    history = HistoryCheckpoints(tmp_path, max_count=5)
    for step in filter(is_history_step, range(130)):
        history.save(step, {"weight": torch.full((2,), float(step))}, {})
        assert len(history_steps(tmp_path)) <= 5
    steps = history_steps(tmp_path)
    assert (steps[0], steps[-1], len(steps)) == (0, 128, 5)
    for step in steps:
        folder = tmp_path / "checkpoints" / "history" / f"{step:06d}"
        assert checkpoint.read_tensors(folder, "model")["weight"].tolist() == [step, step]
    history.truncate_after(20)
    assert all(step <= 20 for step in history_steps(tmp_path))
    assert checkpoint_names(tmp_path) == []  # they are no checkpoints to resume from


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same training without and with a history."""
    folders = []
    for keep in (0, 9):
        folder = tmp_path_factory.mktemp("history") / "run"
        settings = {"steps": 4, "validation_sentences": 0, "average_checkpoints": False, "keep_history": keep}
        prepare_run(folder, small_config(corpus, **settings), lambda text: None)
        Trainer(folder, SilentDisplay()).train()
        folders.append(folder)
    return folders


def test_history_does_not_change_the_training(trained: list[Path]) -> None:
    without, with_history = (checkpoint.read_tensors(folder / "checkpoints" / "last", "model") for folder in trained)
    assert without.keys() == with_history.keys()
    assert all(torch.equal(without[name], with_history[name]) for name in without)


def test_history_has_the_weights_of_its_steps(trained: list[Path]) -> None:
    folder = trained[1]
    assert history_steps(folder) == [0, 1, 2, 3, 4]
    assert checkpoints_by_step(folder) == {n: f"history/{n:06d}" for n in range(4)} | {4: "000004"}
    last = checkpoint.read_tensors(folder / "checkpoints" / "000004", "model")
    kept = checkpoint.read_tensors(folder / "checkpoints" / "history" / "000004", "model")
    assert all(torch.equal(last[name], kept[name]) for name in last)
    first = checkpoint.read_tensors(folder / "checkpoints" / "history" / "000000", "model")
    assert any(not torch.equal(first[name], last[name]) for name in last)
    assert not history_steps(trained[0])
