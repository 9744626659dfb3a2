"""Penalties: what log p(y|x) is corrected by before hypotheses of different lengths are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from dragoman.errors import UserError

Lengths = TypeVar("Lengths", float, Tensor)  # one, or many

LengthNormalization = Literal["power", "gnmt"]


def power(length: Lengths, alpha: float) -> Lengths:
    """|y|^α: with α = 1 the mean log-probability of a token."""
    return length**alpha


def gnmt(length: Lengths, alpha: float) -> Lengths:
    """lp(y) = (5 + |y|)^α / (5 + 1)^α (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** alpha


LENGTH_NORMALIZATIONS: dict[str, Callable[[Any, float], Any]] = {"power": power, "gnmt": gnmt}


def coverage_penalty(looks: Tensor, real: Tensor, beta: float) -> Tensor:
    """cp(x, y) = β Σ_j log min(Σ_i p_ij, 1) (Wu et al. 2016, eq. 14).

    looks … S: how much each source token was looked at in all, Σ_i p_ij; real … S: which of them are no padding. A
    token that was never looked at counts as the least number that there is, so that all hypotheses can be compared.
    """
    logs = looks.clamp(torch.finfo(looks.dtype).tiny, 1.0).log()
    return beta * torch.where(real, logs, 0.0).sum(-1)


def looked(looks: Tensor | None) -> Tensor:
    """B K S: where each hypothesis looked in this step."""
    if looks is None:
        raise UserError(
            "coverage counts how often source words were looked at, but no part of this model looks at a source"
        )
    return looks
