"""Preparation on a Ray cluster: the same files as on one machine, whatever dies on the way."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman.api.train_run import prepare_training
from dragoman.bulk import Executor, LocalExecutor, RayExecutor
from dragoman.config import Config, replace_settings
from dragoman.data.data_formats import DataFormat

pytest.importorskip("ray")
from ray_nodes import Nodes, connect_with_path, ray_processes, two_nodes  # needs Ray

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def write_corpus(folder: Path, pairs: int) -> None:
    """Write sentences with duplicates and near duplicates."""
    numbers = random.Random(1)
    words = [f"w{n}" for n in range(300)]
    lines = [" ".join(numbers.choices(words, k=numbers.randint(4, 20))) for _ in range(pairs)]
    lines += [*lines[: pairs // 9], *(line.upper() for line in lines[: pairs // 7])]
    numbers.shuffle(lines)
    for side in ("en", "de"):
        (folder / f"train.{side}").write_text("".join(f"{side} {line}\n" for line in lines), encoding="utf-8")


def prepared_files(corpus: Path, folder: Path, executor: Executor) -> dict[str, bytes]:
    """Prepare a run, and return its files."""
    settings = {
        "data.source": [str(corpus / "train.en")],
        "data.target": [str(corpus / "train.de")],
        "cleaning.enabled": True,
        "cleaning.deduplicate_similar": True,
        "system.name": "bahdanau",
        "training.device": "cpu",
    }
    prepare_training(folder, replace_settings(Config(), settings), parallel=executor.map_in_order)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """A cluster of two nodes on the loopback address, to which this process is connected."""
    with two_nodes() as started:
        connect_with_path(started.address)
        started.wait(2)
        yield started


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataFormat, "max_chunk_pairs", 100)


def test_dying_processes_and_nodes_change_nothing(cluster: Nodes, tmp_path: Path) -> None:
    write_corpus(tmp_path, 30_000)
    local = prepared_files(tmp_path, tmp_path / "local", LocalExecutor())
    cluster.add()
    cluster.wait(3)
    stop, killed = threading.Event(), []

    def kill() -> None:
        """Kill a process every second, and a node once."""
        for number in range(60):
            if stop.wait(0.7):
                return
            for process in ray_processes("ray::apply_function")[:1]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
            if number == 2:
                cluster.kill_last()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        remote = prepared_files(tmp_path, tmp_path / "ray", RayExecutor(cluster.address))
    finally:
        stop.set()
        killer.join()
    assert remote == local
    assert killed
