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
from dragoman.parts.mixer import Context, MixerOutput, Recorder, SequenceLayout, assign_paths, map_state
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
    positions_after_target = 0  # positions that the model needs after the last token

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
        """Largest number of source tokens: 3/4 of the positions, the others being for the target; None if unlimited."""
        limit = position_limit(self.decoder)
        return None if limit is None else max(1, 3 * limit // 4)

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        """Return the largest number of target tokens for each source, B; None if unlimited.

        Source and target share the positions of the model: these are the ones that a source of this length leaves.
        """
        limit = position_limit(self.decoder)
        return None if limit is None else limit - source_lengths

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        """Return for each pair how many tokens its row of a batch has: the sum, because both form one sequence.

        `source` and `target` are the numbers of their tokens.
        """
        return source + target

    def forward_features(
        self,
        source: Tensor,
        source_layout: SequenceLayout,
        target: Tensor,
        target_layout: SequenceLayout,
        recorder: Recorder | None = None,
    ) -> MixerOutput:
        """Read each source and its target as one sequence; return the output layer's input for the target, B T D.

        Source (ids B S; S may be 0) and target (ids B T) are padded, and have their lengths in the layouts. The source
        is the prefix of the sequence, which is visible from all positions if the attention mask supports it.
        `recorder`, if given, collects attention weights. Layouts without lengths, such as those of packed rows, raise a
        ValueError, unless S is 0.
        """
        if not source.shape[1]:
            return self.forward_tokens(target, target_layout, recorder=recorder)
        if source_layout.lengths is None or target_layout.lengths is None:
            raise ValueError("packed sources and targets cannot be joined: join them before packing")
        tokens, positions = join(source, source_layout.lengths, target)  # B S+T and B T
        layout = SequenceLayout.padded(tokens.shape[1], source_layout.lengths + target_layout.lengths)
        joined = self.forward_tokens(tokens, layout, prefix_lengths=source_layout.lengths, recorder=recorder)
        return select_positions(joined, positions)

    def forward_tokens(
        self,
        tokens: Tensor,
        layout: SequenceLayout,
        prefix_lengths: Tensor | None = None,
        recorder: Recorder | None = None,
    ) -> MixerOutput:
        """Run all layers but the output layer on whole sequences of tokens: ids B T → B T D.

        The layout holds positions and lengths of the sequences. The first `prefix_lengths` (B) tokens of each are a
        prefix, which is visible from all positions if the attention mask supports it. `recorder`, if given, collects
        attention weights.
        """
        context = Context(layout, prefix_lengths=prefix_lengths, recorder=recorder)
        return self.decoder(self.target_embedding(tokens), context)

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        """Read the sources (ids B S, lengths B) once, and repeat the decoder state for the `beam` rows of each.

        `max_length` target tokens fit into the state after the source, or fewer if the model has fewer positions.
        `first` is the id of the first input token of all rows, or of each source (B).
        """
        batch, width = source.shape
        max_length = self.supported_length(width + max_length)  # of source and target together
        num_positions = max_length + self.positions_after_target  # with one for the mask, if the model predicts masks
        state = self.decoder.init_state(batch, num_positions, like=self.target_embedding.weight)
        if width:  # 0: there is no source
            context = Context(SequenceLayout.padded(width, lengths), prefix_lengths=lengths)
            state = self.decoder(self.embed_source(source), context, state).state
        if beam > 1:
            state = map_state(lambda tensor: tensor.repeat_interleave(beam, 0), state)
        tokens = first_tokens(first, batch, source.device).repeat_interleave(beam)
        positions = lengths.repeat_interleave(beam)  # the target follows the source
        return DecodingStart(memory=None, state=state, tokens=tokens, positions=positions, max_length=max_length)

    def embed_source(self, source: Tensor) -> Tensor:
        """Embed the tokens of a source, ids B S → B S D: here like those of a target."""
        return self.target_embedding(source)

    def supported_length(self, max_length: int) -> int:
        """Return `max_length`, or the number of tokens for which the model has positions, if that is smaller.

        Positions that it needs after the last token (`positions_after_target`) are left out.
        """
        limit = position_limit(self.decoder)
        return max_length if limit is None else min(max_length, limit - self.positions_after_target)

    def flops(self, work: Workload) -> int:
        """FLOPs: the decoder for source and target tokens, the output layer for `work.tokens` target tokens."""
        whole_sequence = work.with_tokens(work.source + work.tokens)
        return module_flops(self.decoder, whole_sequence) + module_flops(self.output, work)


def join(source: Tensor, source_lengths: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Put the tokens of each target (B T) right after those of its source (B S, lengths B), padding last.

    Returns the joined tokens (B S+T), and the positions of the target tokens in them (B T).
    """
    target_positions = source_lengths[:, None] + torch.arange(target.shape[1], device=target.device)  # B T
    source_and_zeros = torch.cat((source, torch.zeros_like(target)), 1)  # B S+T
    return source_and_zeros.scatter(1, target_positions, target), target_positions


def select_positions(result: MixerOutput, positions: Tensor) -> MixerOutput:
    """Return a decoder's result whose output, B S D, is restricted to T `positions` (B T) of each row: B T D."""
    x = result.output
    return result.with_output(x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1])))
