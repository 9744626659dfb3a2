"""Embeddings: a vector for every token, and the output layer that turns vectors back into tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.parts.spec import Spec


@dataclass(frozen=True)
class Embedding(Spec):
    """A learned vector a token, times √D where `scaled` (Vaswani et al. 2017, §3.4).

    `width` other than the model's: the vectors are narrower and projected (Lan et al. 2020). `word_dropout` leaves out
    whole tokens (Gal & Ghahramani 2016).
    """

    scaled: bool = False
    width: int | None = None
    word_dropout: float = 0.0

    def table(self, vocabulary: int, dim: int) -> TokenEmbedding:
        return TokenEmbedding(self, vocabulary, dim)


class TokenEmbedding(nn.Module):
    def __init__(self, spec: Embedding, vocabulary: int, dim: int) -> None:
        super().__init__()
        width = spec.width or dim
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.project = nn.Identity() if width == dim else nn.Linear(width, dim)
        self.scale = math.sqrt(dim) if spec.scaled else 1.0
        self.word_dropout = spec.word_dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """B T → B T D."""
        x = nn.functional.embedding(tokens, self.weight)
        if self.training and self.word_dropout > 0:
            kept = torch.rand(tokens.shape, device=tokens.device) >= self.word_dropout
            x = x * (kept / (1 - self.word_dropout))[..., None].to(x.dtype)
        return self.project(x) * self.scale


class OutputLayer(nn.Module):
    """Logits of the next token: W h + b, with W the embedding's own where the two are tied (Press & Wolf 2017)."""

    def __init__(self, vocabulary: int, dim: int, tied: TokenEmbedding | None, bias: bool) -> None:
        super().__init__()
        width = dim if tied is None else tied.weight.shape[1]
        self.project = nn.Identity() if width == dim else nn.Linear(dim, width)
        self.weight = nn.Parameter(torch.empty(vocabulary, width)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """B T D → B T V."""
        return nn.functional.linear(self.project(x), self.weight, self.bias)
