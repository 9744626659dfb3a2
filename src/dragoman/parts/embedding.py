"""Embeddings: a vector for every token, and the output layer that turns vectors back into tokens."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.parts.feedforward import ACTIVATIONS, Activation
from dragoman.parts.mixer import Layout
from dragoman.parts.spec import Spec


class SourceEmbedding(nn.Module):
    """A source made into vectors for an encoder: tokens, or vectors of another kind that stand for sight and sound."""

    stride = 1  # how many places of the source become one
    supports_packing = True  # can it read packed rows?

    def embed_source(self, source: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """The vectors, and where they lie."""
        return self(source), layout


@dataclass(frozen=True)
class Embedding(Spec):
    """A learned vector a token, times √D where `scaled` (Vaswani et al. 2017, §3.4).

    `width` other than the model's: the vectors are narrower, and the stack that reads them projects them (Lan et al.
    2020). `word_dropout` leaves out whole tokens (Gal & Ghahramani 2016).
    """

    scaled: bool = False
    width: int | None = None
    word_dropout: float = 0.0

    def build_embedding(self, vocab_size: int, dim: int) -> TokenEmbedding:
        return TokenEmbedding(self, vocab_size, dim)


class TokenEmbedding(SourceEmbedding):
    def __init__(self, spec: Embedding, vocabulary: int, dim: int) -> None:
        super().__init__()
        self.width = spec.width or dim
        self.weight = nn.Parameter(torch.empty(vocabulary, self.width))
        self.scale = math.sqrt(self.width) if spec.scaled else 1.0
        self.word_dropout = spec.word_dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """B T → B T D."""
        x = nn.functional.embedding(tokens, self.weight)
        if self.training and self.word_dropout > 0:
            kept = torch.rand(tokens.shape, device=tokens.device) >= self.word_dropout
            x = x * (kept / (1 - self.word_dropout))[..., None].to(x.dtype)
        return x if self.scale == 1.0 else x * self.scale


class RestrictedEmbedding(nn.Module):
    """Vectors of tokens that are known by their numbers among some."""

    def __init__(self, table: nn.Module, tokens: Tensor) -> None:
        super().__init__()
        self.table = table
        self.tokens: Tensor
        self.register_buffer("tokens", tokens, persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.table(self.tokens[numbers])


@dataclass(frozen=True)
class Transform(Spec):
    """One more layer before the output: norm(f(W h + b)) (Devlin et al. 2019).

    It is as wide as the table that the output layer is tied to; where it is tied to none, `width`, the model's unless
    told.
    """

    activation: Activation = "gelu"
    norm: Spec | None = None
    width: int | None = None

    def build_layer(self, dim: int, width: int) -> TransformLayer:
        return TransformLayer(self, dim, width)


class TransformLayer(nn.Module):
    def __init__(self, spec: Transform, dim: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, width)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = spec.norm.build(width) if spec.norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class OutputLayer(nn.Module):
    """Logits of the next token: W h + b, with W the embedding's own where the two are tied (Press & Wolf 2017).

    `transform` is a layer of its own before it; `scaled` multiplies h by 1/√D (Raffel et al. 2020).
    """

    def __init__(
        self,
        outputs: int,
        dim: int,
        tied: TokenEmbedding | None,
        bias: bool,
        transform: Transform | None = None,
        scaled: bool = False,
    ) -> None:
        super().__init__()
        free = (transform.width if transform else None) or dim
        width = free if tied is None else tied.width
        self.scale = 1 / math.sqrt(dim) if scaled else 1.0
        self.transform: nn.Module
        if transform is not None:
            self.transform = transform.build_layer(dim, width)
        else:
            self.transform = nn.Identity() if width == dim else nn.Linear(dim, width)
        self.weight = nn.Parameter(torch.empty(outputs, width)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def output_features(self, x: Tensor) -> Tensor:
        """What W is multiplied with."""
        x = self.transform(x)
        return x if self.scale == 1.0 else x * self.scale

    def restrict_vocabulary(self, tokens: Tensor) -> OutputLayer:
        """The layer that knows only some tokens (N), by their numbers among these."""
        made = copy(self)
        made._parameters = dict(self._parameters)
        made.weight = nn.Parameter(self.weight.detach()[tokens], requires_grad=False)
        made.bias = None if self.bias is None else nn.Parameter(self.bias.detach()[tokens], requires_grad=False)
        return made

    def forward(self, x: Tensor) -> Tensor:
        """B T D → B T V."""
        return nn.functional.linear(self.output_features(x), self.weight, self.bias)


class IdentityOutput(OutputLayer):
    """No labels: what comes out is what went in, B T D, for encoders whose states are all that is wanted of them."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, x: Tensor) -> Tensor:
        return x
