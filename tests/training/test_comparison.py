"""Comparisons: the same batches and budget for every system, whatever interrupts them."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest_training import small_config

from dragoman import checkpoint
from dragoman.config import Config, from_yaml
from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.evaluation import bleu
from dragoman.models import training_flops
from dragoman.run import read_spec
from dragoman.run_files import CONFIG_FILE
from dragoman.training import comparison_training as comparison
from dragoman.training.comparison_training import (
    SAME_FOR_ALL,
    ComparisonBudget,
    evaluate_run,
    run_folder,
    save_or_check_settings,
    saved_result,
    train_system,
)
from dragoman.training.display import SilentDisplay
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


@pytest.fixture(scope="module")
def config(corpus: Path) -> Config:
    settings = {**SAME_FOR_ALL, "schedule": "cosine", "steps": None, "warmup_steps": None, "validation_interval": None}
    small = small_config(corpus, **settings)
    return replace(small, text=replace(small.text, bpe_dropout=0.0))


@pytest.fixture(scope="module")
def test_set(corpus: Path) -> tuple[list[str], list[str]]:
    sides = [(corpus / f"test.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "de")]
    return sides[0], sides[1]


def train(
    folder: Path, name: str, config: Config, budget: ComparisonBudget, display: SilentDisplay | None = None
) -> Config:
    """Train and return the configuration that the run was trained with."""
    train_system(folder, name, 1, config, budget, display or SilentDisplay())
    return from_yaml(run_folder(folder, name, 1) / CONFIG_FILE)


def test_every_system_gets_the_same_batches(tmp_path: Path, config: Config) -> None:
    batches = {}
    for name in ("transformer", "transformer-d", "rnn-lm"):  # two sequences, one, and one with the source to learn
        settings = {key: value for key, value in config.system.settings.items() if key != "heads" or name != "rnn-lm"}
        prepare_run(
            tmp_path / name, replace(config, system=replace(config.system, name=name, settings=settings)), print
        )
        walk = Trainer(tmp_path / name, SilentDisplay()).batches.iterate_indices()
        batches[name] = [indices.tolist() for indices, _, _ in islice(walk, 200)]
    assert batches["transformer"] == batches["transformer-d"] == batches["rnn-lm"]


def test_token_budget_is_reached_within_one_step(tmp_path: Path, config: Config, corpus: Path) -> None:
    resolved = train(tmp_path, "bahdanau", config, ComparisonBudget("tokens", 3000))
    place = run_folder(tmp_path, "bahdanau", 1)
    progress = checkpoint.read_values(place / "checkpoints" / "last")["progress"]
    assert progress["step"] == resolved.training.steps
    assert progress["target_tokens"] >= 3000  # counted by the training loop
    walk, store = Trainer(place, SilentDisplay()).batches.iterate_indices(), TokenStore(place / "data" / "train")
    last = [indices for indices, _, _ in islice(walk, progress["step"])][-1]
    assert progress["target_tokens"] - sum(int(store.columns[1].lengths[i]) + 1 for i in last) < 3000
    assert resolved.training.schedule == "cosine"
    assert resolved.training.warmup_steps == max(1, progress["step"] // 10)


def test_flops_budget_gives_cheaper_systems_more_steps(
    tmp_path: Path, config: Config, test_set: tuple[list[str], list[str]]
) -> None:
    wide = replace(config, system=replace(config.system, settings=config.system.settings | {"model_dim": 64}))
    trained = {}
    for folder, chosen in (("narrow", config), ("wide", wide)):
        train(tmp_path / folder, "bahdanau", chosen, ComparisonBudget("flops", 2e8))
        trained[folder] = evaluate_run(tmp_path / folder, "bahdanau", 1, *test_set)
    assert trained["narrow"].steps > trained["wide"].steps
    assert all(2e8 <= one.flops < 6e8 for one in trained.values())
    place = run_folder(tmp_path / "wide", "bahdanau", 1)
    store, spec = TokenStore(place / "data" / "train"), read_spec(place)
    walk = islice(Trainer(place, SilentDisplay()).batches.iterate_indices(), trained["wide"].steps)
    pairs = [
        (int(store.columns[0].lengths[i]) + 1, int(store.columns[1].lengths[i]) + 1)
        for step, _, _ in walk
        for i in step
    ]
    cost = {pair: training_flops(spec, *pair) for pair in set(pairs)}  # source with END, target with START
    assert trained["wide"].flops == sum(cost[pair] for pair in pairs)


def test_default_budget_equals_a_single_training(tmp_path: Path, config: Config) -> None:
    prepare_run(
        tmp_path / "single", replace(config, system=replace(config.system, name="bahdanau", settings={})), print
    )
    training = from_yaml(tmp_path / "single" / CONFIG_FILE).training
    assert training.steps is not None
    assert comparison.budget_steps(tmp_path / "single", ComparisonBudget(), training) == training.steps


class Interrupted(SilentDisplay):
    """Ctrl-C at the first line of the log."""

    def log_step(self, record: dict[str, Any], done: float | None) -> None:
        signal.raise_signal(signal.SIGINT)


def test_interrupted_system_continues(tmp_path: Path, config: Config, test_set: tuple[list[str], list[str]]) -> None:
    budget = ComparisonBudget("steps", 23)
    train(tmp_path / "whole", "bahdanau", config, budget)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "halves", "bahdanau", config, budget, Interrupted())
    place = run_folder(tmp_path / "halves", "bahdanau", 1)
    assert checkpoint.read_values(place / "checkpoints" / "last")["progress"]["step"] == 10
    train(tmp_path / "halves", "bahdanau", config, budget)
    first, second = (evaluate_run(tmp_path / name, "bahdanau", 1, *test_set) for name in ("whole", "halves"))
    assert replace(first, seconds=0, device_flops=0) == replace(second, seconds=0, device_flops=0)


def test_results_belong_to_a_test_set(tmp_path: Path, config: Config, test_set: tuple[list[str], list[str]]) -> None:
    sources, references = test_set
    assert saved_result(tmp_path, "bahdanau", 1, sources, references) is None
    train(tmp_path, "bahdanau", config, ComparisonBudget("steps", 3))
    assert saved_result(tmp_path, "bahdanau", 1, sources, references) is None
    result = evaluate_run(tmp_path, "bahdanau", 1, sources, references)
    assert saved_result(tmp_path, "bahdanau", 1, sources, references) == result
    assert saved_result(tmp_path, "bahdanau", 1, sources[:-1], references[:-1]) is None
    assert result.attention
    assert 0 <= bleu(result.texts, references).value <= 100


def test_folder_rejects_another_budget_or_settings(tmp_path: Path, config: Config) -> None:
    budget = ComparisonBudget("tokens", 1000)
    save_or_check_settings(tmp_path, config, budget)
    save_or_check_settings(tmp_path, replace(config, training=replace(config.training, seed=5, device="cpu")), budget)
    with pytest.raises(UserError, match=r"budget\.amount=1000.*, but now budget\.amount=2000"):
        save_or_check_settings(tmp_path, config, ComparisonBudget("tokens", 2000))
    with pytest.raises(
        UserError, match=r"training\.gradient_accumulation=1, but now training\.gradient_accumulation=2"
    ):
        save_or_check_settings(
            tmp_path, replace(config, training=replace(config.training, gradient_accumulation=2)), budget
        )


@pytest.mark.parametrize("label", ["transfomer", "transfomer@dropout=0.3", "transfomer@size=big", "transfomer+reward"])
def test_misspelt_system_gets_the_nearest_name(label: str) -> None:
    with pytest.raises(UserError, match="unknown system 'transfomer': did you mean 'transformer'"):
        comparison.check_systems([label])


def test_budget_must_be_positive() -> None:
    with pytest.raises(UserError, match="positive number of tokens"):
        ComparisonBudget("tokens", 0)
