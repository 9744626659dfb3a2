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
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.display import format_metrics
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer
from dragoman.training.validation import ValidationResult, ValidationScore, default_metric

SENTENCES = ["Der alte Mann liest das Buch .", "Sie schläft .", "Wir sehen heute den Hund ."]
WORDS = ["gehst", "ging weg", "ist gegangen", "wir gehen alle nach Hause"]


@pytest.mark.parametrize(
    ("name", "references", "metric"),
    [
        ("translation", SENTENCES, "bleu"),
        ("translation", WORDS * 20, "exact_match"),
        ("translation", WORDS, "cer"),  # each line would be a quarter of the exact match
        ("translation", ["b ɔ̃ ʒ u ʁ", "m e z ɔ̃ n"] * 10, "ser"),
        ("translation", ["猫が好きです。", "東京に住んでいます。"], "bleu"),
        ("translation", [], "loss"),
        ("tagging", SENTENCES, "accuracy"),
        ("causal-lm", SENTENCES, "loss"),
        ("replaced-token-detection", SENTENCES, "loss"),
    ],
)
def test_default_metric_suits_the_task(name: str, references: list[str], metric: str) -> None:
    assert default_metric(objective_class(name), references)[0] == metric


def result(loss: float, bleu: float = 0.0, exact: float = 0.0, ser: float | None = None) -> ValidationResult:
    metrics = {"accuracy": 0.0, "bleu": bleu, "exact_match": exact} | ({} if ser is None else {"ser": ser})
    return ValidationResult(loss, 1.0, metrics, [], "beam 2")


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


def test_patience_lasts_while_the_loss_falls(prepared: Path, tmp_path: Path) -> None:
    """BLEU falls, which would use up a patience of 2 at step 3, but the loss reaches a new minimum at step 2."""
    results = [result(4.0, bleu=10), result(3.0, bleu=9), result(3.5, bleu=9), result(3.4, bleu=9)]
    trainer = trained(prepared, tmp_path / "run", results)
    assert (trainer.state.best_step, trainer.state.step) == (1, 4)
    assert trainer.state.validations_since_best == 2


