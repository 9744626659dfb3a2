"""The decoder alone: p(y) = Π p(y_t | y_<t), and p(y|x) with x as the beginning of the same sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.models.encoder_decoder import first_tokens
from dragoman.models.model import Model, Start, position_limit
from dragoman.models.usage import CONTINUE, Usage
from dragoman.parts.embedding import Embedding, OutputLayer, Transform
from dragoman.parts.initial import Glorot, Normal, Orthogonal, Uniform
from dragoman.parts.mixer import Ctx, Layout, State, map_state, name_parts
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Stack


@dataclass(frozen=True)
class DecoderOnly(Spec):
    """One stack that reads what there is and writes what comes next: language models, and source and target as one."""

    dim: int
    vocabulary: int
    decoder: Stack
    embedding: Embedding = field(default_factory=Embedding)
    tied: bool = True
    output_bias: bool = False
    initial: Glorot | Uniform | Orthogonal | Normal = field(default_factory=Glorot)
    transform: Transform | None = None
    output_scaled: bool = False

    def build(self, dim: int = 0) -> DecoderOnlyModel:
        return DecoderOnlyModel(self)


class DecoderOnlyModel(Model):
    """The source, if there is one, is the beginning of the sequence, and `ctx.prefix` says how long it is."""

    joins = True

    def __init__(self, spec: DecoderOnly) -> None:
        super().__init__()
        self.spec: DecoderOnly = spec
        self.vocabulary = spec.vocabulary
        self.decoder = spec.decoder.build(spec.dim)
        self.target_embedding = spec.embedding.table(spec.vocabulary, spec.dim)
        tied = self.target_embedding if spec.tied else None
        self.output = OutputLayer(spec.vocabulary, spec.dim, tied, spec.output_bias, spec.transform, spec.output_scaled)
        spec.initial.initializer().apply(self)
        name_parts(self)

    @property
    def usage(self) -> Usage:
        return CONTINUE

    @property
    def longest_source(self) -> int | None:
        """A quarter of the places is left to the target."""
        limit = position_limit(self.decoder)
        return None if limit is None else max(1, 3 * limit // 4)

    def room(self, source_lengths: Tensor) -> Tensor | None:
        limit = position_limit(self.decoder)
        return None if limit is None else limit - source_lengths

    def features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor,
        target_layout: Layout,
        recorder: dict[str, list[Tensor]] | None = None,
    ) -> tuple[Tensor, Ctx]:
        if not source.shape[1]:
            return self.read(target, target_layout, None, recorder)
        if source_layout.lengths is None or target_layout.lengths is None:
            raise ValueError(
                "source and target are joined row by row: packed ones must be joined before they are packed"
            )
        tokens, places = join(source, source_layout.lengths, target)
        layout = Layout.padded(tokens.shape[1], source_layout.lengths + target_layout.lengths)
        x, ctx = self.read(tokens, layout, source_layout.lengths, recorder)
        return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1])), ctx

    def read(
        self,
        tokens: Tensor,
        layout: Layout,
        prefix: Tensor | None = None,
        recorder: dict[str, list[Tensor]] | None = None,
    ) -> tuple[Tensor, Ctx]:
        """Whole sequences, B T → B T D; `prefix` (B) is how much of each may be seen from everywhere."""
        ctx = Ctx(layout, prefix=prefix, recorder=recorder)
        return self.decoder(self.target_embedding(tokens), ctx)[0], ctx

    def width(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        return source + target

    def decode(self, target: Tensor, ctx: Ctx, state: State | None = None) -> tuple[Tensor, State | None]:
        x, state = self.decoder(self.target_embedding(target), ctx, state)
        return self.output(x), state

    def start(self, source: Tensor, lengths: Tensor, beam: int, longest: int, first: int | Tensor) -> Start:
        """The source is read once, and its state repeated for the rows of a beam."""
        batch, width = source.shape
        places = min(width + longest, position_limit(self.decoder) or width + longest)
        state = self.decoder.init_state(batch, places, self.target_embedding.weight)
        if width:
            ctx = Ctx(Layout.padded(width, lengths), prefix=lengths)
            _, state = self.decoder(self.target_embedding(source), ctx, state)
        if beam > 1:
            state = map_state(lambda leaf: leaf.repeat_interleave(beam, 0), state)
        tokens = first_tokens(first, batch, source.device).repeat_interleave(beam)
        return Start(None, state, tokens, lengths.repeat_interleave(beam), places)


def join(source: Tensor, source_lengths: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of source and target as one, padding last (B S+T), and where each target token stands in them (B T)."""
    places = source_lengths[:, None] + torch.arange(target.shape[1], device=target.device)  # B T
    tokens = torch.cat((source, torch.zeros_like(target)), 1)
    return tokens.scatter(1, places, target), places
