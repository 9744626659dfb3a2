"""Frozen weights and LoRA in training: what is trained, stored and opened again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest_training import small_config
from test_resume import Quiet, assert_equal, contents, train

import dragoman
from dragoman import checkpoint
from dragoman.config import Config, LoRAConfig, TextConfig
from dragoman.errors import UserError
from dragoman.models import meta_model
from dragoman.run import read_spec, read_weights
from dragoman.training.prepare import prepare_run
from dragoman.training.trainable_weights import count_trained, match_parameters
from dragoman.training.trainer import Trainer

LORA = LoRAConfig(rank=2, alpha=8.0, dropout=0.1, targets=("attention", "widen"))


def prepare(folder: Path, config: Config) -> list[str]:
    log: list[str] = []
    prepare_run(folder, config, log.append)
    return log


def tuned(corpus: Path, origin_run: Path, lora: LoRAConfig | None = None, **training: Any) -> Config:
    settings = {"steps": 6, "validation_interval": 3, "start_from": str(origin_run)} | training
    return replace(small_config(corpus, **settings), text=TextConfig(), lora=lora or LoRAConfig())


def test_lora_run(corpus: Path, origin_run: Path, tmp_path: Path) -> None:
    """Only adapters are trained and stored; the opened run computes what the trained model did, and can be resumed."""
    config = tuned(corpus, origin_run, LORA, ema_decay=0.9, freeze=("decoder.layers.0.0",))
    for name in ("whole", "resumed"):
        prepare(tmp_path / name, config)
    train(tmp_path / "whole")
    train(tmp_path / "resumed", stop_after=4)
    train(tmp_path / "resumed")
    assert_equal(contents(tmp_path / "whole"), contents(tmp_path / "resumed"))
    folder = tmp_path / "whole"
    stored = contents(folder)
    assert all(".lora_" in name for name in stored["weights"])
    assert {name.split("/")[1] for name in stored["optimiser"]} == stored["weights"].keys()
    trainer = Trainer(folder, Quiet())
    assert [w for w in trainer.model.parameters() if w.requires_grad] == trainer.train_step.weights
    with trainer.average.swap():  # type: ignore[union-attr]
        trained = trainer.model.eval()
        inputs = torch.tensor([[4, 5, 6]]), torch.tensor([3])
        expected = trained(*inputs, *inputs)
    merged = dragoman.load(folder, "last", "cpu").model
    torch.testing.assert_close(merged(*inputs, *inputs), expected, atol=1e-5, rtol=1e-4)
    assert merged.state_dict().keys() == dragoman.load(origin_run, device="cpu").model.state_dict().keys()
    # another run can start from it
    log = prepare(tmp_path / "third", tuned(corpus, folder))
    assert any("weights" in line and line.endswith("loaded") for line in log)


def test_frozen_weights_stay(corpus: Path, origin_run: Path, tmp_path: Path) -> None:
    config = tuned(corpus, origin_run, freeze=("encoder", "embeddings", "!encoder.layers.0.1"), optimizer="muon")
    for name in ("whole", "resumed"):
        prepare(tmp_path / name, config)
    train(tmp_path / "whole")
    train(tmp_path / "resumed", stop_after=4)
    train(tmp_path / "resumed")
    assert_equal(contents(tmp_path / "whole"), contents(tmp_path / "resumed"))
    folder, model = tmp_path / "whole", meta_model(read_spec(origin_run))
    before, after = (read_weights(run, "last", model, config) for run in (origin_run, folder))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    names = [name for name, _ in model.named_parameters()]
    frozen = {name for name in names if name.startswith(("encoder.", "target_emb")) and ".layers.0.1." not in name}
    assert changed == set(names) - frozen
    assert not frozen & contents(folder)["weights"].keys()


def test_checkpoint_needs_its_frozen_weights(corpus: Path, origin_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    prepare(folder, tuned(corpus, origin_run, LORA, steps=1))
    train(folder)
    weights = checkpoint.read_tensors(folder / "initial", "model")
    (folder / "initial").rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"contains only the trained weights.*copy the whole run folder"):
        dragoman.load(folder)
    checkpoint.save(folder / "initial", {"model": {name: weight + 1 for name, weight in weights.items()}}, {})
    with pytest.raises(UserError, match="which should contain the frozen ones, is missing or has changed"):
        dragoman.load(folder)


@pytest.mark.slow
def test_new_weights_are_trained_beside_adapters(corpus: Path, origin_run: Path, tmp_path: Path) -> None:
    """A model with one more layer than the one that it starts from: the layer is new, and trained in full."""
    config = tuned(corpus, origin_run, LORA, steps=1)
    settings = small_config(corpus).system.settings | {"decoder_layers": 2}
    config = replace(config, system=replace(small_config(corpus).system, settings=settings))
    log = prepare(tmp_path / "run", config)
    assert any("new and randomly initialized" in line and "decoder.layers.*" in line for line in log)
    train(tmp_path / "run")
    stored = contents(tmp_path / "run")["weights"].keys()
    assert any(name.startswith("decoder.layers.1") and ".lora_" not in name for name in stored)


def test_wrong_patterns(corpus: Path, origin_run: Path, tmp_path: Path) -> None:
    for config, message in (
        (tuned(corpus, origin_run, freeze=("encode",)), "training.freeze has 'encode', which matches no weight"),
        (tuned(corpus, origin_run, freeze=("*",)), "freezes all weights"),
        (tuned(corpus, origin_run, replace(LORA, targets=("q_proj",))), "lora.targets contains 'q_proj'"),
        (tuned(corpus, origin_run, replace(LORA, train_also=("head",))), "lora.train_also has 'head'"),
        (replace(small_config(corpus), lora=LORA), "lora.rank adapts a trained model.*--start-from"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(tmp_path / "run", config)
    with pytest.raises(UserError, match=r"lora\.alpha and lora\.train_also have no effect without LoRA"):
        LoRAConfig(alpha=2.0)


def test_counts_and_words(origin_run: Path) -> None:
    spec = read_spec(origin_run)
    model = meta_model(spec)
    total = sum(weight.numel() for weight in model.parameters())
    frozen = match_parameters(model, ("embeddings",), "training.freeze")
    assert frozen == ["target_embedding.weight"]  # tied with the output layer
    table = model.get_parameter(frozen[0]).numel()
    counts = count_trained(spec, Config(training=replace(Config().training, freeze=("embeddings",))))
    assert (counts.total, counts.trained) == (total, total - table)
    assert f"{counts}".startswith(f"{total - table:,} of {total:,} parameters are trained (")
    lora = count_trained(spec, Config(lora=LoRAConfig(rank=3)))
    # per attention: four matrices of 16 × 16, each with A and B of rank 3; three attention layers
    assert (lora.total - total, lora.trained) == (lora.trained, 3 * 4 * 2 * 3 * 16)
