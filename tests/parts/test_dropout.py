"""Dropout on the CPU: how much is dropped, what is kept, gradients, and where its random numbers come from."""

from __future__ import annotations

import pytest
import torch

from dragoman.parts.dropout import Dropout, dropout


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_expected_share_is_dropped_and_the_rest_scaled(share: float) -> None:
    """Of n numbers n·p ± 5 √(n p (1 − p)) are dropped, and the others are 1 / (1 − p)."""
    torch.manual_seed(1)
    count = 1_000_003  # no multiple of four
    y = dropout(torch.ones(count), share, training=True)
    dropped = int((y == 0).sum())
    assert abs(dropped - share * count) < 5 * (count * share * (1 - share)) ** 0.5
    torch.testing.assert_close(y[y != 0], torch.full((count - dropped,), 1 / (1 - share)), rtol=1e-4, atol=0)


def test_neighbours_are_dropped_independently() -> None:
    """Four numbers share a draw: all pairs within it are dropped together with probability p²."""
    torch.manual_seed(2)
    rows = dropout(torch.ones(250_000, 4), 0.5, training=True) == 0
    for one in range(4):
        for other in range(one):
            together = int((rows[:, one] & rows[:, other]).sum())
            assert abs(together - 62_500) < 5 * (250_000 * 0.25 * 0.75) ** 0.5


def test_gradients_are_masked_like_the_outputs() -> None:
    x = torch.randn(7, 5, requires_grad=True)
    y = dropout(x, 0.4, training=True)
    y.sum().backward()
    torch.testing.assert_close(y, x * x.grad)
    assert set((y == 0).flatten().tolist()) == {True, False}


def test_dropout_is_determined_by_the_seed() -> None:
    part, x = Dropout(0.3), torch.randn(3, 9)
    made = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        made.append(part(x))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_no_random_numbers_in_evaluation_or_with_probability_zero() -> None:
    x, part = torch.randn(4), Dropout(0.5).eval()
    before = torch.get_rng_state()
    assert part(x) is x
    assert torch.equal(dropout(x, 0.0, training=True), x)
    assert torch.equal(torch.get_rng_state(), before)


def test_dtype_and_shape_are_preserved() -> None:
    x = torch.ones(2, 3, 5, dtype=torch.bfloat16).transpose(0, 2)
    y = dropout(x, 0.5, training=True)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_probability_close_to_one() -> None:
    assert dropout(torch.ones(1000), 0.9999999, training=True).count_nonzero() < 10


def test_dropout_compiles_into_one_graph() -> None:
    torch.manual_seed(1)
    y = torch.compile(Dropout(0.5), fullgraph=True, backend="eager")(torch.ones(1000))
    assert set(y.tolist()) == {0.0, 2.0}
