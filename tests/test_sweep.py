"""Sweeps with workers that only pretend to train, with the real worker, and (slow) with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.api.sweep_process import EventQueue
from dragoman.api.sweep_runner import choose_parallel
from dragoman.api.sweep_runs import SweepRequest, run_sweep
from dragoman.api.sweep_worker import describe_error, prepare_runs, train_run
from dragoman.data import TokenStore, phrasebook
from dragoman.errors import UserError
from dragoman.training.sweep_space import parse_space
from dragoman.training.sweep_state import STATE_FILE, SweepState

Job = dict[str, Any]


class FakeWorkers:
    """Starts jobs that end at once: a run's metric is its batch size in thousands, plus the trained fraction.

    Args:
        events: returns other events of a training instead; None for the usual result.
    """

    def __init__(self, events: Callable[[str, Job], list[dict[str, Any]] | None] = lambda name, job: None) -> None:
        self.events, self.started, self.stopped = events, [], []

    def __call__(self, name: str, job: Job, log_file: Path, threads: int, queue: EventQueue) -> FakeWorkers:
        self.started.append((name, job.get("fraction")))
        events = self.events(name, job)
        if events is None:
            events = self.prepare(job) if job["kind"] == "prepare" else [self.result(job)]
        for event in events:
            queue.put((name, event))
        if not events or events[-1]["event"] != "exit":
            queue.put((name, {"event": "exit", "code": 0}))
        return self

    def stop(self) -> None:
        self.stopped.append("stop")

    def kill(self) -> None:
        self.stopped.append("kill")

    @staticmethod
    def prepare(job: Job) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = [{"event": "device", "kind": "cpu", "devices": ["cpu"], "memory": 2**40}]
        for run in job["runs"]:
            settings = {"training.batch_tokens": 3000} | run["settings"]
            folder = Path(run["folder"])
            folder.mkdir(exist_ok=True)
            (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
            prepared = {"settings": settings, "parameters": 10, "memory": 1, "metric": "bleu", "metric_title": "BLEU"}
            events.append({"event": "prepared", "run": run["name"], **prepared, "digest": json.dumps(settings)})
        return events

    @staticmethod
    def result(job: Job) -> dict[str, Any]:
        settings = json.loads((Path(job["folder"]) / "settings.json").read_text(encoding="utf-8"))
        metric = settings["training.batch_tokens"] / 1000 + job["fraction"]
        values = {"fraction": job["fraction"], "step": 10, "seconds": 1.0, "target_tokens": 100}
        result = values | {"score": [metric, -1.0], "metrics": {"bleu": metric, "loss": 1.0}}
        return {"event": "result", "finished": job["fraction"] == 1, "reason": "reached 10 steps", "result": result}


def make_request(*texts: str, **options: Any) -> SweepRequest:
    files = {"data.source": ["train.en"], "data.target": ["train.de"]}
    return SweepRequest.create(files | parse_space(texts), **options)


BATCHES = "training.batch_tokens=1000,2000,4000,5000"
TRAINED = [("default", [1 / 4, 1 / 2, 1]), ("001", [1 / 4]), ("002", [1 / 4])]
TRAINED += [("003", [1 / 4, 1 / 2]), ("004", [1 / 4, 1 / 2, 1])]


def trainings(workers: FakeWorkers) -> list[tuple[str, float]]:
    return [(name.removesuffix("-seed1"), fraction) for name, fraction in workers.started if fraction is not None]


def test_the_best_half_continues_and_the_winner_is_linked(tmp_path: Path) -> None:
    workers = FakeWorkers()
    result = run_sweep(tmp_path / "sweep", make_request(BATCHES, factor=2), start_worker=workers)
    expected = [(name, fraction) for name, fractions in TRAINED for fraction in fractions]
    assert sorted(trainings(workers)) == sorted(expected)
    assert result.best.name == "004"
    assert result.default_rank == 2
    assert result.default_gap == pytest.approx(100 * 2 / 6)  # 3 + 1 against 5 + 1
    assert (tmp_path / "sweep" / "best").resolve().name == "004-seed1"
    assert any("training.batch_tokens=5000  (default: 3000)" in line for line in result.summary())


def test_without_halving_every_configuration_is_trained_completely(tmp_path: Path) -> None:
    workers = FakeWorkers()
    run_sweep(tmp_path / "sweep", make_request(BATCHES, factor=None, seeds=(1, 2)), start_worker=workers)
    assert len(workers.started) == 1 + 2 * 5
    assert {fraction for _, fraction in workers.started} == {None, 1.0}


class KilledError(Exception):
    """Stands for the death of the process."""


def test_a_killed_sweep_continues_and_repeats_no_finished_run(tmp_path: Path) -> None:
    """Whatever was recorded before a kill at any job is not trained again."""
    request, started = make_request(BATCHES, factor=2), []
    for death in range(1, 12):
        jobs = count(1)

        def die(name: str, job: Job, jobs: Iterator[int] = jobs, death: int = death) -> None:
            if next(jobs) == death and job["kind"] == "train":
                raise KilledError

        workers = FakeWorkers(die)
        try:
            result = run_sweep(tmp_path / "sweep", request, parallel=1, start_worker=workers)
            started += trainings(workers)
            break
        except KilledError:
            started += trainings(workers)[:-1]
    assert result.best.name == "004"
    assert sorted(started) == sorted((name, fraction) for name, fractions in TRAINED for fraction in fractions)


def test_a_failed_run_is_recorded_and_does_not_end_the_sweep(tmp_path: Path) -> None:
    def fail(name: str, job: Job) -> list[dict[str, Any]] | None:
        if name == "004-seed1":
            return [{"event": "failed", "error": "training diverged", "out_of_memory": False}]
        return [{"event": "exit", "code": -signal.SIGSEGV}] if name == "003-seed1" else None

    request = make_request(BATCHES, factor=2)
    result = run_sweep(tmp_path / "sweep", request, start_worker=FakeWorkers(fail))
    assert result.best.name == "default"
    errors = {entry.name: entry.error for entry in result.ranking if entry.error}
    assert errors["004"] == "seed 1: training diverged"
    assert "SIGSEGV" in errors["003"]
    again = FakeWorkers()
    result = run_sweep(tmp_path / "sweep", request, start_worker=again, retry_failed=True)
    assert result.best.name == "004"
    assert ("002", 1.0) not in trainings(again)


def test_a_run_without_enough_memory_is_tried_again_alone(tmp_path: Path) -> None:
    attempts = []

    def exhaust(name: str, job: Job) -> list[dict[str, Any]] | None:
        attempts.append(name)
        if name == "001-seed1" and attempts.count(name) == 1:
            return [{"event": "failed", "error": "out of memory", "out_of_memory": True}]
        return None

    workers = FakeWorkers(exhaust)
    result = run_sweep(tmp_path / "sweep", make_request(BATCHES, factor=None), parallel=2, start_worker=workers)
    assert attempts[-1] == "001-seed1"  # after all others
    assert not any(entry.error for entry in result.ranking)


def test_an_interrupted_sweep_stops_its_workers(tmp_path: Path) -> None:
    class Interrupted(FakeWorkers):
        """Ctrl-C while two workers are active; they report their end when they are stopped."""

        def __call__(self, name: str, job: Job, log_file: Path, threads: int, queue: EventQueue) -> FakeWorkers:
            if job["kind"] == "prepare" or job["fraction"] == 1:
                return super().__call__(name, job, log_file, threads, queue)
            self.started.append((name, job["fraction"]))
            self.queue = queue
            self.pending = [*getattr(self, "pending", []), name]
            if len(self.pending) == 2:
                raise KeyboardInterrupt
            return self

        def stop(self) -> None:
            super().stop()
            if self.pending:
                name = self.pending.pop(0)
                self.queue.put((name, {"event": "interrupted"}))
                self.queue.put((name, {"event": "exit", "code": 0}))

    workers, request = Interrupted(), make_request(BATCHES, factor=2)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(tmp_path / "sweep", request, parallel=2, start_worker=workers)
    assert workers.stopped == ["stop"]  # the second worker was not started yet
    assert all(run.status == "prepared" for run in SweepState.load(tmp_path / "sweep").runs)


def test_equal_settings_are_trained_once(tmp_path: Path) -> None:
    workers = FakeWorkers()
    request = make_request("training.batch_tokens=1000,3000", factor=None)  # the default is 3000
    result = run_sweep(tmp_path / "sweep", request, start_worker=workers)
    assert sorted(name for name, fraction in trainings(workers)) == ["001", "default"]
    assert [entry.name for entry in result.ranking] == ["default", "001"]
    assert not (tmp_path / "sweep" / "runs" / "002-seed1").exists()


def test_values_and_seeds_are_added_to_a_sweep_without_halving(tmp_path: Path) -> None:
    first = make_request("training.batch_tokens=1000,2000", factor=None)
    run_sweep(tmp_path / "sweep", first, start_worker=FakeWorkers())
    workers = FakeWorkers()
    more = make_request("training.batch_tokens=1000,5000", factor=None, seeds=(1, 2))
    result = run_sweep(tmp_path / "sweep", more, start_worker=workers)
    trained = sorted(name for name, fraction in workers.started if fraction is not None)
    assert trained == ["001-seed2", "002-seed2", "003-seed1", "003-seed2", "default-seed2"]
    assert [entry.name for entry in result.ranking] == ["003", "default", "002", "001"]
    assert SweepRequest.load(tmp_path / "sweep") == more
    workers = FakeWorkers()
    run_sweep(tmp_path / "sweep", SweepRequest.load(tmp_path / "sweep", seeds=(1, 2, 3)), start_worker=workers)
    trained = sorted(name for name, fraction in workers.started if fraction is not None)
    assert trained == ["001-seed3", "002-seed3", "003-seed3", "default-seed3"]


def test_data_that_cannot_be_read_leave_nothing_behind(tmp_path: Path) -> None:
    def refuse(name: str, job: Job) -> list[dict[str, Any]]:
        return [{"event": "unprepared", "run": "default-seed1", "error": "none of 3 pairs can be used"}]

    with pytest.raises(UserError, match="none of 3 pairs"):
        run_sweep(tmp_path / "sweep", make_request(BATCHES), start_worker=FakeWorkers(refuse))
    assert not (tmp_path / "sweep").exists()


def test_another_sweep_in_the_same_folder_is_an_error(tmp_path: Path) -> None:
    run_sweep(tmp_path / "sweep", make_request(BATCHES), start_worker=FakeWorkers())
    with pytest.raises(UserError, match="batch_tokens"):
        run_sweep(tmp_path / "sweep", make_request("training.batch_tokens=1,2"), start_worker=FakeWorkers())
    assert SweepRequest.load(tmp_path / "sweep") == make_request(BATCHES)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="not a sweep"):
        run_sweep(tmp_path / "other", make_request(BATCHES), start_worker=FakeWorkers())


def test_wrong_systems_and_settings_are_found_before_anything_runs() -> None:
    for texts, message in (
        (["system.name=transformer,transformr"], "did you mean 'transformer'"),
        (["system.name=bahdanau,luong", "system.settings.heads=2,4"], "setting of bahdanau, luong: 'heads'"),
        (["system.name=bahdanau", "system.settings.dropout=0.1,1.5"], "below 1"),
        (["training.steps=100"], "several values"),
    ):
        with pytest.raises(UserError, match=message):
            make_request(*texts)


def test_failure_by_lack_of_memory_is_recognized() -> None:
    """Which not only torch.OutOfMemoryError tells."""
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")):
        assert describe_error(error)["out_of_memory"]
    assert not describe_error(RuntimeError("shapes differ"))["out_of_memory"]


def test_runs_at_a_time_by_memory_and_cores() -> None:
    gib = 2**30
    gpu = {"kind": "cuda", "devices": ["cuda:0", "cuda:1"], "memory": 20 * gib}
    assert choose_parallel(gpu, 1 * gib, 64) == 2 * 5  # 0.8 · 20 GiB hold 5 runs of 1.5 + 1.5 · 1 GiB
    assert choose_parallel(gpu, 1 * gib, 4) == 4
    assert choose_parallel(gpu, 100 * gib, 64) == 1
    assert choose_parallel({"kind": "cpu", "devices": ["cpu"], "memory": 64 * gib}, gib // 100, 8) == 8


# ---- real trainings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "phrasebook"
    phrasebook.write(folder, pairs=50, valid=6, test=2)
    return folder


def small_settings(corpus: Path) -> dict[str, Any]:
    return {
        **{f"data.{side}": [str(corpus / f"train.{end}")] for side, end in (("source", "en"), ("target", "de"))},
        **{f"data.valid_{side}": [str(corpus / f"valid.{end}")] for side, end in (("source", "en"), ("target", "de"))},
        **{"system.name": "bahdanau", "system.size": "tiny", "system.settings.model_dim": 16},
        **{"training.steps": 4, "training.batch_tokens": 200, "training.device": "cpu", "data.num_workers": 1},
        **{"search.max_target_length": 6, "search.beam_size": 1, "text.vocab_size": 350},
    }


def test_the_worker_prepares_and_trains_in_parts(corpus: Path, tmp_path: Path) -> None:
    """Half the training and then the rest; a run that cannot be built is reported, and the next one prepared."""
    events: list[dict[str, Any]] = []
    changes = {"default": {}, "odd": {"text.tokenizer": "none"}, "wide": {"system.settings.model_dim": 24}}
    runs = [
        {"name": name, "folder": str(tmp_path / name), "settings": settings, "is_default": not settings}
        for name, settings in changes.items()
    ]
    prepare_runs(events.append, small_settings(corpus), runs)
    found = {event["run"]: event for event in events if "run" in event}
    assert [found[name]["event"] for name in changes] == ["prepared", "unprepared", "prepared"]
    assert found["default"]["settings"]["training.steps"] == 4
    assert found["default"]["digest"] != found["wide"]["digest"]
    first, second = (tmp_path / name / "data" / "train" for name in ("default", "wide"))
    files = [path.relative_to(first) for path in first.rglob("*") if path.is_file()]
    assert all((first / file).samefile(second / file) for file in files)
    job = {"folder": str(tmp_path / "default"), "device": "cpu", "sentences": 2, "metric": "loss"}
    results = []
    for fraction in (0.5, 1.0):
        train_run(results.append, fraction=fraction, **job)
    half, whole = (event for event in results if event["event"] == "result")
    assert (half["finished"], half["result"]["step"], half["result"]["fraction"]) == (False, 2, 0.5)
    assert (whole["finished"], whole["result"]["step"]) == (True, 4)
    metrics = half["result"]["metrics"]
    store = TokenStore(tmp_path / "default" / "data" / "valid")
    lengths = [len(store.target(index)) + 1 for index in range(6)]  # with EOS
    assert metrics["target_loss"] == pytest.approx(metrics["loss"] * sum(lengths) / 6)
    assert half["result"]["score"][0] == -metrics["target_loss"]
    assert (tmp_path / "default" / "report.html").exists()


@pytest.mark.slow
def test_a_sweep_in_processes_is_killed_and_continued(corpus: Path, tmp_path: Path) -> None:
    """The same ranking as without the kill, and no worker survives it."""
    space = {"training.learning_rate": [0.01, 0.02, 0.1]}
    settings = small_settings(corpus) | {"training.steps": 40, "training.validation_interval": 15}
    arguments = {"settings": settings, "factor": 2, "parallel": 2, "device": "cpu", "validation_sentences": 4}
    whole = dragoman.sweep(tmp_path / "whole", space, **arguments)
    code = f"import dragoman; dragoman.sweep({str(tmp_path / 'cut')!r}, {space!r}, **{arguments!r})"
    sweep = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True)
    state = tmp_path / "cut" / STATE_FILE
    while sweep.poll() is None and not (state.exists() and '"paused"' in state.read_text(encoding="utf-8")):
        time.sleep(0.1)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()
    cut = dragoman.sweep(tmp_path / "cut")  # workers of the killed sweep may still be saving their checkpoints
    assert [(entry.name, entry.score) for entry in cut.ranking] == [
        (entry.name, entry.score) for entry in whole.ranking
    ]
    assert dragoman.load(tmp_path / "cut" / "best").translate(["The dog sleeps."])
