"""Beam search by hand: the textbook's tree, both stopping rules, length normalisation, what is cut off."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from table_model import TableModel, beam_search

from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel
from dragoman.search import Beam, Hypothesis, LengthLimit
from dragoman.systems import SYSTEMS, VocabularySizes
from search.exhaustive import exhaustive_search
from search.plain_search import search

#: the textbook's tree: log p of every hypothesis that is looked at
PIE = {
    "he": -0.7,
    "I": -0.9,
    # of he and I
    "he hit": -1.7,
    "he struck": -2.9,
    "I was": -1.6,
    "I got": -1.8,
    # of I was and he hit
    "he hit a": -2.8,
    "he hit me": -2.5,
    "I was hit": -2.9,
    "I was struck": -3.8,
    # of he hit me and he hit a
    "he hit me with": -3.3,
    "he hit me on": -3.5,
    "he hit a tart": -4.0,
    "he hit a pie": -3.4,
    # of he hit me with and he hit a pie, which may end
    "he hit me with a": -3.7,
    "he hit me with one": -4.5,
    "he hit a pie </s>": -3.8,
    "he hit a pie with": -5.0,
    # of he hit me with a and he hit me with one
    "he hit me with a pie": -4.3,
    "he hit me with a tart": -4.8,
    "he hit me with one pie": -5.1,
    "he hit me with one tart": -5.8,
    # and the ends
    "he hit me with a pie </s>": -4.4,
    "he hit me with a tart </s>": -5.0,
    "he hit me with one pie </s>": -5.5,
}


def run(totals: dict[str, float], settings: Beam, longest: int) -> tuple[TableModel, list[Hypothesis]]:
    model = TableModel(totals)
    source = torch.zeros(1, 1, dtype=torch.long)
    limits = torch.tensor([longest])
    found = beam_search(cast(Any, model), source, torch.tensor([1]), model.symbols, limits, settings)
    return model, found[0]


def told(model: TableModel, found: list[Hypothesis]) -> list[tuple[str, Any]]:
    return [(model.sentence(h.tokens), pytest.approx(h.normalized_score, abs=1e-5)) for h in found]


# ---- the textbook's tree


def test_he_hit_me_with_a_pie() -> None:
    model, found = run(PIE, Beam(size=2, n_best=2), longest=10)
    kept = [{" ".join(prefix) for prefix in rows} for rows in model.steps]
    assert kept == [
        {""},
        {"he", "I"},
        {"I was", "he hit"},  # −1.6 and −1.7, of −1.6, −1.7, −1.8, −2.9
        {"he hit me", "he hit a"},  # −2.5 and −2.8: nothing of I was
        {"he hit me with", "he hit a pie"},  # −3.3 and −3.4
        {"he hit me with a", "he hit me with one"},  # he hit a pie is complete and set aside: its place is taken
        {"he hit me with a pie", "he hit me with a tart"},  # −4.3 and −4.8; both end, and that is the end
    ]
    assert told(model, found) == [("he hit me with a pie", -4.4 / 7), ("he hit me with a tart", -5.0 / 7)]
    assert [h.score for h in found] == pytest.approx([-4.4, -5.0], abs=1e-5)
    assert all(h.finished for h in found)


def test_all_that_was_set_aside_can_be_had_back() -> None:
    model, found = run(PIE, Beam(size=3, n_best=3), longest=10)
    assert told(model, found) == [
        ("he hit me with a pie", -4.4 / 7),
        ("he hit me with a tart", -5.0 / 7),
        ("he hit a pie", -3.8 / 5),
    ]


def test_without_length_normalisation_the_shorter_wins() -> None:
    """−3.8 > −4.4, though −3.8/5 < −4.4/7."""
    model, found = run(PIE, Beam(size=2, length_penalty=0.0, n_best=2), longest=10)
    assert told(model, found) == [("he hit a pie", -3.8), ("he hit me with a pie", -4.4)]


def test_the_winner_flips_where_the_normalised_scores_cross() -> None:
    """3.8/5^α = 4.4/7^α where α = ln(4.4/3.8) / ln(7/5) = 0.4357."""
    crossing = math.log(4.4 / 3.8) / math.log(7 / 5)
    for alpha, winner in ((crossing - 0.01, "he hit a pie"), (crossing + 0.01, "he hit me with a pie")):
        model, found = run(PIE, Beam(size=2, length_penalty=alpha), longest=10)
        assert model.sentence(found[0].tokens) == winner


def test_a_beam_of_one_takes_the_likeliest_word_at_each_step() -> None:
    """he, hit, me, with, a, pie, END: in this tree the greedy way happens to be the best one."""
    model, found = run(PIE, Beam(size=1), longest=10)
    assert told(model, found) == [("he hit me with a pie", -4.4 / 7)]


def test_a_wider_beam_finds_what_a_greedy_first_word_loses() -> None:
    """b is likelier than a, but a c is likelier than anything that begins with b."""
    tree = {"b": -0.6, "a": -0.9, "b </s>": -2.6, "a </s>": -4.0, "a c": -1.0, "a c </s>": -1.1, "b c": -1.6}
    model, greedy = run(tree, Beam(size=1, length_penalty=0.0), longest=2)
    assert model.sentence(greedy[0].tokens) == "b c"
    assert not greedy[0].finished
    model, wide = run(tree, Beam(size=2, length_penalty=0.0), longest=3)
    assert told(model, wide) == [("a c", -1.1)]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_exhaustive_search_scores_every_sentence(alpha: float) -> None:
    """Three words, up to two of them: END can only follow where the table says so."""
    tree = {"a": -1.0, "b": -1.2, "a </s>": -1.5, "b </s>": -1.3, "a b": -2.0, "a b </s>": -2.1, "</s>": -2.5}
    model = TableModel(tree)
    model.vocab_size = len(model.words)  # no fillers to go through
    source = torch.zeros(1, 1, dtype=torch.long)
    found = exhaustive_search(cast(Any, model), source, model.symbols, max_length=3, alpha=alpha, n_best=4)
    by_hand = {"a": -1.5 / 2**alpha, "b": -1.3 / 2**alpha, "a b": -2.1 / 3**alpha, "": -2.5}
    order = sorted(by_hand, key=lambda sentence: -by_hand[sentence])
    assert [model.sentence(h.tokens) for h in found] == order
    assert [h.normalized_score for h in found] == pytest.approx([by_hand[sentence] for sentence in order], abs=1e-5)


# ---- when to stop


def test_stopping_at_the_first_complete_hypothesis_can_miss_a_better_one() -> None:
    model, early = run(PIE, Beam(size=2, early_stopping=True, num_finished=1), longest=10)
    assert told(model, early) == [("he hit a pie", -3.8 / 5)]
    assert len(model.steps) == 5  # END came with the fifth token
    model, late = run(PIE, Beam(size=2, early_stopping="steps"), longest=10)
    assert told(model, late) == [("he hit me with a pie", -4.4 / 7)]
    assert len(model.steps) == 10  # to the length limit


def test_it_stops_when_as_many_have_finished_as_the_beam_is_wide() -> None:
    model, _ = run(PIE, Beam(size=2, early_stopping=True), longest=10)
    assert len(model.steps) == 7
    model, found = run(PIE, Beam(size=2, early_stopping=True, num_finished=3, n_best=2), longest=10)
    assert len(model.steps) == 7  # three are complete by then
    assert told(model, found)[0] == ("he hit me with a pie", -4.4 / 7)


def test_an_end_that_is_not_among_the_best_k_completes_nothing() -> None:
    """END after a is the third best of all continuations: with a beam of two it is passed over."""
    tree = {"a": -0.1, "a </s>": -3.0, "a b": -0.6, "a c": -1.2, "a b </s>": -0.7, "a c </s>": -1.3}
    model, found = run(tree, Beam(size=2, n_best=2), longest=4)
    assert told(model, found) == [("a b", -0.7 / 3), ("a c", -1.3 / 3)]
    model, found = run(tree, Beam(size=3, n_best=3), longest=4)  # wider, it is seen
    assert ("a", -1.5) in told(model, found)


# ---- the length limit


def test_what_the_limit_cuts_off_is_given_back_unfinished() -> None:
    model, found = run(PIE, Beam(size=2, n_best=2), longest=3)
    assert told(model, found) == [("he hit me", -2.5 / 3), ("he hit a", -2.8 / 3)]
    assert not any(h.finished for h in found)


def test_what_is_complete_comes_before_what_was_cut_off() -> None:
    model, found = run(PIE, Beam(size=2, n_best=2), longest=5)
    assert told(model, found) == [("he hit a pie", -3.8 / 5), ("he hit me with a", -3.7 / 5)]
    assert [h.finished for h in found] == [True, False]


def test_every_source_has_its_own_limit() -> None:
    model = TableModel(PIE)
    source, lengths = torch.zeros(3, 1, dtype=torch.long), torch.tensor([1, 1, 1])
    found = beam_search(cast(Any, model), source, lengths, model.symbols, torch.tensor([3, 10, 5]), Beam(size=2))
    assert [model.sentence(one[0].tokens) for one in found] == ["he hit me", "he hit me with a pie", "he hit a pie"]


@pytest.mark.parametrize(
    ("length", "source", "room", "expected"),
    [
        (LengthLimit(), [1, 10, 400], None, [22, 40, 512]),
        (LengthLimit(ratio=1.5, offset=0), [1, 3, 4], None, [1, 4, 6]),
        (LengthLimit(ratio=0, offset=0), [7], None, [1]),
        (LengthLimit(max=30), [1, 10], None, [22, 30]),
        (LengthLimit(), [1, 10], [25, 25], [22, 25]),
        (LengthLimit(), [1, 10], [25, 0], [22, 1]),
    ],
)
def test_how_long_a_target_may_get(
    length: LengthLimit, source: list[int], room: list[int] | None, expected: list[int]
) -> None:
    model: Any = SimpleNamespace(max_target_length=lambda lengths: None if room is None else torch.tensor(room))
    assert length.max_lengths(torch.tensor(source), [model]).tolist() == expected


# ---- n best


@pytest.mark.parametrize("early_stopping", [True, False, "never", "steps"])
def test_the_n_best_are_distinct_and_in_order(early_stopping: Any) -> None:
    torch.manual_seed(3)
    model = (
        SYSTEMS["transformer"].spec(VocabularySizes(12, 12, joint=True), "tiny", model_dim=16, layers=1).build().eval()
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    table = TableModel(PIE)
    settings = Beam(6, n_best=6, early_stopping=early_stopping, length_limit=LengthLimit(ratio=0, offset=7))
    source, lengths = torch.randint(4, 12, (4, 5)), torch.tensor([5, 4, 3, 5])
    for hypotheses in search(model, source, lengths, table.symbols, settings, torch.arange(4)):
        assert len(hypotheses) == 6
        assert len({(tuple(h.tokens), h.finished) for h in hypotheses}) == 6
        finished = [h.normalized_score for h in hypotheses if h.finished]
        assert finished == sorted(finished, reverse=True)
        assert not any(table.symbols.eos in h.tokens or table.symbols.bos in h.tokens for h in hypotheses)


# ---- settings that contradict themselves


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "Beam.size must be at least 1, but is 0"),
        (
            {"size": 2, "n_best": 3},
            "a beam of 2 hypotheses cannot return the 3 best hypotheses: "
            "raise the beam size to 3, or lower n_best to 2",
        ),
        ({"size": 2, "n_best": 0}, "Beam.n_best must be at least 1, but is 0"),
        (
            {"size": 4, "n_best": 3, "early_stopping": True, "num_finished": 2},
            "Beam.num_finished is 2, fewer than the 3 hypotheses to return: raise it",
        ),
        (
            {"size": 4, "early_stopping": False, "num_finished": 0},
            "Beam.num_finished is 0, fewer than the 1 hypotheses to return: raise it",
        ),
        (
            {"size": 4, "early_stopping": "soon"},
            "Beam.early_stopping must be True, False, 'never' or 'steps', but is 'soon'",
        ),
        ({"size": 4, "early_stopping": 1}, "Beam.early_stopping must be True, False, 'never' or 'steps', but is 1"),
        (
            {"size": 4, "num_finished": 2},
            "Beam.early_stopping must be True or False to stop at 2 finished hypotheses, but is 'never'",
        ),
        (
            {"size": 4, "num_groups": 3},
            "Beam.num_groups is 3, which does not divide a beam of 4: use a divisor of its size",
        ),
        ({"diversity_penalty": -1.0}, "Beam.diversity_penalty must be between 0 and 100, but is -1.0"),
        ({"no_repeat_ngram_size": -2}, "Beam.no_repeat_ngram_size must be at least 0, but is -2"),
        (
            {"size": 4, "num_groups": 2, "coverage_penalty": 0.2},
            "Beam.coverage_penalty is not used by diverse beam search: set it to 0, or num_groups to 1",
        ),
    ],
)
def test_a_beam_that_contradicts_itself_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        Beam(**settings)
    assert str(error.value) == message


@pytest.mark.parametrize("settings", [{"ratio": -1.0}, {"offset": -1}, {"max": 0}])
def test_a_length_limit_below_nothing_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"LengthLimit\.(ratio|offset|max) must be"):
        LengthLimit(**settings)


@pytest.mark.parametrize(("least", "said"), [(-1, "min must be at least 0"), (9, "more than the maximum of 8 tokens")])
def test_a_least_length_beyond_the_most_is_refused(least: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        LengthLimit(max=8, min=least)


def test_a_beam_wider_than_the_vocabulary_is_refused() -> None:
    model: EncoderDecoderModel = (
        SYSTEMS["transformer"].spec(VocabularySizes(9, 9, joint=True), "tiny", model_dim=8).build().eval()
    )
    symbols = TableModel(PIE).symbols  # START is banned, END is no word: seven are left of nine
    source, lengths = torch.ones(1, 2, dtype=torch.long), torch.tensor([2])
    assert search(model, source, lengths, symbols, Beam(7), torch.tensor([0]))
    with pytest.raises(UserError, match="a beam of 8 hypotheses is larger than the vocabulary of 7 tokens"):
        search(model, source, lengths, symbols, Beam(8), torch.tensor([0]))
