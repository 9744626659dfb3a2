"""On a GPU: compiled, replayed and eager steps learn the same, and deterministic training resumes bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest_training import small_config
from test_resume import assert_equal, contents, train

from dragoman.config import replace_settings
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "packed and compiled": ("transformer", {"compile": True}),
    "packed and eager": ("transformer", {"compile": False}),
    "with a bias in the scores": ("t5", {"compile": True}),
    "muon and a running mean": ("transformer", {"compile": False, "optimizer": "muon", "ema_decay": 0.9}),
    "additive attention": ("bahdanau", {}),
    "input feeding": ("luong", {}),
    "convolutions": ("convs2s", {}),
    "copying": ("transformer", {"copying": True}),
}


def prepared(folder: Path, corpus: Path, system: str, copying: bool = False, **training: Any) -> Path:
    settings = {
        "batch_tokens": 600,
        "steps": 40,
        "validation_interval": 20,
        "patience": None,
        "device": "cuda",
        **training,
    }
    config = small_config(corpus, system, **settings)
    if copying:
        config = replace_settings(config, {"system.settings.copying": True, "system.settings.coverage_loss": 1.0})
    prepare_run(folder, config, lambda text: None)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_deterministic_training_resumes_bit_equal(way: str, corpus: Path, tmp_path: Path) -> None:
    system, settings = WAYS[way]
    whole = prepared(tmp_path / "whole", corpus, system, deterministic=True, **settings)
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    try:
        train(whole)
        for stop_after in (4, 13, None):
            train(cut, stop_after)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_equal(contents(whole), contents(cut))


def weights_after(folder: Path, replays: bool, compiles: bool) -> dict[str, torch.Tensor]:
    trainer = Trainer(folder, Display())
    if not replays:
        trainer.train_step.graphs = None
    if not compiles:
        trainer.train_step.objective = trainer.objective
    trainer.model.train()
    stream = trainer._iterate_steps()
    for step in range(1, 9):
        group = next(stream)
        trainer.train_step(group.batches, step, 0.001, group.target_tokens)
    stream.close()
    return {name: weight.detach().cpu() for name, weight in trainer.model.named_parameters()}


@pytest.mark.parametrize(("system", "compiled"), [("transformer", True), ("transformer", False), ("bahdanau", False)])
def test_captured_step_equals_the_eager_step(system: str, compiled: bool, corpus: Path, tmp_path: Path) -> None:
    run = prepared(tmp_path / "run", corpus, system, compile=compiled, precision="bfloat16")
    torch.use_deterministic_algorithms(True)
    try:
        one, other = (weights_after(run, replays, compiled) for replays in (True, False))
    finally:
        torch.use_deterministic_algorithms(False)
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


def test_compiled_step_equals_the_eager_step(corpus: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"compile": True, "optimizer": "sgd", "precision": "bfloat16"}
    config = small_config(corpus, "transformer", batch_tokens=600, steps=40, device="cuda", **settings)
    run = tmp_path / "run"
    still = config.system.settings | {"dropout": 0.0}  # compiled dropout draws other numbers
    from dataclasses import replace

    prepare_run(run, replace(config, system=replace(config.system, settings=still)), lambda text: None)
    one, other = (weights_after(run, False, compiles) for compiles in (True, False))
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], rtol=0, atol=2e-3)
