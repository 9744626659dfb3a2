"""Visibility: who may look at whom. `see(query positions, key positions, context)` → bool, True where allowed.

Most ask two positions and nothing else: they say so in `allows`, which kernels call for single pairs as well. Padding
and the borders of packed sequences are no concern of theirs: `attend` adds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dragoman.parts.mixer import Context
from dragoman.parts.spec import Spec


class Visibility(nn.Module):
    """Everything sees everything."""

    causal = False  # exactly “j ≤ i”, which kernels know by name
    full = True  # nothing is hidden
    past_only = False  # is everything that comes later hidden?
    supports_packing = True  # is it the same for each sequence of a packed row?

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        """May position i see position j?"""
        return (i >= 0) & (j >= 0)

    def mask(self, query: Tensor, key: Tensor, context: Context) -> Tensor:
        """query B T, key B S → B T S."""
        return self.allows(query[:, :, None], key[:, None, :])


class CausalVisibility(Visibility):
    causal = past_only = True
    full = False

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i


class WindowVisibility(Visibility):
    full = False
    past_only = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i - j < self.size)


class BlockVisibility(Visibility):
    full = False
    past_only = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i // self.size == j // self.size)


class PrefixVisibility(Visibility):
    full = False
    supports_packing = False  # context tells one prefix a row

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def mask(self, query: Tensor, key: Tensor, context: Context) -> Tensor:
        before = key[:, None, :] <= query[:, :, None]
        return (
            before if context.prefix_lengths is None else before | (key < context.prefix_lengths[:, None])[:, None, :]
        )


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


@dataclass(frozen=True)
class Block(Spec):
    """Position i sees j ≤ i in its own block of `size` positions, itself included (Liu et al. 2018, §4.2.4)."""

    size: int = 256

    def build(self, dim: int) -> BlockVisibility:
        return BlockVisibility(self.size)


@dataclass(frozen=True)
class Prefix(Spec):
    """Position i sees j ≤ i and all of the row's prefix: the sequence-to-sequence mask of Dong et al. (2019, §2.2).

    A prefix that covers the row makes it a mask for both ways, an empty one the causal mask, so that one stack has all
    three. Steps after the prefix need not be told how long it was: they see what is before them in any case.
    """

    def build(self, dim: int) -> PrefixVisibility:
        return PrefixVisibility()
