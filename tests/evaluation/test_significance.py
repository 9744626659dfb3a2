"""Significance tests: hand-computed cases, sacreBLEU's own bootstrap, closed forms of Student's t, false positives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dragoman.errors import UserError
from dragoman.evaluation import bleu, chrf, exact_match
from dragoman.evaluation.significance import (
    BootstrapScores,
    bootstrap_scores,
    contrast_test,
    holm_correction,
    student_t_p_value,
)

REFERENCES = [f"sentence {i} says that the {i % 7} cats sat on mat {i % 5} today" for i in range(60)]
BETTER = [r if i % 5 else r.replace("cats", "dogs") for i, r in enumerate(REFERENCES)]
WORSE = [r.replace("cats", "dogs") if i % 4 else r for i, r in enumerate(REFERENCES)]


@pytest.mark.parametrize(("measure", "score"), [("bleu", bleu), ("chrf", chrf), ("exact", exact_match)])
def test_scores_are_those_of_the_whole_test_set(measure: str, score: Any) -> None:
    resampled = bootstrap_scores([BETTER, WORSE], REFERENCES, metric=measure, samples=5)
    assert resampled.scores == pytest.approx([score(text, REFERENCES).value for text in (BETTER, WORSE)])
    assert resampled.samples.shape == (2, 5)


@pytest.mark.parametrize("measure", ["bleu", "chrf"])
@pytest.mark.parametrize("other", [WORSE, [*BETTER[:-3], *WORSE[-3:]]])
def test_resamples_give_sacrebleus_p_value_and_interval(
    monkeypatch: pytest.MonkeyPatch, measure: str, other: list[str]
) -> None:
    from sacrebleu import BLEU, CHRF
    from sacrebleu.significance import PairedTest, estimate_ci

    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    metrics: dict[str, Any] = {measure: {"bleu": BLEU, "chrf": CHRF}[measure]()}
    named: Any = [("baseline", BETTER), ("system", other)]
    test: Any = PairedTest(named, metrics, [REFERENCES], test_type="bs", n_samples=300)
    _, results = test()
    baseline, system = next(value for name, value in results.items() if name != "System")
    first, second = (bootstrap_scores([text], REFERENCES, metric=measure, samples=300) for text in (BETTER, other))
    assert first.scores[0] == pytest.approx(baseline.score)
    assert second.scores[0] == pytest.approx(system.score)
    mean, interval = estimate_ci(second.samples[0])
    assert (mean, interval) == pytest.approx((system.mean, system.ci), rel=1e-4)  # sacreBLEU sums up in float32
    # sacreBLEU centres absolute differences and counts the upper tail.
    differences = np.abs(second.samples[0] - first.samples[0])
    extreme = differences - differences.mean() > abs(baseline.score - system.score)
    assert (extreme.sum() + 1) / 301 == pytest.approx(system.p_value, abs=2 / 301)
    # Ours counts both tails, hence about twice as many.
    _, p = contrast_test([first, second], [1, -1])
    assert p == pytest.approx(2 * system.p_value, abs=4 * math.sqrt(p / 300) + 2 / 301)


def test_the_p_value_of_exact_match_is_binomial() -> None:
    # A is right in k of n sentences and B in none: the resampled difference is binomial with p = k/n.
    n, k = 12, 2
    references = ["yes"] * n
    some, none = ["yes"] * k + ["no"] * (n - k), ["no"] * n
    systems = [bootstrap_scores([text], references, metric="exact", samples=20_000) for text in (some, none)]
    difference, p = contrast_test(systems, [1, -1])
    assert difference == pytest.approx(100 * k / n)
    by_hand = sum(math.comb(n, i) * (k / n) ** i * (1 - k / n) ** (n - i) for i in range(n + 1) if abs(i - k) >= k)
    assert p == pytest.approx(by_hand, abs=4 * math.sqrt(by_hand / 20_000))


def test_a_system_does_not_differ_from_itself() -> None:
    one = bootstrap_scores([BETTER], REFERENCES, samples=20)
    assert contrast_test([one, one], [1, -1]) == (0, 1)
    two = bootstrap_scores([BETTER, WORSE], REFERENCES, samples=20)
    assert contrast_test([two, two], [1, -1]) == (0, 1)


def test_several_seeds_are_a_t_test_by_hand() -> None:
    # Means 30 and 25. Variance over sentences: 50 resamples at 4 and 50 at 6, hence 100/99. Variances between seeds:
    # 2 and 8, over 2 seeds each, hence 1 and 4. ν = V² / ((100/99)²/99 + 1²/1 + 4²/1), V = 100/99 + 1 + 4.
    waves = np.tile([-1.0, 1.0], 50)
    first = BootstrapScores(np.array([29.0, 31.0]), np.stack([29 + waves, 31 + waves]), 100)
    second = BootstrapScores(np.array([23.0, 27.0]), np.stack([np.full(100, 23.0), np.full(100, 27.0)]), 100)
    difference, p = contrast_test([first, second], [1, -1])
    assert difference == 5
    variance = 100 / 99 + 1 + 4
    freedom = variance**2 / ((100 / 99) ** 2 / 99 + 1 + 16)
    assert p == pytest.approx(student_t_p_value(5 / math.sqrt(variance), freedom))
    assert p > 0.05  # while the bootstrap over sentences alone would find the smallest p-value there is


def test_smallest_p_value_without_variance() -> None:
    right, wrong = (
        BootstrapScores(np.full(2, 100.0), np.full((2, 9), 100.0), 5),
        BootstrapScores(np.zeros(2), np.zeros((2, 9)), 5),
    )
    assert contrast_test([right, wrong], [1, -1]) == (100, 0.1)


@pytest.mark.parametrize("seeds", [2, 3])
def test_equal_systems_are_rarely_found_different(seeds: int) -> None:
    # Both systems have the same expected score; what differs are sentences (standard deviation 10 over 100 sentences,
    # hence 1 for the mean) and seeds (1). 5 % of 400 comparisons are significant by chance; four standard deviations
    # of that share are 4.4 %.
    generator = np.random.default_rng(7)
    found = 0
    for _ in range(400):
        drawn = generator.choice(100, size=(200, 100))
        systems = []
        for _ in range(2):
            sentences, offsets = 10 * generator.normal(size=100), generator.normal(size=(seeds, 1))
            scores = 50 + offsets + sentences.mean()
            systems.append(BootstrapScores(scores[:, 0], 50 + offsets + sentences[drawn].mean(1), 100))
        found += contrast_test(systems, [1, -1])[1] < 0.05
    assert found / 400 < 0.05 + 0.044


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.5, 40.0])
def test_students_t_in_closed_form(t: float) -> None:
    assert student_t_p_value(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-10)  # Cauchy
    assert student_t_p_value(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-10)
    assert student_t_p_value(t, 1e6) == pytest.approx(math.erfc(t / math.sqrt(2)), abs=1e-6)  # normal


@pytest.mark.parametrize(("freedom", "critical"), [(3, 3.182446), (10, 2.228139), (30, 2.042272), (120, 1.979930)])
def test_students_t_as_in_the_tables(freedom: float, critical: float) -> None:
    assert student_t_p_value(critical, freedom) == pytest.approx(0.05, abs=1e-6)


def test_holms_correction_by_hand() -> None:
    assert holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_correction([0.9, 0.8]) == [1, 1]
    assert holm_correction([]) == []


def test_bootstrap_refuses_invalid_input() -> None:
    with pytest.raises(UserError, match="unknown metric 'blue'"):
        bootstrap_scores([["a"]], ["a"], metric="blue")
    with pytest.raises(UserError, match="at least one seed"):
        bootstrap_scores([], ["a"])
    with pytest.raises(UserError, match="must be at least 2"):
        bootstrap_scores([["a"]], ["a"], samples=1)
    one, two = bootstrap_scores([["a"]], ["a"], samples=2), bootstrap_scores([["a"], ["a"]], ["a"], samples=2)
    with pytest.raises(UserError, match="same test set"):
        contrast_test([one, two], [1, -1])
    with pytest.raises(UserError, match=r"one weight \(.*\) for each of 2 systems"):
        contrast_test([one, one], [1])
