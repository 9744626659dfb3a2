"""Scores: how well a key answers a query, before the softmax. The five of the textbook."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.parts.spec import Spec


class Score(nn.Module):
    """q·k, the score without parameters (Luong et al. 2015, “dot”)."""

    def prepare(self, key: Tensor) -> Tensor:
        """What depends on the keys alone, B S D → B S A, computed once for a source."""
        return key

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """B … T D, B … S A → B … T S."""
        return query @ prepared.transpose(-1, -2)


@dataclass(frozen=True)
class Dot(Spec):
    """score(q, k) = q·k."""

    def build(self, dim: int) -> Score:
        return Score()


@dataclass(frozen=True)
class ScaledDot(Spec):
    """score(q, k) = q·k / √d (Vaswani et al. 2017, §3.2.1)."""

    def build(self, dim: int) -> ScaledDotScore:
        return ScaledDotScore()


class ScaledDotScore(Score):
    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return super().forward(query, prepared) / math.sqrt(query.shape[-1])


@dataclass(frozen=True)
class General(Spec):
    """score(q, k) = q·W k, the bilinear form (Luong et al. 2015, “general”)."""

    def build(self, dim: int) -> GeneralScore:
        return GeneralScore(dim)


class GeneralScore(Score):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(dim, dim, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        return self.key(key)


@dataclass(frozen=True)
class Additive(Spec):
    """score(q, k) = v·tanh(W q + U k) (Bahdanau et al. 2015, §A.1.2)."""

    inner_dim: int | None = None

    def build(self, dim: int) -> AdditiveScore:
        return AdditiveScore(dim, self.inner_dim or dim)


class AdditiveScore(Score):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, inner, bias=False)
        self.key = nn.Linear(dim, inner, bias=False)
        self.value = nn.Linear(inner, 1, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        return self.key(key)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        inner = torch.tanh(self.query(query).unsqueeze(-2) + prepared.unsqueeze(-3))  # B … T S A
        return self.value(inner).squeeze(-1)


@dataclass(frozen=True)
class Concat(Spec):
    """score(q, k) = v·tanh(W [q; k]) (Luong et al. 2015, “concat”)."""

    inner_dim: int | None = None

    def build(self, dim: int) -> ConcatScore:
        return ConcatScore(dim, self.inner_dim or dim)


class ConcatScore(Score):
    """One matrix over [q; k], multiplied in two halves so that the keys' half is computed once."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.both = nn.Linear(2 * dim, inner, bias=False)
        self.value = nn.Linear(inner, 1, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        return key @ self.both.weight[:, key.shape[-1] :].T

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        of_query = query @ self.both.weight[:, : query.shape[-1]].T
        return self.value(torch.tanh(of_query.unsqueeze(-2) + prepared.unsqueeze(-3))).squeeze(-1)
