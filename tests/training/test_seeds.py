"""Training with several seeds: runs that differ in nothing else, and their ensemble."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest_training import small_config

import dragoman
from dragoman import config as configuration
from dragoman.api import seed_training
from dragoman.api.seed_training import report_lines, resume_seeds
from dragoman.cli import app
from dragoman.config import Config, SearchDefaults
from dragoman.errors import UserError
from dragoman.run_files import CONFIG_FILE, check_new_folder, read_ensemble
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.trainer import TrainingOutcome


def config_of(corpus: Path) -> Config:
    """A training of two steps, with test files."""
    config = small_config(corpus, "bahdanau", steps=2, validation_interval=2)
    test = {"data.test_source": [str(corpus / "test.en")], "data.test_target": [str(corpus / "test.de")]}
    return replace(configuration.replace_settings(config, test), search=SearchDefaults(max_target_length=4))


@pytest.fixture(scope="module")
def ensemble(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dragoman.Run:
    """Two runs with different seeds."""
    folder = tmp_path_factory.mktemp("seeds") / "run"
    return dragoman.train(folder, config=config_of(corpus), seeds=2, callback=lambda event: None)


def test_runs_differ_in_their_seed_only(ensemble: dragoman.Run) -> None:
    folder = ensemble.folder
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG_FILE, "ensemble.json", "seed1", "seed2"]
    first, second = (configuration.from_yaml(folder / name / CONFIG_FILE) for name in ("seed1", "seed2"))
    assert (first.training.seed, second.training.seed) == (1, 2)
    chosen = second.chosen | {"training.seed": 1} if "training.seed" in first.chosen else second.chosen
    assert replace(second, training=replace(second.training, seed=1), chosen=chosen) == first
    stores = [folder / name / "data" / "train" / "store.json" for name in ("seed1", "seed2")]
    assert stores[0].samefile(stores[1])  # written once
    beam = ensemble.beam_config()
    assert (first.search.beam_size, beam.size, beam.length_penalty) == (None, 5, 1.0)  # too few sentences for a choice


def test_the_folder_is_an_ensemble(ensemble: dragoman.Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder, texts = ensemble.folder, ["the dog sleeps .", "a man reads"]
    first, second = (dragoman.load(folder / name) for name in ("seed1", "seed2"))
    translations = [[t.text for t in run.translate(texts)] for run in (ensemble, first.ensemble(second))]
    assert translations[0] == translations[1]
    assert len(ensemble.models) == 2
    app(["show", "run", str(folder), "--device", "cpu"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "seed1, seed2" in printed
    assert "mean ± std" in printed


def test_the_report_has_the_scores_of_all_runs(ensemble: dragoman.Run, corpus: Path) -> None:
    report = read_ensemble(ensemble.folder)["report"]
    assert list(report["validation"]["bleu"]) == ["seed1", "seed2", "ensemble"]
    sources, references = ((corpus / f"test.{side}").read_text().splitlines() for side in ("en", "de"))
    for name, run in (("seed2", dragoman.load(ensemble.folder / "seed2")), ("ensemble", ensemble)):
        result = dragoman.evaluate(run, sources, references, ["chrf"], log=lambda text: None)
        assert report["test"]["chrf"][name] == result["chrf"]


def test_mean_and_deviation_by_hand() -> None:
    """Of 1 and 4 the mean is 2.5, and the sample standard deviation √(2 · 1.5²) = 2.12."""
    report = {"validation": {"bleu": {"seed1": 1.0, "seed2": 4.0, "ensemble": 5.0}}, "test": {"ter": {"seed1": 90.0}}}
    rows = [line.split() for line in report_lines(report)]
    assert rows[2:] == [
        ["seed1", "1.00", "90.00"],
        ["seed2", "4.00", "-"],
        ["mean", "±", "std", "2.50", "±", "2.12", "90.00"],
        ["ensemble", "5.00", "-"],
    ]


def test_only_unfinished_runs_are_trained(
    ensemble: dragoman.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command was stopped in the second run: the first is kept, and the second is resumed."""
    folder = tmp_path / "run"
    shutil.copytree(ensemble.folder, folder, symlinks=True)
    document = read_ensemble(folder)
    del document["finished"]["seed2"]
    (folder / "ensemble.json").write_text(json.dumps(document | {"report": {}}))
    shutil.move(folder / "seed2" / "checkpoints", tmp_path)
    with pytest.raises(UserError, match="seed2 has no checkpoint 'best'"):
        dragoman.load(folder)
    trained: list[str] = []
    best = read_ensemble(ensemble.folder)["finished"]["seed2"]

    def interrupted_once(member: Path, *arguments: Any, **options: Any) -> TrainingOutcome:
        trained.append(member.name)
        if len(trained) == 2:
            shutil.move(tmp_path / "checkpoints", member)
        return TrainingOutcome("", len(trained) == 1, TrainState(), 0, best)

    monkeypatch.setattr(seed_training, "resume_training", interrupted_once)
    assert resume_seeds(folder, {}, callback=lambda event: None).interrupted
    assert resume_seeds(folder, {}, callback=lambda event: None).report == read_ensemble(ensemble.folder)["report"]
    assert trained == ["seed2", "seed2"]
    with pytest.raises(UserError, match="has 2 runs"):
        resume_seeds(folder, {}, 1)


def test_a_single_run_is_not_resumed_with_several_seeds(ensemble: dragoman.Run) -> None:
    folder = ensemble.folder / "seed1"
    with pytest.raises(UserError, match="holds a single run, not several seeds: leave --seeds out"):
        dragoman.train(folder, resume=True, seeds=2, callback=lambda event: None)
    with pytest.raises(UserError, match="holds a single run, not several seeds: leave --seeds out"):
        app(["train", str(folder), "--resume", "--seeds", "2"], standalone_mode=False)
    with pytest.raises(UserError, match="does not exist"):
        dragoman.train(ensemble.folder / "seed3", resume=True, seeds=2, callback=lambda event: None)


def test_a_folder_of_seeds_is_not_a_single_run(ensemble: dragoman.Run, corpus: Path) -> None:
    with pytest.raises(UserError, match="continue them with --resume"):
        check_new_folder(ensemble.folder)
    config = configuration.replace_settings(config_of(corpus), {"training.start_from": str(ensemble.folder)})
    with pytest.raises(UserError, match="a single run is needed: name one of them"):
        dragoman.train(ensemble.folder.parent / "other", config=config, callback=lambda event: None)


@pytest.mark.slow
def test_runs_are_trained_at_the_same_time(ensemble: dragoman.Run, corpus: Path, tmp_path: Path) -> None:
    """Two processes give the same runs as one, and more seeds can be added."""
    outcome = seed_training.start_seeds(tmp_path / "run", config_of(corpus), 2, parallel=2)
    assert not outcome.interrupted
    assert outcome.report == read_ensemble(ensemble.folder)["report"]
    more = resume_seeds(tmp_path / "run", {}, 3, parallel=2)
    assert list(more.report["validation"]["bleu"]) == ["seed1", "seed2", "seed3", "ensemble"]
