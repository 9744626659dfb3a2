"""Options that all commands have, and completion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from calling import Dragoman

from dragoman import __version__
from dragoman import console as progress
from dragoman.cli import options as common


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these options set is set back."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(progress, "quiet", False)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, str(threads)))


def test_the_version_is_printed(dragoman: Dragoman) -> None:
    answer = dragoman("--version")
    assert (answer.code, answer.out) == (0, f"dragoman {__version__}\n")


def test_quiet_hides_messages_but_not_errors(dragoman: Dragoman, tmp_path: Path) -> None:
    assert "wrote 300 training pairs" in dragoman("phrasebook", tmp_path / "a", "--pairs", 300).err
    quiet = dragoman("phrasebook", tmp_path / "b", "--pairs", 300, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert "does not exist" in dragoman("translate", tmp_path / "nowhere", "-q").err


def test_threads_are_set(dragoman: Dragoman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    assert dragoman("phrasebook", tmp_path / "a", "--pairs", 300, "--threads", 3).code == 0
    assert counts == [3]
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert dragoman("phrasebook", tmp_path / "b", "--threads", 0).code == 2


def test_run_folders_and_systems_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runs/en-de", "runs/en-fr"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.json").touch()
    (tmp_path / "runs" / ".hidden").mkdir()
    monkeypatch.chdir(tmp_path)
    assert common.complete_runs("") == ["runs/"]
    assert common.complete_runs("runs/en") == ["runs/en-de", "runs/en-fr"]
    assert common.complete_runs("runs/") == ["runs/en-de", "runs/en-fr"]
    assert common.complete_runs("nowhere/x") == []
    assert common.complete_systems("roformer") == ["roformer"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["translate", "run", "--least", 3], "--least is now called --min-length"),
        (["translate", "run", "--beam", 3], "--beam is now called --beam-size"),
        (["translate", "run", "--tag", "news"], "--tag is now called --corpus-tag"),
        (["generate", "run", "--tokens", 3], "--tokens is now called --max-new-tokens"),
        (["compare", "--tokens", "1k"], "--tokens is now called --target-tokens"),
        (["serve", "run", "--batch", 10], "--batch is now called --max-batch-tokens"),
        (["show", "beam", "run", "A dog.", "--penalty", 1], "--penalty is now called --length-penalty"),
    ],
)
def test_an_option_of_an_earlier_version_is_answered_with_its_new_name(
    dragoman: Dragoman, arguments: list[object], expected: str
) -> None:
    answer = dragoman(*arguments)
    assert (answer.code, answer.err) == (2, f"dragoman: the option {expected}: use the new name\n")


def test_the_settings_are_listed(dragoman: Dragoman) -> None:
    assert "training.steps: integer, at least 1; default" in dragoman("settings", "training.steps").out
    assert "data.max_length" not in dragoman("settings", "training").out
    assert "did you mean 'training.steps'" in dragoman("settings", "training.step").err
