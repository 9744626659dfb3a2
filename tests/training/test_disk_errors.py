"""A full disk, folders that go away and clocks that are set back while a run is trained: said plainly, nothing lost."""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest_training import hook_step, small_config
from test_resume import Quiet, assert_equal, contents, train

from dragoman import checkpoint
from dragoman.errors import UserError
from dragoman.run import load
from dragoman.run_files import read_metrics
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk") / "prepared"
    prepare_run(folder, small_config(corpus, steps=11, validation_interval=4), lambda text: None)
    return folder


@pytest.fixture(scope="module")
def expected(prepared: Path) -> dict[str, Any]:
    """What training without trouble leaves."""
    folder = prepared.with_name("trained")
    shutil.copytree(prepared, folder)
    train(folder)
    return contents(folder)


@pytest.fixture
def run(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path / "run")
    return tmp_path / "run"


def train_with(folder: Path, at: int, trouble: Callable[[], object], display: Display | None = None) -> Trainer:
    """Train, with trouble before a step."""
    trainer = Trainer(folder, display or Quiet())
    hook_step(trainer, before=lambda: trouble() if trainer.state.step + 1 == at else None)
    trainer.train()
    return trainer


def refuse(code: int) -> Callable[..., Any]:
    def operation(*arguments: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return operation


FULL, FORBIDDEN = (
    r"the disk of .* is full: free some space",
    r"you have no permission to write .*: choose another folder",
)
REFUSALS = [
    (checkpoint, "save_file", errno.ENOSPC, FULL),
    (Path, "symlink_to", errno.EDQUOT, FULL),
    (Path, "mkdir", errno.EROFS, FORBIDDEN),
    (os, "fsync", errno.EIO, r"cannot be written "),
]


@pytest.mark.parametrize(("owner", "name", "code", "sentence"), REFUSALS)
def test_disk_error_is_reported_and_training_resumes(
    owner: Any,
    name: str,
    code: int,
    sentence: str,
    run: Path,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Full, over its quota, read-only from now on, or broken, before the second of three checkpoints."""
    with monkeypatch.context() as patch, pytest.raises(UserError, match=sentence):
        train_with(run, 6, lambda: patch.setattr(owner, name, refuse(code)))
    assert checkpoint.read_values(run / "checkpoints" / "last")["progress"]["step"] == 4
    load(run, device="cpu")
    train(run)
    assert_equal(contents(run), expected)


def test_disk_full_while_writing_a_file(run: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    save = checkpoint.save_file

    def half(content: Any, path: Path) -> None:
        save(content, path)
        path.write_bytes(path.read_bytes()[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="is full"):
        train_with(run, 6, lambda: patch.setattr(checkpoint, "save_file", half))
    train(run)
    assert_equal(contents(run), expected)


def test_unwritable_metrics(run: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "metrics.jsonl" and arguments[:1] == ("a",):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"metrics\.jsonl is full"):
        train_with(run, 6, lambda: patch.setattr(Path, "open", full))
    train(run)
    assert_equal(contents(run), expected)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="whoever may do everything is refused nothing")
def test_read_only_folder(run: Path, expected: dict[str, Any]) -> None:
    try:
        with pytest.raises(UserError, match="no permission to write"):
            train_with(run, 6, lambda: [path.chmod(0o555) for path in (run / "checkpoints", run)])
    finally:
        for path in (run, run / "checkpoints"):
            path.chmod(0o755)
    train(run)
    assert_equal(contents(run), expected)


class Listening(Quiet):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def message(self, text: str) -> None:
        self.heard.append(text)


@pytest.mark.parametrize("at", [2, 10])
def test_checkpoints_deleted_during_training(at: int, run: Path, expected: dict[str, Any]) -> None:
    """What is trained is not touched by it; there is a best and a last one again after the next."""
    display = Listening()
    trainer = train_with(run, at, lambda: shutil.rmtree(run / "checkpoints"), display)
    assert trainer.state.step == 11
    found = contents(run)
    for name, weight in expected["weights"].items():
        assert weight.equal(found["weights"][name])
    last = checkpoint.read_values(run / "checkpoints" / "last")["progress"]
    assert (run / "checkpoints" / f"{last['best_step']:06d}").is_dir()
    assert load(run, device="cpu").translate(["a dog ."], beam_size=1)
    assert any("is missing: the next validation becomes the best" in text for text in display.heard) == (at > 4)


def test_run_deleted_during_training(run: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be written .No such file or directory"):
        train_with(run, 6, lambda: shutil.rmtree(run))


def test_data_deleted_during_training(run: Path, expected: dict[str, Any]) -> None:
    """What is mapped stays readable; the run that is to go on later is told what is missing."""
    train_with(run, 6, lambda: shutil.rmtree(run / "data"))
    assert_equal(contents(run), expected)
    with pytest.raises(UserError, match=r"has no tokenized data, .*: train a new run from the original text files"):
        train(run)


# ---- clocks


class Clock:
    """One that stands still, or goes back by a second at every look."""

    def __init__(self, by: float) -> None:
        self.now, self.by = 1e6, by

    def __call__(self) -> float:
        self.now += self.by
        return self.now


@pytest.mark.parametrize("by", [0.0, -1.0])
def test_clock_that_stops_or_is_set_back(
    by: float, run: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("time", "monotonic", "perf_counter") if by == 0 else ("time",):  # only this one can be set back
        monkeypatch.setattr(time, name, Clock(by))
    display = Listening()
    display.line_interval = 0.0
    train_with(run, 1, lambda: None, display)
    assert_equal(contents(run), expected)
    records = [record for record in read_metrics(run) if record["kind"] == "train"]
    assert records
    for record in records:
        assert 0 <= record["tokens_per_second"] < math.inf
        assert record["seconds"] >= 0
    assert not any("-" in text.split("left")[0].split()[-1] for text in display.heard if "left" in text)
