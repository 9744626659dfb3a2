"""Diverse beam search by hand (Vijayakumar et al. 2018), with penalties small enough to matter."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from table_model import TableModel

from dragoman.search import Beam
from dragoman.search.beam import DiverseBeamSearch
from dragoman.search.engine import SearchEngine

#: three words, each of which may be a whole sentence
WORDS = {"A": math.log(0.5), "B": math.log(0.4), "C": math.log(0.09)}
ONE_WORD = WORDS | {f"{word} </s>": score for word, score in WORDS.items()}


def groups(table: dict[str, float], settings: Beam, limit: int = 4) -> list[list[tuple[str, Any]]]:
    """What each group finds, and log p of it."""
    model = TableModel(table)
    strategy = DiverseBeamSearch(settings, model.symbols.eos)
    found: list[list[tuple[str, Any]]] = []

    def results(state: Any) -> list[Any]:
        for number in range(settings.num_groups):
            some = strategy.group.hypotheses(strategy.group_state(state, number))[0]
            found.append([(model.sentence(h.tokens), pytest.approx(h.score, abs=1e-5)) for h in some])
        return DiverseBeamSearch.hypotheses(strategy, state)

    strategy.hypotheses = results  # type: ignore[method-assign]
    engine = SearchEngine([cast(Any, model)], model.symbols, strategy)
    engine.search(torch.zeros(1, 1).long(), torch.ones(1).long(), torch.tensor([limit]), torch.zeros(1).long())
    return found


@pytest.mark.parametrize(
    ("diversity", "second"),
    [
        (0.0, "A"),
        (0.2, "A"),  # ln 0.5 − 0.2 > ln 0.4
        (0.25, "B"),  # ln (0.5 / 0.4) = 0.223
        (0.5, "B"),
        (1.5, "B"),
        (100.0, "B"),
    ],
)
def test_a_group_chooses_by_the_penalised_score(diversity: float, second: str) -> None:
    first, other = groups(ONE_WORD, Beam(2, num_groups=2, diversity_penalty=diversity))
    assert first == [("A", math.log(0.5))]
    assert other == [(second, WORDS[second])]  # with its own log p


def test_a_token_is_penalised_once_for_each_earlier_group_that_chose_it() -> None:
    """With λ = 0.8 the groups take A, B (−0.92 against −1.49), A (−1.49 against −1.72 and −2.41) and B (−1.72)."""
    found = groups(ONE_WORD, Beam(4, num_groups=4, diversity_penalty=0.8))
    assert [some[0][0] for some in found] == ["A", "B", "A", "B"]


def test_the_survivors_of_a_group_are_ranked_by_the_penalised_score() -> None:
    """The first group takes A and B. With λ = 2 the second compares −2.69, −2.92 and C's −2.41: it takes C and A."""
    found = groups(ONE_WORD, Beam(4, num_groups=2, diversity_penalty=2.0, n_best=4))
    assert [sorted(sentence for sentence, _ in some) for some in found] == [["A", "B"], ["A", "C"]]


def test_a_group_that_has_ended_penalises_nothing() -> None:
    """The first group ends with A; what is left of it at that step, A x, must not keep the second from B x."""
    table = {"A": math.log(0.5), "B": math.log(0.4)}
    table |= {"A </s>": table["A"] + math.log(0.9), "A x": table["A"] + math.log(0.09)}
    table |= {"B x": table["B"] + math.log(0.5), "B y": table["B"] + math.log(0.4)}
    table |= {f"B {word} </s>": table[f"B {word}"] for word in "xy"}
    first, second = groups(table, Beam(2, num_groups=2, diversity_penalty=1.0))
    assert first == [("A", math.log(0.45))]
    assert second == [("B x", math.log(0.2))]


def test_hypotheses_that_the_limit_truncates_penalise_as_well() -> None:
    found = groups(ONE_WORD, Beam(2, num_groups=2, diversity_penalty=0.5), limit=1)
    assert [some[0][0] for some in found] == ["A", "B"]
