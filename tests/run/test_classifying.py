"""Texts are classified by the label at their first token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dragoman.config import from_dict
from dragoman.errors import UserError
from dragoman.run import Run, load
from dragoman.training.display import SilentDisplay
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


def settings(file: Path) -> dict[str, object]:
    return {
        "data": {"source": [str(file)], "validation_size": 4, "max_length": 6},
        "system": {"name": "classifier", "size": "tiny", "settings": {"model_dim": 16, "layers": 1, "dropout": 0.0}},
        "training": {"steps": 30, "batch_tokens": 200, "learning_rate": 0.02, "warmup_steps": 1, "device": "cpu"},
        "search": {"max_source_length": 6},
    }


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("classifier")
    words = {"good": "sunny", "bad": "rainy", "none": "day"}
    fillers = ["a", "the", "very", "then", "day"]
    lines = [
        f"{fillers[n % 5]} {fillers[n % 3]} {words[label]} {fillers[n % 4]}\t{label}\n"
        for n in range(30)
        for label in words
    ]
    (folder / "texts.tsv").write_text("".join(lines) + "day " * 20 + "\tnone\n")  # the last one is truncated
    prepare_run(folder / "run", from_dict(settings(folder / "texts.tsv")), print)
    Trainer(folder / "run", SilentDisplay()).train()
    return load(folder / "run", device="cpu")


def test_a_trained_classifier_knows_its_labels(classifier: Run) -> None:
    assert classifier.config.objective.name == "classification"
    results = classifier.classify(["the very sunny day", "rainy then", "a day", ""])
    assert [result.label for result in results[:3]] == ["good", "bad", "none"]
    for result in results:
        assert set(result.probabilities) == {"good", "bad", "none"}  # special tokens are no labels
        assert sum(result.probabilities.values()) == pytest.approx(1)
        assert result.label == max(result.probabilities, key=result.probabilities.__getitem__)


def test_long_texts_are_classified_by_their_beginning(classifier: Run) -> None:
    short, long = classifier.classify(["a sunny a a", "a sunny a a rainy"])
    assert (short.truncated_source, long.truncated_source) == (False, True)
    assert long.probabilities == short.probabilities


@torch.no_grad()
def test_the_batch_changes_nothing(classifier: Run) -> None:
    texts = ["sunny", "the very rainy day then", "day a"]
    for text, together in zip(texts, classifier.classify(texts)):
        (alone,) = classifier.classify([text])
        assert alone.label == together.label
        assert alone.probabilities == pytest.approx(together.probabilities, abs=1e-5)


def test_a_classifier_is_evaluated_and_neither_tags_nor_translates(classifier: Run) -> None:
    result = classifier.evaluate(["sunny the", "rainy"], ["good", "good"])
    assert result["accuracy"] == 50
    for use in (classifier.tag, classifier.translate):
        with pytest.raises(UserError, match="use 'dragoman classify"):
            use(["a"])


def test_a_text_has_one_label(tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text("sunny\tgood\n" * 20 + "rainy\tvery good\n")
    with pytest.raises(UserError, match="line 21 has the label 'very good': expected one label without spaces"):
        prepare_run(tmp_path / "run", from_dict(settings(tmp_path / "texts.tsv")), print)
