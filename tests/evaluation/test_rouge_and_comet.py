"""ROUGE by hand and against the package rouge-score; COMET through a stand-in for its package."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace

import pytest

from dragoman.errors import UserError
from dragoman.evaluation import comet as comet_module
from dragoman.evaluation import evaluate, paired_test


def test_rouge_by_hand() -> None:
    # "the cat was found under the bed" (7 words) and "the cat was under the bed" (6): all 6 words are shared, the pairs
    # the-cat, cat-was, under-the, the-bed (4 of 6 and 4 of 5), and the subsequence of all 6 words.
    scores = evaluate(
        ["rouge-1", "rouge-2", "rouge-l"], ["The cat was found under the bed."], ["the cat was under the bed"]
    )
    assert scores["rouge-1"].value == pytest.approx(100 * 2 * 6 / (7 + 6))
    assert scores["rouge-2"].value == pytest.approx(100 * 2 * 4 / (6 + 5))
    assert scores["rouge-l"].value == pytest.approx(100 * 2 * 6 / (7 + 6))
    assert scores["rouge-l"].name == "ROUGE-L"
    assert "stem:no|tok:default" in scores["rouge-l"].signature


def test_order_counts_for_the_longest_common_subsequence_only() -> None:
    scores = evaluate(["rouge-1", "rouge-l"], ["b a"], ["a b"])
    assert (scores["rouge-1"].value, scores["rouge-l"].value) == pytest.approx((100, 50))


def test_stems_of_english_words() -> None:
    pytest.importorskip("rouge_score")
    scores = evaluate(["rouge-1", "rouge-1-stem"], ["running dogs"], ["run dog"])
    assert (scores["rouge-1"].value, scores["rouge-1-stem"].value) == pytest.approx((0, 100))


def test_the_best_reference_counts_and_sentences_are_averaged() -> None:
    hypotheses, references = ["a b", "x"], [["c d", "a b"], ["y", "z"]]
    assert evaluate(["rouge-1"], hypotheses, references)["rouge-1"].value == pytest.approx(50)


def test_letters_outside_ascii_count() -> None:
    # The package alone would compare "f", "r" with "f", "r" and find equal words.
    score = evaluate(["rouge-1"], ["für"], ["fär"])["rouge-1"]
    assert score.value == 0
    assert "tok:unicode" in score.signature
    assert evaluate(["rouge-l"], ["我愛貓"], ["我愛狗"])["rouge-l"].value == pytest.approx(100 * 2 / 3)


def test_rouge_equals_the_package() -> None:
    pytest.importorskip("rouge_score")
    from rouge_score.rouge_scorer import RougeScorer

    random = Random(3)
    # Signs between words, capital letters, words that occur again, lines without words
    words = ["a", "B", "c1", "black-and-white", "d,", "…", "dogs", "dog"]
    hypotheses, references = ([" ".join(random.choices(words, k=k % 12)) for k in range(60)] for _ in range(2))
    references = [reference.replace("…", "...") for reference in references]  # in ASCII
    for name, kind in (("rouge-1", "rouge1"), ("rouge-2", "rouge2"), ("rouge-l", "rougeL")):
        scorer = RougeScorer([kind])
        expected = [scorer.score(*pair)[kind].fmeasure for pair in zip(references, hypotheses)]
        assert evaluate([name], hypotheses, references)[name].value == pytest.approx(100 * sum(expected) / 60)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.tokenizers", None)
    with pytest.raises(UserError, match=r"pip install 'dragoman\[rouge\]'"):
        evaluate(["rouge-l-stem"], ["a"], ["a"])
    monkeypatch.setitem(sys.modules, "comet", None)
    comet_module._load_model.cache_clear()
    with pytest.raises(UserError, match="pip install unbabel-comet"):
        evaluate(["comet"], ["a"], ["a"], ["a"])


class Overlap:
    """A stand-in for a COMET model: the share of the reference's words that the hypothesis has."""

    def predict(self, samples: list[dict[str, str]], **_: object) -> SimpleNamespace:
        assert all(set(sample) == {"src", "mt", "ref"} for sample in samples)
        words = [(set(sample["mt"].split()), set(sample["ref"].split())) for sample in samples]
        return SimpleNamespace(scores=[len(a & b) / len(b) for a, b in words])


@pytest.fixture
def comet_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    checkpoint = tmp_path / "checkpoints" / "model.ckpt"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    package = ModuleType("comet")
    package.load_from_checkpoint = lambda path, local_files_only: Overlap()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comet", package)
    comet_module._load_model.cache_clear()
    return tmp_path


def test_comet_uses_sources_and_the_best_reference(comet_model: Path) -> None:
    name = f"comet={comet_model}"
    score = evaluate([name], ["a b", "x"], [["a c", "a b"], ["y", "z"]], ["1", "2"])[name]
    assert (score.name, score.value, score.signature) == ("COMET", 50, f"model:{comet_model}")
    (row,) = paired_test(["x"] * 8, ["a"] * 8, ["a"] * 8, sources=["1"] * 8, metrics=[name], method="randomization")
    assert row.difference == 100
    assert row.p_value < 0.05


def test_comet_explains_what_is_missing(comet_model: Path) -> None:
    with pytest.raises(UserError, match="name the source file with --source"):
        evaluate([f"comet={comet_model}"], ["a"], ["a"])
    with pytest.raises(UserError, match="there is no COMET model at"):
        evaluate(["comet=nowhere"], ["a"], ["a"], ["a"])
