"""The cost of a model in floating-point operations, counted from its spec.

As in `torch.utils.flop_counter`, matrix products alone are counted, a multiplication and an addition as two operations:
a matrix of I × O costs 2·I·O a token, and attention of T queries to S keys of H heads 4·T·S·H·E, whether a mask hides
some of them or not. Look-ups, norms, softmax and everything else that is done number by number are free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from dragoman.errors import UserError
from dragoman.models import ModelSpec, ReplacedTokens, blueprint
from dragoman.models.decoder_only import DecoderOnlyModel
from dragoman.models.encoder_decoder import EncoderDecoderModel
from dragoman.models.encoder_only import EncoderOnlyModel
from dragoman.models.replaced_tokens import ReplacedTokensModel
from dragoman.parts.attention import CrossAttentionMixer, SelfAttentionMixer
from dragoman.parts.cells import Cells, GRUCells, LSTMCells, RNNCells
from dragoman.parts.compressed import CompressedAttentionMixer, LocalAttentionMixer
from dragoman.parts.convolution import (
    Convolution,
    DilatedBlockMixer,
    GatedConvolutionMixer,
    HalvedResidualMixer,
    MultiStepAttentionMixer,
    NormalisedLinear,
    UnfoldingMixer,
)
from dragoman.parts.dropout import Dropout
from dragoman.parts.embedding import NoOutput, OutputLayer, TokenEmbedding, TransformLayer
from dragoman.parts.experts import ExpertsMixer
from dragoman.parts.fast_forward import Column, FastForwardDecoderMixer, FastForwardEncoderMixer, cells_of
from dragoman.parts.feedforward import FeedForwardMixer
from dragoman.parts.norm import BatchNormalisation, LayerNormalisation, RMSNormalisation, Unnormalised
from dragoman.parts.positions import LearnedPosition, Position, RotaryPosition, SinusoidalPosition
from dragoman.parts.recurrence import RecurrentMixer
from dragoman.parts.recurrent_context import (
    AttentionalReadout,
    AttentionContext,
    BackwardSummary,
    Context,
    ContextStart,
    CopyStart,
    FixedContext,
    MaxoutReadout,
    MeanSummary,
    Readout,
    Start,
    Summary,
    SummaryStart,
)
from dragoman.parts.recurrent_decoder import RecurrentDecoderMixer
from dragoman.parts.relative import BucketedBias, LinearBias, ShawKeys, ShawKeysAndValues
from dragoman.parts.score import AdditiveScore, ConcatScore, GeneralScore, ScaledDotScore, Score
from dragoman.parts.sensory import FrameEmbedding, PatchEmbedding
from dragoman.parts.stack import ParallelMixer, ResidualMixer, StackMixer


def count_flops(spec: ModelSpec, source: int, target: int) -> int:
    """What one forward pass over a pair of `source` and `target` tokens costs, without padding."""
    return flops(blueprint(spec), Extent(target, source, spec.dim))


def training_flops(spec: ModelSpec, source: int, target: int) -> int:
    """What it costs to learn from such a pair once: forward, and twice as much backward, for inputs and for weights.

    Every position is counted as asked, as in teacher forcing; objectives that ask for some words alone save a part of
    the output layer. A generator that is trained beside the model is counted in.
    """
    forward = count_flops(spec, source, target)
    if isinstance(spec, ReplacedTokens):
        forward += count_flops(spec.generator, source, target)
    return 3 * forward


@dataclass(frozen=True)
class Extent:
    """How much a part has before it."""

    tokens: int  # T: that it reads
    source: int  # S: that a decoder's part can look at
    width: int  # D: of the model
    shared: Position | None = None  # the stack's position part, which enters at every attention in it

    def of(self, tokens: int) -> Extent:
        """The same for another number of tokens."""
        return replace(self, tokens=tokens)


def flops(part: nn.Module, extent: Extent) -> int:
    """What one part costs, everything in it counted in."""
    formula = FORMULAS.get(type(part))  # not that of a class above it, which costs something else
    if formula is None:
        raise UserError(
            f"the operations of {type(part).__name__} cannot be counted: add its formula to "
            "dragoman.models.flops.FORMULAS"
        )
    return formula(part, extent)


def _free(part: nn.Module, extent: Extent) -> int:
    return 0


def _each_token(part: nn.Module, extent: Extent) -> int:
    """Its matrices times every token, and the same of the parts in it."""
    own = sum(weight.numel() for weight in part.parameters(recurse=False) if weight.dim() == 2)
    return 2 * extent.tokens * own + sum(flops(child, extent) for child in part.children())


def _once(part: nn.Module, extent: Extent) -> int:
    """Computed from one vector for the whole source."""
    return _each_token(part, extent.of(1))


def _attention(queries: int, keys: int, width: int) -> int:
    """Scores and weighted sum; `width` is that of all heads together."""
    return 4 * queries * keys * width


# ---- models: `tokens` are those of the target


def _encoder_decoder(model: EncoderDecoderModel, extent: Extent) -> int:
    read = flops(model.source_embedding, extent.of(extent.source))
    extent = replace(extent, source=-(-extent.source // model.source_embedding.stride))
    encoder = flops(model.encoder, extent.of(extent.source))
    return read + encoder + flops(model.decoder, extent) + flops(model.output, extent)


def _decoder_only(model: DecoderOnlyModel, extent: Extent) -> int:
    """Source and target are one sequence, but only the target is asked for."""
    return flops(model.decoder, extent.of(extent.source + extent.tokens)) + flops(model.output, extent)


def _encoder_only(model: EncoderOnlyModel, extent: Extent) -> int:
    read = extent.of(extent.source)
    return flops(model.encoder, read) + flops(model.output, read)


def _replaced_tokens(model: ReplacedTokensModel, extent: Extent) -> int:
    """The discriminator, which is the model that is kept."""
    return flops(model.discriminator, extent)


# ---- sources that are vectors


def _frames(part: FrameEmbedding, extent: Extent) -> int:
    """Each layer is asked for half as many frames as it is given."""
    cost, frames = 0, extent.tokens
    for layer in part.halve:
        frames = (frames + 1) // 2
        cost += flops(layer, extent.of(frames))
    return cost + flops(part.project, extent.of(frames))


# ---- wiring


def _stack(stack: StackMixer, extent: Extent) -> int:
    layers = flops(stack.layers, replace(extent, shared=stack.position))
    return flops(stack.input_norm, extent) + flops(stack.project, extent) + layers + flops(stack.norm, extent)


def _experts(part: ExpertsMixer, extent: Extent) -> int:
    """The router, and the chosen experts alone."""
    return flops(part.router, extent) + flops(part.experts[0], extent.of(extent.tokens * part.chosen))


# ---- attention


def _self_attention(part: SelfAttentionMixer, extent: Extent) -> int:
    linear = flops(part.project, extent) + flops(part.output, extent)
    queries = extent.of(extent.tokens * part.heads)  # position parts answer every head's queries
    positions = [part.position] if extent.shared is None else [part.position, extent.shared]
    placed = sum(flops(position, queries) for position in positions)
    return linear + placed + _attention(extent.tokens, extent.tokens, part.heads * part.width)


def _shaw(position: ShawKeys, extent: Extent) -> int:
    """Each query to the key of every distance, and the value of every distance to each query."""
    return 2 * extent.tokens * sum(table.numel() for table in position.parameters())


def _cross_attention(part: CrossAttentionMixer, extent: Extent) -> int:
    linear = flops(part.query, extent) + flops(part.project, extent.of(extent.source)) + flops(part.output, extent)
    return linear + _attention(extent.tokens, extent.source, part.heads * part.width)


def _local_attention(part: LocalAttentionMixer, extent: Extent) -> int:
    """Every block sees itself; the last is filled up."""
    block = max(1, min(part.block, extent.tokens))
    filled = -(-extent.tokens // block) * block
    linear = flops(part.project, extent) + flops(part.output, extent)
    return linear + _attention(filled, block, part.heads * part.width)


def _compressed_attention(part: CompressedAttentionMixer, extent: Extent) -> int:
    """Queries in groups of `stride` to the cells and the zeros before them."""
    cells = extent.tokens // part.stride
    linear = flops(part.project, extent) + flops(part.output, extent)
    compressed = sum(flops(linear, extent.of(cells)) for linear in part.compress.values())
    return linear + compressed + _attention((cells + 1) * part.stride, cells + 1, part.heads * part.width)


def _multi_step_attention(part: MultiStepAttentionMixer, extent: Extent) -> int:
    return flops(part.query, extent) + _attention(extent.tokens, extent.source, extent.width)


# ---- recurrence with a look at the source


def _attention_context(context: AttentionContext, extent: Extent) -> int:
    """The score of each state with each source position, and the weighted sum."""
    return flops(context.score, extent) + 2 * extent.tokens * extent.source * extent.width


def _dot(score: Score, extent: Extent) -> int:
    return 2 * extent.tokens * extent.source * extent.width


def _general(score: GeneralScore, extent: Extent) -> int:
    return flops(score.key, extent.of(extent.source)) + _dot(score, extent)


def _additive(score: AdditiveScore, extent: Extent) -> int:
    both = flops(score.query, extent) + flops(score.key, extent.of(extent.source))
    return both + flops(score.value, extent.of(extent.tokens * extent.source))


def _concat(score: ConcatScore, extent: Extent) -> int:
    """One half of the matrix for queries, the other for keys."""
    both = (extent.tokens + extent.source) * score.both.weight.numel()
    return both + flops(score.value, extent.of(extent.tokens * extent.source))


def _below(cells: Cells) -> int:
    """The size of the matrix from below."""
    return cells.weight("ih", 0)[0].numel()


def _column(column: Column, extent: Extent) -> int:
    """Half of what enters each layer is computed a second time for the next, and all of what enters the last."""
    *lower, top = cells_of(column.layers)
    again = sum(_below(cells) // 2 for cells in lower) + _below(top)
    return _each_token(column, extent) + 2 * extent.tokens * again


def _fast_forward_decoder(part: FastForwardDecoderMixer, extent: Extent) -> int:
    *lower, _ = [part.bottom.cells, *cells_of(part.layers)]
    return _each_token(part, extent) + 2 * extent.tokens * sum(_below(cells) // 2 for cells in lower)


# ---- convolution


def _unfolding(part: UnfoldingMixer, extent: Extent) -> int:
    return flops(part.project, extent.of(extent.source))


FREE = (
    *(nn.Identity, nn.Dropout, Dropout, nn.Embedding, TokenEmbedding),
    *(Unnormalised, LayerNormalisation, RMSNormalisation, BatchNormalisation),
    *(Position, SinusoidalPosition, LearnedPosition, RotaryPosition, BucketedBias, LinearBias),
    *(Summary, BackwardSummary, MeanSummary, Start, CopyStart, Context, Readout, NoOutput),
)
EACH_TOKEN = (
    *(nn.Linear, nn.ModuleList, NormalisedLinear, OutputLayer, TransformLayer, PatchEmbedding),
    *(ResidualMixer, ParallelMixer, HalvedResidualMixer, FeedForwardMixer),
    *(Convolution, GatedConvolutionMixer, DilatedBlockMixer),
    *(RNNCells, LSTMCells, GRUCells, RecurrentMixer, RecurrentDecoderMixer, FastForwardEncoderMixer),
    *(AttentionalReadout, MaxoutReadout),
)
ONCE = (FixedContext, SummaryStart, ContextStart)

#: what each kind of part costs; one that is not here cannot be counted
FORMULAS: dict[type[nn.Module], Callable[[Any, Extent], int]] = {
    **dict.fromkeys(FREE, _free),
    **dict.fromkeys(EACH_TOKEN, _each_token),
    **dict.fromkeys(ONCE, _once),
    EncoderDecoderModel: _encoder_decoder,
    DecoderOnlyModel: _decoder_only,
    EncoderOnlyModel: _encoder_only,
    ReplacedTokensModel: _replaced_tokens,
    StackMixer: _stack,
    ExpertsMixer: _experts,
    SelfAttentionMixer: _self_attention,
    ShawKeys: _shaw,
    ShawKeysAndValues: _shaw,
    CrossAttentionMixer: _cross_attention,
    LocalAttentionMixer: _local_attention,
    CompressedAttentionMixer: _compressed_attention,
    MultiStepAttentionMixer: _multi_step_attention,
    AttentionContext: _attention_context,
    Score: _dot,
    ScaledDotScore: _dot,
    GeneralScore: _general,
    AdditiveScore: _additive,
    ConcatScore: _concat,
    Column: _column,
    FastForwardDecoderMixer: _fast_forward_decoder,
    UnfoldingMixer: _unfolding,
    FrameEmbedding: _frames,
}
