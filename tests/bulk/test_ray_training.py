"""Training on a Ray cluster: as with torchrun, also after a process, a machine or the driver is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.api.events import TrainingEvent
from dragoman.api.ray_training import RayTraining
from dragoman.api.train_run import resume_training, start_training
from dragoman.config import Config, replace_settings
from dragoman.data import phrasebook
from dragoman.errors import UserError
from dragoman.run_files import read_metrics

pytest.importorskip("ray.train")
import ray
from ray_nodes import Nodes, connect_with_path, ray_processes, two_nodes  # needs Ray

from dragoman import checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TIMES = ("seconds", "validation_seconds", "tokens_per_second")
STEPS = 400


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A small model, whose steps have two batches."""
    book = tmp_path_factory.mktemp("book") / "phrasebook"
    phrasebook.write(book, pairs=400, valid=12, test=12)
    return training_config(book, STEPS)


def training_config(book: Path, steps: int) -> Config:
    settings = {
        "data.source": [str(book / "train.en")],
        "data.target": [str(book / "train.de")],
        "data.valid_source": [str(book / "valid.en")],
        "data.valid_target": [str(book / "valid.de")],
        "text.vocab_size": 400,
        "system.name": "transformer",
        "system.size": "tiny",
        "system.settings.model_dim": 16,
        "training.batch_tokens": 200,
        "training.gradient_accumulation": 2,
        "training.steps": steps,
        "training.validation_interval": 40,
        "training.validation_sentences": 2,
        "training.device": "cpu",
        "training.mirror": None,
    }
    return replace_settings(Config(), settings)


@pytest.fixture
def cluster() -> Iterator[Nodes]:
    """A cluster of two nodes on the loopback address, to which this process is connected."""
    with two_nodes() as started:
        connect_with_path(started.address)
        started.wait(2)
        yield started


@pytest.fixture(scope="module")
def alone(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the run."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    torch.set_num_threads(1)
    start_training(folder, config, callback=lambda event: None)
    return folder


def assert_near(one: Path, other: Path) -> None:
    """The same steps, with losses that differ by the order of floating-point additions."""
    known, found = read_metrics(one), read_metrics(other)
    assert [(record["kind"], record["step"]) for record in known] == [(r["kind"], r["step"]) for r in found]
    for expected, record in zip(known, found):
        if "loss" in expected:
            assert record["loss"] == pytest.approx(expected["loss"], rel=2e-3), record["step"]
    states = [checkpoint.read_values(folder / "checkpoints" / "last")["progress"] for folder in (one, other)]
    for name in ("step", "data_position", "target_tokens"):
        assert states[0][name] == states[1][name]


def assert_equal(one: Path, other: Path) -> None:
    """The same bits."""
    records = [
        [{k: v for k, v in r.items() if k not in TIMES} for r in read_metrics(folder)] for folder in (one, other)
    ]
    assert records[0] == records[1]
    for name in ("model", "trainer"):
        tensors = [checkpoint.read_tensors(folder / "checkpoints" / "last", name) for folder in (one, other)]
        assert tensors[0].keys() == tensors[1].keys()
        assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0]), name


def when_at_step(folder: Path, step: int, action: Callable[[], Any]) -> threading.Thread:
    """Do something once a checkpoint of this step or a later one has been written."""

    def wait() -> None:
        limit = time.monotonic() + 500
        while time.monotonic() < limit:
            done = [int(path.name) for path in (folder / "checkpoints").glob("[0-9]*")]
            if max(done, default=0) >= step:
                action()
                return
            time.sleep(0.05)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def kill_worker() -> None:
    """Kill one of the training processes."""
    os.kill(ray_processes("ray::RayTrainWorker")[0], signal.SIGKILL)


