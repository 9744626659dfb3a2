"""Law 7: a training that was killed at any moment and resumed is bit-equal to one that was not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from conftest_training import hook_step, small_config

from dragoman import checkpoint
from dragoman.config import to_yaml
from dragoman.run_files import read_metrics
from dragoman.systems import SYSTEMS
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

TIMES = ("seconds", "validation_seconds", "tokens_per_second")


class Quiet(Display):
    def message(self, text: str) -> None:
        pass


def train(folder: Path, stop_after: int | None = None) -> None:
    """Train, and interrupt it after a step if told."""
    trainer = Trainer(folder, Quiet())

    def interrupt(rate: float) -> None:
        trainer.interrupted = trainer.state.step + 2 == stop_after

    hook_step(trainer, after=interrupt)
    trainer.train()


def contents(folder: Path) -> dict[str, Any]:
    """Everything that training leaves, but for clock readings."""
    last = folder / "checkpoints" / "last"
    values = checkpoint.read_values(last)
    values["progress"].pop("seconds")
    return {
        "weights": checkpoint.read_tensors(last, "model"),
        "optimiser": checkpoint.read_tensors(last, "trainer"),
        "values": values,
        "names": sorted(path.name for path in (folder / "checkpoints").iterdir()),
        "best": (folder / "checkpoints" / "best").resolve().name,
        "metrics": [{k: v for k, v in record.items() if k not in TIMES} for record in read_metrics(folder)],
        "samples": {path.name: path.read_text() for path in sorted((folder / "samples").glob("*"))},
    }


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in ("weights", "optimiser"):
        assert one[name].keys() == other[name].keys()
        for key in one[name]:
            assert torch.equal(one[name][key], other[name][key]), f"{name} {key}"
    for name in ("values", "names", "best", "metrics", "samples"):
        assert one[name] == other[name], name


#: recurrent, parallel, and two networks at once; `make laws` runs over all systems
REPRESENTATIVES = ("bahdanau", "transformer", "electra")


@pytest.mark.parametrize(
    "system",
    [name if name in REPRESENTATIVES else pytest.param(name, marks=pytest.mark.exhaustive) for name in SYSTEMS],
)
def test_interrupted_and_resumed_is_bit_equal(system: str, corpus: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    prepare_run(whole, small_config(corpus, system, gradient_accumulation=2, patience=2, steps=12), lambda text: None)
    shutil.copytree(whole, cut)
    train(whole)
    for stop_after in (3, 10, None):
        train(cut, stop_after)
    assert_equal(contents(whole), contents(cut))


def test_paused_and_resumed_is_bit_equal(corpus: Path, tmp_path: Path) -> None:
    """A pause between two validations and one at a validation change neither patience nor schedule."""
    config = small_config(corpus, schedule="cosine", steps=13, validation_interval=5)
    prepare_run(tmp_path / "whole", config, print)
    shutil.copytree(tmp_path / "whole", tmp_path / "paused")
    train(tmp_path / "whole")
    for step in (3, 10):  # validations are at 5 and 10
        outcome = Trainer(tmp_path / "paused", Quiet()).train(lambda state, step=step: state.step >= step)
        assert outcome.paused
        assert outcome.state.step == step
    assert not Trainer(tmp_path / "paused", Quiet()).train().paused
    assert_equal(contents(tmp_path / "whole"), contents(tmp_path / "paused"))


RECIPES: dict[str, dict[str, Any]] = {
    "muon": {"optimizer": "muon"},
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "schedule": "constant"},
    "plain sgd": {"optimizer": "sgd", "learning_rate": 0.5},
    "adam": {"optimizer": "adam", "gradient_accumulation": 1},
    "adafactor": {"optimizer": "adafactor", "momentum": 0.5},
    "plateau": {
        "optimizer": "sgd",
        "learning_rate": 5.0,
        "schedule": "plateau",
        "validation_interval": 3,
        "warmup_steps": 1,
    },
    "ema_decay": {"optimizer": "adamw", "ema_decay": 0.9},
    "packed": {"batch_layout": "packed", "compile": False, "ema_decay": 0.99, "optimizer": "muon"},
}


MAIN = ("packed",)  # with Muon and an average of weights; `make laws` runs all of them


@pytest.mark.parametrize(
    "recipe", [name if name in MAIN else pytest.param(name, marks=pytest.mark.exhaustive) for name in RECIPES]
)
def test_every_recipe_resumes_bit_equal(recipe: str, corpus: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = {"gradient_accumulation": 2, "patience": None} | RECIPES[recipe]
    prepare_run(whole, small_config(corpus, **settings), lambda text: None)
    shutil.copytree(whole, cut)
    train(whole)
    for stop_after in (4, 13, None):
        train(cut, stop_after)
    assert_equal(contents(whole), contents(cut))
    losses = [record["loss"] for record in read_metrics(whole) if record["kind"] == "train"]
    assert losses[-1] < losses[0]


def test_checkpoint_has_the_averaged_weights(corpus: Path, tmp_path: Path) -> None:
    prepare_run(tmp_path / "run", small_config(corpus, ema_decay=0.9), lambda text: None)
    trainer = Trainer(tmp_path / "run", Quiet())
    trainer.train()
    assert trainer.average is not None
    last = tmp_path / "run" / "checkpoints" / "last"
    model, kept = checkpoint.read_tensors(last, "model"), checkpoint.read_tensors(last, "trainer")
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(model[name], trainer.average.averages[name])
        assert torch.equal(kept[f"weight/{name}"], weight)
        assert not torch.equal(model[name], weight)
    again = Trainer(tmp_path / "run", Quiet())
    for name, weight in again.model.named_parameters():
        assert torch.equal(weight, kept[f"weight/{name}"])
    assert not (tmp_path / "run" / "checkpoints" / "averaged").exists()  # a mean of means is none that was validated


@pytest.fixture(scope="module")
def reference(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A prepared run, and what training it without interruption leaves."""
    prepared = tmp_path_factory.mktemp("reference") / "prepared"
    prepare_run(prepared, small_config(corpus, steps=11, validation_interval=5), lambda text: None)
    trained = prepared.with_name("trained")
    shutil.copytree(prepared, trained)
    train(trained)
    return prepared, contents(trained)


