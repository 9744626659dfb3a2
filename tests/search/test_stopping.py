"""Stopping rules and what happens at the length limit, by hand: hopeless beams, unfinished hypotheses, a forced END."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from table_model import TableModel, beam_search

from dragoman.errors import UserError
from dragoman.search import Beam, Hypothesis, Sample, search

#: a ends early; b c falls behind it at first, and is better in the end where lengths count: −1.0/2 < −1.3/4
LATE = {"a": -0.6, "b": -0.9, "a </s>": -1.0, "b c": -1.2, "b c d": -1.25, "b c d </s>": -1.3}


def run(settings: Beam, longest: int, closed: bool = False) -> tuple[int, list[tuple[str, Any, bool]]]:
    """How many steps it took, and what was found."""
    model = TableModel(LATE)
    symbols = replace(model.symbols, closed=closed)
    source = torch.zeros(1, 1, dtype=torch.long)
    found = beam_search(cast(Any, model), source, torch.tensor([1]), symbols, torch.tensor([longest]), settings)
    return len(model.steps), [(model.sentence(h.tokens), near(h.normalized), h.finished) for h in found[0]]


def near(number: float) -> Any:
    return pytest.approx(number, abs=1e-5)


def test_a_beam_goes_on_while_its_best_is_better_than_the_worst_that_is_complete() -> None:
    """Without normalisation: −1.2 after two steps is worse than −1.0, so that nothing can come of it."""
    settings = Beam(2, 0.0, stop="hopeless", complete=1)
    assert run(settings, longest=9) == (2, [("a", -1.0, True)])
    assert run(Beam(2, 0.0, stop="steps"), longest=9) == (9, [("a", -1.0, True)])
    # with α = 2 as well, at the same length: −1.2/2² = −0.3 and −1.0/2² = −0.25
    assert run(replace(settings, length_penalty=2.0), longest=9) == (2, [("a", -0.25, True)])


def test_two_complete_hypotheses_are_waited_for_before_a_beam_is_hopeless() -> None:
    """The second is b c d at step 4: what then goes on are words that nobody wants."""
    steps, found = run(Beam(2, 1.0, stop="hopeless", best=2), longest=9)
    assert (steps, found) == (4, [("b c d", near(-1.3 / 4), True), ("a", near(-1.0 / 2), True)])


def test_a_hopeless_beam_may_miss_what_rises_later() -> None:
    """At two tokens −1.2/2 < −1.0/2, though −1.3/4 would have been the best of all."""
    assert run(Beam(2, 1.0, stop="hopeless", complete=1), longest=9)[1] == [("a", near(-0.5), True)]
    assert run(Beam(2, 1.0, stop="steps"), longest=9)[1] == [("b c d", near(-0.325), True)]


def test_unfinished_hypotheses_stand_behind_complete_ones_or_beside_them() -> None:
    cut, complete = ("b c d", near(-1.25 / 3), False), ("a", near(-1.0 / 2), True)
    assert run(Beam(2, best=2), longest=3)[1] == [complete, cut]
    assert run(Beam(2, best=2, unfinished="beside"), longest=3)[1] == [cut, complete]


def test_a_closed_beam_ends_at_the_limit_at_no_cost() -> None:
    assert run(Beam(2, best=2), longest=3, closed=True)[1] == [("b c", near(-1.2 / 3), True), ("a", near(-0.5), True)]


def test_every_source_is_closed_at_its_own_limit() -> None:
    """a has log p −0.6, END at the limit 0; without a word before it there is nothing to pay."""
    model = TableModel(LATE)
    symbols = replace(model.symbols, closed=True)
    source, lengths, limits = torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1]), torch.tensor([1, 2])
    found = search(
        cast(Any, model), source, lengths, symbols, Beam(1, length_penalty=0.0), torch.arange(len(source)), limits
    )
    assert found == [[Hypothesis([], 0.0, 0.0, True)], [Hypothesis([model.ids["a"]], near(-0.6), near(-0.6), True)]]
    drawn = search(cast(Any, model), source, lengths, symbols, Sample(best=3), torch.arange(2), limits)
    assert all(h.finished for some in drawn for h in some)
    assert [h.tokens for h in drawn[0]] == [[], [], []]


def test_another_place_for_unfinished_hypotheses_is_refused() -> None:
    with pytest.raises(UserError, match="unfinished hypotheses stand 'behind' or 'beside' complete ones, not 'before'"):
        Beam(unfinished=cast(Any, "before"))
