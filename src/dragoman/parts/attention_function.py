"""The attention function: masks, scores, and the selection of the kernel that computes them."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.errors import UserError
from dragoman.parts.attention_quantities import (
    HEAD_OUTPUT,
    KEY,
    MASK,
    QUERY,
    SCORE_BIAS,
    SCORES,
    VALUE,
    WEIGHTS,
    AttentionQuantities,
)
from dragoman.parts.attention_scores import Score
from dragoman.parts.mixer import AttentionMasks, CachedKeys, Context, Memory, SequenceLayout, beam_size
from dragoman.parts.positions import Position
from dragoman.parts.triton_support import TRITON_AVAILABLE
from dragoman.parts.visibility import Visibility

if torch.cuda.is_available():  # for packed rows, which need a GPU; the import takes a second
    from dragoman.parts.packed_attention import packed_attention, varlen_attention

if TRITON_AVAILABLE:
    from dragoman.parts import kernels

MAX_KERNEL_QUERIES = 32  # the Triton kernels are for few queries


@dataclass(frozen=True)
class AttentionArgs:
    """What the attention function `attend` needs to know of the layer that calls it."""

    visibility: Visibility | None = None  # mask by positions, such as a causal one; None: all keys are visible
    positions: tuple[Position, ...] = ()  # position encodings that may add biases to scores and values
    score: Score | None = None  # None: scaled dot product
    scale: float | None = None  # of the dot product; None: 1/√E
    dropout: float = 0.0  # of the weights; 0 outside of training
    path: str = ""  # of the layer in the model, under which its weights are recorded
    mask: Tensor | None = None  # B T S: additional mask, True where visible
    quantities: AttentionQuantities | None = None  # None: QUERY, KEY, VALUE, SCORES
    mask_key: Hashable = None  # layers with the same key share their mask; None: the mask is not shared

    @property
    def sees_all(self) -> bool:
        """Whether every query sees every key, apart from padding and the borders of packed sequences."""
        return (self.visibility is None or self.visibility.full) and self.mask is None

    @property
    def is_causal(self) -> bool:
        """Whether position i sees exactly the positions j ≤ i, apart from padding and packed sequences' borders."""
        return self.visibility is not None and self.visibility.causal and self.mask is None

    @property
    def is_plain(self) -> bool:
        """Whether it is softmax(QKᵀ) V without bias and dropout, with a full or causal mask."""
        has_bias = any(position.has_score_bias for position in self.positions)
        return (self.sees_all or self.is_causal) and not self.dropout and not has_bias

    def needs_weights(self, context: Context) -> bool:
        """Whether attention weights must be computed explicitly, which fused kernels do not return.

        They must be to record them, for scores other than dot products, and for positions that are added to values.
        """
        if context.recorder is not None or self.score is not None:
            return True
        return any(position.has_value_bias for position in self.positions)

    def scale_of(self, query: Tensor) -> float:
        """Return the factor of the dot products: `scale`, or 1/√E for a query of shape … E."""
        return self.scale or 1 / math.sqrt(query.shape[-1])


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_layout: SequenceLayout,
    key_layout: SequenceLayout,
    context: Context,
    args: AttentionArgs,
) -> Tensor:
    """Compute softmax(score(Q, K) + bias) V over the visible keys, by the fastest kernel that can do it.

    Shape: query B H T E, key and value B G S E, each of the G heads shared by H/G query heads → B H T E; values, and
    with them the output, may have another width than keys. All kernels compute the same. Packed rows on a GPU use
    FlexAttention in compiled graphs, otherwise flash attention with variable lengths.

    Args:
        query_layout, key_layout: positions and lengths of the tokens that query and key come from.
        context: shared by all layers of this call; if it has a recorder, the weights are computed and recorded.
        args: mask, position biases, scale and dropout of the layer.
    """
    if args.needs_weights(context):
        return explicit_attention(query, key, value, query_layout, key_layout, context, args)
    if key_layout.cu_seqlens is not None and query.is_cuda:  # one row with packed sequences
        if torch.compiler.is_compiling():
            return packed_attention(
                query, key, value, query_layout, key_layout, masks=context.masks or AttentionMasks(), args=args
            )
        if args.is_plain:
            return varlen_attention(
                query, key, value, query_layout, key_layout, causal=args.is_causal, scale=args.scale
            )
    if args.sees_all and key_layout.lengths is not None and can_use_triton(query, value, context, args):
        return kernels.short_query_attention(query, key, value, lengths=key_layout.lengths, scale=args.scale_of(query))
    bias = _score_bias(query, query_layout, key_layout, args)  # of position encodings
    shares_heads = key.shape[1] != query.shape[1]  # grouped-query attention
    if query_layout is key_layout and query_layout.segment_ids is None and bias is None and args.is_causal:
        # Queries and keys are the same tokens. Padding is on the right, where the causal mask hides it.
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=args.dropout, is_causal=True, scale=args.scale, enable_gqa=shares_heads
        )
    mask = bias
    # in inference, several layers can add the same mask to their scores
    shares_mask = args.mask_key is not None and key_layout.segment_ids is None and not torch.is_grad_enabled()
    if bias is None and shares_mask:
        mask = additive_mask(query_layout, key_layout, context, args, like=query)
    elif (visible := _visible(query_layout, key_layout, context, args)) is not None:
        # B 1 T S, boolean, or B H T S with biases, which is added to the scores
        mask = visible[:, None] if bias is None else bias.masked_fill(~visible[:, None], -torch.inf)
    # Not for packed rows: their unused columns may see no key, where a softmax is NaN, but the fused kernel returns 0.
    is_arranged_for_matmul = key.stride(-2) == 1  # `matmul_layout` has stored the keys transposed
    if is_arranged_for_matmul and not args.dropout and key_layout.segment_ids is None:
        return matmul_attention(query, key, value, mask=mask, scale=args.scale)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=args.dropout, scale=args.scale, enable_gqa=shares_heads
    )


