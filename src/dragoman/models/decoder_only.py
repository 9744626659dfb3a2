"""The decoder-only model: p(y) = Π p(y_t | y_<t), and p(y|x) with x as the prefix of the sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.models.model import DecodingStart, Model, ModelSpec, first_tokens, position_limit
from dragoman.models.usage import CONTINUE
from dragoman.parts.embedding import Embedding, OutputLayer, TokenEmbedding, Transform
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.initialization import Glorot, Initialization
from dragoman.parts.mixer import Context, Layout, MixerOutput, Recorder, assign_paths, map_state
from dragoman.parts.stack import Stack
from dragoman.text.framing import DECODER_ONLY_FRAMING, Framing


@dataclass(frozen=True)
class DecoderOnly(ModelSpec):
    """One stack that predicts the next token: language models, or source and target in one sequence."""

    architecture: ClassVar[str] = "decoder"
    default_framing: ClassVar[Framing] = DECODER_ONLY_FRAMING
    default_objectives: ClassVar[dict[str, str]] = {"pairs": "translation", "text": "causal-lm", "turns": "dialogue"}

    dim: int
    vocab_size: int
    decoder: Stack
    embedding: Embedding = field(default_factory=Embedding)
    tied_embeddings: bool = True
    output_bias: bool = False
    initialization: Initialization = field(default_factory=Glorot)
    transform: Transform | None = None
    output_scaled: bool = False

    def build(self, dim: int = 0) -> DecoderOnlyModel:
        """Create the model; the argument `dim` is unused, because the width is a field of this spec."""
        return DecoderOnlyModel(self)


class DecoderOnlyModel(Model):
    """The source, if any, is a prefix of the sequence, whose length is `context.prefix_lengths`."""

    usage = CONTINUE
    is_decoder_only = True

    def __init__(self, spec: DecoderOnly) -> None:
        """Build embeddings, decoder and output layer of the spec, and initialize the weights."""
        super().__init__()
        self.spec: DecoderOnly = spec
        self.vocab_size = spec.vocab_size
        self.decoder = spec.decoder.build(spec.dim)
        self.target_embedding = spec.embedding.build_embedding(spec.vocab_size, spec.dim)
        tied = self.target_embedding if spec.tied_embeddings else None
        self.output = OutputLayer(
            outputs=spec.vocab_size,
            dim=spec.dim,
            tied=tied,
            bias=spec.output_bias,
            transform=spec.transform,
            scaled=spec.output_scaled,
        )
        spec.initialization.apply(self)
        assign_paths(self)  # tells each layer its name in the model

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        """Embedding tables of source and target tokens: the same table, because they form one sequence."""
        return self.target_embedding, self.target_embedding

    @property
    def max_source_length(self) -> int | None:
        """Three quarters of the positions; the others are for the target. None if unlimited."""
        limit = position_limit(self.decoder)
        return None if limit is None else max(1, 3 * limit // 4)

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        """B: positions that the sources leave for the target; None if unlimited."""
        limit = position_limit(self.decoder)
        return None if limit is None else limit - source_lengths

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        """Return the lengths of rows (padded sequences): source + target, because both form one sequence."""
        return source + target

    def forward_features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor,
        target_layout: Layout,
        recorder: Recorder | None = None,
    ) -> MixerOutput:
        """Read source and target as one sequence, and return the inputs of the output layer at target positions, B T D.

        The layouts hold the lengths of sources (B S, S may be 0) and targets (B T); `recorder` collects attention.
        """
        if not source.shape[1]:
            return self.forward_tokens(target, target_layout, recorder=recorder)
        if source_layout.lengths is None or target_layout.lengths is None:
            raise ValueError("packed sources and targets cannot be joined: join them before packing")
        tokens, positions = join(source, source_layout.lengths, target)
        layout = Layout.padded(tokens.shape[1], source_layout.lengths + target_layout.lengths)
        features = self.forward_tokens(tokens, layout, prefix_lengths=source_layout.lengths, recorder=recorder)
        x = features.output
        return features.with_output(x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1])))

    def forward_tokens(
        self, tokens: Tensor, layout: Layout, prefix_lengths: Tensor | None = None, recorder: Recorder | None = None
    ) -> MixerOutput:
        """Read whole sequences, B T, and return the decoder's output (B T D) with its state.

        The layout holds positions and lengths of the tokens. The first `prefix_lengths` (B) tokens of each sequence are
        visible from all positions; `recorder` collects attention weights.
        """
        context = Context(layout, prefix_lengths=prefix_lengths, recorder=recorder)
        return self.decoder(self.target_embedding(tokens), context)

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        """Read the sources (B S, of `lengths` B) once, and repeat the decoder state for the `beam` rows of each.

        `max_length` target tokens fit into the state after the source. `first` is the first input token of all rows, or
        of each source (B).
        """
        batch, width = source.shape
        max_length = min(width + max_length, position_limit(self.decoder) or width + max_length)
        state = self.decoder.init_state(batch, max_length, self.target_embedding.weight)
        if width:
            context = Context(Layout.padded(width, lengths), prefix_lengths=lengths)
            state = self.decoder(self.target_embedding(source), context, state).state
        if beam > 1:
            state = map_state(lambda tensor: tensor.repeat_interleave(beam, 0), state)
        tokens = first_tokens(first, batch, source.device).repeat_interleave(beam)
        positions = lengths.repeat_interleave(beam)  # the target follows the source
        return DecodingStart(memory=None, state=state, tokens=tokens, positions=positions, max_length=max_length)

    def flops(self, work: Workload) -> int:
        """FLOPs: the decoder for source and target tokens, the output layer for `work.tokens` target tokens."""
        whole_sequence = work.with_tokens(work.source + work.tokens)
        return module_flops(self.decoder, whole_sequence) + module_flops(self.output, work)


def join(source: Tensor, source_lengths: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Put each target (B T) right after its source (B S, of `source_lengths` B), padding last.

    Returns the joined tokens (B S+T), and the positions of the target tokens in them (B T).
    """
    positions = source_lengths[:, None] + torch.arange(target.shape[1], device=target.device)  # B T
    tokens = torch.cat((source, torch.zeros_like(target)), 1)
    return tokens.scatter(1, positions, target), positions
