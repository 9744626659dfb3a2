"""Visibility: who may look at whom. `see(query positions, key positions, ctx)` → bool, True where allowed.

Padding and the borders of packed sequences are no concern of theirs: `attend` adds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dragoman.parts.mixer import Ctx
from dragoman.parts.spec import Spec


class Visibility(nn.Module):
    """Everything sees everything."""

    causal = False  # exactly “j ≤ i”, which kernels know by name
    full = True  # nothing is hidden

    def see(self, query: Tensor, key: Tensor, ctx: Ctx) -> Tensor:
        """query B T, key B S → B T S."""
        return (query[:, :, None] >= 0) & (key[:, None, :] >= 0)


class CausalVisibility(Visibility):
    causal = True
    full = False

    def see(self, query: Tensor, key: Tensor, ctx: Ctx) -> Tensor:
        return key[:, None, :] <= query[:, :, None]


class WindowVisibility(Visibility):
    full = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def see(self, query: Tensor, key: Tensor, ctx: Ctx) -> Tensor:
        distance = query[:, :, None] - key[:, None, :]
        return (distance >= 0) & (distance < self.size)


@dataclass(frozen=True)
class Full(Spec):
    """Every position sees every other: encoders and cross-attention."""

    def build(self, dim: int) -> Visibility:
        return Visibility()


@dataclass(frozen=True)
class Causal(Spec):
    """Position i sees j ≤ i, itself included: the mask of decoders, put in before the softmax."""

    def build(self, dim: int) -> CausalVisibility:
        return CausalVisibility()


@dataclass(frozen=True)
class Window(Spec):
    """Position i sees the last `size` positions, itself included."""

    size: int = 128

    def build(self, dim: int) -> WindowVisibility:
        return WindowVisibility(self.size)
