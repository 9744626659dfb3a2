"""The paired test tells a difference from luck; length bands hold the right sentences."""

from __future__ import annotations

import pytest

from dragoman.errors import UserError
from dragoman.evaluation import bleu, chrf, paired_bootstrap, score_by_length
from dragoman.evaluation.text_metrics import MetricFunction

REFERENCES = [f"sentence {i} says that the {i % 7} cats sat on mat {i % 5} today" for i in range(60)]
BETTER = [r if i % 5 else r.replace("cats", "dogs") for i, r in enumerate(REFERENCES)]
WORSE = [r.replace("cats", "dogs").replace("today", "tonight") for r in REFERENCES]


def test_clear_difference_is_significant() -> None:
    rows = paired_bootstrap(WORSE, BETTER, REFERENCES, samples=200)
    assert [row.metric for row in rows] == ["bleu", "chrf"]
    measures: list[MetricFunction] = [bleu, chrf]
    for row, measure in zip(rows, measures):
        assert row.baseline == pytest.approx(measure(WORSE, REFERENCES).value)
        assert row.system == pytest.approx(measure(BETTER, REFERENCES).value)
        assert row.p_value < 0.05
        assert row.system_interval > 0
        assert "bs:200" in row.signature


def test_a_system_does_not_differ_from_itself() -> None:
    assert [row.p_value for row in paired_bootstrap(BETTER, list(BETTER), REFERENCES, samples=20)] == [1, 1]


def test_difference_in_one_sentence_is_not_significant() -> None:
    almost = [WORSE[1] if i == 1 else sentence for i, sentence in enumerate(BETTER)]
    (row,) = paired_bootstrap(BETTER, almost, REFERENCES, metrics=["bleu"], samples=200)
    assert row.p_value > 0.05


def test_paired_bootstrap_with_several_references() -> None:
    (row,) = paired_bootstrap(WORSE, BETTER, list(zip(REFERENCES, WORSE)), metrics=["ter"], samples=20)
    assert row.baseline == 0


def test_paired_bootstrap_refuses_invalid_input() -> None:
    with pytest.raises(UserError, match="unknown metric for a paired test 'exact'"):
        paired_bootstrap(["a"], ["b"], ["c"], metrics=["exact"])
    with pytest.raises(UserError, match="1 sentences of the baseline but 2 sentences of the system"):
        paired_bootstrap(["a"], ["b", "c"], ["d"])
    with pytest.raises(UserError, match="must be at least 1"):
        paired_bootstrap(["a"], ["b"], ["c"], samples=0)


def test_length_buckets_by_hand() -> None:
    sources = ["w", "w w", "w w w", "w w w w", "w w w w w w"]
    hypotheses = ["yes", "no no", "a b c", "a b c d", "wrong"]
    references = ["yes", "no no", "a b x", "a b c d", "right"]
    bands = score_by_length(sources, hypotheses, references, edges=(2, 3, 5, 9))
    assert [(band.words, band.sentences) for band in bands] == [("up to 2", 2), ("3", 1), ("4 to 5", 1), ("6 to 9", 1)]
    assert [band.exact_match for band in bands] == [100, 0, 100, 0]
    # Two words at most: orders 1 and 2 are all there is. Band 3: 2 of 3 words, 1 of 2 pairs, and of one triple none,
    # which exponential smoothing counts as a half.
    cube = 100 * (2 / 3 * 1 / 2 * 1 / 2) ** (1 / 3)
    assert [band.bleu for band in bands] == pytest.approx([100, cube, 100, 0])


def test_last_bucket_holds_longer_sources() -> None:
    (band,) = score_by_length(["w " * 60], ["x"], [["x", "y"]])
    assert band == ("over 50", 1, 100, pytest.approx(100))


def test_length_buckets_refuse_invalid_input() -> None:
    with pytest.raises(UserError, match="must increase, but are 5, 5"):
        score_by_length(["w"], ["x"], ["x"], edges=(5, 5))
    with pytest.raises(UserError, match="2 sources but 1 hypotheses"):
        score_by_length(["w", "w"], ["x"], ["x"])
