"""The position-wise feed-forward network and its activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.parts.dropout import Dropout
from dragoman.parts.mixer import Context, Mixer, MixerOutput, State
from dragoman.parts.spec import Spec
from dragoman.parts.tracing import Quantity

Activation = Literal["relu", "gelu", "gelu-tanh", "quick-gelu", "silu", "tanh", "sigmoid", "identity"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "tanh": F.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}

GATE = Quantity("gate", "TE", "V x", "A second vector of the same width, which scales the hidden units one by one.")
HIDDEN_UNITS = Quantity(
    "hidden units",
    "TE",
    "f(W₁ x + b₁)",
    "The vector is widened and passed through the activation: many units stay near 0, few react to this position.",
)
FEED_FORWARD_OUTPUT = Quantity(
    "output of the network", "TE", "W₂ hidden + b₂", "The hidden units, mapped back to the width of the model."
)


@dataclass(frozen=True)
class FeedForward(Spec):
    """FFN(x) = W₂ f(W₁ x + b₁) + b₂ (Vaswani et al. 2017, §3.3).

    `inner_dim` is 4·D by default. `gated`: W₂ (f(W₁ x) ⊙ V x), which with silu is SwiGLU (Shazeer 2020).
    """

    inner_dim: int | None = None
    activation: Activation = "relu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0

    def build(self, dim: int) -> FeedForwardMixer:
        """Create the layer for vectors of width `dim`."""
        return FeedForwardMixer(self, dim)


class FeedForwardMixer(Mixer):
    title = "feed-forward network"
    adaptable: ClassVar = {"widen": ("widen",), "gate": ("gate",), "narrow": ("narrow",)}

    def __init__(self, spec: FeedForward, dim: int) -> None:
        """W₂ f(W₁ x), or gated W₂ (f(W₁ x) ⊙ V x), for x of width `dim` and the activation f.

        `widen` is W₁, `narrow` W₂, and `gate` V, or None if the network is not gated.
        """
        super().__init__()
        inner_dim = spec.inner_dim or 4 * dim
        self.widen = nn.Linear(dim, inner_dim, bias=spec.bias)
        self.gate = nn.Linear(dim, inner_dim, bias=spec.bias) if spec.gated else None
        self.narrow = nn.Linear(inner_dim, dim, bias=spec.bias)
        self.activation, self.activation_name = ACTIVATIONS[spec.activation], spec.activation
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """W₂ f(W₁ x), or gated W₂ (f(W₁ x) ⊙ V x): B T D → B T D; the state, if any, is returned unchanged.

        `widen` is W₁, `narrow` W₂, `gate` V.
        """
        inner = self.activation(self.widen(x))
        if self.gate is not None:
            inner = inner * self.gate(x)
        output = self.narrow(self.dropout(inner))
        if context.is_traced:
            self._trace(x, inner, output, context)
        return MixerOutput(output, state)

    def _trace(self, x: Tensor, inner: Tensor, output: Tensor, context: Context) -> None:
        """Record gate, hidden units (`inner`) and output for an input x, B T …, with the formulas of this layer.

        An explanation of the model shows them to a user. The gate is computed again, from x.
        """
        has_bias = self.widen.bias is not None
        hidden = f"{self.activation_name}(W₁ x{' + b₁' if has_bias else ''})"
        if self.gate is not None:
            context.trace(self.path, replace(GATE, formula=f"g = V x{' + b_V' if has_bias else ''}"), self.gate(x))
            hidden += " ⊙ g"
        context.trace(self.path, replace(HIDDEN_UNITS, formula=hidden), inner)
        formula = f"W₂ hidden{' + b₂' if has_bias else ''}"
        context.trace(self.path, replace(FEED_FORWARD_OUTPUT, formula=formula), output)