def can_use_triton(query: Tensor, value: Tensor, context: Context, args: AttentionArgs) -> bool:
    """Whether the project's Triton kernels for attention of few queries can compute this attention.

    They need a GPU, no gradients, at most 32 queries per head (query B H T E), values as wide as queries, dot products
    as scores, no position bias, no dropout, a full or causal mask (`args.is_plain`), and weights that nobody records.
    """
    if not (TRITON_AVAILABLE and query.is_cuda) or torch.is_grad_enabled():
        return False
    fits = query.shape[2] <= MAX_KERNEL_QUERIES and query.shape[-1] == value.shape[-1]
    return fits and args.is_plain and not args.needs_weights(context)


def matmul_layout(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Arrange keys and values, B G S E (G heads), in memory for fast attention by matrix products on a CPU.

    Keys are stored transposed, with the S elements of a dimension side by side; the shapes stay. On other devices, and
    if gradients are needed, both are returned unchanged.
    """
    if key.device.type != "cpu" or torch.is_grad_enabled():
        return key, value
    return key.transpose(-1, -2).contiguous().transpose(-1, -2), value.contiguous()


def matmul_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Compute attention by two matrix products: query B H T E, key and value B G S E (G heads) → B H T E.

    The H/G query heads that share a key head are rows of one product. `mask` (B 1 T S or B H T S) is boolean, True
    where visible, or is added to the scores, which are multiplied by `scale` (None: 1/√E).
    """
    batch, heads, count, width = query.shape  # B H T E
    key_heads, num_keys = key.shape[1:3]  # G S
    query = query.reshape(batch * key_heads, -1, width)  # B·G (H/G)·T E
    transposed = key.transpose(-1, -2).reshape(batch * key_heads, width, num_keys)  # B·G E S
    scores = torch.bmm(query, transposed).view(batch, heads, count, num_keys)  # B H T S
    scale = scale or 1 / math.sqrt(width)
    if mask is None:
        scores = scores * scale
    else:
        scores = torch.add(_to_additive(mask, query) if mask.dtype == torch.bool else mask, scores, alpha=scale)
    weights = scores.softmax(-1).view(batch * key_heads, -1, num_keys)
    return torch.bmm(weights, value.reshape(batch * key_heads, num_keys, -1)).view(batch, heads, count, -1)


def _to_additive(visible: Tensor, like: Tensor) -> Tensor:
    """Convert a boolean mask to 0 where visible and −∞ elsewhere, in the dtype of `like`."""
    return torch.where(visible, 0.0, -torch.inf).to(like.dtype)


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_layout: SequenceLayout,
    key_layout: SequenceLayout,
    context: Context,
    args: AttentionArgs,
) -> Tensor:
    """Compute attention with explicit weights: to record them, and for scores that no fused kernel implements.

    Query B H T E, key and value B G S E, with G heads that H/G query heads share → B H T E. The layouts hold the
    lengths and positions of their tokens, and the `encoded_positions`, which only position encodings see. `args` holds
    the settings of the layer: score, biases, mask, dropout. `context.record` keeps the weights for the recorder of the
    call, if it has one, and `context.trace` keeps all intermediate results, if this recorder is a `Trace`.
    """
    bias = _score_bias(query, query_layout, key_layout, args)  # of position encodings
    visible = _visible(query_layout, key_layout, context, args)  # B T S: the whole mask; None: all keys are visible
    query_heads_per_key_head = query.shape[1] // key.shape[1]  # more than 1 in grouped-query attention
    if query_heads_per_key_head > 1:
        key = key.repeat_interleave(query_heads_per_key_head, 1)
        value = value.repeat_interleave(query_heads_per_key_head, 1)
    scores = query @ key.transpose(-1, -2) * args.scale_of(query) if args.score is None else args.score(query, key)
    if context.is_traced:
        descriptions = args.quantities or (QUERY, KEY, VALUE, SCORES)  # names and formulas
        for description, tensor in zip(descriptions, (query, key, value, scores)):
            context.trace(args.path, description, tensor)
    if bias is not None:
        context.trace(args.path, SCORE_BIAS, bias.expand_as(scores))
        scores = scores + bias
    if visible is not None:
        context.trace(args.path, MASK, visible.expand(-1, *scores.shape[2:]))
        scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    if visible is not None and (args.visibility is not None or key_layout.segment_ids is not None):
        # If the layer's own mask (`visibility`, such as a window) or the borders of packed sequences leave padding
        # without any key, its softmax is NaN: it gets 0, as in the fused kernels. Source padding always leaves a key.
        weights = weights.masked_fill(~visible.any(-1)[:, None, :, None], 0.0)
    context.record(args.path, weights)
    context.trace(args.path, WEIGHTS, weights)
    weights = F.dropout(weights, args.dropout)  # which is 0 outside of training
    y = weights @ value
    for position in args.positions:  # encodings that add vectors to the values, such as those of Shaw et al. (2018)
        value_bias = position.value_bias(weights, query_layout.encoded_positions, key_layout.encoded_positions)
        y = y if value_bias is None else y + value_bias
    context.trace(args.path, HEAD_OUTPUT, y)
    return y


