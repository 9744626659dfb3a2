"""Equal scores: the lower hypothesis first, then the lower token, in every shape."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from table_model import RandomTable

from dragoman.search import Beam
from dragoman.search.beam import BeamSearch
from dragoman.search.engine import SearchEngine
from dragoman.search.topk import CHUNK, MIN_CHUNKED_SIZE, first_true, topk, topk_continuations

#: few and many continuations of a source, with and without a rest behind the chunks
SHAPES = [(1, 40), (3, 700), (2, 64 * CHUNK), (5, 8000), (4, MIN_CHUNKED_SIZE + 13)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("levels", [1, 3, 50])
def test_continuations_with_equal_scores_come_in_order(shape: tuple[int, int], levels: int) -> None:
    """Scores that are whole numbers, of which most are equal, in batches of any size."""
    chance = torch.Generator().manual_seed(levels)
    logits = -torch.randint(0, levels, (9, *shape), generator=chance).float()
    scores = -torch.randint(0, 2, (9, shape[0]), generator=chance).float()
    norm, count = torch.zeros(9, shape[0]), 2 * shape[0]
    expected = (scores[..., None] + logits).flatten(1).sort(dim=-1, descending=True, stable=True)
    for rows in (slice(0, 1), slice(1, 3), slice(0, 9)):
        best, row, token = topk_continuations(scores[rows], logits[rows], norm[rows], count)
        assert torch.equal(best, expected.values[rows, :count])
        assert torch.equal(row * shape[1] + token, expected.indices[rows, :count])


def test_ties_at_the_edge_of_what_is_returned() -> None:
    """One value above all, two that are equal where only one has room: in two chunks, and in two rows."""
    logits = torch.full((2, 3, MIN_CHUNKED_SIZE), -9.0)
    logits[:, 1, 500], logits[:, 1, 300], logits[:, 2, 7], logits[:, 0, MIN_CHUNKED_SIZE - 1] = -1.0, -2.0, -2.0, -2.0
    _, row, token = topk_continuations(torch.zeros(2, 3), logits, torch.zeros(2, 3), 3)
    assert (row.tolist(), token.tolist()) == ([[1, 0, 1]] * 2, [[500, MIN_CHUNKED_SIZE - 1, 300]] * 2)


def test_top_and_first_take_the_lower_index() -> None:
    values = torch.tensor([[1.0, 3.0, -torch.inf, 3.0, 1.0, 3.0]])
    assert topk(values, 4)[1].tolist() == [[1, 3, 5, 0]]
    assert first_true(torch.tensor([[False, True, False, True, True]]), 2).tolist() == [[1, 3]]


@pytest.mark.parametrize("batch", [1, 2, 7, 33])
@pytest.mark.parametrize("vocabulary", [9, 2500])
def test_equally_likely_targets_are_found_in_order_in_every_batch(batch: int, vocabulary: int) -> None:
    """All tokens are equally likely: END comes first, and the hypotheses that follow are those of the lowest tokens."""
    model = RandomTable(0, vocabulary, lambda chance, size: torch.zeros(size))
    engine = SearchEngine([cast(Any, model)], model.symbols, BeamSearch(Beam(3, 0.0, n_best=3), model.symbols.eos))
    ones = torch.ones(batch, dtype=torch.long)
    for found in engine.search(torch.arange(batch)[:, None], ones, 4 * ones, torch.arange(batch)):
        # step 1: END, 2 and 3 are first; of 2, 3, 4 the first continuations are 2 END, 2 2, 2 3 …
        assert [h.tokens for h in found] == [[], [2], [2, 2]]
