"""Visibility: which positions a position may attend to.

A visibility has no weights: the spec itself computes the mask. Most depend on the two positions only and implement
`allows`, which kernels call for single pairs as well. Padding and the borders of packed sequences are masked by
`attend`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dragoman.parts.mixer import Context
from dragoman.parts.spec import Spec


class Visibility(Spec):
    """Base class of attention masks by position; by default, position i sees positions j ≤ i."""

    causal: ClassVar[bool] = False  # exactly j ≤ i, which fused kernels implement
    full: ClassVar[bool] = False  # nothing is masked
    past_only: ClassVar[bool] = True  # all later positions are masked
    supports_packing: ClassVar[bool] = True

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether position i sees position j, elementwise: here if j is not after i."""
        return j <= i

    def mask(self, query: Tensor, key: Tensor, context: Context) -> Tensor:
        """Return which keys each query sees, B T S, from the positions of queries (B T) and keys (B S).

        The context, which holds lengths and prefix lengths of the rows, is not needed here.
        """
        return self.allows(query[:, :, None], key[:, None, :])


@dataclass(frozen=True)
class Full(Visibility):
    """Every position sees every position: encoders and cross-attention."""

    full = True
    past_only = False

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        """Return True for all pairs, broadcast to the shape of i and j: no position is negative."""
        return (i >= 0) & (j >= 0)


@dataclass(frozen=True)
class Causal(Visibility):
    """Position i sees j ≤ i: the mask of decoders."""

    causal = True


@dataclass(frozen=True)
class Window(Visibility):
    """Position i sees the last `size` positions, including itself."""

    size: int = 128

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether j is one of the last `size` positions up to i, elementwise."""
        return (j <= i) & (i - j < self.size)


@dataclass(frozen=True)
class Block(Visibility):
    """Position i sees j ≤ i in its own block of `size` positions (Liu et al. 2018, §4.2.4)."""

    size: int = 256

    def allows(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether j ≤ i is in the block of i, elementwise."""
        return (j <= i) & (i // self.size == j // self.size)


@dataclass(frozen=True)
class Prefix(Visibility):
    """Position i sees j ≤ i and the prefix of its row: the sequence-to-sequence mask of Dong et al. (2019, §2.2).

    With a prefix as long as the row it is a bidirectional mask, without a prefix a causal one, and with a negative
    prefix length a right-to-left one: i sees j ≥ i. Decoding steps after the prefix need no prefix length: they see all
    earlier positions. A placeholder (`context.placeholders`) sees the tokens before its position and itself, and no
    other token sees it.
    """

    past_only = False
    supports_packing = False  # the context has one prefix length per row

    def mask(self, query: Tensor, key: Tensor, context: Context) -> Tensor:
        """Return which keys each query sees, B T S, from the positions of queries (B T) and keys (B S).

        The context holds the prefix length of each row, which chooses its mask: if negative, position i sees j ≥ i
        (right-to-left), otherwise j ≤ i and the prefix; None: no row has a prefix. It also says which tokens are
        placeholders, such as masks in the place of the next token, that no other token sees.
        """
        i, j = query[:, :, None], key[:, None, :]
        visible = j <= i
        if context.placeholders is not None:  # queries and keys are the same tokens
            itself = torch.eye(key.shape[1], dtype=torch.bool, device=key.device)
            visible = itself | ((j < i) & ~context.placeholders[:, None, :])
        if context.prefix_lengths is None:
            return visible
        prefix, lengths = context.prefix_lengths[:, None, None], context.layout.lengths
        backward = j >= i
        if lengths is not None:  # padding sees all tokens, because a softmax over no key would be NaN
            backward = backward | (i >= lengths[:, None, None])
        return torch.where(prefix < 0, backward, visible | (j < prefix))
