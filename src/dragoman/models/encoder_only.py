"""The encoder alone: one label for every token, and, where it is asked for, one for the whole sequence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.models.model import BaseModelSpec, Model, position_limit
from dragoman.models.usage import FILL, TAG, Usage
from dragoman.parts.embedding import Embedding, IdentityOutput, OutputLayer, TokenEmbedding, Transform
from dragoman.parts.initialization import Glorot, Normal, Orthogonal, Uniform
from dragoman.parts.mixer import Context, Layout, assign_paths
from dragoman.parts.stack import Stack
from dragoman.text.framing import ENCODER_ONLY_FRAMING, Framing


@dataclass(frozen=True)
class EncoderOnly(BaseModelSpec):
    """Embeddings, an encoder, and an output layer: the words that were masked, the tag of a word, was it replaced.

    `outputs` labels, the vocabulary unless told; with 0 there is no output layer, and the states themselves come out.
    `types` of segments have a vector each (Devlin et al. 2019, §3.1). `pooled` labels of the whole sequence are read
    off its first token: tanh(W h_1), then W.
    """

    default_framing: ClassVar[Framing] = ENCODER_ONLY_FRAMING

    dim: int
    vocab_size: int
    encoder: Stack
    embedding: Embedding = field(default_factory=Embedding)
    token_types: int = 0
    num_labels: int | None = None
    tied_embeddings: bool = True
    output_bias: bool = True
    transform: Transform | None = None
    pooled_labels: int = 0
    initialization: Glorot | Uniform | Orthogonal | Normal = field(default_factory=Glorot)

    default_objectives: ClassVar[dict[str, str]] = {"pairs": "tagging", "text": "masked"}

    def with_labels(self, num_labels: int) -> EncoderOnly:
        return replace(self, num_labels=num_labels, tied_embeddings=False, transform=None, pooled_labels=0)

    def build(self, dim: int = 0) -> EncoderOnlyModel:
        return EncoderOnlyModel(self)


class EncoderOnlyModel(Model):
    can_generate = False

    def __init__(self, spec: EncoderOnly, source_embedding: nn.Module | None = None) -> None:
        """`source_embedding` is a table that is shared with another network."""
        super().__init__()
        self.spec: EncoderOnly = spec
        labels = spec.vocab_size if spec.num_labels is None else spec.num_labels
        self.vocab_size = labels or spec.dim
        self.encoder = spec.encoder.build(spec.dim)
        table = spec.embedding.build_embedding(spec.vocab_size, spec.dim)
        self.source_embedding = table if source_embedding is None else source_embedding
        self.types = nn.Embedding(spec.token_types, table.width) if spec.token_types else None
        tied = table if spec.tied_embeddings and spec.num_labels is None else None
        output = OutputLayer(labels, spec.dim, tied, spec.output_bias, spec.transform) if labels else IdentityOutput()
        self.output: OutputLayer = output
        if tied is not None:
            self.output.weight = self.source_embedding.weight  # type: ignore[assignment]
        self.pooler = Pooler(spec.dim, spec.pooled_labels) if spec.pooled_labels else None
        spec.initialization.initializer().apply(self)
        assign_paths(self)

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, None]:
        return self.source_embedding if isinstance(self.source_embedding, TokenEmbedding) else None, None

    @property
    def usage(self) -> Usage | None:
        """Tokens are predicted under masks, labels for words; a model without an output layer has no command."""
        return FILL if self.spec.num_labels is None else TAG if self.spec.num_labels else None

    @property
    def num_labels(self) -> int:
        return self.spec.num_labels or 0

    @property
    def mask_predictor(self) -> EncoderOnlyModel | None:
        return self if self.spec.num_labels is None else None

    @property
    def max_source_length(self) -> int | None:
        return position_limit(self.encoder)

    def encode(self, source: Tensor, context: Context, token_types: Tensor | None = None) -> Tensor:
        """B S tokens and their segments (the first where not told) → B S D."""
        x = self.source_embedding(source)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(source) if token_types is None else token_types)
        return self.encoder(x, context)[0]

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        return source

    def forward_features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor | None = None,
        target_layout: Layout | None = None,
        recorder: dict[str, list[Tensor]] | None = None,
        token_types: Tensor | None = None,
    ) -> tuple[Tensor, Context]:
        """What the output layer reads at every source position, B S D; there is no target."""
        context = Context(source_layout, recorder=recorder)
        return self.encode(source, context, token_types), context

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target: Tensor | None = None,
        target_lengths: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """B S → B S labels."""
        return self.output(
            self.forward_features(source, Layout.padded(source.shape[1], source_lengths), token_types=token_types)[0]
        )


class Pooler(nn.Module):
    """W tanh(W' h_1), from the first token's state."""

    def __init__(self, dim: int, labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, labels)

    def forward(self, x: Tensor) -> Tensor:
        """B S D → B labels."""
        return self.output(torch.tanh(self.dense(x[:, 0])))
