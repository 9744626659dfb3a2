"""Minimum Bayes risk: utilities equal sacreBLEU's, and the choice is what the definition says."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.search import Beam, Sample, ngram_metrics
from dragoman.search.minimum_bayes_risk import MinimumBayesRisk, expected_utilities
from dragoman.search.ngram_metrics import UTILITIES


def utilities(candidates: list[str], references: list[str], weights: list[float] | None = None, **options: Any) -> Any:
    """The expected utilities, by default with equal weights."""
    return expected_utilities(candidates, references, np.array(weights or [1.0] * len(references)), **options)


def choose_candidate(candidates: list[str], weights: list[float] | None = None, **options: Any) -> int:
    """The candidate with the highest expected utility, the first one of equals."""
    return int(utilities(candidates, candidates, weights, **options).round(9).argmax())


# letters that meet often, punctuation and digits that tokenisers treat apart, spaces of several kinds, and anything
TEXT = st.one_of(
    st.text("ab .,-1&;lt\"'", max_size=24),
    st.text("ab", max_size=40),
    st.lists(st.sampled_from(["the", "cat", "sat", "(on)", "mat.", "3,5", "don't", "\u3000", "Ä"]), max_size=9).map(
        " ".join
    ),
    st.text(max_size=20),
)
TEXTS = st.lists(TEXT, min_size=1, max_size=6)


def of_sacrebleu(name: str, hypothesis: str, reference: str) -> float:
    if name == "bleu":
        return sacrebleu.sentence_bleu(hypothesis, [reference]).score
    return sacrebleu.sentence_chrf(hypothesis, [reference], word_order=2 if name == "chrf++" else 0).score


@pytest.mark.parametrize("name", UTILITIES)
@given(TEXTS, TEXTS)
@example([""], [""])
@example(["", "a", "  "], ["ab", "", " a b "])
@settings(deadline=None)
def test_utilities_equal_sacrebleu(name: str, candidates: list[str], references: list[str]) -> None:
    for some in (references, candidates):  # other references, and the same list
        once, other = list(dict.fromkeys(candidates)), list(dict.fromkeys(some))
        found = UTILITIES[name].pairwise(once, other)
        wanted = [[of_sacrebleu(name, h, r) for r in other] for h in once]
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        expected = utilities(candidates, some, utility=name)
        np.testing.assert_allclose(
            expected, [np.mean([of_sacrebleu(name, h, r) for r in some]) for h in candidates], atol=1e-6
        )


@pytest.mark.parametrize("name", UTILITIES)
def test_blocks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["ab" * 30, "b" * 50, "the cat sat on the mat the cat sat", "a cat sat , the mat .", "x", "aab" * 9]
    whole = [UTILITIES[name].pairwise(texts, some) for some in (texts, texts[1:])]
    for block in (1, 7, 60):
        monkeypatch.setattr(ngram_metrics, "MAX_MATRIX_SIZE", block)
        for one, some in zip(whole, (texts, texts[1:])):
            np.testing.assert_array_equal(UTILITIES[name].pairwise(texts, some), one)


@pytest.mark.parametrize("name", UTILITIES)
@given(TEXTS, TEXT)
@settings(deadline=None)
def test_one_reference_aggregated_is_that_reference(name: str, candidates: list[str], reference: str) -> None:
    plain, aggregated = (
        utilities(candidates, [reference], utility=name, aggregate_references=how) for how in (False, True)
    )
    np.testing.assert_allclose(aggregated, plain, atol=1e-6)


def test_aggregated_counts_by_hand() -> None:
    """Of "ab" and "aa" expected: a 1.5, b 0.5; ab 0.5, aa 0.5. "ab" shares a 1 and b 0.5 of 2, ab 0.5 of 1."""
    precision, recall = (1.5 / 2 + 0.5 / 1) / 2, (1.5 / 2 + 0.5 / 1) / 2
    wanted = 100 * 5 * precision * recall / (4 * precision + recall)
    assert utilities(["ab"], ["ab", "aa"], aggregate_references=True) == pytest.approx([wanted])


def test_the_middle_of_the_samples_wins() -> None:
    """The likeliest single text, which stands first, is like nothing else; the others are like one another."""
    samples = ["nein danke", "the cat sat on the mat", "the cat sat on a mat", "a cat sat on the mat"]
    for name in UTILITIES:
        for aggregated in (False, True):
            assert choose_candidate(samples, utility=name, aggregate_references=aggregated) == 1


def test_weights_count() -> None:
    texts = ["one way", "two way"]  # as long as one another, so that neither is favoured
    assert choose_candidate(texts, weights=[0.4, 0.6]) == 1
    assert choose_candidate(texts, weights=[6, 4]) == 0
    assert choose_candidate(texts, weights=[0.5, 0.5]) == 0  # of equals the first
    expected = utilities(texts, texts, [3, 1])
    chrf = UTILITIES["chrf"].pairwise(texts, texts)
    np.testing.assert_allclose(expected, chrf @ [0.75, 0.25])
    assert choose_candidate([*texts, texts[1]]) == 1  # a text that was drawn twice weighs twice


@given(TEXTS, st.randoms())
@settings(deadline=None)
def test_order_changes_no_expectation(texts: list[str], chance: random.Random) -> None:
    order = list(range(len(texts)))
    chance.shuffle(order)
    shuffled = utilities([texts[i] for i in order], [texts[i] for i in order])
    np.testing.assert_allclose(shuffled, utilities(texts, texts)[order], atol=1e-9)


def test_samples_weigh_the_same_and_n_best_their_probability() -> None:
    scores = [-1.0, -2.0]
    np.testing.assert_allclose(MinimumBayesRisk(Sample(n_best=2)).reference_weights(scores), [0.5, 0.5])
    p = np.exp(scores) ** 0.5
    np.testing.assert_allclose(
        MinimumBayesRisk(Beam(5, n_best=2), posterior_scale=0.5).reference_weights(scores), p / p.sum()
    )
    mixed = MinimumBayesRisk(Beam(5, n_best=5), references=Sample(n_best=8))
    np.testing.assert_allclose(mixed.reference_weights([-1.0] * 8), [1 / 8] * 8)
    assert mixed.rows_per_source == 8
    np.testing.assert_allclose(MinimumBayesRisk(Beam(5, n_best=2)).reference_weights([-2000.0, -2000.0]), [0.5, 0.5])


def test_a_setting_chooses_the_best_each_once() -> None:
    risk = MinimumBayesRisk(Sample(n_best=4), n_best=3)
    texts = ["the cat sat", "a dog", "the cat sat", "the car sat"]
    found = risk.choose(texts, texts, [-1.0, -1.0, -1.0, -2.0])
    assert [i for i, _ in found] == [0, 3, 1]
    expected = utilities(texts, texts)
    assert [value for _, value in found] == pytest.approx([expected[i] for i in (0, 3, 1)])
    other = risk.choose(texts, ["a dog"], [-3.0])
    assert other[0] == (1, pytest.approx(100.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinimumBayesRisk(Sample(n_best=3)).choose([], ["a"], [-1.0]), "at least one candidate"),
        (lambda: MinimumBayesRisk(Sample(n_best=3)).choose(["a"], [], []), "one candidate and one reference"),
        (lambda: utilities(["a"], ["a"], utility="blue"), "did you mean 'bleu'"),
        (lambda: MinimumBayesRisk(Sample(n_best=3), utility="chrff"), "did you mean 'chrf"),
        (lambda: MinimumBayesRisk(Sample(n_best=3), n_best=4), "cannot return the 4 best of 3 candidates"),
        (lambda: MinimumBayesRisk(Sample(n_best=3), n_best=0), "at least 1"),
        (lambda: MinimumBayesRisk(Beam(5)), "returns only 1"),
        (lambda: MinimumBayesRisk(Sample(n_best=3), posterior_scale=-1.0), "posterior_scale"),
    ],
)
def test_mistakes_are_answered(make: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()  # type: ignore[operator]


def test_every_utility_is_perfect_on_itself_and_asymmetric_where_its_measure_is() -> None:
    for measure in UTILITIES.values():
        assert measure.pairwise(["the cat sat on it"], ["the cat sat on it"]) == pytest.approx(100.0)
        there, back = measure.pairwise(["a b c d"], ["a b c d e f g"]), measure.pairwise(["a b c d e f g"], ["a b c d"])
        assert there != pytest.approx(back)
