"""Which checkpoint becomes the best: the metric suits the task, and ties are broken by the loss."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest_training import small_config
from test_resume import Quiet

from dragoman.config import from_yaml
from dragoman.errors import UserError
from dragoman.objectives import objective_class
from dragoman.run_files import CONFIG_FILE, read_metrics
from dragoman.search import Beam, Sample
from dragoman.training.display import format_metrics
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer
from dragoman.training.validation import ValidationResult, default_metric

SENTENCES = ["Der alte Mann liest das Buch .", "Sie schläft .", "Wir sehen heute den Hund ."]
WORDS = ["gehst", "ging weg", "ist gegangen", "wir gehen alle nach Hause"]


@pytest.mark.parametrize(
    ("name", "references", "metric"),
    [
        ("translation", SENTENCES, "bleu"),
        ("translation", WORDS, "exact_match"),
        ("translation", ["猫が好きです。", "東京に住んでいます。"], "chrf"),
        ("translation", [], "loss"),
        ("tagging", SENTENCES, "accuracy"),
        ("causal-lm", SENTENCES, "loss"),
        ("replaced-token-detection", SENTENCES, "loss"),
    ],
)
def test_default_metric_suits_the_task(name: str, references: list[str], metric: str) -> None:
    assert default_metric(objective_class(name), references)[0] == metric


def result(loss: float, bleu: float = 0.0, exact: float = 0.0) -> ValidationResult:
    return ValidationResult(loss, 1.0, {"accuracy": 0.0, "bleu": bleu, "exact_match": exact}, [], "beam 2")


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("selection") / "prepared"
    settings = {"steps": 4, "validation_interval": 1, "average_checkpoints": False, "patience": 2}
    prepare_run(folder, small_config(corpus, **settings), lambda text: None)
    return folder


def trained(prepared: Path, folder: Path, results: list[ValidationResult]) -> Trainer:
    """A training whose validations find these results."""
    shutil.copytree(prepared, folder)
    trainer = Trainer(folder, Quiet())
    found: Iterator[ValidationResult] = iter(results)
    trainer.validator.validate = lambda: next(found)  # type: ignore[method-assign]
    trainer.train()
    return trainer


def test_lower_loss_breaks_a_tie_of_metrics(prepared: Path, tmp_path: Path) -> None:
    """BLEU is 0 throughout; with a patience of 2 a training that compared it alone would stop at step 3."""
    trainer = trained(prepared, tmp_path / "run", [result(loss) for loss in (4.0, 3.0, 2.0, 1.0)])
    assert (trainer.state.step, trainer.state.best_step) == (4, 4)
    assert (tmp_path / "run" / "checkpoints" / "best").resolve().name == "000004"


def test_a_higher_metric_beats_a_lower_loss(prepared: Path, tmp_path: Path) -> None:
    results = [result(4.0, bleu=10), result(3.0, bleu=20), result(2.0, bleu=19), result(2.5, bleu=20)]
    assert trained(prepared, tmp_path / "run", results).state.best_step == 4


def test_equal_score_is_no_improvement(prepared: Path, tmp_path: Path) -> None:
    trainer = trained(prepared, tmp_path / "run", [result(3.0, bleu=10)] * 4)
    assert (trainer.state.best_step, trainer.state.step) == (1, 3)


def test_average_wins_a_tie_by_its_loss(corpus: Path, tmp_path: Path) -> None:
    settings = {"steps": 2, "validation_interval": 1, "average_checkpoints": True}
    prepare_run(tmp_path / "prepared", small_config(corpus, **settings), lambda text: None)
    trained(tmp_path / "prepared", tmp_path / "better", [result(3.0), result(2.0), result(1.9)])
    assert (tmp_path / "better" / "checkpoints" / "best").resolve().name == "averaged"
    trained(tmp_path / "prepared", tmp_path / "worse", [result(3.0), result(2.0), result(2.1)])
    assert (tmp_path / "worse" / "checkpoints" / "best").resolve().name == "000002"


def test_short_targets_are_selected_by_exact_match(corpus: Path, tmp_path: Path) -> None:
    for name in ("train", "valid"):
        lines = (corpus / f"{name}.de").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.en").write_text((corpus / f"{name}.en").read_text(encoding="utf-8"), encoding="utf-8")
        (tmp_path / f"{name}.de").write_text("".join(f"{' '.join(line.split()[:2])}\n" for line in lines))
    prepared = prepare_run(tmp_path / "run", small_config(tmp_path, steps=1), lambda text: None)
    assert from_yaml(tmp_path / "run" / CONFIG_FILE).training.selection_metric == "exact_match"
    (choice,) = (choice for choice in prepared.choices if choice.setting == "training.selection_metric")
    assert "fewer than 4 words" in choice.reason
    trainer = Trainer(tmp_path / "run", Quiet())
    assert trainer.validator.score(result(1.0, bleu=5, exact=30)) == (30, -1.0)


def test_generation_metric_needs_decoded_sentences(corpus: Path, tmp_path: Path) -> None:
    config = small_config(corpus, selection_metric="chrf", validation_sentences=0)
    with pytest.raises(UserError, match=r"training\.selection_metric is chrf, but no validation sentences are decoded"):
        prepare_run(tmp_path / "run", config, lambda text: None)


@pytest.mark.parametrize("best_by", ["chrf", "exact_match", "accuracy", "loss"])
def test_every_metric_can_select(best_by: str, corpus: Path, tmp_path: Path) -> None:
    settings = {"steps": 1, "validation_interval": 1, "average_checkpoints": False, "selection_metric": best_by}
    prepare_run(tmp_path / "run", small_config(corpus, **settings), lambda text: None)
    trainer = Trainer(tmp_path / "run", Quiet())
    trainer.train()
    (record,) = (record for record in read_metrics(tmp_path / "run") if record["kind"] == "valid")
    assert trainer.state.best_metric == (-record["loss"] if best_by == "loss" else record[best_by])


# ---- the search of a validation is that of translation


@pytest.mark.parametrize("description", [{}, {"kind": "Sample", "top_k": 3, "seed": 5}])
def test_validation_uses_the_search_of_the_run(description: dict[str, object], corpus: Path, tmp_path: Path) -> None:
    config = small_config(corpus, steps=2, validation_interval=2, average_checkpoints=False)
    config = replace(config, search=replace(config.search, strategy=description))
    prepare_run(tmp_path / "run", config, lambda text: None)
    trainer = Trainer(tmp_path / "run", Quiet())
    trainer.train()
    trainer.model.eval()
    found = trainer.validator.validate()
    expected = trainer.run.translate(trainer.validator.sources)  # what `dragoman translate` does
    assert [sample.translation for sample in found.samples] == [translation.text for translation in expected]
    (record,) = (record for record in read_metrics(tmp_path / "run") if record["kind"] == "valid")
    assert record["search"] == ("sampling" if description else "beam 2")


def test_decoded_sentences_cover_all_validation_corpora(corpus: Path, tmp_path: Path) -> None:
    config = small_config(corpus, validation_sentences=4)
    for name in ("valid.en", "valid.de"):
        (tmp_path / name).write_text("A b c d .\n" * 12, encoding="utf-8")
    data = replace(
        config.data,
        valid_source=(str(tmp_path / "valid.en"), *config.data.valid_source),
        valid_target=(str(tmp_path / "valid.de"), *config.data.valid_target),
    )
    prepare_run(tmp_path / "run", replace(config, data=data), lambda text: None)
    validator = Trainer(tmp_path / "run", Quiet()).validator
    assert [reference == "A b c d ." for reference in validator.references] == [True, True, False, False]
    assert len(validator.sources) == len(validator.tags) == 4


def test_search_labels() -> None:
    assert format_metrics(result(1.0, bleu=31.25, exact=4.0).to_record()) == "BLEU 31.2  exact match 4.0 % (beam 2)"
    assert [search.label for search in (Beam(5), Beam(1), Sample())] == ["beam 5", "greedy", "sampling"]
