"""A fine-tuning is validated before its first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest_training import small_config
from test_resume import Quiet, assert_equal, contents, train

from dragoman.config import Config
from dragoman.run_files import read_metrics
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


def quietly(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def origin(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator that has learned a little."""
    folder = tmp_path_factory.mktemp("origin") / "run"
    prepare_run(folder, small_config(corpus, steps=12, validation_interval=12, average_checkpoints=False), quietly)
    train(folder)
    return folder


def tuned(corpus: Path, origin: Path, **training: Any) -> Config:
    settings = {
        "steps": 4,
        "validation_interval": 2,
        "average_checkpoints": False,
        "start_from": str(origin),
    } | training
    return replace(small_config(corpus, **settings), text=Config().text)


def validations(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder) if record["kind"] in ("valid", "start")]


def test_initial_model_is_validated_at_step_0(corpus: Path, origin: Path, tmp_path: Path) -> None:
    """It scores what the run that it starts from scored last: the same weights on the same sentences."""
    run = tmp_path / "run"
    prepare_run(run, tuned(corpus, origin), quietly)
    train(run)
    first, *others = validations(run)
    last = validations(origin)[-1]
    assert (first["step"], first["kind"]) == (0, "valid")
    assert {name: first[name] for name in ("loss", "bleu", "accuracy")} == {
        name: last[name] for name in ("loss", "bleu", "accuracy")
    }
    assert [record["step"] for record in others] == [2, 4]
    assert (run / "samples" / "000000.jsonl").exists()


def test_initial_model_stays_best_if_fine_tuning_is_worse(corpus: Path, origin: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    prepare_run(run, tuned(corpus, origin, learning_rate=1.0, warmup_steps=0, selection_metric="loss"), quietly)
    train(run)
    first, *others = validations(run)
    assert all(record["loss"] > first["loss"] for record in others)
    assert (run / "checkpoints" / "best").resolve().name == "000000"


def test_initial_model_of_another_task_is_never_best(corpus: Path, origin: Path, tmp_path: Path) -> None:
    """Another objective's weights are validated, but a checkpoint of the new task is kept, however bad."""
    run = tmp_path / "run"
    config = tuned(corpus, origin, learning_rate=1.0, warmup_steps=0)
    data = replace(config.data, target=(), valid_target=())
    config = replace(config, data=data, objective=replace(config.objective, name="denoising"))
    prepare_run(run, config, quietly)
    train(run)
    assert [(record["kind"], record["step"]) for record in validations(run)] == [
        ("start", 0),
        ("valid", 2),
        ("valid", 4),
    ]
    assert (run / "checkpoints" / "best").resolve().name in ("000002", "000004")


@pytest.mark.parametrize("killed", ["before", "after"])
def test_killed_at_step_0_resumes(
    killed: str, corpus: Path, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the checkpoint of step 0 was written, or after."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for run in (whole, broken):
        prepare_run(run, tuned(corpus, origin), quietly)
    train(whole)
    trainer = Trainer(broken, Quiet())
    save = trainer._save

    def die(**how: bool) -> None:
        if killed == "after":
            save(**how)
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_save", die)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    train(broken)
    assert_equal(contents(whole), contents(broken))
