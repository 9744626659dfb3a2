"""The sum and the largest of many logits are torch's own."""

from __future__ import annotations

import pytest
import torch

from dragoman.parts.largest import CACHED, largest, log_sum

SIZES = [(3, 2, 13), (1, 8000), (7, 2, 9601), (64, 5, 8000), (2, 96)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 10])
def test_the_largest_are_those_of_topk(size: tuple[int, ...], count: int) -> None:
    logits = torch.randn(size)
    values, places = logits.topk(count, dim=-1)
    found = largest(logits, count)
    assert torch.equal(found[0], values)
    assert torch.equal(found[1], places)


@pytest.mark.parametrize("place", [0, 95, 96, 9599, 9600])
def test_a_single_one_is_found_wherever_it_stands(place: int) -> None:
    logits = torch.full((3, 9601), -torch.inf)
    logits[:, place] = torch.tensor([1.0, -5.0, 0.0])
    values, places = largest(logits, 2)
    assert values.tolist() == [[1.0, -torch.inf], [-5.0, -torch.inf], [0.0, -torch.inf]]
    assert places[:, 0].tolist() == [place] * 3
    assert len(set(places[0].tolist())) == 2, "no place may come twice"


def test_equal_ones_have_places_of_their_own() -> None:
    _, places = largest(torch.zeros(2, 9601), 10)
    assert all(len(set(row)) == 10 for row in places.tolist())


@pytest.mark.parametrize("size", [*SIZES, (CACHED // 8000 + 1, 8000)], ids=str)
def test_log_sum_is_that_of_torch(size: tuple[int, ...]) -> None:
    logits = torch.randn(size)
    logits[..., 3] = -torch.inf
    torch.testing.assert_close(log_sum(logits), logits.logsumexp(-1))


def test_rows_that_do_not_lie_one_after_the_other() -> None:
    logits = torch.randn(9601, 64).T
    assert torch.equal(largest(logits, 4)[1], logits.topk(4, dim=-1)[1])
    torch.testing.assert_close(log_sum(logits), logits.logsumexp(-1))