def _score_bias(
    query: Tensor, query_layout: SequenceLayout, key_layout: SequenceLayout, args: AttentionArgs
) -> Tensor | None:
    """Sum the score biases of all position encodings (such as ALiBi), broadcastable to B H T S; None if there are none.

    The query, B H T E, is for relative positions, whose bias is a dot product with it. The layouts hold the positions
    of queries and keys.
    """
    total: Tensor | None = None
    for position in args.positions:
        if position.has_score_bias:
            scaled = query * args.scale_of(query)
            bias = position.score_bias(scaled, query_layout.encoded_positions, key_layout.encoded_positions)
            if bias is not None:
                total = bias if total is None else total + bias
    return total


def additive_mask(
    query_layout: SequenceLayout, key_layout: SequenceLayout, context: Context, args: AttentionArgs, like: Tensor
) -> Tensor | None:
    """Return the attention mask that is added to scores, B 1 T S: −∞ where a query may not see a key, else 0.

    None if all keys are visible. It has the dtype of `like`. The first layer of a call with the key `args.mask_key`
    stores the mask in `context.masks`, where all others with this key find it; if that is None, the mask is not shared.
    The layouts hold the positions and lengths of the queries' and the keys' tokens.
    """
    masks = {} if context.masks is None else context.masks.additive
    if args.mask_key not in masks:
        visible = _visible(query_layout, key_layout, context, args)
        masks[args.mask_key] = None if visible is None else _to_additive(visible[:, None], like)
    return masks[args.mask_key]