@pytest.fixture(scope="module")
def exact_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared run that is selected by exact match; its references are sentences, so that ties go by symbols."""
    folder = tmp_path_factory.mktemp("exact") / "prepared"
    settings = {"steps": 4, "validation_interval": 1, "average_checkpoints": False, "patience": 2}
    prepare_run(folder, small_config(corpus, selection_metric="exact_match", **settings), lambda text: None)
    return folder


def test_error_rate_then_loss_break_ties_of_exact_match(exact_run: Path, tmp_path: Path) -> None:
    results = [result(2.0, exact=0, ser=90), result(2.1, exact=0, ser=80)]  # a lower error rate beats a lower loss
    results += [result(2.2, exact=0, ser=80), result(2.05, exact=0, ser=80)]  # of equal rates the lower loss wins
    trainer = trained(exact_run, tmp_path / "run", results)
    assert (trainer.state.best_step, trainer.state.best_metric, trainer.state.best_tie_break) == (4, 0, -80)
    results = [result(2.0, exact=0, ser=130), result(1.9, exact=0, ser=270)]  # above 100 % only the loss counts
    trainer = trained(exact_run, tmp_path / "early", [*results, result(2.1, exact=0, ser=110), result(2.2, ser=101)])
    assert (trainer.state.best_step, trainer.state.best_tie_break) == (2, -100)
    results = [result(2.0, exact=1, ser=90), result(1.9, exact=0, ser=10), result(1.8, exact=0, ser=9)]
    trainer = trained(exact_run, tmp_path / "other", [*results, result(2.5, exact=2, ser=99)])
    assert trainer.state.best_step == 4  # exact match itself comes first


def test_state_of_an_earlier_version_has_no_tie_break() -> None:
    saved = TrainState(best_metric=10.0, best_loss=2.0, best_step=5).to_dict()
    del saved["best_tie_break"]
    state = TrainState.from_dict(saved)
    assert not state.is_better(ValidationScore(10.0, -30.0, -2.0))
    assert state.is_better(ValidationScore(10.0, -30.0, -1.9))
    assert not state.is_better(ValidationScore(9.0, 0.0, -1.0))


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
    valid = (tmp_path / "valid.en").read_text(encoding="utf-8"), (tmp_path / "valid.de").read_text(encoding="utf-8")
    (tmp_path / "valid.en").write_text(valid[0] * 10, encoding="utf-8")
    (tmp_path / "valid.de").write_text(valid[1] * 10, encoding="utf-8")
    config = small_config(tmp_path, steps=1, validation_sentences=60)
    prepared = prepare_run(tmp_path / "run", config, lambda text: None)
    assert from_yaml(tmp_path / "run" / CONFIG_FILE).training.selection_metric == "exact_match"
    (choice,) = (choice for choice in prepared.choices if choice.setting == "training.selection_metric")
    assert choice.reason == (
        "most references have fewer than 4 words, where BLEU is 0; ties are broken by the character error rate"
    )
    validator = Trainer(tmp_path / "run", Quiet()).validator
    assert (validator.metric, validator.tie_break) == ("exact_match", "cer")
    assert list(validator.text_metrics) == ["exact_match", "bleu", "cer"]


def test_generation_metric_needs_decoded_sentences(corpus: Path, tmp_path: Path) -> None:
    config = small_config(corpus, selection_metric="chrf", validation_sentences=0)
    with pytest.raises(UserError, match=r"training\.selection_metric=chrf needs translations of validation sentences"):
        prepare_run(tmp_path / "run", config, lambda text: None)


@pytest.mark.parametrize("best_by", ["chrf", "exact_match", "cer", "accuracy", "loss"])
def test_every_metric_can_select(best_by: str, corpus: Path, tmp_path: Path) -> None:
    settings = {"steps": 1, "validation_interval": 1, "average_checkpoints": False, "selection_metric": best_by}
    prepare_run(tmp_path / "run", small_config(corpus, **settings), lambda text: None)
    trainer = Trainer(tmp_path / "run", Quiet())
    trainer.train()
    (record,) = (record for record in read_metrics(tmp_path / "run") if record["kind"] == "valid")
    expected = {"loss": -record["loss"], "cer": -min(100.0, record.get("cer", 0.0))}
    assert trainer.state.best_metric == expected.get(best_by, record[best_by])
    assert record["selection_metric"] == best_by
    assert record["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_bleu_tokenizer_is_chosen_stored_and_used(corpus: Path, tmp_path: Path) -> None:
    for name in ("train", "valid"):
        lines = (corpus / f"{name}.en").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        chinese = "".join(
            "我们喜欢" + "的一是不了人在有"[len(line) % 8] * (1 + len(line) % 5) + "。\n" for line in lines
        )
        (tmp_path / f"{name}.de").write_text(chinese, encoding="utf-8")
    config = small_config(tmp_path, steps=1, validation_interval=1, average_checkpoints=False)
    prepared = prepare_run(tmp_path / "run", config, lambda text: None)
    assert (prepared.config.training.selection_metric, prepared.config.training.bleu_tokenizer) == ("bleu", "zh")
    assert any(str(choice) == "training.bleu_tokenizer=zh  (the references are Chinese)" for choice in prepared.choices)
    trainer = Trainer(tmp_path / "run", Quiet())
    trainer.train()
    (record,) = (record for record in read_metrics(tmp_path / "run") if record["kind"] == "valid")
    assert "tok:zh" in record["signatures"]["bleu"]
    found = trainer.run.evaluate(["The dog sleeps."], ["狗在睡觉。"])
    assert list(found.scores) == ["bleu", "chrf", "exact-match", "perplexity"]
    assert "tok:zh" in found.scores["bleu"].signature


def test_unknown_metrics_are_reported_with_the_known_ones(corpus: Path) -> None:
    with pytest.raises(UserError, match=r"value of training\.selection_metric 'blue'.*bleu"):
        small_config(corpus, selection_metric="blue")


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
    assert len(validator.sources) == sum(len(corpus.tags) for corpus in validator.corpora) == 4


def test_search_labels() -> None:
    found = result(1.0, bleu=31.25, exact=4.0, ser=60.0)
    assert format_metrics(result(1.0, bleu=31.25, exact=4.0).to_record()) == "BLEU 31.2  exact match 4.0 % (beam 2)"
    by_exact_match = replace(found, selection_metric="exact_match").to_record()
    assert format_metrics(by_exact_match) == "exact match 4.0 %  symbol error rate 60.0 % (beam 2)"
    by_accuracy = replace(found, metrics={"accuracy": 91.0}, selection_metric="accuracy", search="").to_record()
    assert format_metrics(by_accuracy) == "accuracy 91.0 %"
    assert [search.label for search in (Beam(5), Beam(1), Sample())] == ["beam 5", "greedy", "sampling"]
