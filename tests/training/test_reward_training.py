"""Training on expected reward: resumed bit-equal, shared by processes, validated and set up as fine-tuning."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest_training import small_config
from test_distribution import assert_alike, resume
from test_resume import assert_equal, contents, train

from dragoman.config import Config, ObjectiveConfig
from dragoman.run_files import read_metrics
from dragoman.training.prepare import prepare_run


@pytest.fixture(scope="module")
def origin(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator that has learned a little by likelihood."""
    folder = tmp_path_factory.mktemp("likelihood") / "run"
    config = small_config(corpus, "bahdanau", steps=4, validation_interval=4, average_checkpoints=False)
    prepare_run(folder, config, lambda text: None)
    train(folder)
    return folder


def rewarded(corpus: Path, origin: Path | None, name: str = "reward", **training: Any) -> Config:
    given: dict[str, Any] = {"steps": 3, "validation_interval": 2, "average_checkpoints": False, "batch_tokens": 70}
    start = {"start_from": str(origin)} if origin else {}
    config = small_config(corpus, "bahdanau", **(given | {"gradient_accumulation": 2} | start | training))
    text = Config().text if origin else config.text
    return replace(config, text=text, objective=ObjectiveConfig(name, {"num_candidates": 3}))


@pytest.mark.parametrize("name", ["reward", pytest.param("minimum-risk", marks=pytest.mark.exhaustive)])
def test_resumed_is_bit_equal_and_starts_from_a_candidate_for_the_best(
    name: str, corpus: Path, origin: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    messages: list[str] = []
    prepare_run(whole, rewarded(corpus, origin, name), messages.append)
    assert not any("warning" in message for message in messages)
    shutil.copytree(whole, cut)
    train(whole)
    for stop_after in (2, None):
        train(cut, stop_after)
    assert_equal(contents(whole), contents(cut))
    validations = [record for record in read_metrics(whole) if record["kind"] == "valid"]
    assert [record["step"] for record in validations] == [0, 2, 3]
    assert all(0 <= record["reward"] <= 100 for record in validations)
    before = [record for record in read_metrics(origin) if record["kind"] == "valid"][-1]
    assert validations[0]["loss"] == pytest.approx(
        before["loss"]
    )  # of the references, as in the run that it starts from


@pytest.mark.exhaustive
def test_two_processes_train_like_one(corpus: Path, origin: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    prepare_run(one, rewarded(corpus, origin, gradient_accumulation=3), lambda text: None)
    shutil.copytree(one, two)
    resume(one, 1)
    resume(two, 2, "replicated")
    assert_alike(one, two)


def test_settings_suit_a_fine_tuning(corpus: Path, origin: Path, tmp_path: Path) -> None:
    config = rewarded(corpus, origin, learning_rate=None, batch_tokens=None)
    choices = {choice.setting: choice for choice in prepare_run(tmp_path / "tuned", config, lambda text: None).choices}
    plain = replace(config, objective=ObjectiveConfig("translation"))
    others = {choice.setting: choice for choice in prepare_run(tmp_path / "plain", plain, lambda text: None).choices}
    rate, other = (chosen["training.learning_rate"] for chosen in (choices, others))
    assert rate.value == pytest.approx(0.1 * float(str(other.value)))
    assert "noisy" in rate.reason
    assert "4 sequences per pair" in choices["training.batch_tokens"].reason


def test_an_untrained_model_is_warned_about(corpus: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    prepare_run(tmp_path / "run", rewarded(corpus, None), messages.append)
    assert any("warning" in message and "--start-from" in message for message in messages)
