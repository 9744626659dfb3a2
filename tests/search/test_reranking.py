"""Reranking: the weighted sum, the models that are asked, and weights that are tuned."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.search.reranking import (
    TUNING_METRICS,
    Candidate,
    RerankWeights,
    TuningResult,
    score_candidates,
    tune_rerank_weights,
)

WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat", ".", "ran", "3,5", "it's"]
NUMBERS = st.floats(-50, 0)
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
        NUMBERS,
        st.integers(1, 9).map(float),
        NUMBERS,
        NUMBERS,
    ),
    min_size=1,
    max_size=5,
)


def test_the_sum_by_hand() -> None:
    candidate = Candidate("a b", direct=-2.0, length=3.0, channel=-5.0, language=-4.0)
    weights = RerankWeights(channel=0.5, language=0.25, length=0.1)
    assert weights.scores([candidate]) == pytest.approx([-2 - 2.5 - 1 + 0.3])
    assert RerankWeights().scores([candidate]) == [-2.0]


def test_each_feature_changes_the_order() -> None:
    first = Candidate("first", direct=-1.0, length=2.0, channel=-9.0, language=-3.0)
    second = Candidate("second", direct=-2.0, length=4.0, channel=-1.0, language=-1.0)
    for weights in (
        RerankWeights(),
        RerankWeights(channel=0.1),
        RerankWeights(language=0.4),
        RerankWeights(length=0.4),
    ):
        assert weights.rank([first, second]) == [0, 1]
    for weights in (RerankWeights(channel=0.2), RerankWeights(language=0.6), RerankWeights(length=0.6)):
        assert weights.rank([first, second]) == [1, 0]
    assert RerankWeights(length=0.5).rank([first, second]) == [0, 1]  # equals stay in order
    assert RerankWeights(channel=1.0).rank([]) == []


@given(CANDIDATES, NUMBERS, NUMBERS, NUMBERS)
def test_the_order_is_by_the_score(candidates: list[Candidate], one: float, two: float, three: float) -> None:
    weights = RerankWeights(one, two, three)
    scores = weights.scores(candidates)[weights.rank(candidates)].tolist()
    assert scores == sorted(scores, reverse=True)


def test_what_is_impossible_comes_last_only_where_it_counts() -> None:
    candidates = [Candidate("a", -1.0, channel=float("-inf")), Candidate("b", -2.0, channel=-9.0)]
    assert RerankWeights().rank(candidates) == [0, 1]
    assert RerankWeights(channel=0.1).rank(candidates) == [1, 0]


class Counting:
    """Says minus the difference in words, or minus the words where there is no source, and remembers the pairs."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, str]] = []

    def score(self, sources: Sequence[str] | None, targets: Sequence[str]) -> list[Any]:
        pairs = list(zip(sources if sources is not None else [None] * len(targets), targets))
        self.asked += pairs
        return [SimpleNamespace(score=-abs(len((x or "").split()) - len(y.split())) - 1.0) for x, y in pairs]


RUN: Any = SimpleNamespace(open_run=lambda model, reverse=False: model)


def test_the_channel_is_asked_backwards_and_each_pair_once() -> None:
    channel, language = Counting(), Counting()
    models: Any = (channel, language)
    sources = ["x y", "z"]
    nbest = [[Candidate("one", -1.0), Candidate("one two", -1.5), Candidate("one", -2.0)], [Candidate("one", -1.0)]]
    asked = score_candidates(RUN, sources, nbest, *models)
    assert channel.asked == [("one", "x y"), ("one two", "x y"), ("one", "z")]
    assert language.asked == [(None, "one"), (None, "one two")]
    assert [[one.channel for one in some] for some in asked] == [[-2.0, -1.0, -2.0], [-1.0]]
    assert [[one.language for one in some] for some in asked] == [[-2.0, -3.0, -2.0], [-2.0]]
    assert [[one.direct for one in some] for some in asked] == [[-1.0, -1.5, -2.0], [-1.0]]
    weights = RerankWeights(channel=1.0, language=0.01)
    assert [weights.rank(candidates) for candidates in asked] == [[1, 0, 2], [0]]
    assert score_candidates(RUN, [], [], *models) == []


@pytest.mark.parametrize("metric", TUNING_METRICS)
@given(nbest=st.lists(CANDIDATES, min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_tuned_scores_are_sacrebleus(metric: str, nbest: list[list[Candidate]], seed: int) -> None:
    chance = random.Random(seed)
    references = [" ".join(chance.choices(WORDS, k=chance.randint(0, 8))) for _ in nbest]
    tuned = tune_rerank_weights(nbest, references, metric)
    assert tuned.baseline_score == pytest.approx(corpus(metric, RerankWeights(), nbest, references), abs=1e-6)
    assert tuned.score == pytest.approx(corpus(metric, tuned.weights, nbest, references), abs=1e-6)
    assert tuned.score >= tuned.baseline_score


def corpus(metric: str, weights: RerankWeights, nbest: list[list[Candidate]], references: list[str]) -> float:
    chosen = [some[weights.rank(some)[0]].text for some in nbest]
    if metric == "bleu":
        return sacrebleu.corpus_bleu(chosen, [references]).score
    return sacrebleu.corpus_chrf(chosen, [references], word_order=2 if metric == "chrf++" else 0).score


@pytest.mark.parametrize("feature", ["channel", "language", "length"])
def test_tuning_finds_the_feature_that_tells_good_from_bad(feature: str) -> None:
    """Only one feature knows which candidate is the reference; the direct model prefers the other, by 1."""
    chance = random.Random(1)
    nbest, references = [], []
    for _ in range(20):
        reference = " ".join(chance.choices(WORDS, k=7))
        good, bad = Candidate(reference, -2.0), Candidate(" ".join(chance.choices(WORDS, k=7)), -1.0)
        nbest.append([vary(bad, feature, 0.0), vary(good, feature, 3.0)])
        references.append(reference)
    tuned = tune_rerank_weights(nbest, references)
    assert tuned.score == pytest.approx(100.0)
    assert tuned.baseline_score < 50
    assert getattr(tuned.weights, feature) > 1 / 3
    assert all(getattr(tuned.weights, other) == 0 for other in {"channel", "language", "length"} - {feature})


def vary(one: Candidate, feature: str, more: float) -> Candidate:
    return Candidate(**(vars(one) | {feature: -5.0 + more}))


def test_what_is_no_better_stays_as_it_was() -> None:
    nbest = [[Candidate("the cat sat on a mat", -1.0, channel=-3.0), Candidate("no", -2.0, channel=-1.0)]]
    assert tune_rerank_weights(nbest, ["the cat sat on a mat"]) == TuningResult(
        RerankWeights(), pytest.approx(100.0), pytest.approx(100.0)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RerankWeights(channel=float("nan")), "finite"),
        (lambda: tune_rerank_weights([[Candidate("a", 0.0)]], ["a"], "blue"), "did you mean 'bleu'"),
        (lambda: tune_rerank_weights([[Candidate("a", 0.0)]], []), "got 0 for 1 sources"),
        (lambda: tune_rerank_weights([[]], ["a"]), "a source has none"),
        (lambda: tune_rerank_weights([], []), "a source has none"),
    ],
)
def test_mistakes_are_answered(make: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()  # type: ignore[operator]
