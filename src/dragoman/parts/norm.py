"""Normalization: layer norm, RMS norm, and batch norm over tokens.

Norms take the layout as a second argument, because batch statistics must ignore padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.parts.spec import Spec
from dragoman.parts.triton_support import TRITON_AVAILABLE

if TRITON_AVAILABLE:
    from dragoman.parts import kernels


class Identity(nn.Identity):
    def forward(self, x: Tensor, layout: SequenceLayout | None = None) -> Tensor:
        """Return x unchanged; the layout (positions and lengths of the tokens) is ignored."""
        return x


class LayerNormModule(nn.LayerNorm):
    def forward(self, x: Tensor, layout: SequenceLayout | None = None) -> Tensor:
        """Normalize the last dimension of x; the layout (positions and lengths of the tokens) is ignored."""
        return super().forward(x)


class RMSNormModule(nn.RMSNorm):
    def forward(self, x: Tensor, layout: SequenceLayout | None = None) -> Tensor:
        """Normalize the last dimension of x in its dtype, which under autocast may differ from that of the weights.

        The layout (positions and lengths of the tokens) is ignored.
        """
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class BatchNormModule(nn.BatchNorm1d):
    """Batch norm over tokens; the statistics ignore padding and are computed without synchronizing with the GPU."""

    supports_packing = False  # unused columns of a packed row would enter the statistics
    supports_recomputation = False  # a second forward pass would update the running statistics again
    running_mean: Tensor
    running_var: Tensor
    momentum: float

    def __init__(self, dim: int, epsilon: float, momentum: float) -> None:
        """Normalize each of `dim` features; `epsilon` is added to the variance.

        `momentum` is the weight of a batch in the update of the running statistics.
        """
        super().__init__(dim, eps=epsilon, momentum=momentum)
        self.register_buffer("num_batches_tracked", None)  # needed for cumulative averages only

    def forward(self, x: Tensor, layout: SequenceLayout | None = None) -> Tensor:
        """Normalize each feature of x, … D, with its running mean and variance; in training, with those of the batch.

        The layout says which positions are padding, which the statistics of the batch leave out.
        """
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean, variance = self._statistics(x, None if layout is None else layout.token_mask)
        return ((x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)

    def _statistics(self, x: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute mean and variance (D each) of x, B T D, over tokens; with gradients, also update the running ones.

        `token_mask` (B T) is False at padding, which is not counted. A pass without gradients, such as the first one of
        scheduled sampling, must not count a batch a second time.
        """
        tokens = at_least_float32(x).flatten(0, -2)  # B·T D
        weight = torch.ones_like(tokens[:, :1]) if token_mask is None else token_mask.flatten()[:, None].to(tokens)
        count = weight.sum()  # tokens without padding
        mean = (tokens * weight).sum(0) / count
        variance = ((tokens - mean).square() * weight).sum(0) / count
        if torch.is_grad_enabled():
            unbiased = variance.detach() * count / (count - 1).clamp(min=1)  # as in torch's batch norm
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        return mean, variance


def add_and_norm(x: Tensor, y: Tensor, norm: nn.Module, layout: SequenceLayout | None) -> Tensor:
    """Compute norm(x + y), with a fused kernel on a GPU if neither gradients nor a compiled graph are needed.

    The layout says which tokens are padding, which batch norm ignores.
    """
    fusible = x.is_cuda and not torch.is_grad_enabled() and not torch.compiler.is_compiling() and x.dtype == y.dtype
    if TRITON_AVAILABLE and fusible and isinstance(norm, LayerNormModule):
        return kernels.add_and_norm(x, y, weight=norm.weight, bias=norm.bias, epsilon=norm.eps)
    return norm(x + y, layout)


@dataclass(frozen=True)
class LayerNorm(Spec):
    """y = (x − mean) / √(variance + ε) · g + b (Ba et al. 2016)."""

    epsilon: float = 1e-5
    bias: bool = True

    def build(self, dim: int) -> nn.Module:
        """Create the norm of vectors of width `dim`."""
        return LayerNormModule(dim, eps=self.epsilon, bias=self.bias)


@dataclass(frozen=True)
class RMSNorm(Spec):
    """y = x / √(mean(x²) + ε) · g (Zhang & Sennrich 2019)."""

    epsilon: float = 1e-6

    def build(self, dim: int) -> nn.Module:
        """Create the norm of vectors of width `dim`."""
        return RMSNormModule(dim, eps=self.epsilon)


@dataclass(frozen=True)
class BatchNorm(Spec):
    """y = (x − mean) / √(variance + ε) · g + b, over all tokens of a batch (Ioffe & Szegedy 2015).

    Evaluation uses running statistics: running ← (1 − momentum) · running + momentum · batch. In training, the tokens
    of a batch influence each other through the statistics, including later tokens of a target.
    """

    epsilon: float = 1e-5
    momentum: float = 0.1

    def build(self, dim: int) -> nn.Module:
        """Create the norm of vectors of width `dim`."""
        return BatchNormModule(dim, epsilon=self.epsilon, momentum=self.momentum)
