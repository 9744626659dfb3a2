"""Beam size and length penalty are chosen by evidence, not by chance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import pytest
from untrained_runs import untrained

from dragoman import evaluation
from dragoman.config import Config, SearchDefaults
from dragoman.errors import UserError
from dragoman.evaluation.text_metrics import text_metric
from dragoman.run import Translation
from dragoman.run.search_choice import (
    SearchCandidate,
    choose_search,
    select_candidate,
    unset_search_settings,
    without_search_choice,
)
from dragoman.search import Beam, SearchConfig
from dragoman.search.length_penalty_sweep import LengthPenaltySweep

DEFAULT = SearchCandidate(5, 1.0, 30.0, advantage=0.0, standard_error=0.0)


def candidate(size: int, penalty: float, advantage: float, error: float) -> SearchCandidate:
    return SearchCandidate(size, penalty, 30.0 + advantage, advantage, error)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([(1, 1.0, 0.0, 0.1)], (1, 1.0)),  # known to be equal: the cheaper one
        ([(1, 1.0, 0.0, 2.0)], (5, 1.0)),  # few sentences: nobody knows
        ([(1, 1.0, 1.5, 2.0)], (5, 1.0)),  # 1.5 − 2.0 < −0.25
        ([(1, 1.0, 1.8, 2.0)], (1, 1.0)),  # 1.8 − 2.0 ≥ −0.25
        ([(1, 1.0, -0.3, 0.2)], (5, 1.0)),
        ([(5, 0.5, 0.4, 0.3)], (5, 1.0)),  # better by more than its error, but by less than is worth a change
        ([(5, 0.5, 0.6, 0.3)], (5, 0.5)),  # 0.6 − 0.3 > 0.25
        ([(10, 1.0, 0.3, 0.1)], (5, 1.0)),  # twice the work for 0.2 points
        ([(10, 1.0, 1.0, 0.1), (2, 1.0, 0.9, 0.1)], (2, 1.0)),  # as good as the best and smaller
        ([(2, 0.0, 1.0, 0.1), (2, 1.0, 0.9, 0.1), (2, 2.0, 0.7, 0.1)], (2, 1.0)),  # the default α where it is as good
        ([(2, 0.0, 1.0, 0.1), (2, 1.0, 0.6, 0.1)], (2, 0.0)),
    ],
)
def test_selection_by_hand(others: list[tuple[int, float, float, float]], expected: tuple[int, float]) -> None:
    chosen = select_candidate([DEFAULT, *(candidate(*values) for values in others)], DEFAULT)
    assert (chosen.beam_size, chosen.length_penalty) == expected


class ScriptedRun:
    """A run whose translations by each beam size are given."""

    max_beam_size, engine_cache = 1000, None

    def __init__(self, outputs: dict[int, list[str]], **search: Any) -> None:
        self.outputs, self.config = outputs, Config(search=SearchDefaults(**search))
        self.searches: list[SearchConfig] = []

    def beam_config(self) -> Beam:
        settings = self.config.search
        return Beam(settings.beam_size or 5, 1.0 if settings.length_penalty is None else settings.length_penalty)

    def translate(self, sources: list[str], *, search: Beam, **options: Any) -> list[Translation]:
        self.searches.append(search)
        count = len(search.length_penalties) if isinstance(search, LengthPenaltySweep) else 1
        texts = self.outputs[search.size]
        return [Translation(text, 0.0, alternatives=[Translation(text, 0.0)] * (count - 1)) for text in texts]


def test_advantage_and_standard_error_by_hand() -> None:
    """Of 400 lines, greedy search gets 12 right that the default gets wrong, and 4 the other way round.

    The advantage is 100 · 8/400 = 2 points. The differences of the lines have the variance 16/400 − (8/400)², so that
    their mean has the standard error 100 · √(0.0396/400) = 0.995 points, to which one sentence of 400 is added.
    """
    references = ["right"] * 400
    default = ["right"] * 4 + ["wrong"] * 396
    greedy = ["wrong"] * 4 + ["right"] * 12 + ["wrong"] * 384
    run = ScriptedRun({1: greedy, 2: default, 5: default, 10: default})
    choice = choose_search(cast(Any, run), references, references, text_metric("exact"))
    found = next(c for c in choice.candidates if c.beam_size == 1)
    assert (choice.default.score, found.score, found.advantage) == pytest.approx((1.0, 3.0, 2.0))
    assert found.standard_error == pytest.approx(math.sqrt(0.995**2 + 0.25**2), rel=0.1)
    assert choice.settings == {"search.beam_size": 1, "search.length_penalty": 1.0}
    assert len(choice.candidates) == 1 + 3 * 5  # greedy search has no length penalty
    assert len(run.searches) == 4  # one for each beam size


def test_lower_error_rates_are_better() -> None:
    references = ["a b c d"] * 100
    outputs = {size: ["a b c x"] * 100 for size in (1, 2, 10)} | {5: ["a x x x"] * 100}
    choice = choose_search(cast(Any, ScriptedRun(outputs)), references, references, text_metric("wer"))
    assert (choice.default.score, choice.chosen.score, choice.chosen.advantage) == pytest.approx((75, 25, 50))
    assert choice.chosen.beam_size == 1


def test_what_the_user_has_set_is_not_varied() -> None:
    texts = ["a b"] * 60
    run = ScriptedRun(dict.fromkeys((1, 2, 4, 5, 10), texts), beam_size=4)
    choice = choose_search(cast(Any, run), texts, texts, text_metric("exact"))
    assert {c.beam_size for c in choice.candidates} == {4}
    assert unset_search_settings(run.config) == ["search.length_penalty"]
    assert unset_search_settings(Config(search=SearchDefaults(strategy={"kind": "Sample"}))) == []


def test_an_automatic_choice_can_be_undone_and_one_by_the_user_cannot() -> None:
    config = Config(search=SearchDefaults(beam_size=1, length_penalty=0.5), chosen={"search.beam_size": 1})
    assert without_search_choice(config).search == SearchDefaults(length_penalty=0.5)


def test_scores_are_those_of_separate_searches() -> None:
    run = untrained("word", "bahdanau")
    run.config = replace(run.config, search=SearchDefaults(max_target_length=8))
    sources = ["the dog sleeps .", "a cat sees", "an old house", "größe"]
    references = ["a cat", "an old", "5 €", "dog"]
    choice = choose_search(run, sources, references, text_metric("chrf"))
    for found in choice.candidates:
        search = replace(run.beam_config(found.beam_size), length_penalty=found.length_penalty)
        texts = [translation.text for translation in run.translate(sources, search=search, alignment=False)]
        assert found.score == pytest.approx(evaluation.chrf(texts, references).value)
    with pytest.raises(UserError, match="numbers must be equal"):
        choose_search(run, sources, references[:2], text_metric("chrf"))
