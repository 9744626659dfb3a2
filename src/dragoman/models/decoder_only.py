"""The decoder alone: p(y) = Π p(y_t | y_<t), and p(y|x) with x as the beginning of the same sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.models.encoder_decoder import first_tokens
from dragoman.models.model import BaseModelSpec, DecodingStart, Model, position_limit
from dragoman.models.usage import CONTINUE, Usage
from dragoman.parts.embedding import Embedding, OutputLayer, TokenEmbedding, Transform
from dragoman.parts.initialization import Glorot, Normal, Orthogonal, Uniform
from dragoman.parts.mixer import Context, Layout, State, assign_paths, map_state
from dragoman.parts.stack import Stack
from dragoman.text.framing import DECODER_ONLY_FRAMING, Framing


@dataclass(frozen=True)
class DecoderOnly(BaseModelSpec):
    """One stack that reads what there is and writes what comes next: language models, and source and target as one."""

    default_framing: ClassVar[Framing] = DECODER_ONLY_FRAMING

    dim: int
    vocab_size: int
    decoder: Stack
    embedding: Embedding = field(default_factory=Embedding)
    tied_embeddings: bool = True
    output_bias: bool = False
    initialization: Glorot | Uniform | Orthogonal | Normal = field(default_factory=Glorot)
    transform: Transform | None = None
    output_scaled: bool = False

    default_objectives: ClassVar[dict[str, str]] = {"pairs": "translation", "text": "language", "turns": "dialogue"}

    def build(self, dim: int = 0) -> DecoderOnlyModel:
        return DecoderOnlyModel(self)


class DecoderOnlyModel(Model):
    """The source, if there is one, is the beginning of the sequence, and `context.prefix` says how long it is."""

    is_decoder_only = True

    def __init__(self, spec: DecoderOnly) -> None:
        super().__init__()
        self.spec: DecoderOnly = spec
        self.vocab_size = spec.vocab_size
        self.decoder = spec.decoder.build(spec.dim)
        self.target_embedding = spec.embedding.build_embedding(spec.vocab_size, spec.dim)
        tied = self.target_embedding if spec.tied_embeddings else None
        self.output = OutputLayer(spec.vocab_size, spec.dim, tied, spec.output_bias, spec.transform, spec.output_scaled)
        spec.initialization.initializer().apply(self)
        assign_paths(self)

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding, TokenEmbedding]:
        return self.target_embedding, self.target_embedding

    @property
    def usage(self) -> Usage:
        return CONTINUE

    @property
    def max_source_length(self) -> int | None:
        """A quarter of the places is left to the target."""
        limit = position_limit(self.decoder)
        return None if limit is None else max(1, 3 * limit // 4)

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        limit = position_limit(self.decoder)
        return None if limit is None else limit - source_lengths

    def forward_features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor,
        target_layout: Layout,
        recorder: dict[str, list[Tensor]] | None = None,
    ) -> tuple[Tensor, Context]:
        if not source.shape[1]:
            return self.forward_tokens(target, target_layout, None, recorder)
        if source_layout.lengths is None or target_layout.lengths is None:
            raise ValueError(
                "source and target are joined row by row: packed ones must be joined before they are packed"
            )
        tokens, places = join(source, source_layout.lengths, target)
        layout = Layout.padded(tokens.shape[1], source_layout.lengths + target_layout.lengths)
        x, context = self.forward_tokens(tokens, layout, source_layout.lengths, recorder)
        return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1])), context

    def forward_tokens(
        self,
        tokens: Tensor,
        layout: Layout,
        prefix: Tensor | None = None,
        recorder: dict[str, list[Tensor]] | None = None,
    ) -> tuple[Tensor, Context]:
        """Whole sequences, B T → B T D; `prefix` (B) is how much of each may be seen from everywhere."""
        context = Context(layout, prefix_lengths=prefix, recorder=recorder)
        return self.decoder(self.target_embedding(tokens), context)[0], context

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        return source + target

    def decode(self, target: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        x, state = self.decoder(self.target_embedding(target), context, state)
        return self.output(x), state

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, longest: int, first: int | Tensor
    ) -> DecodingStart:
        """The source is read once, and its state repeated for the rows of a beam."""
        batch, width = source.shape
        places = min(width + longest, position_limit(self.decoder) or width + longest)
        state = self.decoder.init_state(batch, places, self.target_embedding.weight)
        if width:
            context = Context(Layout.padded(width, lengths), prefix_lengths=lengths)
            _, state = self.decoder(self.target_embedding(source), context, state)
        if beam > 1:
            state = map_state(lambda leaf: leaf.repeat_interleave(beam, 0), state)
        tokens = first_tokens(first, batch, source.device).repeat_interleave(beam)
        return DecodingStart(None, state, tokens, lengths.repeat_interleave(beam), places)


def join(source: Tensor, source_lengths: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of source and target as one, padding last (B S+T), and where each target token stands in them (B T)."""
    places = source_lengths[:, None] + torch.arange(target.shape[1], device=target.device)  # B T
    tokens = torch.cat((source, torch.zeros_like(target)), 1)
    return tokens.scatter(1, places, target), places
