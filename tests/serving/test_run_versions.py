"""Versions of runs: they change with what a translation depends on, and with nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from dragoman import checkpoint
from dragoman.serving.run_versions import run_version
from dragoman.storage import replace_symlink


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run, without its data."""
    return Path(shutil.copytree(folder, tmp_path / "run", symlinks=True, ignore=shutil.ignore_patterns("data")))


def test_version_names_the_checkpoint(copied: Path) -> None:
    name = (copied / "checkpoints" / "best").resolve().name
    version = run_version(copied, "best")
    assert version == run_version(copied, name)
    checkpoint_name, _, digest = version.partition("-")
    assert (checkpoint_name, len(digest)) == (name, 8)


def test_other_files_do_not_change_the_version(copied: Path) -> None:
    version, best = run_version(copied, "best"), copied / "checkpoints" / "best"
    checkpoint.update_values(best, checkpoint.read_values(best) | {"validated": False})
    (copied / "metrics.jsonl").write_text("{}\n")
    os.utime(copied / "config.yaml", (0, 0))
    moved = Path(shutil.move(copied, copied.with_name("moved")))
    assert run_version(moved, "best") == version


@pytest.mark.parametrize("name", ["config.yaml", "model.json", "tokenizer.json"])
def test_files_of_the_run_change_the_version(copied: Path, name: str) -> None:
    version = run_version(copied, "best")
    with (copied / name).open("a") as file:
        file.write("\n")
    assert run_version(copied, "best") != version


def test_weights_change_the_version(copied: Path) -> None:
    version, best = run_version(copied, "best"), copied / "checkpoints" / "best"
    tensors = {name: value + 1 for name, value in checkpoint.read_tensors(best, "model").items()}
    checkpoint.save(copied / "checkpoints" / "000099", {"model": tensors}, checkpoint.read_values(best))
    assert run_version(copied, "best") == version
    replace_symlink(best, "000099")
    assert run_version(copied, "best").startswith("000099-")


def test_version_of_an_ensemble_depends_on_all_its_runs(copied: Path, tmp_path: Path) -> None:
    ensemble = tmp_path / "ensemble"
    for name in ("seed1", "seed2"):
        shutil.copytree(copied, ensemble / name, symlinks=True)
    shutil.copy(copied / "config.yaml", ensemble)
    (ensemble / "ensemble.json").write_text(json.dumps({"version": 1, "members": ["seed1", "seed2"]}))
    version = run_version(ensemble, "best")
    with (ensemble / "seed2" / "config.yaml").open("a") as file:
        file.write("\n")
    assert run_version(ensemble, "best") != version


def test_checkpoints_of_other_libraries_are_known_by_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(bytes(1000))
    versions = {run_version(tmp_path, "best"), run_version(tmp_path / "model.npz", "best")}
    os.utime(tmp_path / "model.npz", (0, 0))
    versions |= {run_version(tmp_path, "best")}
    assert all(len(version) == 8 for version in versions)
    assert len(versions) == 2
