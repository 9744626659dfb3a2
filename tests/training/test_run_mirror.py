"""The copy of a run in another storage: always whole, and enough to continue on a machine that has nothing else."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest_training import small_config
from processes import KILL, Event, command, together
from test_distribution import assert_alike
from test_resume import Quiet, assert_equal, contents, hook_step, train

from dragoman.bulk import file_storage
from dragoman.config import from_yaml
from dragoman.errors import UserError
from dragoman.training.prepare import prepare_run
from dragoman.training.run_mirror import RunMirror
from dragoman.training.trainer import Trainer

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory://mirror", "file"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty storage: an object store in memory, and a folder."""
    yield f"file://{tmp_path}/mirror" if request.param == "file" else request.param
    if request.param != "file":
        fsspec.filesystem("memory").rm("/mirror", recursive=True)


@pytest.fixture
def prepared(corpus: Path, tmp_path: Path) -> Path:
    config = small_config(corpus, steps=12, gradient_accumulation=2, keep_checkpoints=2)
    prepare_run(tmp_path / "whole", config, lambda text: None)
    return tmp_path / "whole"


def train_with_copy(folder: Path, location: str, stop_after: int | None = None) -> None:
    """Continue a run that this machine or the copy has, as a new process does."""
    mirror = RunMirror(folder, location)
    mirror.synchronize()
    trainer = Trainer(folder, Quiet(), mirror=mirror)

    def interrupt(rate: float) -> None:
        trainer.interrupted = trainer.state.step + 2 == stop_after

    hook_step(trainer, after=interrupt)
    trainer.train()


def test_a_machine_without_files_continues_bit_equal(prepared: Path, location: str, tmp_path: Path) -> None:
    first = tmp_path / "first"
    shutil.copytree(prepared, first)
    train(prepared)
    train_with_copy(first, location, stop_after=5)
    shutil.rmtree(first)
    train_with_copy(tmp_path / "second", location)
    assert_equal(contents(prepared), contents(tmp_path / "second"))


def test_files_that_are_equal_are_not_copied_again(
    prepared: Path, tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(prepared, stop_after=5)
    RunMirror(prepared, location).publish()
    other = tmp_path / "other"
    RunMirror(other, location).fetch()
    train(prepared)
    RunMirror(prepared, location).publish()
    fetched = []
    download = RunMirror._download

    def noted(self: RunMirror, item: Any) -> None:
        fetched.append(item[0])
        download(self, item)

    monkeypatch.setattr(RunMirror, "_download", noted)
    RunMirror(other, location).fetch()
    assert fetched
    assert not [name for name in fetched if name.startswith("data/")]
    names = [{path.relative_to(folder) for path in folder.rglob("[!.]*")} for folder in (prepared, other)]
    assert names[0] == names[1]
    digests = {file.digest for file in RunMirror(other, location).manifest().files.values()}
    assert set(file_storage.StorageFolder(location).names("objects")) == digests  # old checkpoints are removed


def test_an_interrupted_copy_leaves_the_one_before(
    prepared: Path, tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(prepared, stop_after=5)
    RunMirror(prepared, location).publish()
    before = contents(prepared)
    train(prepared)
    upload, uploads = RunMirror._upload, []

    def full(self: RunMirror, item: Any) -> None:
        uploads.append(item)
        if len(uploads) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        upload(self, item)

    with monkeypatch.context() as patch:
        patch.setattr(RunMirror, "_upload", full)
        with pytest.raises(UserError, match=r"^the copy of the run at .* cannot be accessed: No space left on device"):
            RunMirror(prepared, location).publish()
    RunMirror(tmp_path / "other", location).fetch()
    assert_equal(contents(tmp_path / "other"), before)
    RunMirror(prepared, location).publish()  # when there is space again
    RunMirror(tmp_path / "other", location).fetch()
    assert_equal(contents(tmp_path / "other"), contents(prepared))


def test_training_goes_on_without_the_copy(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(RunMirror):
        def publish(self) -> None:
            raise UserError("the storage is full")

    said: list[str] = []
    display = Quiet()
    monkeypatch.setattr(display, "message", said.append)
    outcome = Trainer(prepared, display, mirror=Failing(prepared, "memory://nothing")).train()
    assert outcome.state.step == 12
    assert "step 12: the storage is full; training continues without this copy" in said


def test_what_is_damaged_or_of_another_run_is_refused(prepared: Path, tmp_path: Path) -> None:
    location = str(tmp_path / "mirror")  # a folder without a scheme
    with pytest.raises(UserError, match=r"^neither .*other nor .*mirror holds a run: train a new one"):
        RunMirror(tmp_path / "other", location).synchronize()
    RunMirror(prepared, location).publish()
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match=r"mine exists and is not a run: choose another name, or remove it$"):
        RunMirror(tmp_path / "mine", location).fetch()
    with pytest.raises(UserError, match=r"mirror already holds a run: continue it with --resume, or choose another"):
        RunMirror(prepared, location).check_free()
    other = tmp_path / "other"
    shutil.copytree(prepared, other)
    (other / "model.json").write_text((other / "model.json").read_text() + "\n")
    for attempt in (RunMirror(other, location).publish, RunMirror(other, location).fetch):
        with pytest.raises(UserError, match=r"mirror holds another run than .*other: choose another --mirror"):
            attempt()
    stored = RunMirror(prepared, location).manifest().files["config.yaml"]
    (tmp_path / "mirror" / "objects" / stored.digest).write_bytes(b"x" * stored.size)
    with pytest.raises(UserError, match=r"^the file config.yaml in the mirror .* is damaged: resume training"):
        RunMirror(tmp_path / "third", location).fetch()
    assert not (tmp_path / "third" / "model.json").exists()
    (tmp_path / "mirror" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest.json, .*, is damaged: choose another --mirror$"):
        RunMirror(tmp_path / "third", location).fetch()
    (tmp_path / "mirror" / "manifest.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(UserError, match=r"has format version 7, but only version 1 is supported: update dragoman$"):
        RunMirror(tmp_path / "third", location).fetch()


def train_on_own_disk(root: str, mirror: str, event: Event | None, arguments: list[str]) -> None:
    """Train in a folder that other processes do not have."""
    folder = Path(root) / f"machine{os.environ['RANK']}" / "run"
    command(["train", str(folder), "--mirror", mirror, *arguments], event)


def test_machines_without_a_shared_disk_train_like_one(corpus: Path, prepared: Path, tmp_path: Path) -> None:
    """Also after the machine that writes the checkpoints is lost: the other one goes on alone."""
    mirror = f"file://{tmp_path}/mirror"
    config = tmp_path / "config.yaml"
    shutil.copyfile(prepared / "config.yaml", config)
    train(prepared)
    event = Event(0, 11, KILL)  # the last checkpoint is that of step 9
    ended = together(2, train_on_own_disk, tmp_path / "said", str(tmp_path), mirror, event, ["--config", str(config)])
    assert ended[0].code == -KILL
    assert ended[1].code == 2, ended[1].said
    shutil.rmtree(tmp_path / "machine0")
    shutil.move(tmp_path / "machine1", tmp_path / "machine0")  # it is the first one now
    (ended,) = together(
        1,
        train_on_own_disk,
        tmp_path / "said",
        str(tmp_path),
        mirror,
        None,
        ["--resume", "--set", "training.patience=50"],
    )
    assert ended.code == 0, ended.said
    assert_alike(prepared, tmp_path / "machine0" / "run")
    saved = from_yaml(tmp_path / "machine0" / "run" / "config.yaml").training
    assert (saved.patience, saved.mirror) == (50, mirror)  # the copy has not replaced what was changed
