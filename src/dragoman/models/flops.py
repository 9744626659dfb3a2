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
from dragoman.models import ModelSpec, ReplacedTokens, meta_model
from dragoman.models.decoder_only import DecoderOnlyModel
from dragoman.models.encoder_decoder import EncoderDecoderModel
from dragoman.models.encoder_only import EncoderOnlyModel
from dragoman.models.replaced_token_detection import ReplacedTokensModel
from dragoman.parts.attention import CrossAttentionMixer, SelfAttentionMixer
from dragoman.parts.attention_scores import AdditiveScore, ConcatScore, GeneralScore, ScaledDotScore, Score
from dragoman.parts.cells import Cells, GRUCells, LSTMCells, RNNCells
from dragoman.parts.convolution import (
    Convolution,
    DilatedBlockMixer,
    GatedConvolutionMixer,
    MultiStepAttentionMixer,
    ScaledResidualMixer,
    UnfoldingMixer,
    WeightNormLinear,
)
from dragoman.parts.dropout import Dropout
from dragoman.parts.embedding import IdentityOutput, OutputLayer, TokenEmbedding, TransformLayer
from dragoman.parts.experts import ExpertsMixer
from dragoman.parts.fast_forward import FastForwardColumn, FastForwardDecoderMixer, FastForwardEncoderMixer, cells_of
from dragoman.parts.feature_embedding import FrameEmbedding, PatchEmbedding
from dragoman.parts.feedforward import FeedForwardMixer
from dragoman.parts.long_attention import CompressedAttentionMixer, LocalAttentionMixer
from dragoman.parts.norm import BatchNormModule, Identity, LayerNormModule, RMSNormModule
from dragoman.parts.positions import LearnedPosition, Position, RotaryPosition, SinusoidalPosition
from dragoman.parts.recurrence import RecurrentMixer
from dragoman.parts.recurrent_context import (
    AttentionalReadoutModule,
    AttentionContextModule,
    BackwardSummary,
    ContextInitialState,
    ContextModule,
    CopiedInitialState,
    FixedContextModule,
    InitialState,
    MaxoutReadoutModule,
    MeanSummary,
    ReadoutModule,
    Summary,
    SummaryInitialState,
)
from dragoman.parts.recurrent_decoder import RecurrentDecoderMixer
from dragoman.parts.relative_positions import BucketedBias, LinearBias, ShawKeys, ShawKeysAndValues
from dragoman.parts.stack import ParallelMixer, ResidualMixer, StackMixer


def count_flops(spec: ModelSpec, source: int, target: int) -> int:
    """What one forward pass over a pair of `source` and `target` tokens costs, without padding."""
    return flops(meta_model(spec), Workload(target, source, spec.dim))


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
class Workload:
    """How much a part has before it."""

    tokens: int  # T: that it reads
    source: int  # S: that a decoder's part can look at
    width: int  # D: of the model
    shared: Position | None = None  # the stack's position part, which enters at every attention in it

    def of(self, tokens: int) -> Workload:
        """The same for another number of tokens."""
        return replace(self, tokens=tokens)


def flops(part: nn.Module, extent: Workload) -> int:
    """What one part costs, everything in it counted in."""
    formula = FORMULAS.get(type(part))  # not that of a class above it, which costs something else
    if formula is None:
        raise UserError(
            f"the operations of {type(part).__name__} cannot be counted: add its formula to "
            "dragoman.models.flops.FORMULAS"
        )
    return formula(part, extent)


def _free(part: nn.Module, extent: Workload) -> int:
    return 0


def _each_token(part: nn.Module, extent: Workload) -> int:
    """Its matrices times every token, and the same of the parts in it."""
    own = sum(weight.numel() for weight in part.parameters(recurse=False) if weight.dim() == 2)
    return 2 * extent.tokens * own + sum(flops(child, extent) for child in part.children())


def _once(part: nn.Module, extent: Workload) -> int:
    """Computed from one vector for the whole source."""
    return _each_token(part, extent.of(1))


def _attention(queries: int, keys: int, width: int) -> int:
    """Scores and weighted sum; `width` is that of all heads together."""
    return 4 * queries * keys * width


# ---- models: `tokens` are those of the target


