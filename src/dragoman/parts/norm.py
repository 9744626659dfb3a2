"""Normalisation: zero mean and unit deviation over the width or over the batch, or unit root mean square.

A norm is told the layout, for those whose statistics must leave padding out.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dragoman.parts.mixer import Layout
from dragoman.parts.spec import Spec


class Unnormalised(nn.Identity):
    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        return x


class LayerNormalisation(nn.LayerNorm):
    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        return super().forward(x)


class RMSNormalisation(nn.RMSNorm):
    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        return super().forward(x)


@dataclass(frozen=True)
class LayerNorm(Spec):
    """y = (x − mean) / √(variance + ε) · g + b (Ba et al. 2016)."""

    epsilon: float = 1e-5
    bias: bool = True

    def build(self, dim: int) -> nn.Module:
        return LayerNormalisation(dim, eps=self.epsilon, bias=self.bias)


@dataclass(frozen=True)
class RMSNorm(Spec):
    """y = x / √(mean(x²) + ε) · g (Zhang & Sennrich 2019)."""

    epsilon: float = 1e-6

    def build(self, dim: int) -> nn.Module:
        return RMSNormalisation(dim, eps=self.epsilon)
