"""Initial weights: the same spec and the same seed give the same model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from dragoman.parts.embedding import OutputLayer, TokenEmbedding
from dragoman.parts.spec import Spec


class Initializer:
    """Sets the weights of a model; biases become zero, norms keep their ones and zeros."""

    def matrix(self, weight: nn.Parameter) -> None:
        nn.init.xavier_uniform_(weight)

    def recurrent(self, weight: nn.Parameter) -> None:
        """The matrix from state to state, its gates one above the other."""
        self.matrix(weight)

    def table(self, weight: nn.Parameter) -> None:
        """One vector a row."""
        nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))

    def apply(self, model: nn.Module) -> None:
        done: set[int] = set()
        for module in model.modules():
            if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d)):
                continue
            for name, weight in module.named_parameters(recurse=False):
                if weight.is_meta or id(weight) in done:  # of a blueprint, or tied to one that is set already
                    continue
                done.add(id(weight))
                if weight.dim() < 2:
                    nn.init.zeros_(weight)
                elif isinstance(module, (TokenEmbedding, OutputLayer, nn.Embedding)):
                    self.table(weight)
                elif name.startswith("weight_hh"):
                    self.recurrent(weight)
                else:
                    self.matrix(weight)


class UniformInitializer(Initializer):
    def __init__(self, bound: float) -> None:
        self.bound = bound

    def matrix(self, weight: nn.Parameter) -> None:
        nn.init.uniform_(weight, -self.bound, self.bound)

    def table(self, weight: nn.Parameter) -> None:
        self.matrix(weight)


class NormalInitializer(Initializer):
    def __init__(self, deviation: float) -> None:
        self.deviation = deviation

    def matrix(self, weight: nn.Parameter) -> None:
        nn.init.normal_(weight, std=self.deviation)

    def table(self, weight: nn.Parameter) -> None:
        self.matrix(weight)


class OrthogonalInitializer(Initializer):
    def recurrent(self, weight: nn.Parameter) -> None:
        for gate in weight.data.split(weight.shape[1]):
            nn.init.orthogonal_(gate)


@dataclass(frozen=True)
class Glorot(Spec):
    """Matrices uniform within ±√(6 / (in + out)) (Glorot & Bengio 2010), embeddings normal with deviation 1/√D."""

    def initializer(self) -> Initializer:
        return Initializer()


@dataclass(frozen=True)
class Uniform(Spec):
    """Every weight uniform within ±bound (Sutskever et al. 2014: 0.08; Luong et al. 2015: 0.1)."""

    bound: float = 0.08

    def initializer(self) -> Initializer:
        return UniformInitializer(self.bound)


@dataclass(frozen=True)
class Orthogonal(Spec):
    """Recurrent matrices orthogonal (Saxe et al. 2014; Bahdanau et al. 2015, §B.1), the others Glorot's."""

    def initializer(self) -> Initializer:
        return OrthogonalInitializer()


@dataclass(frozen=True)
class Normal(Spec):
    """Every weight normal around zero (Radford et al. 2018; Devlin et al. 2019: a deviation of 0.02)."""

    std: float = 0.02

    def initializer(self) -> Initializer:
        return NormalInitializer(self.std)
