"""Successive halving (Jamieson & Talwalkar 2016): train all configurations a little, and the best ones on."""

from __future__ import annotations

from collections.abc import Sequence

MAX_REDUCTION = 32  # the first rung has at least this part of the budget: less says little about the end


def rung_fractions(configurations: int, factor: int) -> list[float]:
    """Return the increasing fractions of the training budget ("rungs") at which configurations are compared, up to 1.

    With n configurations and the factor η there are ⌊log_η n⌋ rungs before the end, each with η times the budget of the
    one before: 1/9, 1/3 and 1 for 20 configurations and η = 3. All rungs then cost about the same. Fewer rungs are used
    if the first one would have less than 1/32 of the budget.
    """
    reductions = 0
    while factor ** (reductions + 1) <= min(configurations, MAX_REDUCTION):
        reductions += 1
    return [factor**-rung for rung in range(reductions, -1, -1)]


def survivors(ranked: Sequence[str], competitors: int, factor: int) -> list[str]:
    """Return the best ⌊n/η⌋ configurations, at least one, which are trained further.

    `ranked` has the names of those that did not fail, from best to worst; `competitors` is the number n of all that
    were compared, `factor` is η.
    """
    return list(ranked[: max(1, competitors // factor)])
