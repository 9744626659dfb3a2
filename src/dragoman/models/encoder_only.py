"""Encoder-only models: one label per token and optionally one for the whole sequence; replaced token detection."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.models.model import Model, ModelSpec, position_limit
from dragoman.models.usage import FILL, TAG
from dragoman.parts.embedding import Embedding, IdentityOutput, OutputLayer, TokenEmbedding, Transform
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.initialization import Glorot, Initialization
from dragoman.parts.mixer import Context, Layout, MixerOutput, Recorder, assign_paths
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


@dataclass(frozen=True)
class ReplacedTokens(ModelSpec):
    """Two encoders with shared embeddings: a generator replaces tokens, a discriminator detects it (Clark et al. 2020).

    The model of interest is the discriminator, which labels every token as replaced or not.
    """

    architecture: ClassVar[str] = "two encoders"
    default_framing: ClassVar[Framing] = ENCODER_ONLY_FRAMING
    default_objectives: ClassVar[dict[str, str]] = {"text": "replaced-token-detection", "pairs": "tagging"}

    generator: EncoderOnly
    discriminator: EncoderOnly
    shared_embeddings: bool = True

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.discriminator.dim

    @property
    def vocab_size(self) -> int:
        return self.discriminator.vocab_size

    def build(self, dim: int = 0) -> ReplacedTokensModel:
        return ReplacedTokensModel(self)

    def with_labels(self, num_labels: int) -> EncoderOnly:
        return self.discriminator.with_labels(num_labels)


class EncoderModel(Model):
    """A model whose main encoder labels the tokens of the source; it reads no target."""

    can_generate = False

    @property
    def main_encoder(self) -> EncoderOnlyModel:
        """The encoder that labels the source."""
        raise NotImplementedError

    @property
    def output_stack(self) -> StackMixer:
        return self.main_encoder.encoder

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        return self.main_encoder.source_embedding, None

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        return source

    def forward_features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor | None = None,
        target_layout: Layout | None = None,
        recorder: Recorder = None,
        token_types: Tensor | None = None,
    ) -> MixerOutput:
        """Return the inputs of the output layer at all source positions, B S D; `token_types` (B S) default to 0."""
        model = self.main_encoder
        x = model.source_embedding(source)
        if model.types is not None:
            x = x + model.types(torch.zeros_like(source) if token_types is None else token_types)
        return model.encoder(x, Context(source_layout, recorder=recorder))

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target: Tensor | None = None,
        target_lengths: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """B S → logits of labels, B S V, or B S 1: logit that a token was replaced."""
        layout = Layout.padded(source.shape[1], source_lengths)
        return self.output(self.forward_features(source, layout, token_types=token_types).output)

    def flops(self, work: Workload) -> int:
        """Count the main encoder."""
        work = work.of(work.source)
        return module_flops(self.output_stack, work) + module_flops(self.output, work)


class EncoderOnlyModel(EncoderModel):
    def __init__(self, spec: EncoderOnly, source_embedding: TokenEmbedding | None = None) -> None:
        """`source_embedding` is a table shared with another network."""
        super().__init__()
        self.spec: EncoderOnly = spec
        self.num_labels = spec.num_labels or 0
        self.usage = FILL if spec.num_labels is None else TAG if spec.num_labels else None
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
    def main_encoder(self) -> EncoderOnlyModel:
        return self

    @property
    def mask_predictor(self) -> EncoderOnlyModel | None:
        return self if self.spec.num_labels is None else None

    @property
    def max_source_length(self) -> int | None:
        return position_limit(self.encoder)


class Pooler(nn.Module):
    """W tanh(W' h_1), h_1 being the state of the first token."""

    def __init__(self, dim: int, labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, labels)

    def forward(self, x: Tensor) -> Tensor:
        """B S D → B labels."""
        return self.output(torch.tanh(self.dense(x[:, 0])))


class ReplacedTokensModel(EncoderModel):
    """The generator fills masks; the discriminator is a start for taggers."""

    usage = FILL

    def __init__(self, spec: ReplacedTokens) -> None:
        super().__init__()
        self.spec: ReplacedTokens = spec
        self.vocab_size = 1
        self.discriminator = EncoderOnlyModel(spec.discriminator)
        widths = [encoder.embedding.width or encoder.dim for encoder in (spec.generator, spec.discriminator)]
        if spec.shared_embeddings and widths[0] != widths[1]:
            raise UserError(
                f"shared embeddings need one width, but generator and discriminator have {widths[0]} and {widths[1]}: "
                "set the width of both embeddings, or shared_embeddings to false"
            )
        table = self.discriminator.source_embedding if spec.shared_embeddings else None
        self.generator = EncoderOnlyModel(spec.generator, table)
        if spec.shared_embeddings:
            self._share_positions()
        self.output = self.discriminator.output

    def _share_positions(self) -> None:
        """Share the tables of positions and token types as well, if both networks have the same (§3.2)."""
        discriminator, generator = self.spec.discriminator, self.spec.generator
        if discriminator.encoder.position == generator.encoder.position:
            self.generator.encoder.position = self.discriminator.encoder.position
        if discriminator.token_types == generator.token_types:
            self.generator.types = self.discriminator.types

    @property
    def main_encoder(self) -> EncoderOnlyModel:
        return self.discriminator

    @property
    def mask_predictor(self) -> EncoderOnlyModel:
        return self.generator

    @property
    def max_source_length(self) -> int | None:
        return position_limit(self)

    def training_flops(self, work: Workload) -> int:
        """Count both networks."""
        return 3 * (self.flops(work) + self.generator.flops(replace(work, width=self.spec.generator.dim)))
