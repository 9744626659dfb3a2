"""Training, resuming, translating and serving where the system has no symbolic links, forks or folder fsync."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import dragoman
from dragoman.cli import main
from dragoman.data import phrasebook
from dragoman.errors import UserError
from dragoman.run_files import checkpoint_names
from dragoman.serving import LanguagePair, Service, ServiceLimits, create_app
from dragoman.storage import flush_to_disk, mirror, replace_symlink, resolve_link

SETTINGS = [
    "system.settings.model_dim=16",
    "system.settings.layers=1",
    "training.batch_tokens=400",
    "training.validation_interval=2",
    "training.validation_sentences=2",
    "text.vocab_size=400",
    "search.max_target_length=6",
]


def forbid_posix(patch: pytest.MonkeyPatch) -> None:
    """Let the calls fail that Windows does not have, in the way in which they fail there."""
    open_file, fsync = os.open, os.fsync
    folders: set[int] = set()

    def no_privilege(*arguments: Any, **options: Any) -> None:
        raise OSError(22, "A required privilege is not held by the client", None, 1314)

    def no_fork(*arguments: Any) -> None:
        raise AssertionError("this system cannot fork")

    def open_no_folder(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if options.get("dir_fd") is None and Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, flags, *arguments, **options)

    def fsync_no_folder(descriptor: int) -> None:
        assert descriptor not in folders
        fsync(descriptor)

    patch.setattr(os, "symlink", no_privilege)
    patch.setattr(os, "link", no_privilege)
    patch.setattr(os, "fork", no_fork)
    patch.setattr(os, "open", open_no_folder)
    patch.setattr(os, "fsync", fsync_no_folder)
    patch.setattr(shutil, "_use_fd_functions", False)  # rmtree opens folders only where the system can
    for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1"):
        patch.delattr(signal, name, raising=False)
    for name in ("sched_getaffinity", "killpg", "getuid"):
        patch.delattr(os, name, raising=False)


@pytest.fixture(autouse=True)
def without_posix(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_posix(monkeypatch)


def call(*arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that was trained, interrupted by its budget, and continued."""
    folder = tmp_path_factory.mktemp("portable")
    with pytest.MonkeyPatch.context() as patch:
        forbid_posix(patch)
        phrasebook.write(folder / "book", pairs=200, valid=4, test=4)
        options = [part for setting in SETTINGS for part in ("--set", setting)]
        files = ["--source", folder / "book" / "train.en", "--target", folder / "book" / "train.de"]
        call("train", folder / "run", *files, "--system", "transformer", "--steps", 4, "--device", "cpu", *options)
        call("train", folder / "run", "--resume", "--steps", 6)
    return folder


def test_checkpoints_are_found_by_text_files(trained: Path) -> None:
    links = trained / "run" / "checkpoints"
    assert (links / "last").read_text() == "000006\n"
    assert not (links / "best").is_symlink()
    assert {"000006", "best", "last"} <= set(checkpoint_names(trained / "run"))
    assert dragoman.load(trained / "run", "last", device="cpu").checkpoint == "000006"
    with pytest.raises(UserError, match="has no checkpoint 'averages'"):
        dragoman.load(trained / "run", "averages", device="cpu")


def test_a_run_translates_and_is_served(trained: Path, tmp_path: Path) -> None:
    run = dragoman.load(trained / "run", device="cpu")
    expected = run.translate(["The dog sleeps."])[0].text
    text, output = tmp_path / "text", tmp_path / "out"
    text.write_text("The dog sleeps.\n")
    call("translate", trained / "run", text, "--output", output, "--device", "cpu")
    assert output.read_text() == f"{expected}\n"
    service = Service([(run, LanguagePair("en", "de"))], ServiceLimits(requests_per_minute=0))
    with TestClient(create_app(service), base_url="http://127.0.0.1") as client:
        answer = client.post("/translate", json={"q": "The dog sleeps.", "source": "en", "target": "de"})
        assert answer.json() == {"translatedText": expected}
        assert "<html" in client.get("/").text


def test_training_starts_from_a_run(trained: Path, tmp_path: Path) -> None:
    files = ["--source", trained / "book" / "train.en", "--target", trained / "book" / "train.de"]
    call("train", tmp_path / "tuned", "--start-from", trained / "run", *files, "--steps", 2, "--device", "cpu")
    assert resolve_link(tmp_path / "tuned" / "checkpoints" / "last").name == "000002"


def test_a_copied_run_keeps_its_links(trained: Path, tmp_path: Path) -> None:
    """A run from another system has symbolic links; a text file replaces them when training goes on."""
    shutil.copytree(trained / "run", tmp_path / "run")
    call("train", tmp_path / "run", "--resume", "--steps", 8)
    assert resolve_link(tmp_path / "run" / "checkpoints" / "last").name == "000008"


def test_links(tmp_path: Path) -> None:
    (tmp_path / "000001").mkdir()
    replace_symlink(tmp_path / "last", "000001")
    replace_symlink(tmp_path / "best", "last")
    assert resolve_link(tmp_path / "best") == tmp_path / "000001"
    replace_symlink(tmp_path / "last", "000002")
    assert not resolve_link(tmp_path / "best").exists()
    (tmp_path / "outside").write_text("../../etc")
    assert resolve_link(tmp_path / "outside") == tmp_path / "outside"
    (tmp_path / "round").write_text("round")
    assert resolve_link(tmp_path / "round") == tmp_path / "round"
    assert resolve_link(tmp_path / "missing") == tmp_path / "missing"


def test_folders_are_mirrored_by_copies(tmp_path: Path) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "file").write_text("x")
    mirror(tmp_path / "data", tmp_path / "copy")
    mirror(tmp_path / "data" / "inner" / "file", tmp_path / "file")
    assert (tmp_path / "copy" / "inner" / "file").read_text() == (tmp_path / "file").read_text() == "x"


def test_flushing_a_folder_does_nothing_where_it_cannot_be_opened(tmp_path: Path) -> None:
    flush_to_disk(tmp_path)
    (tmp_path / "file").write_text("x")
    flush_to_disk(tmp_path / "file")


def test_several_workers_need_forks(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get_methods: Callable[[], list[str]] = lambda: ["spawn"]  # noqa: E731
    monkeypatch.setattr("multiprocessing.get_all_start_methods", get_methods)
    with pytest.raises(UserError, match="use one worker"):
        dragoman.load(trained / "run", device="cpu").with_workers(2)
