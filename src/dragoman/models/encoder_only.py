"""The encoder-only model: one label per token, and optionally one for the whole sequence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.models.model import Model, ModelSpec, position_limit
from dragoman.models.usage import FILL, TAG, Usage
from dragoman.parts.embedding import Embedding, IdentityOutput, OutputLayer, TokenEmbedding, Transform
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.initialization import Glorot, Initialization
from dragoman.parts.mixer import Context, Layout, MixerOutput, assign_paths
from dragoman.parts.stack import Stack, StackMixer
from dragoman.text.framing import ENCODER_ONLY_FRAMING, Framing


@dataclass(frozen=True)
class EncoderOnly(ModelSpec):
    """Embeddings, an encoder, and an output layer: masked language models, taggers, discriminators.

    The output layer has `num_labels` labels, by default the vocabulary; with 0 there is none, and the model returns
    hidden states. `token_types` adds an embedding of sentence A or B (Devlin et al. 2019, §3.1). `pooled_labels` labels
    of the whole sequence are computed from its first token: W tanh(W' h_1).
    """

    architecture: ClassVar[str] = "encoder"
    default_framing: ClassVar[Framing] = ENCODER_ONLY_FRAMING
    default_objectives: ClassVar[dict[str, str]] = {"pairs": "tagging", "text": "masked-lm"}

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
    initialization: Initialization = field(default_factory=Glorot)

    def build(self, dim: int = 0) -> EncoderOnlyModel:
        return EncoderOnlyModel(self)

    def with_labels(self, num_labels: int) -> EncoderOnly:
        return replace(self, num_labels=num_labels, tied_embeddings=False, transform=None, pooled_labels=0)


class EncoderOnlyModel(Model):
    can_generate = False

    def __init__(self, spec: EncoderOnly, source_embedding: TokenEmbedding | None = None) -> None:
        """`source_embedding` is a table shared with another network."""
        super().__init__()
        self.spec: EncoderOnly = spec
        self.num_labels = spec.num_labels or 0
        outputs = spec.vocab_size if spec.num_labels is None else spec.num_labels
        self.vocab_size = outputs or spec.dim
        self.encoder = spec.encoder.build(spec.dim)
        table = spec.embedding.build_embedding(spec.vocab_size, spec.dim)
        self.source_embedding = table if source_embedding is None else source_embedding
        self.types = nn.Embedding(spec.token_types, table.width) if spec.token_types else None
        tied = table if spec.tied_embeddings and spec.num_labels is None else None
        output = OutputLayer(outputs, spec.dim, tied, spec.output_bias, spec.transform) if outputs else IdentityOutput()
        self.output: OutputLayer = output
        if tied is not None:
            self.output.weight = self.source_embedding.weight
        self.pooler = Pooler(spec.dim, spec.pooled_labels) if spec.pooled_labels else None
        spec.initialization.apply(self)
        assign_paths(self)

    @property
    def usage(self) -> Usage | None:
        """Fill for masked language models, tag for taggers, no command without an output layer."""
        return FILL if self.spec.num_labels is None else TAG if self.num_labels else None

    @property
    def mask_predictor(self) -> EncoderOnlyModel | None:
        return self if self.spec.num_labels is None else None

    @property
    def output_stack(self) -> StackMixer:
        return self.encoder

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        return self.source_embedding, None

    @property
    def max_source_length(self) -> int | None:
        return position_limit(self.encoder)

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
    ) -> MixerOutput:
        """Return the inputs of the output layer at all source positions, B S D; `target` is unused.

        `token_types` (B S) are 0 by default.
        """
        x = self.source_embedding(source)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(source) if token_types is None else token_types)
        return self.encoder(x, Context(source_layout, recorder=recorder))

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target: Tensor | None = None,
        target_lengths: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """B S → logits of labels, B S V."""
        layout = Layout.padded(source.shape[1], source_lengths)
        return self.output(self.forward_features(source, layout, token_types=token_types).output)

    def flops(self, work: Workload) -> int:
        work = work.of(work.source)
        return module_flops(self.encoder, work) + module_flops(self.output, work)


class Pooler(nn.Module):
    """W tanh(W' h_1), h_1 being the state of the first token."""

    def __init__(self, dim: int, labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, labels)

    def forward(self, x: Tensor) -> Tensor:
        """B S D → B labels."""
        return self.output(torch.tanh(self.dense(x[:, 0])))
