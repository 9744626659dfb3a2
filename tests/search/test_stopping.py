"""Stopping rules and what happens at the length limit, by hand: hopeless beams, unfinished hypotheses, a forced END."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from table_model import RandomTable, TableModel, beam_search

from dragoman.errors import UserError
from dragoman.search import Beam, Hypothesis, Sample
from dragoman.search.beam import BeamSearch
from dragoman.search.engine import SearchEngine
from dragoman.search.greedy_and_sampling import Greedy
from dragoman.search.required_phrases import ConstrainedBeam, required_phrase_tensors
from dragoman.search.search_state import ConstraintTensors
from search.plain_search import search

#: a ends early; b c falls behind it at first, and is better in the end where lengths count: −1.0/2 < −1.3/4
LATE = {"a": -0.6, "b": -0.9, "a </s>": -1.0, "b c": -1.2, "b c d": -1.25, "b c d </s>": -1.3}


def run(settings: Beam, longest: int, closed: bool = False) -> tuple[int, list[tuple[str, Any, bool]]]:
    """How many steps it took, and what was found."""
    model = TableModel(LATE)
    symbols = replace(model.symbols, force_eos_at_limit=closed)
    source = torch.zeros(1, 1, dtype=torch.long)
    found = beam_search(cast(Any, model), source, torch.tensor([1]), symbols, torch.tensor([longest]), settings)
    return len(model.steps), [(model.sentence(h.tokens), near(h.normalized_score), h.finished) for h in found[0]]


def near(number: float) -> Any:
    return pytest.approx(number, abs=1e-5)


def test_a_beam_goes_on_while_its_best_is_better_than_the_worst_that_is_complete() -> None:
    """Without normalisation: −1.2 after two steps is worse than −1.0, so that nothing can come of it."""
    settings = Beam(2, 0.0, early_stopping=False, num_finished=1)
    assert run(settings, longest=9) == (2, [("a", -1.0, True)])
    assert run(Beam(2, 0.0, early_stopping="steps"), longest=9) == (9, [("a", -1.0, True)])
    # with α = 2 as well, at the same length: −1.2/2² = −0.3 and −1.0/2² = −0.25
    assert run(replace(settings, length_penalty=2.0), longest=9) == (2, [("a", -0.25, True)])


def test_two_complete_hypotheses_are_waited_for_before_a_beam_is_hopeless() -> None:
    """The second is b c d at step 4: what then goes on are words that nobody wants."""
    steps, found = run(Beam(2, 1.0, early_stopping=False, n_best=2), longest=9)
    assert (steps, found) == (4, [("b c d", near(-1.3 / 4), True), ("a", near(-1.0 / 2), True)])


def test_a_hopeless_beam_may_miss_what_rises_later() -> None:
    """At two tokens −1.2/2 < −1.0/2, though −1.3/4 would have been the best of all."""
    assert run(Beam(2, 1.0, early_stopping=False, num_finished=1), longest=9)[1] == [("a", near(-0.5), True)]
    assert run(Beam(2, 1.0, early_stopping="steps"), longest=9)[1] == [("b c d", near(-0.325), True)]


def test_unfinished_hypotheses_stand_behind_complete_ones_or_beside_them() -> None:
    cut, complete = ("b c d", near(-1.25 / 3), False), ("a", near(-1.0 / 2), True)
    assert run(Beam(2, n_best=2), longest=3)[1] == [complete, cut]
    assert run(Beam(2, n_best=2, rank_unfinished="by_score"), longest=3)[1] == [cut, complete]


def test_a_closed_beam_ends_at_the_limit_at_no_cost() -> None:
    assert run(Beam(2, n_best=2), longest=3, closed=True)[1] == [
        ("b c", near(-1.2 / 3), True),
        ("a", near(-0.5), True),
    ]


def test_every_source_is_closed_at_its_own_limit() -> None:
    """a has log p −0.6, END at the limit 0; without a word before it there is nothing to pay."""
    model = TableModel(LATE)
    symbols = replace(model.symbols, force_eos_at_limit=True)
    source, lengths, limits = torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1]), torch.tensor([1, 2])
    found = search(
        cast(Any, model), source, lengths, symbols, Beam(1, length_penalty=0.0), torch.arange(len(source)), limits
    )
    assert found == [[Hypothesis([], 0.0, 0.0, True)], [Hypothesis([model.ids["a"]], near(-0.6), near(-0.6), True)]]
    drawn = search(cast(Any, model), source, lengths, symbols, Sample(n_best=3), torch.arange(2), limits)
    assert all(h.finished for some in drawn for h in some)
    assert [h.tokens for h in drawn[0]] == [[], [], []]


def test_another_place_for_unfinished_hypotheses_is_refused() -> None:
    with pytest.raises(UserError, match="rank_unfinished must be 'last' or 'by_score', but is 'before'"):
        Beam(rank_unfinished=cast(Any, "before"))


# ---- the exact rule


def test_the_exact_rule_finds_what_finishes_late_and_stops_as_soon_as_it_is_certain() -> None:
    """ "b c d" ends at step 4 with −1.3/4; the best live hypothesis then has log p −11.9, at most −11.9/9 at the limit.

    Without normalisation −1.2 after two steps cannot come to beat −1.0.
    """
    assert run(Beam(2, 1.0), longest=9) == (4, [("b c d", near(-0.325), True)])
    assert run(Beam(2, 0.0), longest=9) == (2, [("a", -1.0, True)])
    # the n best, not K: for the two best it goes on until the second is certain as well
    steps, found = run(Beam(2, 0.0, n_best=2), longest=9)
    assert (steps, found) == (4, [("a", -1.0, True), ("b c d", near(-1.3), True)])


def test_short_hypotheses_that_finish_first_do_not_end_the_search() -> None:
    """Greedy search finds a b c; the first two to finish are improbable."""
    tree = {"a": -0.2, "</s>": -1.9, "a b": -0.4, "a </s>": -2.1, "a b c": -0.5, "a b c </s>": -0.6}
    for rule, expected in ((True, "a"), ("never", "a b c"), ("steps", "a b c")):
        model = TableModel(tree)
        source, limits = torch.zeros(1, 1, dtype=torch.long), torch.tensor([12])
        settings = Beam(2, early_stopping=cast(Any, rule))
        found = beam_search(cast(Any, model), source, torch.tensor([1]), model.symbols, limits, settings)
        assert model.sentence(found[0][0].tokens) == expected, rule


ALPHAS = [-1.0, 0.0, 0.6, 1.0, 2.0]
SOURCES, LIMITS = torch.arange(6)[:, None], torch.tensor([3, 9, 6, 1, 9, 4])  # every source has its own limit


def found_by(
    model: RandomTable, settings: Beam, strategy: type[BeamSearch] = BeamSearch, **symbols: Any
) -> tuple[int, list[list[Hypothesis]]]:
    """The number of steps, and the hypotheses of each source."""
    model.steps = 0
    engine = SearchEngine([cast(Any, model)], replace(model.symbols, **symbols), strategy(settings, model.symbols.eos))
    required = required_phrase_tensors([[] for _ in SOURCES]) if strategy is ConstrainedBeam else None
    constraints = ConstraintTensors(required=required)
    found = engine.search(SOURCES, torch.ones(len(SOURCES)).long(), LIMITS, torch.arange(len(SOURCES)), constraints)
    return model.steps, found


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_exact_rule_returns_what_a_search_up_to_the_limit_returns(alpha: float) -> None:
    """Both normalisations, n best of K, truncated hypotheses behind or beside, a minimum length and a forced END."""
    sooner = 0
    for number in range(14):
        size = 2 + number % 3
        normalisation = "gnmt" if number % 2 else "power"
        unfinished = "by_score" if number // 2 % 2 else "last"
        best = 1 + number // 4 % size
        settings = Beam(size, alpha, n_best=best, length_normalization=normalisation, rank_unfinished=unfinished)
        more: dict[str, Any] = {"min_length": number % 5, "force_eos_at_limit": number % 7 == 6}
        model = RandomTable(number)
        steps, every = found_by(model, replace(settings, early_stopping="steps"), **more)
        early, exact = found_by(model, settings, **more)
        assert exact == every, (settings, more)
        constrained = found_by(model, settings, ConstrainedBeam, **more)[1]
        assert [[h.tokens for h in one] for one in constrained] == [[h.tokens for h in one] for one in every]
        sooner += early < steps
    assert sooner


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("normalisation", ["power", "gnmt"])
def test_a_beam_as_wide_as_the_space_finds_the_best_of_all_targets(alpha: float, normalisation: Any) -> None:
    model = RandomTable(7, vocabulary=4)  # two words
    settings = Beam(40, alpha, n_best=3, length_normalization=normalisation)
    limits = torch.tensor([5, 4, 1])
    engine = SearchEngine([cast(Any, model)], model.symbols, BeamSearch(settings, model.symbols.eos))
    found = engine.search(torch.arange(3)[:, None], torch.ones(3).long(), limits, torch.arange(3))
    for source, (limit, hypotheses) in enumerate(zip(limits.tolist(), found)):
        targets = model.every_target(source, limit)
        order = sorted(targets, key=lambda target: -target[1] / settings.length_divisor(target[2]))
        finished = [tuple(h.tokens) for h in hypotheses if h.finished]
        assert finished == [words for words, _, _ in order[: len(finished)]]
        assert len(finished) == min(3, len(order))


@pytest.mark.parametrize("rule", [True, False, "never", "steps"])
def test_a_beam_of_one_is_greedy_search_by_every_rule(rule: Any) -> None:
    model = RandomTable(3)
    greedy = SearchEngine([cast(Any, model)], model.symbols, Greedy(1, model.symbols.eos))
    expected = greedy.search(SOURCES, torch.ones(len(SOURCES)).long(), LIMITS, torch.arange(len(SOURCES)))
    found = found_by(model, Beam(1, early_stopping=rule))[1]
    assert [one[0].tokens for one in found] == [one[0].tokens for one in expected]
