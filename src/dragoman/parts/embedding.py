"""Token embeddings, and the output layer that maps vectors to logits of tokens."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.parts.feedforward import ACTIVATIONS, Activation
from dragoman.parts.flops import Workload
from dragoman.parts.mixer import Layout
from dragoman.parts.spec import Spec


def is_embedding_table(module: nn.Module) -> bool:
    """Whether the rows of the module's weight are vectors of tokens, positions or labels, not a linear map."""
    return isinstance(module, nn.Embedding) or getattr(module, "is_embedding_table", False)


class SourceEmbedding(nn.Module):
    """Maps a source, token ids or feature vectors, to vectors for the encoder."""

    stride = 1  # source positions per output position
    supports_packing = True

    def embed_source(self, source: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """Return the vectors (B S D) and their layout."""
        return self(source), layout


@dataclass(frozen=True)
class Embedding(Spec):
    """A learned vector for each token, multiplied by √D if `scaled` (Vaswani et al. 2017, §3.4).

    `width` other than the model's: the stack projects the vectors (Lan et al. 2020). `word_dropout` is the probability
    of replacing all vectors of a token by zeros (Gal & Ghahramani 2016).
    """

    scaled: bool = False
    width: int | None = None
    word_dropout: float = 0.0

    def build_embedding(self, vocab_size: int, dim: int) -> TokenEmbedding:
        return TokenEmbedding(self, vocab_size, dim)


class TokenEmbedding(SourceEmbedding):
    is_embedding_table = True

    def __init__(self, spec: Embedding, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.width = spec.width or dim
        self.weight = nn.Parameter(torch.empty(vocab_size, self.width))
        self.scale = math.sqrt(self.width) if spec.scaled else 1.0
        self.word_dropout = spec.word_dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """B T → B T D."""
        x = nn.functional.embedding(tokens, self.weight)
        if self.training and self.word_dropout > 0:
            mask = torch.rand(tokens.shape, device=tokens.device) >= self.word_dropout
            x = x * (mask / (1 - self.word_dropout))[..., None].to(x.dtype)
        return x if self.scale == 1.0 else x * self.scale

    def flops(self, work: Workload) -> int:
        return 0


class RestrictedEmbedding(nn.Module):
    """Embedding of a restricted vocabulary: token i is `tokens[i]` of the table."""

    def __init__(self, table: nn.Module, tokens: Tensor) -> None:
        super().__init__()
        self.table = table
        self.tokens: Tensor
        self.register_buffer("tokens", tokens, persistent=False)

    def forward(self, indices: Tensor) -> Tensor:
        return self.table(self.tokens[indices])


@dataclass(frozen=True)
class Transform(Spec):
    """A layer before the output layer: norm(f(W h + b)) (Devlin et al. 2019).

    It has the width of the embedding table that the output layer is tied to, otherwise `width`, by default the model's.
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
    """Logits W h + b, W being the embedding table `tied`, if any (Press & Wolf 2017).

    `transform` is applied to h first; `scaled` multiplies h by 1/√D (Raffel et al. 2020).
    """

    is_embedding_table = True
    is_identity = False  # whether it returns hidden states instead of logits

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
        width = tied.width if tied is not None else (transform.width if transform else None) or dim
        self.scale = 1 / math.sqrt(dim) if scaled else 1.0
        self.transform: nn.Module
        if transform is not None:
            self.transform = transform.build_layer(dim, width)
        else:
            self.transform = nn.Identity() if width == dim else nn.Linear(dim, width)
        self.weight = nn.Parameter(torch.empty(outputs, width)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def output_features(self, x: Tensor) -> Tensor:
        """Return the vectors that are multiplied by W."""
        x = self.transform(x)
        return x if self.scale == 1.0 else x * self.scale

    def restrict_vocabulary(self, tokens: Tensor) -> OutputLayer:
        """Return a layer with the outputs `tokens` (N) only, in this order."""
        layer = copy(self)
        layer._parameters = dict(self._parameters)
        layer.weight = nn.Parameter(self.weight.detach()[tokens], requires_grad=False)
        layer.bias = None if self.bias is None else nn.Parameter(self.bias.detach()[tokens], requires_grad=False)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """B T D → B T V."""
        return nn.functional.linear(self.output_features(x), self.weight, self.bias)


class IdentityOutput(OutputLayer):
    """No output layer: returns the hidden states, B T D."""

    is_identity = True

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, x: Tensor) -> Tensor:
        return x
