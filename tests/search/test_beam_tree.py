"""The beam as a tree, on a table that can be followed by hand."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from table_model import TableModel

from dragoman.lens.beam_recorder import RecordingStrategy, assign_ranks
from dragoman.lens.figures import beam_tree_figure
from dragoman.lens.inspection_types import BeamNode, BeamTree
from dragoman.lens.text_view import beam_tree_lines
from dragoman.search import Beam
from dragoman.search.beam import BeamSearch
from dragoman.search.engine import SearchEngine

#: log p of every hypothesis: with a beam of 2 “a c” is set aside at the third step, “b c e” at the fourth
TABLE = {
    "a": -0.7,
    "b": -0.9,
    "a c": -1.5,
    "a d": -4.0,
    "b c": -1.7,
    "b d": -1.9,
    "a c </s>": -1.6,
    "a c e": -4.0,
    "b c </s>": -4.5,
    "b c e": -1.8,
    "b c e </s>": -1.9,
    "a c e </s>": -4.1,
}


@pytest.fixture
def tree() -> tuple[TableModel, BeamTree]:
    model, settings = TableModel(TABLE), Beam(2, n_best=2)
    watching = RecordingStrategy(BeamSearch(settings, model.symbols.eos), model.symbols.eos, settings)
    engine = SearchEngine([cast(Any, model)], model.symbols, watching)
    source, one = torch.zeros(1, 1, dtype=torch.long), torch.tensor([1])
    found = engine.search(source, one, torch.tensor([8]), torch.tensor([0]))[0]
    assert [model.sentence(h.tokens) for h in found] == ["b c e", "a c"]
    nodes = [
        BeamNode(**{**vars(node), "token": model.sentence([node.token_id]) if node.parent is not None else ""})
        for node in assign_ranks(watching.nodes, found)
    ]
    return model, BeamTree("beam", tuple(nodes))


def told(tree: BeamTree, fate: str) -> dict[str, tuple[float, float]]:
    """The words of every hypothesis of a fate, and its scores; fillers are of no interest."""
    found = {
        " ".join(node.token for node in tree.path(node)): (node.score, node.normalized_score)
        for node in tree.nodes[1:]
        if node.status == fate
    }
    return {words: pytest.approx(scores, abs=1e-5) for words, scores in found.items() if "…" not in words}


def test_what_is_kept_pruned_and_finished(tree: tuple[TableModel, BeamTree]) -> None:
    _, grown = tree
    assert told(grown, "kept") == {
        "a": (-0.7, -0.7),
        "b": (-0.9, -0.9),
        "a c": (-1.5, -0.75),
        "b c": (-1.7, -0.85),
        "b c e": (-1.8, -0.6),
        "a c e": (-4.0, -4.0 / 3),
    }
    assert told(grown, "finished") == {"a c </s>": (-1.6, -1.6 / 3), "b c e </s>": (-1.9, -1.9 / 4)}
    assert told(grown, "pruned").items() >= {"b d": (-1.9, -0.95), "a d": (-4.0, -2.0)}.items()
    assert told(grown, "truncated") == {}


def test_the_best_leaf_is_by_the_normalised_score(tree: tuple[TableModel, BeamTree]) -> None:
    """−1.9/4 > −1.6/3, though −1.9 < −1.6."""
    _, grown = tree
    assert [node.token for node in grown.path(grown.best)] == ["b", "c", "e", "</s>"]
    assert {node.rank: node.score for node in grown.nodes if node.rank} == pytest.approx({1: -1.9, 2: -1.6})


def test_the_tree_as_text(tree: tuple[TableModel, BeamTree]) -> None:
    lines = beam_tree_lines(tree[1])
    assert any(line.startswith("├ a c") for line in lines)
    assert sum("★ finished" in line for line in lines) == 1
    assert next(line for line in lines if "★" in line and "→" in line).endswith("-1.900 → -0.475  ★ finished")
    assert len(beam_tree_lines(tree[1], pruned=True)) > len(lines)


def test_the_tree_as_a_picture(tree: tuple[TableModel, BeamTree]) -> None:
    drawn = beam_tree_figure(tree[1])
    assert drawn.count('class="best"') == 2 * 4, "an edge and a frame for every word of the best hypothesis"
    assert "-1.90 → -0.47" in drawn or "-1.90 → -0.48" in drawn
