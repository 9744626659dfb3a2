"""The paired test tells a difference from luck; length bands hold the right sentences."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import UserError
from dragoman.evaluation import PAIRED_TESTS, paired_test, score_by_length, text_metric

REFERENCES = [f"sentence {i} says that the {i % 7} cats sat on mat {i % 5} today" for i in range(60)]
BETTER = [r if i % 5 else r.replace("cats", "dogs") for i, r in enumerate(REFERENCES)]
WORSE = [r.replace("cats", "dogs").replace("today", "tonight") for r in REFERENCES]


@pytest.mark.parametrize("method", PAIRED_TESTS)
def test_clear_difference_is_significant(method: str) -> None:
    metrics = ["bleu", "chrf", "ter", "exact", "wer", "rouge-l"]
    rows = paired_test(WORSE, BETTER, REFERENCES, metrics=metrics, method=method, samples=200)
    assert [row.metric for row in rows] == metrics
    for row in rows:
        score = text_metric(row.metric)
        assert row.baseline == pytest.approx(score(WORSE, REFERENCES).value)
        assert row.system == pytest.approx(score(BETTER, REFERENCES).value)
        assert row.difference == pytest.approx(row.system - row.baseline)
        assert row.p_value < 0.05
        for value, (low, high) in (
            (row.baseline, row.baseline_interval),
            (row.system, row.system_interval),
            (row.difference, row.difference_interval),
        ):
            assert low <= value <= high
        assert row.signature == score(BETTER, REFERENCES).signature


@pytest.mark.parametrize("method", PAIRED_TESTS)
def test_a_system_does_not_differ_from_itself(method: str) -> None:
    rows = paired_test(BETTER, list(BETTER), REFERENCES, method=method, samples=20)
    assert [row.p_value for row in rows] == [1, 1]


@pytest.mark.parametrize("method", PAIRED_TESTS)
def test_difference_in_one_sentence_is_not_significant(method: str) -> None:
    almost = [WORSE[1] if i == 1 else sentence for i, sentence in enumerate(BETTER)]
    (row,) = paired_test(BETTER, almost, REFERENCES, metrics=["bleu"], method=method, samples=200)
    assert row.p_value > 0.05


def test_randomization_by_hand() -> None:
    # The system is right in three more sentences: a trial is as extreme if it swaps all of them or none, 2 of 8 cases.
    references = ["yes"] * 5
    baseline, system = ["yes", *["no"] * 4], ["yes"] * 4 + ["no"]
    (row,) = paired_test(baseline, system, references, metrics=["exact"], method="randomization", samples=20_000)
    assert row.difference == pytest.approx(60)
    assert row.p_value == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_randomization_gives_sacrebleus_p_value(monkeypatch: pytest.MonkeyPatch, metric: str) -> None:
    import sacrebleu
    from sacrebleu.significance import PairedTest

    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    other = [WORSE[i] if i % 10 == 1 else sentence for i, sentence in enumerate(BETTER)]
    metrics: dict[str, Any] = {metric: getattr(sacrebleu, metric.upper())()}
    named: Any = [("baseline", BETTER), ("system", other)]
    test: Any = PairedTest(named, metrics, [REFERENCES], test_type="ar", n_samples=300)
    _, results = test()
    _, system = next(value for name, value in results.items() if name != "System")
    (row,) = paired_test(BETTER, other, REFERENCES, metrics=[metric], method="randomization", samples=300)
    # the same trials; sacreBLEU counts only larger differences, ours also equal ones, which swapping everything gives
    assert system.p_value - 1e-9 <= row.p_value <= system.p_value + 0.06


def test_paired_test_with_several_references() -> None:
    (row,) = paired_test(WORSE, BETTER, list(zip(REFERENCES, WORSE)), metrics=["ter"], samples=20)
    assert row.baseline == 0


def test_paired_test_refuses_invalid_input() -> None:
    with pytest.raises(UserError, match="unknown metric 'exacts'"):
        paired_test(["a"], ["b"], ["c"], metrics=["exacts"])
    with pytest.raises(UserError, match="unknown paired test 'jackknife'"):
        paired_test(["a"], ["b"], ["c"], method="jackknife")
    with pytest.raises(UserError, match="1 sentences of the baseline but 2 sentences of the system"):
        paired_test(["a"], ["b", "c"], ["d"])
    with pytest.raises(UserError, match="must be at least 2"):
        paired_test(["a"], ["b"], ["c"], samples=0)


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
