"""The largest logits and the logarithm of their sum are what torch says that they are."""

from __future__ import annotations

import pytest
import torch

from dragoman.search.topk import CHUNK, MIN_CHUNKED_SIZE, argmax_with_score, log_sum_exp, topk, topk_continuations

SHAPES = [
    (3, 5),
    (1, 1, 40),
    (7, 1, 1000),
    (4, 5, 8000),
    (33, 2 * MIN_CHUNKED_SIZE // 33 + 1),
    (2, 3, 32001),
    (40, 40, 700),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@every_shape
@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_top_is_topk(shape: tuple[int, ...], count: int) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)  # no two are equal
    count = min(count, shape[-1])
    values, index = topk(logits, count)
    expected = logits.topk(count, dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(index, expected.indices)


@pytest.mark.parametrize("place", [0, 1, CHUNK - 1, CHUNK, 40 * CHUNK, 40 * CHUNK + 2])
def test_what_stands_at_the_borders_of_chunks_is_found(place: int) -> None:
    logits = torch.zeros(MIN_CHUNKED_SIZE // (40 * CHUNK) + 1, 40 * CHUNK + 3)
    logits[:, place] = 1.0
    for found in (topk(logits, 3), [one[:, None] for one in argmax_with_score(logits)]):
        assert found[0][:, 0].eq(1.0).all()
        assert found[1][:, 0].eq(place).all()


@pytest.mark.parametrize("shape", [(1, 5, 9), (2, 1, 70), (4, 5, 8000), (3, 2, 32001), (40, 4, 700)], ids=str)
@pytest.mark.parametrize("count", [1, 4, 10])
def test_continuations_are_the_topk_of_all_rows(shape: tuple[int, int, int], count: int) -> None:
    chance = torch.Generator().manual_seed(5)
    logits = torch.randn(shape, generator=chance, dtype=torch.float64)  # no two are equal
    scores = torch.randn(shape[:2], generator=chance, dtype=torch.float64)
    norm = logits.logsumexp(-1)
    expected = (scores[..., None] + (logits - norm[..., None])).flatten(1).topk(count)
    best, row, place = topk_continuations(scores, logits, norm, count)
    assert torch.equal(best, expected.values)
    assert torch.equal(row * shape[2] + place, expected.indices)


def test_continuations_of_rows_that_are_over_are_last() -> None:
    logits = torch.zeros(4, 3, 9000)
    logits[:, 1, 8999], logits[:, 0] = 1.0, 9.0
    scores = torch.tensor([-torch.inf, -1.0, -2.0]).expand(4, -1)
    best, row, place = topk_continuations(scores, logits, torch.full((4, 3), 9.0), 3)
    assert best.tolist() == [[-9.0, -10.0, -10.0]] * 4
    assert row.tolist() == [[1, 1, 1]] * 4
    assert place[:, 0].tolist() == [8999] * 4


@every_shape
def test_the_first_of_the_largest_is_taken(shape: tuple[int, ...]) -> None:
    logits = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(2)).float()  # most are equal
    values, index = argmax_with_score(logits)
    assert torch.equal(values, logits.amax(-1))
    assert torch.equal(index, logits.argmax(-1))


def test_forbidden_words_are_last() -> None:
    logits = torch.full((9, 10_000), -torch.inf)
    logits[:, 7777], logits[:, 3] = 1.0, 2.0
    values, index = topk(logits, 4)
    assert values.tolist() == [[2.0, 1.0, -torch.inf, -torch.inf]] * 9
    assert index[:, :2].tolist() == [[3, 7777]] * 9
    assert all(len(set(row)) == 4 for row in index.tolist())


@every_shape
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_log_sum_is_logsumexp(shape: tuple[int, ...], scale: float) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * scale
    torch.testing.assert_close(log_sum_exp(logits), logits.logsumexp(-1), rtol=1e-6, atol=1e-6)


def test_log_sum_of_infinite_logits() -> None:
    logits = torch.zeros(4, 100_000)
    logits[0], logits[1, 1:], logits[2, 5] = -torch.inf, -torch.inf, torch.inf
    expected = torch.tensor([-torch.inf, 0.0, torch.inf, 11.512925])  # log 100,000
    torch.testing.assert_close(log_sum_exp(logits), expected)


def test_one_graph() -> None:
    logits = torch.randn(8, 9000, generator=torch.Generator().manual_seed(4))
    for function in (lambda x: topk(x, 6), argmax_with_score, log_sum_exp):
        assert torch._dynamo.explain(function)(logits).graph_break_count == 0
