from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.config import Config, from_dict
from dragoman.data import phrasebook
from dragoman.models import meta_model
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.training.display import SilentDisplay
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few hundred pairs of the phrasebook as files."""
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=400, valid=12, test=12)
    return folder


@pytest.fixture(scope="session")
def origin_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that other runs start from: one step of a small model."""
    folder = tmp_path_factory.mktemp("origin") / "run"
    settings = {"steps": 1, "validation_sentences": 0, "average_checkpoints": False}
    prepare_run(folder, small_config(corpus, **settings), lambda text: None)
    Trainer(folder, SilentDisplay()).train()
    return folder


def as_vectors(corpus: Path, name: str) -> Path:
    """The source sentences with three numbers in the place of every letter."""
    sentences = (corpus / f"{name}.en").read_text(encoding="utf-8").splitlines()
    letters = np.frombuffer("".join(sentences).encode("utf-32-le"), np.uint32)
    values = np.stack([np.sin(letters / scale) for scale in (1, 7, 50)], 1).astype(np.float32)
    np.savez(corpus / f"{name}.npz", values=values, lengths=[len(sentence) for sentence in sentences])
    return corpus / f"{name}.npz"


def small_config(corpus: Path, system: str = "transformer", **training: object) -> Config:
    """A model that trains in a moment."""
    known = SYSTEMS[system].settings()
    heads = {name: value for name, value in {"heads": 2}.items() if name in known}
    layers = 2 if system in ("gpt3", "moe") else 1
    built = meta_model(SYSTEMS[system].spec(VocabularySizes(300, 300, True), "tiny"))
    writes = built.can_generate
    data = {"source": [str(corpus / "train.en")], "valid_source": [str(corpus / "valid.en")]}
    if writes:
        data |= {"target": [str(corpus / "train.de")], "valid_target": [str(corpus / "valid.de")]}
    if built.source_features is not None:
        data |= {"source": [str(as_vectors(corpus, "train"))], "valid_source": [str(as_vectors(corpus, "valid"))]}
    if system == "tagger":
        data |= {"target": [str(corpus / "train.tags")], "valid_target": [str(corpus / "valid.tags")]}
        for name in ("train", "valid"):
            lines = (corpus / f"{name}.en").read_text(encoding="utf-8").splitlines()
            tags = [" ".join(f"{len(word)}-long" for word in line.split()) for line in lines]
            (corpus / f"{name}.tags").write_text("".join(f"{line}\n" for line in tags), encoding="utf-8")
    return from_dict(
        {
            "data": {**data, "max_length": 60},
            "text": {"vocab_size": 400, "bpe_dropout": 0.1},
            "system": {"name": system, "size": "tiny", "settings": {"model_dim": 16, "layers": layers, **heads}},
            "training": {
                "batch_tokens": 300,
                "steps": 23,
                "validation_interval": 9,
                "validation_sentences": 2,
                "keep_checkpoints": 2,
                "learning_rate": 0.01,
                "warmup_steps": 3,
                "device": "cpu",
                **training,
            },
            "search": {
                "beam_size": 2,
                "max_target_length": 5,
            },  # a model that has learned little does not end by itself
        }
    )


def hook_step(
    trainer: Trainer, before: Callable[[], object] = lambda: None, after: Callable[[float], object] = lambda rate: None
) -> None:
    """Call `before` and `after` around each training step; `after` gets the learning rate.

    The step of the training state is counted up later.
    """
    step = type(trainer.train_step)

    class HookedStep(step):  # type: ignore[misc, valid-type]
        def __call__(self, batches: Any, step: int, learning_rate: float, *arguments: Any) -> None:
            before()
            super().__call__(batches, step, learning_rate, *arguments)
            after(learning_rate)

    trainer.train_step.__class__ = HookedStep
