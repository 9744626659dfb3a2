"""A table of log-probabilities is searched like a model; expected numbers are those of the table."""

from __future__ import annotations

import doctest
import math

import pytest
from test_beam import PIE

import dragoman
from dragoman.errors import UserError
from dragoman.lens.beam_recorder import table_search_tree
from dragoman.lens.figures import beam_tree_figure
from dragoman.search import Beam, ExactSearch, LengthLimit, ProbabilityTable, SearchConfig, probability_table


@pytest.mark.parametrize(
    ("search", "text", "score"),
    [
        (Beam(1), "he hit me with a pie", -4.4 / 7),
        (Beam(2), "he hit me with a pie", -4.4 / 7),
        (Beam(2, length_penalty=0.0), "he hit a pie", -3.8),
        (Beam(2, early_stopping=True, num_finished=1), "he hit a pie", -3.8 / 5),
        (ExactSearch(), "he hit a pie", -3.8),
        (ExactSearch(length_penalty=1.0, length_limit=LengthLimit(max=8)), "he hit me with a pie", -4.4 / 7),
    ],
)
def test_searches_of_the_textbook_tree(search: SearchConfig, text: str, score: float) -> None:
    table = ProbabilityTable(PIE)
    best = table.search(search)[0]
    assert (table.text(best), best.normalized_score) == (text, pytest.approx(score, abs=1e-5))


def test_tree_has_only_words_of_the_table() -> None:
    tree = table_search_tree(ProbabilityTable(PIE), Beam(2, n_best=2))
    hypotheses = {" ".join(node.token for node in tree.path(node)): node for node in tree.nodes[1:]}
    assert hypotheses.keys() <= PIE.keys()
    assert [node.index for node in tree.nodes] == list(range(len(tree.nodes)))
    assert {text: node.score for text, node in hypotheses.items()} == pytest.approx(
        {text: PIE[text] for text in hypotheses}, abs=1e-5
    )
    assert {text for text, node in hypotheses.items() if node.status == "finished"} == {
        "he hit a pie </s>",
        "he hit me with a pie </s>",
        "he hit me with a tart </s>",
    }
    figure = beam_tree_figure(tree)
    assert "…" not in figure
    assert figure._repr_svg_() == figure  # type: ignore[attr-defined]
    assert len(repr(figure)) < 80


def test_probabilities_above_one_are_refused() -> None:
    with pytest.raises(UserError, match=r"the words after 'a' have a total probability of 1\.500"):
        ProbabilityTable({"a": 0.0, "a b": 0.0, "a c": math.log(0.5)})


def test_example_in_the_docstring() -> None:
    assert doctest.testmod(probability_table, extraglobs={"dragoman": dragoman}) == (0, 3)
