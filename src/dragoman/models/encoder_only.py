"""Encoder-only models: one label per token or one for the whole sequence; replaced token detection."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from dragoman.errors import UserError
from dragoman.models.model import Model, ModelSpec, position_limit
from dragoman.models.usage import CLASSIFY, FILL, TAG
from dragoman.parts.embedding import Embedding, IdentityOutput, OutputLayer, TokenEmbedding, Transform
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.initialization import Glorot, Initialization
from dragoman.parts.mixer import Context, MixerOutput, Recorder, SequenceLayout, assign_paths
from dragoman.parts.stack import Stack, StackMixer
from dragoman.text.framing import ENCODER_ONLY_FRAMING, Framing


@dataclass(frozen=True)
class EncoderOnly(ModelSpec):
    """Embeddings, an encoder, and an output layer: masked language models, taggers, classifiers, discriminators.

    The output layer has `num_labels` labels, by default the vocabulary; with 0 there is none, and the model returns
    hidden states. `token_types` adds an embedding of sentence A or B (Devlin et al. 2019, §3.1). `pooled_labels` labels
    of the whole sequence are computed from its first token: W tanh(W' h_1). With `one_label_per_sequence`, only the
    label at the first token counts: it is that of the sequence, and the model classifies texts.
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
    one_label_per_sequence: bool = False

    def build(self, dim: int = 0) -> EncoderOnlyModel:
        """Create the model; the argument `dim` is unused, because the width is a field of this spec."""
        return EncoderOnlyModel(self)

    def with_labels(self, num_labels: int, of_sequence: bool = False) -> EncoderOnly:
        """Return the spec of a tagger or classifier: the same encoder, with a new output layer for `num_labels` labels.

        The labels are those of words, W h, or, with `of_sequence`, of the whole sequence, W tanh(W' h_1) (Devlin et al.
        2019, §4.1), h_1 being the state of the first token. A spec that is already that of a classifier keeps its layer
        before W (`transform`). Labels of BERT's pooler (`pooled_labels`) are left out.
        """
        if not of_sequence:
            transform = None
        else:
            transform = self.transform if self.one_label_per_sequence else Transform(activation="tanh")
        return replace(
            self,
            num_labels=num_labels,
            tied_embeddings=False,
            pooled_labels=0,
            transform=transform,
            one_label_per_sequence=of_sequence,
        )


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
        """The width of the discriminator."""
        return self.discriminator.dim

    @property
    def vocab_size(self) -> int:
        """The vocabulary size of both encoders."""
        return self.discriminator.vocab_size

    def build(self, dim: int = 0) -> ReplacedTokensModel:
        """Create the model; the argument `dim` is unused, because the width is a field of this spec."""
        return ReplacedTokensModel(self)

    def with_labels(self, num_labels: int, of_sequence: bool = False) -> EncoderOnly:
        """Return the spec of a tagger with the discriminator's encoder and a new output layer for `num_labels` labels.

        With `of_sequence`, that of a classifier, whose labels are those of whole sequences.
        """
        return self.discriminator.with_labels(num_labels, of_sequence)


class EncoderModel(Model):
    """A model whose main encoder labels the tokens of the source; it reads no target.

    With a single output, it is a discriminator: the output is the logit that a token was replaced.
    """

    can_generate = False

    @property
    def label_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the labels of a discriminator, which has a single output; empty if the tokenizer has them."""
        return ("replaced", "original") if self.vocab_size == 1 else ()

    def label_logits(self, features: MixerOutput) -> Tensor:
        """Return the logits of all labels of each source token, B S V; V is 0 if the outputs are hidden states.

        A discriminator has a second logit, 0, with which the softmax is the sigmoid of its only output.
        """
        logits = self.logits(features)
        if self.output.is_identity:
            return logits[..., :0]
        return pad(logits, (0, 1)) if self.vocab_size == 1 else logits

    @property
    def main_encoder(self) -> EncoderOnlyModel:
        """The encoder that labels the source."""
        raise NotImplementedError

    @property
    def output_stack(self) -> StackMixer:
        """The stack of layers below the output layer: that of the encoder that labels the source."""
        return self.main_encoder.encoder

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        """Embedding tables of source and target tokens; the latter is None, because there is no target."""
        return self.main_encoder.source_embedding, None

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        """Return for each pair how many tokens its row of a batch has: `source`, because no target is read.

        `source` and `target` are the numbers of their tokens.
        """
        return source

    def forward_features(
        self,
        source: Tensor,
        source_layout: SequenceLayout,
        target: Tensor | None = None,
        target_layout: SequenceLayout | None = None,
        recorder: Recorder | None = None,
        token_types: Tensor | None = None,
    ) -> MixerOutput:
        """Run all layers but the output layer; return its input at each source position (ids B S), B S D.

        The layout holds positions and lengths of the tokens; `recorder`, if given, collects attention weights.
        `token_types` (B S) are the numbers of BERT's segments, by default 0. The arguments for a target, which other
        models have, are not used.
        """
        model = self.main_encoder
        x = model.source_embedding(source)
        if model.types is not None:  # the embedding of token types, if the model has one
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
        """Compute the logits of the V labels of all source tokens: ids B S, lengths B → B S V.

        `token_types` (B S) are the numbers of BERT's segments, by default 0. A target, as other models have, is not
        used. V = 1 in the discriminator of ELECTRA: the logit that a token was replaced.
        """
        layout = SequenceLayout.padded(source.shape[1], source_lengths)
        return self.output(self.forward_features(source, layout, token_types=token_types).output)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.source` source tokens: main encoder and output layer."""
        per_source_token = work.with_tokens(work.source)
        return module_flops(self.output_stack, per_source_token) + module_flops(self.output, per_source_token)


class EncoderOnlyModel(EncoderModel):
    def __init__(self, spec: EncoderOnly, source_embedding: TokenEmbedding | None = None) -> None:
        """Build embeddings, encoder and output layer of the spec, and initialize the weights.

        The outputs are `num_labels` labels or, if it is None, the vocabulary; with 0, hidden states are returned.
        `source_embedding` is an embedding table shared with another network; None: a new one. `types` embeds BERT's
        segments (None: there are none), `pooler` computes labels of the whole sequence (None: there are none).
        """
        super().__init__()
        self.spec: EncoderOnly = spec
        self.num_labels = spec.num_labels or 0
        self.one_label_per_sequence = spec.one_label_per_sequence
        predicts_tokens = spec.num_labels is None
        if predicts_tokens:
            self.usage = FILL  # the command that uses the model
        elif spec.num_labels:  # with 0 labels, no command uses the hidden states
            self.usage = CLASSIFY if spec.one_label_per_sequence else TAG
        outputs = spec.vocab_size if spec.num_labels is None else spec.num_labels
        self.vocab_size = outputs or spec.dim  # width of the output: tokens, labels or hidden states
        self.encoder = spec.encoder.build(spec.dim)
        if source_embedding is None:
            source_embedding = spec.embedding.build_embedding(spec.vocab_size, spec.dim)
        self.source_embedding = source_embedding
        self.types = nn.Embedding(spec.token_types, source_embedding.width) if spec.token_types else None
        self.output: OutputLayer = IdentityOutput()
        if outputs:
            tied = source_embedding if spec.tied_embeddings and predicts_tokens else None
            self.output = OutputLayer(outputs, spec.dim, tied=tied, bias=spec.output_bias, transform=spec.transform)
        self.pooler = Pooler(spec.dim, labels=spec.pooled_labels) if spec.pooled_labels else None
        spec.initialization.apply(self)
        assign_paths(self)  # tells each layer its name in the model

    @property
    def main_encoder(self) -> EncoderOnlyModel:
        """The encoder that labels the source: the model itself."""
        return self

    @property
    def mask_predictor(self) -> EncoderOnlyModel | None:
        """The encoder that predicts masked tokens: the model itself, or None if it predicts other labels."""
        return self if self.spec.num_labels is None else None

    @property
    def max_source_length(self) -> int | None:
        """Largest number of source tokens, that of the encoder's positions; None if unlimited."""
        return position_limit(self.encoder)


class Pooler(nn.Module):
    """W tanh(W' h_1), h_1 being the state of the first token: BERT's classifier of whole sequences."""

    def __init__(self, dim: int, labels: int) -> None:
        """Create the matrices of W tanh(W' h): W' as `dense` (dim → dim) and W as `output` (dim → labels)."""
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, labels)

    def forward(self, x: Tensor) -> Tensor:
        """Return W tanh(W' h) of the state h of each sequence's first token: x, B S D → logits B × labels."""
        return self.output(torch.tanh(self.dense(x[:, 0])))


