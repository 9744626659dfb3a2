"""Penalties: what log p(y|x) is corrected by before hypotheses of different lengths are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from dragoman.errors import UserError

Normalisation = Literal["power", "gnmt"]


def power(length: int, alpha: float) -> float:
    """|y|^α: with α = 1 the mean log-probability of a token."""
    return length**alpha


def gnmt(length: int, alpha: float) -> float:
    """lp(y) = (5 + |y|)^α / (5 + 1)^α (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** alpha


NORMALISATIONS: dict[str, Callable[[int, float], float]] = {"power": power, "gnmt": gnmt}


def coverage_penalty(looks: Tensor, real: Tensor, beta: float) -> Tensor:
    """cp(x, y) = β Σ_j log min(Σ_i p_ij, 1) (Wu et al. 2016, eq. 14).

    looks … S: how much each source token was looked at in all, Σ_i p_ij; real … S: which of them are no padding. A
    token that was never looked at counts as the least number that there is, so that all hypotheses can be compared.
    """
    logs = looks.clamp(torch.finfo(looks.dtype).tiny, 1.0).log()
    return beta * torch.where(real, logs, 0.0).sum(-1)


class Coverage:
    """No coverage penalty: nothing is summed, nothing is added."""

    watches = False  # must the weights of attention be written down?

    def look(self, looks: Tensor | None) -> None:
        """B K S: where each hypothesis looked in this step."""

    def penalty(self, parent: Tensor) -> Tensor | float:
        """B N: the penalty of what the hypotheses `parent` (B N) have written, this step's token counted in."""
        return 0.0

    def choose(self, parent: Tensor) -> None:
        """Go on with hypotheses that continue `parent` (B K)."""


class SummedCoverage(Coverage):
    watches = True

    def __init__(self, lengths: Tensor, width: int, longest: int, beta: float) -> None:
        self.sums = torch.zeros(lengths.shape[0], width, longest, device=lengths.device)  # B K S
        self.real = torch.arange(longest, device=lengths.device) < lengths[:, None]  # B S
        self.beta = beta

    def look(self, looks: Tensor | None) -> None:
        if looks is None:
            raise UserError(
                "coverage counts how often source words were looked at, but no part of this model looks at a source"
            )
        self.sums = self.sums + looks.float()

    def penalty(self, parent: Tensor) -> Tensor:
        return coverage_penalty(self.sums, self.real[:, None], self.beta).gather(1, parent)

    def choose(self, parent: Tensor) -> None:
        self.sums = self.sums.gather(1, parent[..., None].expand_as(self.sums))