def _encoder_decoder(model: EncoderDecoderModel, extent: Workload) -> int:
    read = flops(model.source_embedding, extent.of(extent.source))
    extent = replace(extent, source=-(-extent.source // model.source_embedding.stride))
    encoder = flops(model.encoder, extent.of(extent.source))
    return read + encoder + flops(model.decoder, extent) + flops(model.output, extent)


def _decoder_only(model: DecoderOnlyModel, extent: Workload) -> int:
    """Source and target are one sequence, but only the target is asked for."""
    return flops(model.decoder, extent.of(extent.source + extent.tokens)) + flops(model.output, extent)


def _encoder_only(model: EncoderOnlyModel, extent: Workload) -> int:
    read = extent.of(extent.source)
    return flops(model.encoder, read) + flops(model.output, read)


def _replaced_tokens(model: ReplacedTokensModel, extent: Workload) -> int:
    """The discriminator, which is the model that is kept."""
    return flops(model.discriminator, extent)


# ---- sources that are vectors


def _frames(part: FrameEmbedding, extent: Workload) -> int:
    """Each layer is asked for half as many frames as it is given."""
    cost, frames = 0, extent.tokens
    for layer in part.halve:
        frames = (frames + 1) // 2
        cost += flops(layer, extent.of(frames))
    return cost + flops(part.project, extent.of(frames))


# ---- wiring


def _stack(stack: StackMixer, extent: Workload) -> int:
    layers = flops(stack.layers, replace(extent, shared=stack.position))
    return flops(stack.input_norm, extent) + flops(stack.project, extent) + layers + flops(stack.norm, extent)


def _experts(part: ExpertsMixer, extent: Workload) -> int:
    """The router, and the chosen experts alone."""
    return flops(part.router, extent) + flops(part.experts[0], extent.of(extent.tokens * part.chosen))


# ---- attention


def _self_attention(part: SelfAttentionMixer, extent: Workload) -> int:
    linear = flops(part.project, extent) + flops(part.output, extent)
    queries = extent.of(extent.tokens * part.heads)  # position parts answer every head's queries
    positions = [part.position] if extent.shared is None else [part.position, extent.shared]
    placed = sum(flops(position, queries) for position in positions)
    return linear + placed + _attention(extent.tokens, extent.tokens, part.heads * part.width)


def _shaw(position: ShawKeys, extent: Workload) -> int:
    """Each query to the key of every distance, and the value of every distance to each query."""
    return 2 * extent.tokens * sum(table.numel() for table in position.parameters())


def _cross_attention(part: CrossAttentionMixer, extent: Workload) -> int:
    linear = flops(part.query, extent) + flops(part.project, extent.of(extent.source)) + flops(part.output, extent)
    return linear + _attention(extent.tokens, extent.source, part.heads * part.width)


def _local_attention(part: LocalAttentionMixer, extent: Workload) -> int:
    """Every block sees itself; the last is filled up."""
    block = max(1, min(part.block, extent.tokens))
    filled = -(-extent.tokens // block) * block
    linear = flops(part.project, extent) + flops(part.output, extent)
    return linear + _attention(filled, block, part.heads * part.width)


def _compressed_attention(part: CompressedAttentionMixer, extent: Workload) -> int:
    """Queries in groups of `stride` to the cells and the zeros before them."""
    cells = extent.tokens // part.stride
    linear = flops(part.project, extent) + flops(part.output, extent)
    compressed = sum(flops(linear, extent.of(cells)) for linear in part.compress.values())
    return linear + compressed + _attention((cells + 1) * part.stride, cells + 1, part.heads * part.width)


def _multi_step_attention(part: MultiStepAttentionMixer, extent: Workload) -> int:
    return flops(part.query, extent) + _attention(extent.tokens, extent.source, extent.width)


# ---- recurrence with a look at the source


def _attention_context(context: AttentionContextModule, extent: Workload) -> int:
    """The score of each state with each source position, and the weighted sum."""
    return flops(context.score, extent) + 2 * extent.tokens * extent.source * extent.width


def _dot(score: Score, extent: Workload) -> int:
    return 2 * extent.tokens * extent.source * extent.width


def _general(score: GeneralScore, extent: Workload) -> int:
    return flops(score.key, extent.of(extent.source)) + _dot(score, extent)


def _additive(score: AdditiveScore, extent: Workload) -> int:
    both = flops(score.query, extent) + flops(score.key, extent.of(extent.source))
    return both + flops(score.value, extent.of(extent.tokens * extent.source))


def _concat(score: ConcatScore, extent: Workload) -> int:
    """One half of the matrix for queries, the other for keys."""
    both = (extent.tokens + extent.source) * score.both.weight.numel()
    return both + flops(score.value, extent.of(extent.tokens * extent.source))


def _below(cells: Cells) -> int:
    """The size of the matrix from below."""
    return cells.weight("ih", 0)[0].numel()


def _column(column: FastForwardColumn, extent: Workload) -> int:
    """Half of what enters each layer is computed a second time for the next, and all of what enters the last."""
    *lower, top = cells_of(column.layers)
    again = sum(_below(cells) // 2 for cells in lower) + _below(top)
    return _each_token(column, extent) + 2 * extent.tokens * again


def _fast_forward_decoder(part: FastForwardDecoderMixer, extent: Workload) -> int:
    *lower, _ = [part.bottom.cells, *cells_of(part.layers)]
    return _each_token(part, extent) + 2 * extent.tokens * sum(_below(cells) // 2 for cells in lower)


# ---- convolution


def _unfolding(part: UnfoldingMixer, extent: Workload) -> int:
    return flops(part.project, extent.of(extent.source))


FREE = (
    *(nn.Identity, nn.Dropout, Dropout, nn.Embedding, TokenEmbedding),
    *(Identity, LayerNormModule, RMSNormModule, BatchNormModule),
    *(Position, SinusoidalPosition, LearnedPosition, RotaryPosition, BucketedBias, LinearBias),
    *(
        Summary,
        BackwardSummary,
        MeanSummary,
        InitialState,
        CopiedInitialState,
        ContextModule,
        ReadoutModule,
        IdentityOutput,
    ),
)
EACH_TOKEN = (
    *(nn.Linear, nn.ModuleList, WeightNormLinear, OutputLayer, TransformLayer, PatchEmbedding),
    *(ResidualMixer, ParallelMixer, ScaledResidualMixer, FeedForwardMixer),
    *(Convolution, GatedConvolutionMixer, DilatedBlockMixer),
    *(RNNCells, LSTMCells, GRUCells, RecurrentMixer, RecurrentDecoderMixer, FastForwardEncoderMixer),
    *(AttentionalReadoutModule, MaxoutReadoutModule),
)
ONCE = (FixedContextModule, SummaryInitialState, ContextInitialState)

#: what each kind of part costs; one that is not here cannot be counted
FORMULAS: dict[type[nn.Module], Callable[[Any, Workload], int]] = {
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
    AttentionContextModule: _attention_context,
    Score: _dot,
    ScaledDotScore: _dot,
    GeneralScore: _general,
    AdditiveScore: _additive,
    ConcatScore: _concat,
    FastForwardColumn: _column,
    FastForwardDecoderMixer: _fast_forward_decoder,
    UnfoldingMixer: _unfolding,
    FrameEmbedding: _frames,
}
