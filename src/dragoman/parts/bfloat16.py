"""A model for searches on a GPU: weights in bfloat16, sines that are looked up, and fewer kernels."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.parts.embedding import TokenEmbedding
from dragoman.parts.feedforward import ACTIVATIONS, FeedForwardMixer
from dragoman.parts.mixer import Layout
from dragoman.parts.positions import SinusoidalPosition

AnyModule = TypeVar("AnyModule", bound=nn.Module)

PLACES = 4096  # of a sequence that have their sines ready


def to_bfloat16(model: AnyModule) -> AnyModule:
    """A copy to search with: what it computes differs by rounding to eight bits."""
    made = deepcopy(model).eval().requires_grad_(False)
    exact = {name: buffer for name, buffer in made.named_buffers() if name.endswith(".frequency")}
    made = made.to(torch.bfloat16)
    for name, buffer in exact.items():  # angles are not to be rounded
        path, _, own = name.rpartition(".")
        setattr(made.get_submodule(path), own, buffer)
    for parent in list(made.modules()):
        for name, child in parent.named_children():
            if type(child) is SinusoidalPosition:
                setattr(parent, name, Sines(child))
            if isinstance(child, TokenEmbedding) and child.scale != 1.0:
                setattr(parent, name, scaled(child))
        if isinstance(parent, FeedForwardMixer) and parent.activation is F.relu:
            parent.widen, parent.activation = ReluLinear(parent.widen), ACTIVATIONS["identity"]
    return made


def scaled(table: TokenEmbedding) -> TokenEmbedding:
    """A table of its own whose vectors are multiplied already."""
    made = copy(table)
    made._parameters = {"weight": nn.Parameter(table.weight * table.scale, requires_grad=False)}
    made.scale = 1.0
    return made


class Sines(SinusoidalPosition):
    """Sines that were computed once for the first places."""

    table: Tensor

    def __init__(self, position: SinusoidalPosition) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(position.__dict__)
        places = torch.arange(PLACES, device=self.frequency.device)
        self.register_buffer("table", self.encoding(places).bfloat16(), persistent=False)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.max_length is None or layout.max_length > PLACES:
            return super().embed(x, layout)
        return x + F.embedding(layout.positions, self.table)


class ReluLinear(nn.Linear):
    """max(0, W x + b), by one kernel on a GPU."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(linear.__dict__)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda or self.bias is None or torch.compiler.is_compiling():
            return super().forward(x).relu_()
        return torch._addmm_activation(self.bias, x.flatten(0, -2), self.weight.t()).unflatten(0, x.shape[:-1])
