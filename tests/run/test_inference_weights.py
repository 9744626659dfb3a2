"""Packed weights for decoding on a CPU."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

from dragoman import load
from dragoman.config import from_dict
from dragoman.data import phrasebook
from dragoman.errors import UserError
from dragoman.lens.saliency import measure_saliency
from dragoman.lens.sentence_inspector import inspect_sentence
from dragoman.lens.walk import walk_through
from dragoman.run import Run, inference_weights
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


def test_exact_computations_move_the_model_to_the_device_of_the_run(folder: Path) -> None:
    """A model that decodes in bfloat16 is on the CPU until then. Here, its layers refuse inputs until it is moved."""
    computations = {
        "score": lambda run: run.score(["the dog"], ["der Hund"]),
        "alignment": lambda run: run.align(["the dog"], ["der Hund"]),
        "attention": lambda run: run.attention("the dog", "der Hund"),
        "inspection": lambda run: inspect_sentence(run, "the dog"),
        "walk": lambda run: walk_through(run, "the dog"),
        "saliency": lambda run: measure_saliency(run, "the dog", "der Hund"),
    }
    for name, compute in computations.items():
        run, moved = load(folder, device="cpu"), list[nn.Module]()

        def refuse(*_: object, moved: list[nn.Module] = moved, name: str = name) -> None:
            assert moved, f"{name} uses a model that may be on another device"

        _ = run.inference_models  # copies, which share no module with the original
        for module in run.model.modules():
            module.register_forward_pre_hook(refuse)
        run.inference_weights.move = lambda model, moved=moved: moved.append(model)  # type: ignore[method-assign]
        compute(run)
        assert moved[0] is run.model


def test_a_moved_model_keeps_its_copy(run: Run) -> None:
    weights, model = InferenceWeights("float32", "meta"), deepcopy(run.model)
    copy = weights(model)
    assert copy is not model
    weights.move(model)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert weights._cache[id(model)].versions == inference_weights._versions(model)
    assert weights._cache[id(model)].model is copy


def test_a_model_that_does_not_fit_on_the_gpu_stays_on_the_cpu(run: Run) -> None:
    weights, model, devices = InferenceWeights("float32", "meta"), deepcopy(run.model), list[object]()
    copy = weights(model)

    def to(device: object) -> None:
        devices.append(device)
        if len(devices) == 1:
            raise torch.OutOfMemoryError

    model.to = to  # type: ignore[method-assign, assignment]
    with pytest.raises(UserError, match="too little memory: use --device cpu"):
        weights.move(model)
    assert devices == [torch.device("meta"), "cpu"]
    assert weights(model) is copy


@pytest.mark.gpu
def test_only_bfloat16_weights_are_on_the_gpu(folder: Path) -> None:
    run = load(folder, device="cuda", weights="bfloat16")
    run.translate(["the dog"], alignment=False)
    assert next(run.model.parameters()).device.type == "cpu"
    assert run.device.type == "cuda"
    exact = load(folder, device="cuda").score(["the dog"], ["der Hund"])[0].score
    converted = run.inference_models[0]
    assert run.score(["the dog"], ["der Hund"])[0].score == pytest.approx(exact, rel=1e-5)
    assert run.inference_models[0] is converted
    assert next(run.model.parameters()).device == run.device