def _visible(
    query_layout: SequenceLayout, key_layout: SequenceLayout, context: Context, args: AttentionArgs
) -> Tensor | None:
    """Return the boolean attention mask, B T S, True where a query may see a key; None if all keys are visible.

    It combines the mask of the layer (such as a causal one, `args.visibility`), an additional one (`args.mask`), the
    padding of the keys, and the borders of packed sequences.
    """
    masks = []
    if args.visibility is not None and not args.visibility.full:
        masks.append(args.visibility.mask(query_layout.positions, key_layout.positions, context))
    if args.mask is not None:
        masks.append(args.mask)
    if (token_mask := key_layout.token_mask) is not None:
        masks.append(token_mask[:, None, :])
    if key_layout.segment_ids is not None and query_layout.segment_ids is not None:
        masks.append(query_layout.segment_ids[:, :, None] == key_layout.segment_ids[:, None, :])
    visible = None
    for mask in masks:
        visible = mask if visible is None else visible & mask
    return visible


def cached_keys(context: Context, length: int) -> CachedKeys:
    """Return the positions of the keys in key–value caches, and the mask of a decoding step.

    `length` (S) is the number of tokens for which the caches are allocated. In beam search, `ancestors` (B K S) says
    which hypothesis wrote the key at each position. The keys of all K hypotheses of a source are attended to, each
    hypothesis seeing those of its ancestors: nothing is copied when a hypothesis continues another one. The first layer
    of a step stores the result in `context.masks`, for all layers whose caches have this length.
    """
    computed = {} if context.masks is None else context.masks.cached_keys
    key = length_key(length)  # not `length`: while a model is exported, it is a symbol without a hash
    if key not in computed:
        positions, ancestors = context.layout.positions, context.ancestors  # of the new tokens, R T
        device = positions.device
        rows = torch.arange(positions.shape[0], device=device)[:, None]  # R 1, to write into the caches; R = B·K
        if ancestors is None:
            keys = SequenceLayout(torch.arange(length, device=device).expand(positions.shape[0], -1))  # R S
            cached = CachedKeys(rows=rows, queries=context.layout, keys=keys)
        else:
            batch, beam, _ = ancestors.shape
            keys = SequenceLayout(torch.arange(length, device=device).repeat(beam).expand(batch, -1))  # B K·S
            hypothesis = torch.arange(beam, device=device)[:, None]
            mask = (ancestors[:, :, None] == hypothesis).flatten(2)  # B K K·S
            queries = SequenceLayout(positions.view(batch, beam))  # one new token of each hypothesis
            cached = CachedKeys(rows=rows, queries=queries, keys=keys, mask=mask)
        computed[key] = cached
    return computed[key]


def length_key(length: int) -> Hashable:
    """Return a number of tokens as a key of a dict: as text while a model is exported, when it is an unhashable symbol.

    torch.export replaces sizes that may vary by symbols.
    """
    return length if type(length) is int else str(length)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split the last dimension into heads: B T (H·E) → B H T E."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: B H T E → B T (H·E)."""
    return x.transpose(1, 2).flatten(2)


def head_width(dim: int, heads: int, kv_heads: int | None, head_dim: int | None) -> int:
    """Return the width of a head: `head_dim`, by default the model's width `dim` / heads.

    Raises a UserError unless `dim` can be divided by `heads` (if `head_dim` is None), and `heads` by `kv_heads`, the
    number of heads of keys and values (None: `heads`).
    """
    if head_dim is None and dim % heads:
        raise UserError(
            f"model_dim={dim} is not divisible by {heads} heads: set heads to a divisor of {dim}, or set head_dim"
        )
    if heads % (kv_heads or heads):
        raise UserError(f"heads={heads} is not divisible by kv_heads={kv_heads}: set kv_heads to a divisor of {heads}")
    return head_dim or dim // heads


def fold_beams(x: Tensor, memory: Memory) -> Tensor:
    """Reshape the decoder's R = B·K rows, K hypotheses of each of B sources, to one row per source: R T D → B K·T D.

    So all hypotheses attend to the encoder's output of their source (`memory`), which need not be repeated for each.
    """
    return x.reshape(memory.states.shape[0], beam_size(x.shape[0], memory) * x.shape[1], x.shape[2])
