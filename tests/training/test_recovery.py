"""What goes wrong with a run folder from outside, and training that goes on all the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest_training import small_config
from test_resume import assert_equal, contents, train

from dragoman import checkpoint
from dragoman.errors import UserError
from dragoman.run import load
from dragoman.run_files import read_metrics
from dragoman.storage import exclusive_run_lock
from dragoman.training.checkpoint_manager import CheckpointManager
from dragoman.training.prepare import prepare_run


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recovery") / "prepared"
    prepare_run(folder, small_config(corpus), lambda text: None)
    return folder


@pytest.fixture(scope="module")
def trained(prepared: Path) -> Path:
    folder = prepared.with_name("trained")
    shutil.copytree(prepared, folder)
    train(folder)
    return folder


def test_interrupted_at_the_last_step(prepared: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "run")
    train(tmp_path / "run", stop_after=23)
    train(tmp_path / "run")
    assert_equal(contents(tmp_path / "run"), contents(trained))


def test_missing_link_resumes_from_the_newest_checkpoint(prepared: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "run")
    train(tmp_path / "run", stop_after=20)
    (tmp_path / "run" / "checkpoints" / "last").unlink()
    train(tmp_path / "run")
    assert_equal(contents(tmp_path / "run"), contents(trained))


def test_copy_without_links_resumes(prepared: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "run")
    train(tmp_path / "run", stop_after=12)
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=False)
    train(tmp_path / "copy")
    assert_equal(contents(tmp_path / "copy"), contents(trained))


def test_incomplete_line_of_metrics_is_ignored(prepared: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "run")
    train(tmp_path / "run", stop_after=12)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    assert read_metrics(tmp_path / "run")
    train(tmp_path / "run")
    assert_equal(contents(tmp_path / "run"), contents(trained))


def test_the_best_checkpoint_is_kept(trained: Path) -> None:
    checkpoints = trained / "checkpoints"
    progress = checkpoint.read_values(checkpoints / "last")["progress"]
    assert (checkpoints / f"{progress['best_step']:06d}").is_dir()


def test_altered_checkpoint_is_an_error(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run", symlinks=True)
    manifest = tmp_path / "run" / "checkpoints" / "last" / "checkpoint.json"
    document = json.loads(manifest.read_text())
    document["values"]["progress"]["data_position"]["batch"] += 1
    manifest.write_text(json.dumps(document))
    with pytest.raises(UserError, match="was altered"):
        train(tmp_path / "run")


def test_run_is_locked_during_training(trained: Path) -> None:
    with exclusive_run_lock(trained), pytest.raises(UserError, match="another process"), exclusive_run_lock(trained):
        pass


def test_average_is_the_mean_of_checkpoints(trained: Path) -> None:
    model = load(trained, device="cpu").model
    keeper = CheckpointManager(trained, 2, model, torch.optim.SGD(model.parameters()))
    kept = [checkpoint.read_tensors(path, "model") for path in keeper.validated()[-2:]]
    assert keeper.average(model) == 2
    for name, weight in model.named_parameters():
        assert weight.allclose((kept[0][name] + kept[1][name]) / 2, atol=1e-7)
