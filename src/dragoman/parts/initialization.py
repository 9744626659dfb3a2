"""Weight initialization, and the hidden matrices of a model for optimizers that treat them specially."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from dragoman.parts.embedding import is_embedding_table
from dragoman.parts.mixer import Mixer
from dragoman.parts.spec import Spec


class Initialization(Spec):
    """Base class: matrices uniform within ±√(6 / (in + out)), embeddings normal, biases zero, norms unchanged.

    A module with `starts_with_zeros` gets zeros.
    """

    def matrix(self, weight: nn.Parameter) -> None:
        """Initialize a weight matrix in place: uniformly within ±√(6 / (inputs + outputs))."""
        nn.init.xavier_uniform_(weight)

    def recurrent(self, weight: nn.Parameter) -> None:
        """Initialize in place a recurrent matrix, from state to state, with its gates stacked along the rows."""
        self.matrix(weight)

    def table(self, weight: nn.Parameter) -> None:
        """Initialize an embedding table, V D, in place: normally with standard deviation 1/√D."""
        nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))

    def apply(self, model: nn.Module) -> None:
        """Initialize all weights of a model: biases with zeros, the others by kind; norms keep their values.

        A module with the attribute `starts_with_zeros`, such as a noisy router, gets zeros only.
        """
        initialized: set[int] = set()  # ids of weights, because several modules may share one
        for module in model.modules():
            if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d)):
                continue
            for name, weight in module.named_parameters(recurse=False):
                if weight.is_meta or id(weight) in initialized:  # on the meta device, or a tied weight
                    continue
                initialized.add(id(weight))
                if weight.dim() < 2 or getattr(module, "starts_with_zeros", False):
                    nn.init.zeros_(weight)
                elif is_embedding_table(module):
                    self.table(weight)
                elif name.startswith("weight_hh"):  # from state to state, in torch's RNNs
                    self.recurrent(weight)
                else:
                    self.matrix(weight)


@dataclass(frozen=True)
class Glorot(Initialization):
    """Matrices uniform within ±√(6 / (in + out)) (Glorot & Bengio 2010), embeddings normal with std 1/√D."""


@dataclass(frozen=True)
class Uniform(Initialization):
    """All weights uniform within ±bound (Sutskever et al. 2014: 0.08; Luong et al. 2015: 0.1)."""

    bound: float = 0.08

    def matrix(self, weight: nn.Parameter) -> None:
        """Initialize a weight matrix in place, uniformly within ±bound."""
        nn.init.uniform_(weight, -self.bound, self.bound)

    def table(self, weight: nn.Parameter) -> None:
        """Initialize an embedding table in place, like a matrix."""
        self.matrix(weight)


@dataclass(frozen=True)
class Orthogonal(Initialization):
    """Recurrent matrices orthogonal (Saxe et al. 2014; Bahdanau et al. 2015, §B.1), the others as in Glorot."""

    def recurrent(self, weight: nn.Parameter) -> None:
        """Initialize a recurrent matrix in place: the square matrices of the gates, which it stacks, are orthogonal."""
        for gate in weight.data.split(weight.shape[1]):
            nn.init.orthogonal_(gate)


@dataclass(frozen=True)
class Normal(Initialization):
    """All weights normal with mean 0 (Radford et al. 2018 and Devlin et al. 2019: std 0.02)."""

    std: float = 0.02

    def matrix(self, weight: nn.Parameter) -> None:
        """Initialize a weight matrix in place, normally with mean 0 and standard deviation `std`."""
        nn.init.normal_(weight, std=self.std)

    def table(self, weight: nn.Parameter) -> None:
        """Initialize an embedding table in place, like a matrix."""
        self.matrix(weight)


def hidden_matrices(model: nn.Module) -> dict[nn.Parameter, tuple[int, ...]]:
    """Return the weight matrices of the layers, each with the row counts of the matrices stacked in it.

    Some weights stack several matrices, such as those of queries, keys and values: their modules have an attribute
    `blocks`, {name of the weight: rows of each matrix}. Embedding tables, output layers and matrices of one row or
    column are left out, because optimizers such as Muon treat hidden matrices only.
    """
    tables: set[nn.Parameter] = set()
    blocks: dict[nn.Parameter, tuple[int, ...]] = {}
    for module in model.modules():
        if is_embedding_table(module):
            tables.update(module.parameters(recurse=False))
        for name, rows in getattr(module, "blocks", {}).items():
            blocks[module.get_parameter(name)] = rows
    weights = [weight for module in model.modules() if isinstance(module, Mixer) for weight in module.parameters()]
    matrices = [weight for weight in weights if weight.dim() == 2 and min(weight.shape) > 1 and weight not in tables]
    return {weight: blocks.get(weight, (weight.shape[0],)) for weight in matrices}
