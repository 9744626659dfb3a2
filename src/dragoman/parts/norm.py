"""Normalisation: zero mean and unit deviation over the width, or unit root mean square."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dragoman.parts.spec import Spec


@dataclass(frozen=True)
class LayerNorm(Spec):
    """y = (x − mean) / √(variance + ε) · g + b (Ba et al. 2016)."""

    epsilon: float = 1e-5
    bias: bool = True

    def build(self, dim: int) -> nn.LayerNorm:
        return nn.LayerNorm(dim, eps=self.epsilon, bias=self.bias)


@dataclass(frozen=True)
class RMSNorm(Spec):
    """y = x / √(mean(x²) + ε) · g (Zhang & Sennrich 2019)."""

    epsilon: float = 1e-6

    def build(self, dim: int) -> nn.RMSNorm:
        return nn.RMSNorm(dim, eps=self.epsilon)
