"""The kernels for rows as long as a vocabulary find what torch finds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dragoman.search import SpecialTokens
from dragoman.search.search_state import StrategyState, map_tensors
from search.states import initial_state

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [7, 100, 1024, 1500, 32_000, 50_257])
def test_the_largest_of_a_row(width: int, dtype: torch.dtype) -> None:
    from dragoman.search import kernels

    logits = (3 * torch.randn(5, width, device="cuda", generator=torch.Generator("cuda").manual_seed(width))).to(dtype)
    logits[:, 3] = -torch.inf
    torch.testing.assert_close(kernels.log_sum_exp(logits), logits.float().logsumexp(-1), atol=1e-4, rtol=1e-5)
    for count in (1, 3, 5):
        values, places = kernels.topk(logits, count)
        assert torch.equal(values, logits.float().topk(count).values)
        assert torch.equal(logits.gather(1, places).float(), values)
        assert all(len(set(row)) == count for row in places.tolist())


@pytest.mark.parametrize("width", [6, 3000])
def test_what_is_found_are_different_places_where_little_is_left(width: int) -> None:
    from dragoman.search import kernels

    logits = torch.full((2, width), -torch.inf, device="cuda")
    logits[:, 2] = 1.0
    values, places = kernels.topk(logits, 4)
    assert values.tolist() == [[1.0, -torch.inf, -torch.inf, -torch.inf]] * 2
    assert all(row[0] == 2 and len(set(row)) == 4 and max(row) < width for row in places.tolist())


def test_a_row_without_hope() -> None:
    from dragoman.search import kernels

    logits = torch.full((2, 9000), -torch.inf, device="cuda")
    assert kernels.log_sum_exp(logits).tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("width", [7, 3000, 40_000])
@pytest.mark.parametrize("least", [0, 4])
def test_a_step_of_greedy_search_at_once(width: int, least: int) -> None:
    from dragoman.search import kernels

    end, banned, longest = 1, torch.tensor([0, 3], device="cuda"), 6
    logits = 3 * torch.randn(5, width, device="cuda", generator=torch.Generator("cuda").manual_seed(width))
    logits[0, 0], logits[1, end], logits[2, end] = 60.0, 50.0, 70.0  # banned, early, and at the limit
    step, limit = torch.tensor([0, 1, 2, 5, 3], device="cuda"), torch.tensor([6, 6, 3, 6, 6], device="cuda")
    ended = torch.tensor([False, False, False, False, True], device="cuda")
    state = initial_state(5, 1, longest)
    state = replace(
        map_tensors(Tensor.cuda, state),
        step=step.clone(),
        max_length=limit,
        scores=torch.zeros(5, 1, device="cuda"),
        output_tokens=torch.full((5, 1, longest), -1, device="cuda"),
        strategy=StrategyState(ended_rows=ended[:, None].clone()),
    )
    kernels.greedy_step(logits, banned, SpecialTokens(2, end, min_length=least), state)
    allowed = logits.index_fill(1, banned, -torch.inf)
    allowed[step < (limit - 1).clamp(max=least), end] = -torch.inf
    best, token = allowed.max(-1)
    assert state.tokens[:, 0].tolist() == token.tolist()
    torch.testing.assert_close(state.scores[:, 0], (best - logits.logsumexp(-1)).masked_fill(ended, 0.0))
    over = (ended | (token == end) | (step + 1 >= limit)).tolist()
    assert state.strategy.ended_rows[:, 0].tolist() == over
    assert state.done.tolist() == over
    assert state.step.tolist() == (step + 1).tolist()
    expected = torch.full((5, longest), -1, device="cuda").scatter(1, step[:, None], token[:, None])
    assert state.output_tokens[:4, 0].tolist() == expected[:4].tolist()
    assert (state.output_tokens[4] == -1).all()


@pytest.mark.parametrize("width", [100, 1500, 32_000])
def test_of_equal_values_the_lower_index_comes_first(width: int) -> None:
    from dragoman.search import kernels

    chance = torch.Generator("cuda").manual_seed(width)
    logits = torch.randint(0, 9, (5, width), device="cuda", generator=chance).float()
    logits[0] = 0.0
    logits[1, width - 1], logits[1, width // 2] = 20.0, 20.0
    for count in (1, 4, 10):
        expected = logits.sort(dim=-1, descending=True, stable=True)
        values, places = kernels.topk(logits, count)
        assert torch.equal(values, expected.values[:, :count])
        assert torch.equal(places, expected.indices[:, :count])