def test_killed_processes_and_machines_change_no_batch(
    config: Config, alone: Path, cluster: Nodes, tmp_path: Path
) -> None:
    """Two processes train like one; after a kill the same bits, and on fewer machines the same batches."""
    events: list[TrainingEvent] = []
    executor = RayTraining(cluster.address, num_workers=2)
    outcome = start_training(tmp_path / "two", config, callback=events.append, executor=executor)
    assert outcome is not None
    assert outcome.state.step == STEPS
    assert len([event for event in events if type(event).__name__ == "StepEvent"]) == STEPS // 10
    texts = [event.text for event in events if type(event).__name__ == "MessageEvent"]
    assert "training on 2 processes with replicated weights" in texts
    assert_near(alone, tmp_path / "two")

    killer = when_at_step(tmp_path / "killed", 80, kill_worker)
    start_training(tmp_path / "killed", config, callback=lambda event: None, executor=executor)
    killer.join()
    assert_equal(tmp_path / "two", tmp_path / "killed")

    texts.clear()
    killer = when_at_step(tmp_path / "fewer", 80, cluster.kill_last)
    start_training(
        tmp_path / "fewer",
        config,
        callback=lambda event: texts.append(getattr(event, "text", "")),
        executor=executor,
    )
    killer.join()
    assert any(text.startswith("resuming at step") for text in texts)
    assert_near(alone, tmp_path / "fewer")


DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_ray_training
test_ray_training.drive(*sys.argv[2:])
"""


def drive(folder: str, book: str, address: str) -> None:
    """Train as a driver process, which the test kills and starts again."""
    connect_with_path(address)
    config = training_config(Path(book), STEPS)
    start_training(Path(folder), config, resume_if_exists=True, executor=RayTraining(address, 2))


def test_a_killed_driver_and_an_interrupted_one_continue(
    config: Config, alone: Path, cluster: Nodes, tmp_path: Path
) -> None:
    folder, book = tmp_path / "run", Path(config.data.source[0]).parent
    arguments = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(folder), str(book), cluster.address]
    for signal_number, step in ((signal.SIGKILL, 80), (signal.SIGINT, 160)):
        with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as driver:
            stopper = when_at_step(folder, step, lambda number=signal_number: driver.send_signal(number))
            _, said = driver.communicate(timeout=600)
        stopper.join()
        if signal_number == signal.SIGKILL:
            limit = time.monotonic() + 60
            while ray_processes("ray::RayTrainWorker") and time.monotonic() < limit:
                time.sleep(0.5)
        else:
            assert driver.returncode == 0, said
            assert "stopping after this step; press Ctrl-C again to stop immediately" in said
            assert checkpoint.read_values(folder / "checkpoints" / "last")["progress"]["step"] < STEPS
    outcome = resume_training(
        folder, {}, callback=lambda event: None, executor=RayTraining(cluster.address, num_workers=2)
    )
    assert outcome is not None
    assert outcome.state.step == STEPS
    assert_near(alone, folder)


def test_mistakes_are_answered_in_one_sentence(config: Config, cluster: Nodes, tmp_path: Path) -> None:
    executor = RayTraining(cluster.address, num_workers=2)
    wrong = replace_settings(config, {"data.source": [str(tmp_path / "nothing.en")]})
    with pytest.raises(UserError, match=r"nothing\.en"):
        start_training(tmp_path / "run", wrong, callback=lambda event: None, executor=executor)
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match=r"taken exists and is not a run: choose another name"):
        start_training(tmp_path / "taken", config, executor=executor)
    diverging = replace_settings(config, {"training.learning_rate": 1000.0, "training.steps": 60})
    with pytest.raises(UserError, match=r"^training diverged"):
        start_training(tmp_path / "run", diverging, callback=lambda event: None, executor=executor)


def test_no_cluster_at_the_address(config: Config, tmp_path: Path) -> None:
    ray.shutdown()
    with pytest.raises(UserError, match=r"there is no Ray cluster at '127.0.0.1:1'"):
        start_training(tmp_path / "run", config, executor=RayTraining("127.0.0.1:1"))
    assert not (tmp_path / "run").exists()
