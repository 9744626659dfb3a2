"""`training.loss_normalization`: the summed loss of a step is divided by its target tokens or by its sentences."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest_training import small_config

from dragoman.data import DataPosition
from dragoman.training.display import SilentDisplay
from dragoman.training.prepare import prepare_run
from dragoman.training.train_step import iterate_steps
from dragoman.training.trainer import Trainer


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("normalization") / "prepared"
    settings = {
        "optimizer": "sgd",
        "schedule": "constant",
        "warmup_steps": 0,
        "clip_norm": 0.0,
        "steps": 1,
        "gradient_accumulation": 3,
    }
    prepare_run(folder, small_config(corpus, average_checkpoints=False, **settings), lambda text: None)
    return folder


def change_of_weights(prepared: Path, folder: Path, normalization: str, rate: float) -> dict[str, torch.Tensor]:
    """By how much one step of SGD changes each weight."""
    shutil.copytree(prepared, folder)
    trainer = Trainer(folder, SilentDisplay())
    training = replace(trainer.config.training, loss_normalization=normalization, learning_rate=rate)
    trainer.config = replace(trainer.config, training=training)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    return {name: weight.detach() - before[name] for name, weight in trainer.model.named_parameters()}


def test_accumulated_loss_is_divided_by_all_sentences(prepared: Path, tmp_path: Path) -> None:
    """SGD on Σ loss / sentences at a rate η is SGD on Σ loss / tokens at η · tokens / sentences."""
    group = next(iterate_steps(Trainer(prepared, SilentDisplay()).batches, DataPosition(), 3))
    assert group.num_sentences == sum(len(batch.indices) for _, batch in group.batches) > 3
    by_sentence = change_of_weights(prepared, tmp_path / "sentences", "sentences", 0.1)
    by_token = change_of_weights(
        prepared, tmp_path / "tokens", "tokens", 0.1 * group.target_tokens / group.num_sentences
    )
    assert by_sentence.keys() == by_token.keys()
    for name, change in by_sentence.items():
        assert change.abs().max() > 0
        torch.testing.assert_close(change, by_token[name], rtol=1e-3, atol=1e-6)
