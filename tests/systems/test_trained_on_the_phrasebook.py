"""Systems that read source and target as one sequence learn to translate, and worse without attention, as is taught."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import from_dict
from dragoman.data import phrasebook
from dragoman.run import load
from dragoman.run_files import read_metrics
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

STEPS = 150


class Quiet(Display):
    def message(self, text: str) -> None:
        pass


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=4000, valid=100, test=20)
    return folder


def train(folder: Path, corpus: Path, system: str) -> list[float]:
    """The perplexity of the validation targets, before anything was learned, half-way and at the end."""
    values = {
        "data": {
            "source": [str(corpus / "train.en")],
            "target": [str(corpus / "train.de")],
            "valid_source": [str(corpus / "valid.en")],
            "valid_target": [str(corpus / "valid.de")],
            "max_length": 60,
        },
        "text": {"vocab_size": 1000},
        "system": {"name": system, "size": "tiny", "settings": {"model_dim": 64, "dropout": 0.0}},
        "objective": {"name": "translation"},  # the same loss for all, of the target's words alone
        "training": {
            "batch_tokens": 1024,
            "steps": STEPS,
            "validation_interval": STEPS // 2,
            "validation_sentences": 0,
        },
    }
    values["training"] |= {"warmup_steps": 30, "device": "cpu", "average_checkpoints": False}
    prepare_run(folder / system, from_dict(values), lambda text: None)
    Trainer(folder / system, Quiet()).train()
    return [record["perplexity"] for record in read_metrics(folder / system) if record["kind"] == "valid"]


@pytest.fixture(scope="module")
def perplexities(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    folder = tmp_path_factory.mktemp("runs")
    return {system: train(folder, corpus, system) for system in ("rnn-lm", "transformer-d", "bahdanau")}


@pytest.mark.exhaustive
@pytest.mark.parametrize("system", ["rnn-lm", "transformer-d"])
def test_one_sequence_learns_the_phrasebook(system: str, perplexities: dict[str, list[float]]) -> None:
    half, end = perplexities[system]
    assert end < 0.8 * half
    assert end < 60  # of 1,000 pieces


@pytest.mark.exhaustive
def test_one_recurrent_sequence_is_worse_than_attention(perplexities: dict[str, list[float]]) -> None:
    assert perplexities["bahdanau"][-1] < perplexities["rnn-lm"][-1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("system", ["moe-2017", "transformer-dmca-moe"])
def test_experts_learn_the_phrasebook_and_are_balanced(system: str, corpus: Path, tmp_path: Path) -> None:
    """The coefficient of variation of importance and load is far below that of always the same two of 4 or 8: 1, √3."""
    half, end = train(tmp_path, corpus, system)
    assert end < 0.8 * half
    (*_, last) = (record for record in read_metrics(tmp_path / system) if record["kind"] == "valid")
    assert last["expert_importance_cv"] < 0.5
    assert last["expert_load_cv"] < 0.5


def test_language_modeling_objective_includes_the_source(corpus: Path, tmp_path: Path) -> None:
    values = {"data": {"source": [str(corpus / "valid.en")], "target": [str(corpus / "valid.de")]}}
    values |= {
        "system": {"name": "transformer-d", "size": "tiny", "settings": {"model_dim": 16, "heads": 2, "layers": 1}}
    }
    values |= {"training": {"steps": 2, "device": "cpu"}}
    prepare_run(tmp_path / "run", from_dict(values), lambda text: None)
    Trainer(tmp_path / "run", Quiet()).train()
    run = load(tmp_path / "run", device="cpu")
    assert run.config.objective.name == "concatenation"
    assert run.translate(["The old man reads."])[0].tokens
