"""Normalisation: zero mean and unit deviation over the width or over the batch, or unit root mean square.

A norm is told the layout, for those whose statistics must leave padding out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.parts.mixer import Layout
from dragoman.parts.precision import at_least_float32
from dragoman.parts.spec import Spec
from dragoman.parts.triton_support import TRITON_AVAILABLE

if TRITON_AVAILABLE:
    from dragoman.parts import kernels


class Identity(nn.Identity):
    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        return x


class LayerNormModule(nn.LayerNorm):
    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        return super().forward(x)


class RMSNormModule(nn.RMSNorm):
    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        """In the precision of x, which under autocast need not be that of the weights."""
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class BatchNormModule(nn.BatchNorm1d):
    """torch's own over tokens in place of rows, with sums that leave padding out and wait for no GPU."""

    supports_packing = False  # what is left of a packed row would be counted too
    supports_recomputation = False  # running statistics follow a batch once
    running_mean: Tensor
    running_var: Tensor
    momentum: float

    def __init__(self, dim: int, epsilon: float, momentum: float) -> None:
        super().__init__(dim, eps=epsilon, momentum=momentum)
        self.register_buffer("num_batches_tracked", None)  # needed for averages over all batches alone

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean, variance = self._statistics(x, None if layout is None else layout.token_mask)
        return ((x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)

    def _statistics(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance over the real tokens, each D; the running ones follow where gradients are computed.

        A pass without gradients, such as the first one of scheduled sampling, must not count a batch a second time.
        """
        tokens = at_least_float32(x).flatten(0, -2)  # B·T D
        weight = torch.ones_like(tokens[:, :1]) if real is None else real.flatten()[:, None].to(tokens.dtype)
        count = weight.sum()
        mean = (tokens * weight).sum(0) / count
        variance = ((tokens - mean).square() * weight).sum(0) / count
        if torch.is_grad_enabled():
            unbiased = variance.detach() * count / (count - 1).clamp(min=1)
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        return mean, variance


def add_and_norm(x: Tensor, y: Tensor, norm: nn.Module, layout: Layout | None) -> Tensor:
    """norm(x + y); on a GPU, where nothing is learned, by one kernel."""
    learns = torch.is_grad_enabled() or torch.compiler.is_compiling()  # the compiler has kernels of its own
    if TRITON_AVAILABLE and x.is_cuda and not learns and isinstance(norm, LayerNormModule) and x.dtype == y.dtype:
        return kernels.add_and_norm(x, y, norm.weight, norm.bias, norm.eps)
    return norm(x + y, layout)


@dataclass(frozen=True)
class LayerNorm(Spec):
    """y = (x − mean) / √(variance + ε) · g + b (Ba et al. 2016)."""

    epsilon: float = 1e-5
    bias: bool = True

    def build(self, dim: int) -> nn.Module:
        return LayerNormModule(dim, eps=self.epsilon, bias=self.bias)


@dataclass(frozen=True)
class RMSNorm(Spec):
    """y = x / √(mean(x²) + ε) · g (Zhang & Sennrich 2019)."""

    epsilon: float = 1e-6

    def build(self, dim: int) -> nn.Module:
        return RMSNormModule(dim, eps=self.epsilon)


@dataclass(frozen=True)
class BatchNorm(Spec):
    """y = (x − mean) / √(variance + ε) · g + b, over all real tokens of a batch (Ioffe & Szegedy 2015).

    Outside training with running ones: running ← (1 − momentum) · running + momentum · the batch's. In training the
    words of a batch know of each other through it, later ones of a target too.
    """

    epsilon: float = 1e-5
    momentum: float = 0.1

    def build(self, dim: int) -> nn.Module:
        return BatchNormModule(dim, self.epsilon, self.momentum)
