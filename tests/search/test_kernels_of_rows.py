"""The kernels for rows as long as a vocabulary find what torch finds."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [7, 100, 1024, 1500, 32_000, 50_257])
def test_the_largest_of_a_row(width: int, dtype: torch.dtype) -> None:
    from dragoman.search import kernels

    logits = (3 * torch.randn(5, width, device="cuda", generator=torch.Generator("cuda").manual_seed(width))).to(dtype)
    logits[:, 3] = -torch.inf
    torch.testing.assert_close(kernels.log_sum(logits), logits.float().logsumexp(-1), atol=1e-4, rtol=1e-5)
    for count in (1, 3, 5):
        values, places = kernels.top(logits, count)
        assert torch.equal(values, logits.float().topk(count).values)
        assert torch.equal(logits.gather(1, places).float(), values)
        assert all(len(set(row)) == count for row in places.tolist())


@pytest.mark.parametrize("width", [6, 3000])
def test_what_is_found_are_different_places_where_little_is_left(width: int) -> None:
    from dragoman.search import kernels

    logits = torch.full((2, width), -torch.inf, device="cuda")
    logits[:, 2] = 1.0
    values, places = kernels.top(logits, 4)
    assert values.tolist() == [[1.0, -torch.inf, -torch.inf, -torch.inf]] * 2
    assert all(row[0] == 2 and len(set(row)) == 4 and max(row) < width for row in places.tolist())


def test_a_row_without_hope() -> None:
    from dragoman.search import kernels

    logits = torch.full((2, 9000), -torch.inf, device="cuda")
    assert kernels.log_sum(logits).tolist() == [-torch.inf] * 2