class KilledError(BaseException):
    """A process that is killed runs no handlers; this one is raised in every operation from the kill on."""


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Callable[[], int]]]:
    """kill(n): the n-th operation on the disk and all after it do not happen."""
    done = [0]
    limit = [sys.maxsize]

    def guarded(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            done[0] += 1
            if done[0] > limit[0]:
                raise KilledError
            return operation(*arguments, **options)

        return run

    def arm(number: int) -> Callable[[], int]:
        done[0], limit[0] = 0, number
        return lambda: done[0]

    with monkeypatch.context() as patch:
        for owner, name in [
            (Path, "rename"),
            (Path, "replace"),
            (Path, "symlink_to"),
            (Path, "mkdir"),
            (Path, "unlink"),
            (Path, "write_text"),
            (shutil, "rmtree"),
            (checkpoint, "save_file"),
            (os, "fsync"),
        ]:
            patch.setattr(owner, name, guarded(getattr(owner, name)))
        yield arm


def test_killed_at_every_disk_operation(
    reference: tuple[Path, dict[str, Any]], tmp_path: Path, kill: Callable[[int], Callable[[], int]]
) -> None:
    prepared, expected = reference
    counter = kill(10**9)
    shutil.copytree(prepared, tmp_path / "counted")
    counter = kill(10**9)
    train(tmp_path / "counted")
    operations = counter()
    assert operations > 50
    for number in range(0, operations, max(1, operations // 5)):
        kill(10**9)
        folder = tmp_path / f"killed-{number}"
        shutil.copytree(prepared, folder)
        kill(number)
        with pytest.raises(KilledError):
            train(folder)
        kill(10**9)
        train(folder)
        assert_equal(contents(folder), expected)
        shutil.rmtree(folder)


def run_until_killed(folder: Path, seconds: float) -> bool:
    """`dragoman train --resume` killed with SIGKILL after so many seconds; True if it ended before."""
    command = [sys.executable, "-m", "dragoman", "train", str(folder), "--resume"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    assert process.returncode == 0, errors.decode()
    return True


@pytest.mark.slow
def test_kill_9_at_random_moments(corpus: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    prepare_run(whole, small_config(corpus, steps=300, validation_interval=4, patience=None), lambda text: None)
    shutil.copytree(whole, cut)
    assert run_until_killed(whole, 600)
    random, kills = Random(0), 0
    while not run_until_killed(cut, 4 + 6 * random.random()):
        kills += 1
        assert kills < 100
    assert kills >= 2
    assert_equal(contents(whole), contents(cut))


def test_ctrl_c_saves_a_checkpoint(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (tmp_path / "config.yaml").write_text(to_yaml(small_config(corpus, steps=100000)))
    command = [sys.executable, "-m", "dragoman", "train", str(folder), "--config", str(tmp_path / "config.yaml")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (folder / "checkpoints" / "last").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"dragoman train {folder} --resume" in errors
    assert (folder / "report.html").exists()
