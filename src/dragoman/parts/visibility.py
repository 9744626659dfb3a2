"""Visibility: which positions a position may attend to.

Most visibilities depend on the two positions only and implement `allows`, which kernels call for single pairs as well.
Padding and the borders of packed sequences are masked by `attend`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dragoman.parts.mixer import Context
from dragoman.parts.spec import Spec


class Visibility(nn.Module):
    """Every position sees every position."""

    causal = False  # exactly j ≤ i, which fused kernels implement
    full = True  # nothing is masked
    past_only = False  # all later positions are masked
    supports_packing = True

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether position i sees position j, elementwise."""
        return (i >= 0) & (j >= 0)

    def mask(self, query: Tensor, key: Tensor, context: Context) -> Tensor:
        """Positions of queries (B T) and keys (B S) → B T S, True where visible."""
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


class BlockVisibility(WindowVisibility):
    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i // self.size == j // self.size)


class PrefixVisibility(Visibility):
    full = False
    supports_packing = False  # the context has one prefix length per row

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def mask(self, query: Tensor, key: Tensor, context: Context) -> Tensor:
        past = key[:, None, :] <= query[:, :, None]
        return past if context.prefix_lengths is None else past | (key < context.prefix_lengths[:, None])[:, None, :]


@dataclass(frozen=True)
class Full(Spec):
    """Every position sees every position: encoders and cross-attention."""

    def build(self, dim: int) -> Visibility:
        return Visibility()


@dataclass(frozen=True)
class Causal(Spec):
    """Position i sees j ≤ i: the mask of decoders."""

    def build(self, dim: int) -> CausalVisibility:
        return CausalVisibility()


@dataclass(frozen=True)
class Window(Spec):
    """Position i sees the last `size` positions, including itself."""

    size: int = 128

    def build(self, dim: int) -> WindowVisibility:
        return WindowVisibility(self.size)


@dataclass(frozen=True)
class Block(Spec):
    """Position i sees j ≤ i in its own block of `size` positions (Liu et al. 2018, §4.2.4)."""

    size: int = 256

    def build(self, dim: int) -> BlockVisibility:
        return BlockVisibility(self.size)


@dataclass(frozen=True)
class Prefix(Spec):
    """Position i sees j ≤ i and the prefix of its row: the sequence-to-sequence mask of Dong et al. (2019, §2.2).

    With a prefix as long as the row it is a bidirectional mask, without a prefix a causal one. Decoding steps after the
    prefix need no prefix length: they see all earlier positions.
    """

    def build(self, dim: int) -> PrefixVisibility:
        return PrefixVisibility()
