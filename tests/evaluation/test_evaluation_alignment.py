"""The alignment error rate by hand, and alignments as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.evaluation import Link, alignment_error_rate, parse_pharaoh, parse_sure_and_possible

links = st.frozensets(st.tuples(st.integers(0, 30), st.integers(0, 30)))


def test_alignment_error_rate_by_hand() -> None:
    predicted = [{(0, 0), (1, 1), (2, 2), (3, 2)}]
    sure = [{(0, 0), (1, 1)}]
    possible = [{(0, 0), (1, 1), (2, 2), (2, 3)}]
    score = alignment_error_rate(predicted, sure, possible)
    # A ∩ S has 2 links, A ∩ P 3, A 4, S 2.
    assert score.value == pytest.approx(1 - (2 + 3) / (4 + 2))
    assert score.detail["precision"] == pytest.approx(3 / 4)
    assert score.detail["recall"] == pytest.approx(2 / 2)
    assert str(score) == "AER 0.1667"


def test_sure_links_need_not_be_repeated_among_the_possible() -> None:
    predicted, sure = [{(0, 0), (1, 1), (2, 2)}], [{(0, 0), (1, 1)}]
    assert alignment_error_rate(predicted, sure, [{(2, 2)}]) == alignment_error_rate(predicted, sure, predicted)


def test_links_are_summed_over_the_corpus() -> None:
    predicted, sure = [{(0, 0)}, {(0, 1), (1, 0), (2, 2)}], [{(0, 0)}, {(0, 0), (2, 2)}]
    assert alignment_error_rate(predicted, sure).value == pytest.approx(1 - 2 * 2 / (4 + 3))


@given(links.filter(bool), links)
def test_without_possible_links_it_is_one_minus_the_f_score(sure: frozenset[Link], predicted: frozenset[Link]) -> None:
    score = alignment_error_rate([predicted], [sure])
    precision, recall = score.detail["precision"], score.detail["recall"]
    f_score = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert score.value == pytest.approx(1 - f_score)
    assert (score.value == 0) == (predicted == sure)


@given(links.filter(bool), links)
def test_any_choice_between_sure_and_possible_is_without_error(sure: frozenset[Link], more: frozenset[Link]) -> None:
    assert alignment_error_rate([sure | more], [sure], [more]).value == pytest.approx(0)


def test_alignments_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(UserError, match="2 predicted alignments but 1 gold"):
        alignment_error_rate([set(), set()], [{(0, 0)}])
    with pytest.raises(UserError, match="1 predicted alignments but 0 possible"):
        alignment_error_rate([set()], [{(0, 0)}], [])
    with pytest.raises(UserError, match=r"neither .* link any words"):
        alignment_error_rate([set()], [set()])


def test_pharaoh_lines_are_read() -> None:
    assert parse_pharaoh("0-0 1-2  2-1\n") == {(0, 0), (1, 2), (2, 1)}
    assert parse_pharaoh("") == frozenset()
    assert parse_pharaoh("0-0 1?2 2p1") == {(0, 0), (1, 2), (2, 1)}
    assert parse_sure_and_possible("0-0 1?2 2p1") == ({(0, 0)}, {(0, 0), (1, 2), (2, 1)})


@pytest.mark.parametrize("item", ["0", "0-", "-1-2", "0:1", "a-b", "0-1-2", "1.0-2", "٣-٤"])
def test_invalid_link_is_named(item: str) -> None:
    with pytest.raises(UserError) as error:
        parse_pharaoh(f"0-0 {item}", "gold.align, line 3")
    assert str(error.value).startswith(f"gold.align, line 3: '{item}' is not an alignment link")
