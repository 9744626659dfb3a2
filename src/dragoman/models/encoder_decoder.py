"""The encoder–decoder: p(y|x) = Π p(y_t | y_<t, x)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models.model import BaseModelSpec, DecodingStart, Model, position_limit
from dragoman.models.usage import TRANSLATE, Usage
from dragoman.parts.embedding import (
    Embedding,
    OutputLayer,
    RestrictedEmbedding,
    SourceEmbedding,
    TokenEmbedding,
    Transform,
)
from dragoman.parts.feature_embedding import Frames, Patches
from dragoman.parts.initialization import Glorot, Normal, Orthogonal, Uniform
from dragoman.parts.mixer import Context, Layout, Memory, Mixer, State, assign_paths
from dragoman.parts.stack import Stack
from dragoman.text.framing import ENCODER_DECODER_FRAMING, Framing


@dataclass(frozen=True)
class EncoderDecoder(BaseModelSpec):
    """Embeddings, an encoder that reads the source, a decoder that writes the target, an output layer."""

    default_framing: ClassVar[Framing] = ENCODER_DECODER_FRAMING

    dim: int
    source_vocab_size: int
    target_vocab_size: int
    encoder: Stack
    decoder: Stack
    embedding: Embedding = field(default_factory=Embedding)
    shared_embeddings: bool = False  # one table of embeddings for source and target
    tied_embeddings: bool = False  # the output layer's matrix is the target embedding
    output_bias: bool = True
    initialization: Glorot | Uniform | Orthogonal | Normal = field(default_factory=Glorot)
    transform: Transform | None = None  # a layer before the output layer
    output_scaled: bool = False  # what the output layer reads is divided by √D
    input: Patches | Frames | None = None  # what reads a source that is vectors, where it is no tokens

    default_objectives: ClassVar[dict[str, str]] = {
        "pairs": "translation",
        "text": "denoising",
        "features": "translation",
    }

    def build(self, dim: int = 0) -> EncoderDecoderModel:
        return EncoderDecoderModel(self)


class EncoderDecoderModel(Model):
    """`encode` once for a source, `decode` as often as need be."""

    def __init__(self, spec: EncoderDecoder) -> None:
        super().__init__()
        if spec.shared_embeddings and spec.input is None and spec.source_vocab_size != spec.target_vocab_size:
            raise UserError(
                f"one table of embeddings cannot serve {spec.source_vocab_size} source and {spec.target_vocab_size} "
                "target tokens: learn a joint tokenizer, or do not share the embeddings"
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
        tied = self.target_embedding if spec.tied_embeddings else None
        self.output = OutputLayer(
            spec.target_vocab_size, spec.dim, tied, spec.output_bias, spec.transform, spec.output_scaled
        )
        spec.initialization.initializer().apply(self)
        assign_paths(self)

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        source = self.source_embedding
        return source if isinstance(source, TokenEmbedding) else None, self.target_embedding

    @property
    def usage(self) -> Usage:
        return TRANSLATE

    @property
    def memory_paths(self) -> list[str]:
        parts = (part for part in self.decoder.modules() if isinstance(part, Mixer))
        return [part.path for part in parts if type(part).project_memory is not Mixer.project_memory]

    @property
    def max_source_length(self) -> int | None:
        limit = position_limit(self.encoder)
        return None if limit is None else limit * self.source_embedding.stride

    @property
    def supports_packing(self) -> bool:
        return super().supports_packing and self.source_embedding.supports_packing

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        limit = position_limit(self.decoder)
        return None if limit is None else torch.full_like(source_lengths, limit)

    def encode(self, source: Tensor, layout: Layout, recorder: dict[str, list[Tensor]] | None = None) -> Memory:
        """B S tokens or B S F vectors → what the decoder needs of them, every projection of it done."""
        x, layout = self.source_embedding.embed_source(source, layout)
        context = Context(layout, recorder=recorder)
        states, _ = self.encoder(x, context)
        memory = Memory(states, layout, context.stack_inputs, context.final_state, context.auxiliary_losses)
        for part in self.decoder.modules():
            if isinstance(part, Mixer) and (kept := part.project_memory(memory)):
                memory.projections[part.path] = kept
        return memory

    def forward_features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor,
        target_layout: Layout,
        recorder: dict[str, list[Tensor]] | None = None,
    ) -> tuple[Tensor, Context]:
        memory = self.encode(source, source_layout, recorder)
        context = Context(target_layout, memory, recorder=recorder, auxiliary_losses=memory.auxiliary_losses)
        return self.decoder(self.target_embedding(target), context)[0], context

    def decode(self, target: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        x, state = self.decoder(self.target_embedding(target), context, state)
        return self.output(x), state

    def restrict_vocabulary(self, tokens: Tensor) -> EncoderDecoderModel:
        made = copy(self)
        made._modules = dict(self._modules)  # so that only its own are changed
        made.vocab_size, made.output = len(tokens), self.output.restrict_vocabulary(tokens)
        made._modules["target_embedding"] = RestrictedEmbedding(self.target_embedding, tokens)
        return made

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, longest: int, first: int | Tensor
    ) -> DecodingStart:
        memory = self.encode(source, Layout.padded(source.shape[1], lengths))
        rows, places = source.shape[0] * beam, min(longest, position_limit(self.decoder) or longest)
        state = self.decoder.init_state(rows, places, memory.states)
        tokens = first_tokens(first, source.shape[0], source.device).repeat_interleave(beam)
        return DecodingStart(memory, state, tokens, torch.zeros_like(tokens), places)


def first_tokens(first: int | Tensor, batch: int, device: torch.device) -> Tensor:
    """B: the token that each source's targets begin with."""
    return first if isinstance(first, Tensor) else torch.full((batch,), first, dtype=torch.long, device=device)
