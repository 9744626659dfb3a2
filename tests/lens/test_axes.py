from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.lens.axes import downsample, format_number, linear_ticks, log_ticks, tick_label

finite = st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-9)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 0.3, [0, 0.1, 0.2, 0.3]),
        (37, 43, [36, 38, 40, 42, 44]),
        (90, 400, [0, 100, 200, 300, 400]),  # zero is near
        (5, 5, [0, 1, 2, 3, 4, 5]),
        (5, 5 + 1e-13, [0, 1, 2, 3, 4, 5]),  # as good as equal
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, -3, [-3, -2, -1, 0]),
    ],
)
def test_ticks_are_round_numbers_around_the_range(low: float, high: float, expected: list[float]) -> None:
    assert linear_ticks(low, high) == expected


@given(finite, finite)
def test_ticks_are_few_even_and_cover_the_range(one: float, other: float) -> None:
    low, high = sorted((one, other))
    found = linear_ticks(low, high)
    room = 1e-6 * (found[-1] - found[0])
    assert 2 <= len(found) <= 6
    assert found[0] <= low + room
    assert high - room <= found[-1]
    steps = [b - a for a, b in pairwise(found)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(3, 700, [2, 5, 10, 20, 50, 100, 200, 500, 1000]), (1, 1e5, [1, 10, 100, 1e3, 1e4, 1e5]), (10, 10, [10, 20])],
)
def test_logarithmic_ticks_are_powers_of_ten_and_their_multiples(
    low: float, high: float, expected: list[float]
) -> None:
    assert log_ticks(low, high) == pytest.approx(expected)


@given(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12))
def test_logarithmic_ticks_cover_the_range(one: float, other: float) -> None:
    low, high = sorted((one, other))
    found = log_ticks(low, high)
    assert found[0] <= low <= high <= found[-1]
    assert 2 <= len(found) <= 14


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12345, "12,345"),
        (27.3149, "27.31"),
        (0.000125, "0.000125"),
        (3.2e-6, "3.2·10⁻⁶"),
        (-1.5, "-1.5"),
        (123456.7, "123,457"),
        (math.inf, "–"),
    ],
)
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_large_ticks_are_short() -> None:
    assert [tick_label(value) for value in (0, 20_000, 150_000, 2_500_000, 3e9)] == [
        "0",
        "20,000",
        "150k",
        "2.5M",
        "3G",
    ]


def test_downsampling_preserves_the_mean_and_short_curves() -> None:
    points = [(float(i), float(i % 2)) for i in range(10_000)]
    thinned = downsample(points, 100)
    assert len(thinned) == 100
    assert all(y == 0.5 for _, y in thinned)
    assert downsample(points[:100], 100) == points[:100]
    assert downsample([]) == []
