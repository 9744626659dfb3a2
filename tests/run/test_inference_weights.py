"""Packed weights for decoding on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dragoman import load
from dragoman.config import from_dict
from dragoman.data import phrasebook
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.run.inference_weights import InferenceWeights
from dragoman.search import Beam, LengthLimit
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

TEXTS = ["the dog sleeps .", "a cat sees the old house .", "", "we read ."]
SHORT = Beam(3, length_limit=LengthLimit(0, 8, 8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packing")
    phrasebook.write(folder / "corpus", 300, seed=1, valid=20, test=20)
    names = {"source": "train.en", "target": "train.de", "valid_source": "valid.en", "valid_target": "valid.de"}
    files = {side: [str(folder / "corpus" / name)] for side, name in names.items()}
    system = {"name": "transformer", "size": "tiny", "settings": {"model_dim": 16, "layers": 1}}
    training = {
        "steps": 3,
        "validation_interval": 3,
        "validation_sentences": 1,
        "seed": 1,
        "device": "cpu",
        "batch_tokens": 400,
    }
    config = {"data": files, "text": {"vocab_size": 400}, "system": system, "training": training}
    prepare_run(folder / "run", from_dict(config), lambda text: None)
    Trainer(folder / "run", Display()).train()
    return folder / "run"


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load(folder, device="cpu")


def test_only_searches_use_packed_weights(run: Run) -> None:
    assert not any(type(part) is nn.Linear for part in run.inference_models[0].modules())
    assert any(type(part) is nn.Linear for part in run.model.modules())
    assert run.inference_models[0] is run.inference_models[0], "they were packed twice"


def test_packed_weights_give_the_translations_of_plain_weights(run: Run, folder: Path) -> None:
    plain = load(folder, device="cpu")
    plain.inference_weights = InferenceWeights()
    assert plain.inference_models == [plain.model]
    one, other = (some.translate(TEXTS, search=SHORT) for some in (run, plain))
    assert [translation.text for translation in one] == [translation.text for translation in other]
    assert [translation.score for translation in one] == pytest.approx([t.score for t in other], abs=1e-4)


def test_changed_weights_are_packed_again(folder: Path) -> None:
    run = load(folder, device="cpu")
    before = run.translate(["the dog sleeps ."], search=SHORT)[0]
    with torch.no_grad():
        for weight in run.model.parameters():
            weight.mul_(0.5)
    after, alone = run.translate(["the dog sleeps ."], search=SHORT)[0], run.model
    assert after.score != before.score
    assert run.inference_weights(alone) is run.inference_models[0]


def test_int8_weights_translate(folder: Path) -> None:
    found = load(folder, device="cpu", weights="int8").translate(TEXTS, search=SHORT)
    assert [bool(translation.tokens) or not text for translation, text in zip(found, TEXTS)] == [True] * 4


def test_unsupported_precisions_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="int9"):
        load(folder, device="cpu", weights="int9")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="int8 weights need a CPU"):
        InferenceWeights("int8", "cuda")
