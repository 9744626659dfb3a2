"""Axis ticks, number formatting and downsampling for charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

Points = Sequence[tuple[float, float]]
Item = TypeVar("Item")

MAX_POINTS = 400  # points of a curve: about one for each pixel


def linear_ticks(low: float, high: float, max_steps: int = 5) -> list[float]:
    """Return the ticks of a linear axis from `low` to `high`, in at most `max_steps` steps of 1, 2 or 5 times 10ⁿ.

    The first tick is ≤ low and the last ≥ high, except for a rounding error of 1e-9 steps. The ticks include zero if
    0 < low < high / 2, or if the range is a single number.
    """
    if math.isclose(low, high, rel_tol=1e-6) or 0 < low < high / 2:
        low, high = min(0.0, low), max(0.0, high)
    if high - low < 1e-300:  # both are 0
        high = 1.0
    # of the steps that suit an axis, the smallest that needs no more than `max_steps`
    power = 10.0 ** math.floor(math.log10((high - low) / max_steps))
    for step in (factor * power for factor in (1, 2, 5, 10, 20)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= max_steps:
            break
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]  # rounded: 3 · 0.1 is 0.30000000000000004


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis that cover the range from `low` to `high`, both positive.

    The first tick is ≤ low, the last ≥ high, and there are at least two. Ticks are powers of ten, in ranges of at most
    three decades also 2 and 5 times them; in long ranges powers are skipped.
    """
    # the margins of 1e-9 keep rounding from losing an end of the range
    first, last = math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9)
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    stride = max(1, (last - first) // 5)  # about five powers of ten
    ticks = [factor * 10.0**power for power in range(first, last + stride + 1, stride) for factor in factors]
    begin = max(i for i, tick in enumerate(ticks) if tick <= low)
    end = min(i for i, tick in enumerate(ticks) if tick >= high and i > begin)  # an axis has at least two ticks
    return ticks[begin : end + 1]


def tick_label(value: float) -> str:
    """Format the number at a tick of an axis, from 100,000 on with k, M or G: 0.25, 20,000, 150k, 2.5M, 3·10⁻⁶."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 1e5):
            return f"{value / size:g}{letter}"
    return format_number(value)


def format_number(value: float) -> str:
    """Format a number with four significant digits: 27.31, 0.000125, 3.2·10⁻⁶; – for NaN and infinity.

    All digits before the decimal point are written: 12,345.
    """
    if not math.isfinite(value):
        return "–"
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) < 1e-5:
        mantissa, exponent = f"{value:.3e}".split("e")
        superscript = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{float(mantissa):g}·10{superscript}"
    digits = 3 - math.floor(math.log10(abs(value)))  # after the decimal point
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits > 0 else f"{value:,.0f}"


def downsample(points: Points, max_points: int = MAX_POINTS) -> Points:
    """Replace groups of neighboring points (x, y) by their means, so that at most `max_points` remain.

    The groups are of equal size, except for the last one; few points are returned as they are.
    """
    group_size = math.ceil(len(points) / max_points)
    if group_size <= 1:
        return points
    groups = [points[i : i + group_size] for i in range(0, len(points), group_size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def evenly_spaced(items: Sequence[Item], max_count: int) -> list[Item]:
    """Return at most `max_count` (≥ 2) evenly spaced items of a sequence, including the first and the last."""
    if len(items) <= max_count:
        return list(items)
    return [items[round(n * (len(items) - 1) / (max_count - 1))] for n in range(max_count)]
