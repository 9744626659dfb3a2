"""The encoder–decoder: p(y|x) = Π p(y_t | y_<t, x)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models.model import DecodingStart, Model, ModelSpec, first_tokens, position_limit
from dragoman.models.usage import TRANSLATE
from dragoman.parts.convolution import SourceExtension
from dragoman.parts.copying import Copying
from dragoman.parts.embedding import (
    Embedding,
    Frames,
    OutputLayer,
    Patches,
    RestrictedEmbedding,
    SourceEmbedding,
    TokenEmbedding,
    Transform,
)
from dragoman.parts.feature_marking import FeatureMarking
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.initialization import Glorot, Initialization
from dragoman.parts.mixer import Context, Memory, Mixer, MixerOutput, Recorder, SequenceLayout, assign_paths
from dragoman.parts.stack import Stack
from dragoman.text.framing import ENCODER_DECODER_FRAMING, Framing


@dataclass(frozen=True)
class EncoderDecoder(ModelSpec):
    """Embeddings, an encoder that reads the source, a decoder that generates the target, an output layer."""

    architecture: ClassVar[str] = "encoder–decoder"
    default_framing: ClassVar[Framing] = ENCODER_DECODER_FRAMING
    default_objectives: ClassVar[dict[str, str]] = {
        "pairs": "translation",
        "text": "denoising",
        "features": "translation",
    }
    supports_shortlist: ClassVar[bool] = True

    dim: int
    source_vocab_size: int
    target_vocab_size: int
    encoder: Stack
    decoder: Stack
    embedding: Embedding = field(default_factory=Embedding)
    shared_embeddings: bool = False  # one embedding table for source and target
    tied_embeddings: bool = False  # the output layer uses the target embedding table
    output_bias: bool = True
    initialization: Initialization = field(default_factory=Glorot)
    transform: Transform | None = None  # layer before the output layer
    output_scaled: bool = False  # the input of the output layer is divided by √D
    input: Patches | Frames | None = None  # embedding of feature vectors, if the source is not tokens
    source_extension: SourceExtension | None = None  # lengthens the source before it is encoded
    copying: Copying | None = None  # the output layer can copy tokens of the source
    feature_marking: FeatureMarking | None = None  # marks feature symbols in front of the source

    @property
    def vocabulary_sizes(self) -> tuple[int, int]:
        """Rows of the embedding tables of source and target."""
        return self.source_vocab_size, self.target_vocab_size

    def with_vocabulary_sizes(self, source: int, target: int) -> EncoderDecoder:
        """Return the spec of a model with vocabularies of other sizes."""
        return replace(self, source_vocab_size=source, target_vocab_size=target)

    def with_feature_symbols(self, first: int, count: int, invariant_positions: bool) -> EncoderDecoder:
        """Return the spec of a model that distinguishes feature symbols, such as PST, before a source from its tokens.

        They have `count` ids from `first` on. With `invariant_positions`, all have position 0, so that their order does
        not matter.
        """
        return replace(self, feature_marking=FeatureMarking(first, count, invariant_positions))

    def build(self, dim: int = 0) -> EncoderDecoderModel:
        """Create the model; the argument `dim` is unused, because the width is a field of this spec."""
        return EncoderDecoderModel(self)


class EncoderDecoderModel(Model):
    usage = TRANSLATE

    def __init__(self, spec: EncoderDecoder) -> None:
        """Build embeddings, encoder, decoder and output layer of the spec, and initialize the weights.

        `source_features`, the number of values per source vector, stays None if the source is tokens. Raises a
        UserError if source and target shall share embeddings, but have vocabularies of different sizes.
        """
        super().__init__()
        if spec.shared_embeddings and spec.input is None and spec.source_vocab_size != spec.target_vocab_size:
            raise UserError(
                f"shared embeddings need one vocabulary, but there are {spec.source_vocab_size} source and "
                f"{spec.target_vocab_size} target tokens: train a joint tokenizer, or set "
                "system.settings.shared_embeddings to false"
            )
        self.spec: EncoderDecoder = spec
        self.vocab_size = spec.target_vocab_size
        self.encoder = spec.encoder.build(spec.dim)
        self.decoder = spec.decoder.build(spec.dim)
        self.target_embedding = spec.embedding.build_embedding(spec.target_vocab_size, spec.dim)
        self.source_embedding: SourceEmbedding
        if spec.input is not None:
            self.source_embedding, self.source_features = spec.input.build(spec.dim), spec.input.features
        elif spec.shared_embeddings:
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = spec.embedding.build_embedding(spec.source_vocab_size, spec.dim)
        # appends a learned vector to the embedded source until it has the length expected of the target; None: does not
        self.source_extension = spec.source_extension.build(spec.dim) if spec.source_extension else None
        # adds one learned vector to feature symbols, such as PST, in front of a source, and another to its tokens
        self.feature_marking = None
        source_table, _ = self.embedding_tables  # None if the source is feature vectors
        if spec.feature_marking is not None and source_table is not None:
            self.feature_marking = spec.feature_marking.build_marking(source_table)
        self.output = self.build_output()
        spec.initialization.apply(self)
        assign_paths(self)  # tells each layer its name in the model

    def build_output(self) -> OutputLayer:
        """Create the output layer of the spec, tied to the target embedding if the spec says so.

        With `copying`, it can also copy tokens of the source; a source of images or sound then raises a UserError.
        """
        spec = self.spec
        options: dict[str, Any] = {
            "dim": spec.dim,
            "tied": self.target_embedding if spec.tied_embeddings else None,
            "bias": spec.output_bias,
            "transform": spec.transform,
            "scaled": spec.output_scaled,
        }
        if spec.copying is None:
            return OutputLayer(spec.target_vocab_size, **options)
        if spec.input is not None:
            raise UserError(
                "system.settings.copying copies tokens of the source, but the source of this system is images or "
                "sound: leave out system.settings.copying"
            )
        return spec.copying.build_output(vocab_sizes=(spec.source_vocab_size, spec.target_vocab_size), **options)

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        """Embedding tables of source (None if it is feature vectors) and target tokens."""
        source = self.source_embedding
        return source if isinstance(source, TokenEmbedding) else None, self.target_embedding

    @property
    def memory_layers(self) -> list[Mixer]:
        """Layers of decoder and output layer that read the encoder's output: those that override `project_memory`."""
        modules = (*self.decoder.modules(), *self.output.modules())
        layers = [part for part in modules if isinstance(part, Mixer)]
        return [layer for layer in layers if type(layer).project_memory is not Mixer.project_memory]

    @property
    def memory_paths(self) -> list[str]:
        """Names in the model of the layers that read the encoder's output, such as "decoder.layers.0.1"."""
        return [layer.path for layer in self.memory_layers]

    @property
    def max_source_length(self) -> int | None:
        """Largest number of source tokens or frames: the encoder's positions, times tokens or frames per position.

        None if it is unlimited. One position is reserved for feature symbols in front of the source, if there are any.
        """
        limit = position_limit(self.encoder)
        if limit is None:
            return None
        num_reserved = 0 if self.feature_marking is None else 1  # position 0 is that of all feature symbols
        # stride: tokens or frames that the embedding combines to one position
        return limit * self.source_embedding.stride - num_reserved

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        """Return the largest number of target tokens for each source, B: the decoder's positions; None if unlimited."""
        limit = position_limit(self.decoder)
        return None if limit is None else torch.full_like(source_lengths, limit)

    def encode(self, source: Tensor, layout: SequenceLayout, recorder: Recorder | None = None) -> Memory:
        """Encode a source of tokens (ids B S) or of vectors of F features (B S F); the result holds the output, B S D.

        The layout holds their positions and lengths; `recorder`, if given, collects attention weights. If the spec says
        so, feature symbols in front of the tokens are marked by an added vector, and the source is lengthened.
        """
        x, encoded_layout = self.source_embedding.embed_source(source, layout)
        if self.feature_marking is not None:
            x, encoded_layout = self.feature_marking(x, source, encoded_layout)
        if self.source_extension is not None:
            x, encoded_layout = self.source_extension(x, encoded_layout)
        encoded = self.encoder(x, Context(encoded_layout, recorder=recorder))
        # B S: id of the target token as which each source token can be copied, −1 for none; None: model does not copy
        copied_tokens = self.output.copied_tokens(source, layout, width=encoded.output.shape[1])
        return Memory(
            states=encoded.output,
            layout=replace(encoded_layout, position_ids=None),  # which only position encodings of the encoder use
            encoder_inputs=encoded.stack_inputs,
            final_state=encoded.final_state,
            copied_tokens=copied_tokens,
            auxiliary_losses=encoded.auxiliary_losses,
        )

    def forward_features(
        self,
        source: Tensor,
        source_layout: SequenceLayout,
        target: Tensor,
        target_layout: SequenceLayout,
        recorder: Recorder | None = None,
    ) -> MixerOutput:
        """Run all layers but the output layer; return its input at each target position, B T D, and auxiliary losses.

        Source (B S) and target (B T) are token ids, and their layouts hold positions and lengths of the sequences.
        `recorder`, if given, collects attention weights.
        """
        memory = self.encode(source, source_layout, recorder)
        return self._decode_features(target, Context(target_layout, memory, recorder=recorder))

    def forward_targets(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor, source_rows: Tensor
    ) -> MixerOutput:
        """Run all layers but the output layer for R targets, several of each source; return its input, R T D.

        Target r (ids R T, lengths R) belongs to source number `source_rows[r]` (ids B S, lengths B), which is encoded
        once. All are padded.
        """
        memory = self.encode(source, SequenceLayout.padded(source.shape[1], source_lengths)).select_rows(source_rows)
        target_layout = SequenceLayout.padded(target.shape[1], target_lengths)
        return self._decode_features(target, Context(target_layout, memory))

    def _decode_features(self, target: Tensor, context: Context) -> MixerOutput:
        """Run the decoder on targets (ids B T); return the input of the output layer, B T D, and auxiliary losses.

        The context holds positions and lengths of the targets, and the encoded source, with the encoder's losses. In
        models that copy, the result also holds the probabilities of copying source tokens.
        """
        decoded = self.decoder(self.target_embedding(target), context)
        result = self.output.add_copy_probabilities(decoded, context)  # unchanged in models that do not copy
        encoder_losses = context.memory.auxiliary_losses if context.memory is not None else ()
        return result._replace(auxiliary_losses=encoder_losses + result.auxiliary_losses)

    def restrict_vocabulary(self, tokens: Tensor) -> EncoderDecoderModel:
        """Return a model that generates only N `tokens` (ids), under new ids 0 … N−1; it shares the other modules."""
        model = copy(self)
        model._modules = dict(self._modules)  # a dict of its own: only modules of the copy are replaced
        model.vocab_size, model.output = len(tokens), self.output.restrict_vocabulary(tokens)
        model._modules["target_embedding"] = RestrictedEmbedding(self.target_embedding, tokens)
        return model

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        """Encode the sources (ids B S, lengths B), and create an empty decoder state with `beam` rows per source.

        `max_length` target tokens fit into the state, or fewer if the decoder has fewer positions. `first` is the id of
        the first input token of all rows, or of each source (B).
        """
        memory = self.encode(source, SequenceLayout.padded(source.shape[1], lengths))
        for layer in self.memory_layers:  # computed once, not in every step
            memory.projections[layer.path] = layer.project_memory(memory)
        max_length = min(max_length, position_limit(self.decoder) or max_length)  # None: no limit
        state = self.decoder.init_state(batch=source.shape[0] * beam, max_length=max_length, like=memory.states)
        tokens = first_tokens(first, source.shape[0], source.device).repeat_interleave(beam)
        return DecodingStart(memory, state, tokens, positions=torch.zeros_like(tokens), max_length=max_length)

    def flops(self, work: Workload) -> int:
        """FLOPs: embedding and encoder for `work.source` tokens, decoder and output layer for `work.tokens`."""
        embedding = module_flops(self.source_embedding, work.with_tokens(work.source))
        encoded_length = -(-work.source // self.source_embedding.stride)  # ⌈S / stride⌉: the embedding may shorten it
        if self.spec.source_extension is not None:
            encoded_length = self.spec.source_extension.extended_length(encoded_length)
        work = replace(work, source=encoded_length)  # from here on, source positions as the encoder returns them
        encoder = module_flops(self.encoder, work.with_tokens(work.source))
        return embedding + encoder + module_flops(self.decoder, work) + module_flops(self.output, work)
