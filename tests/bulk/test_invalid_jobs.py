"""What goes wrong in a job: one clear sentence, and no output that looks complete."""

from __future__ import annotations

import errno
import gzip
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_bulk_job import UpperCase, job, run

from dragoman.bulk import BulkJob, RayExecutor, file_storage
from dragoman.bulk.ray_executor import connect
from dragoman.errors import UserError


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("".join(f"line {n}\n" for n in range(40)))
    return tmp_path / "in"


def complete_files(output: Path) -> list[str]:
    """The files of a job that a user would take for results, and unfinished ones."""
    names = [path.name for path in output.rglob("*") if path.is_file()]
    return [name for name in names if name in ("a.txt", "b.txt", "manifest.json") or name.endswith(".partial")]


def test_a_full_disk(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def fsync(number: int) -> None:
        written.append(number)
        if len(written) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_storage.os, "fsync", fsync)
        with pytest.raises(UserError, match=r"^the disk of .* is full: free some space, or choose another folder$"):
            run(job(inputs, tmp_path / "out"))
    assert complete_files(tmp_path / "out") == []
    run(job(inputs, tmp_path / "out"), resume=True)  # when there is space again
    assert (tmp_path / "out" / "a.txt").read_bytes() == (inputs / "a.txt").read_bytes().upper()


def test_a_full_object_store(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = type(fsspec.filesystem("memory"))

    def mv(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory, "mv", mv)
    with pytest.raises(UserError, match=r"full/job.json cannot be written: No space left on device; free some space$"):
        run(BulkJob([f"{inputs}/*"], "memory://full", UpperCase(), {}, block_bytes=64))
    assert fsspec.filesystem("memory").find("/full") == []


def test_an_unreadable_block(inputs: Path, tmp_path: Path) -> None:
    packed = gzip.compress(os.urandom(5000).hex().encode(), mtime=0)
    (inputs / "b.txt.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match=r"b.txt.gz is not valid gzip data \(.*\): download or compress it again$"):
        run(job(inputs, tmp_path / "out"))
    assert complete_files(tmp_path / "out") == ["a.txt"]  # which is complete
    (inputs / "b.txt.gz").unlink()
    planned = job(inputs, tmp_path / "other")
    (inputs / "a.txt").unlink()
    with pytest.raises(UserError, match=r"a.txt does not exist: correct the path$"):
        run(planned)
    assert complete_files(tmp_path / "other") == []


def test_ray_is_not_installed(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"^--on ray needs the package ray: install it with pip install"):
        run(job(inputs, tmp_path / "out"), RayExecutor())
    assert complete_files(tmp_path / "out") == []


@pytest.mark.parametrize("error", [RuntimeError, ConnectionError, ValueError])
def test_a_cluster_of_another_version(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray compares the versions of itself and of Python when a driver connects."""

    def init(**options: Any) -> None:
        raise error(
            "Version mismatch: The cluster was started with:\n    Ray: 2.40.0\nThis process was started with:\n"
        )

    fake = ModuleType("ray")
    fake.is_initialized, fake.init = lambda: False, init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(
        UserError, match=r"^connecting to the Ray cluster failed \(Version mismatch: .* Ray: 2.40.0 This"
    ) as said:
        connect()
    assert "\n" not in str(said.value)
