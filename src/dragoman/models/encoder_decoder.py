"""The encoder–decoder: p(y|x) = Π p(y_t | y_<t, x)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.embedding import Embedding, OutputLayer
from dragoman.parts.initial import Glorot, Orthogonal, Uniform
from dragoman.parts.mixer import Ctx, Layout, Memory, Mixer, State, name_parts
from dragoman.parts.positions import Position
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Stack


@dataclass(frozen=True)
class EncoderDecoder(Spec):
    """Embeddings, an encoder that reads the source, a decoder that writes the target, an output layer."""

    dim: int
    source_vocabulary: int
    target_vocabulary: int
    encoder: Stack
    decoder: Stack
    embedding: Embedding = field(default_factory=Embedding)
    shared: bool = False  # one table of embeddings for source and target
    tied: bool = False  # the output layer's matrix is the target embedding
    output_bias: bool = True
    initial: Glorot | Uniform | Orthogonal = field(default_factory=Glorot)

    def build(self, dim: int = 0) -> EncoderDecoderModel:
        return EncoderDecoderModel(self)


class EncoderDecoderModel(nn.Module):
    """`encode` once for a source, `decode` as often as need be."""

    def __init__(self, spec: EncoderDecoder) -> None:
        super().__init__()
        if spec.shared and spec.source_vocabulary != spec.target_vocabulary:
            raise UserError(
                f"one table of embeddings cannot serve {spec.source_vocabulary} source and {spec.target_vocabulary} "
                "target tokens: learn a joint tokenizer, or do not share the embeddings"
            )
        self.spec = spec
        self.encoder = spec.encoder.build(spec.dim)
        self.decoder = spec.decoder.build(spec.dim)
        self.target_embedding = spec.embedding.table(spec.target_vocabulary, spec.dim)
        self.source_embedding = (
            self.target_embedding if spec.shared else spec.embedding.table(spec.source_vocabulary, spec.dim)
        )
        tied = self.target_embedding if spec.tied else None
        self.output = OutputLayer(spec.target_vocabulary, spec.dim, tied, spec.output_bias)
        spec.initial.initializer().apply(self)
        name_parts(self)
        #: the parts of the decoder that look at the source, in order
        self.memory_paths = [
            p.path for p in self.decoder.modules() if isinstance(p, Mixer) and type(p).remember is not Mixer.remember
        ]

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The longest source and target that its positions can place."""
        return _limit(self.encoder), _limit(self.decoder)

    @property
    def packs(self) -> bool:
        """Can it read packed rows?"""
        return all(part.packs for part in self.modules() if isinstance(part, Mixer))

    def encode(self, source: Tensor, layout: Layout, recorder: dict[str, list[Tensor]] | None = None) -> Memory:
        """B S tokens → what the decoder needs of them, every projection of it done."""
        ctx = Ctx(layout, recorder=recorder)
        states, _ = self.encoder(self.source_embedding(source), ctx)
        memory = Memory(states, layout, ctx.final)
        for part in self.decoder.modules():
            if isinstance(part, Mixer) and (kept := part.remember(memory)):
                memory.projected[part.path] = kept
        return memory

    def features(self, target: Tensor, ctx: Ctx, state: State | None = None) -> tuple[Tensor, State | None]:
        """B T tokens → B T D, what the output layer reads."""
        return self.decoder(self.target_embedding(target), ctx, state)

    def decode(self, target: Tensor, ctx: Ctx, state: State | None = None) -> tuple[Tensor, State | None]:
        """B T tokens → B T V logits of the token after each."""
        features, state = self.features(target, ctx, state)
        return self.output(features), state

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor) -> Tensor:
        """Teacher forcing: padded tokens, B S and B T → B T V."""
        memory = self.encode(source, Layout.padded(source.shape[1], source_lengths))
        return self.decode(target, Ctx(Layout.padded(target.shape[1], target_lengths), memory))[0]

    def start(self, source: Tensor, lengths: Tensor, beam: int, longest: int, first: int) -> Start:
        """Everything a search begins with: the memory, an empty state and the first token for `beam` rows a source."""
        memory = self.encode(source, Layout.padded(source.shape[1], lengths))
        rows = source.shape[0] * beam
        state = self.decoder.init_state(rows, longest, memory.states)
        tokens = torch.full((rows,), first, dtype=torch.long, device=source.device)
        return Start(memory, state, tokens, torch.zeros_like(tokens))


@dataclass
class Start:
    """Where a search begins."""

    memory: Memory | None
    state: State
    tokens: Tensor  # R: the token that is fed first
    positions: Tensor  # R: its position


def _limit(stack: nn.Module) -> int | None:
    limits = [part.limit for part in stack.modules() if isinstance(part, Position) and part.limit is not None]
    return min(limits, default=None)