class ReplacedTokensModel(EncoderModel):
    """The generator fills masks; the discriminator is a start for taggers."""

    usage = FILL

    def __init__(self, spec: ReplacedTokens) -> None:
        """Build both encoders; the generator shares the discriminator's embeddings if the spec says so.

        The output layer is that of the discriminator, which tells for each token whether it was replaced. Shared
        embeddings of different widths raise a UserError.
        """
        super().__init__()
        self.spec: ReplacedTokens = spec
        self.vocab_size = 1  # the output is one logit per token: whether it was replaced
        self.discriminator = EncoderOnlyModel(spec.discriminator)
        generator_width = spec.generator.embedding.width or spec.generator.dim
        discriminator_width = spec.discriminator.embedding.width or spec.discriminator.dim
        if spec.shared_embeddings and generator_width != discriminator_width:
            raise UserError(
                "the generator and the discriminator share their embeddings, but the generator's are "
                f"{generator_width} wide and the discriminator's {discriminator_width}: set both to the same "
                "width, or system.settings.shared_embeddings to false"
            )
        table = self.discriminator.source_embedding if spec.shared_embeddings else None
        self.generator = EncoderOnlyModel(spec.generator, source_embedding=table)
        if spec.shared_embeddings:
            self._share_positions()
        self.output = self.discriminator.output
        assign_paths(self)  # tells the layers of both encoders their names in this model

    def _share_positions(self) -> None:
        """Let the generator use the discriminator's position and segment embeddings, if both have the same kinds."""
        discriminator, generator = self.spec.discriminator, self.spec.generator
        if discriminator.encoder.position == generator.encoder.position:
            self.generator.encoder.position = self.discriminator.encoder.position
        if discriminator.token_types == generator.token_types:
            self.generator.types = self.discriminator.types

    @property
    def main_encoder(self) -> EncoderOnlyModel:
        """The encoder that labels the source: the discriminator."""
        return self.discriminator

    @property
    def mask_predictor(self) -> EncoderOnlyModel:
        """The encoder that predicts masked tokens: the generator."""
        return self.generator

    @property
    def max_source_length(self) -> int | None:
        """Largest number of source tokens that generator and discriminator have positions for; None if unlimited."""
        return position_limit(self)

    def training_flops(self, work: Workload) -> int:
        """FLOPs of a training step over `work.source` tokens: forward and backward pass of both encoders."""
        # `flops` of this model are those of the discriminator alone; the generator may have another width
        generator_flops = self.generator.flops(replace(work, width=self.spec.generator.dim))
        return 3 * (self.flops(work) + generator_flops)  # one forward pass, and a backward pass that costs two
