"""Attention over packed rows on a GPU: FlexAttention in compiled graphs, otherwise varlen flash attention.

One row holds all sequences of a batch, and FlexAttention skips the blocks of keys that a block of queries cannot see:
the cost grows linearly with the tokens. For sentences this is faster than flash attention with variable lengths, which
needs at least one tile per sequence (benchmarks/attention.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.attention.varlen import varlen_attn

from dragoman.parts.mixer import AttentionMasks, SequenceLayout
from dragoman.parts.positions import Position
from dragoman.parts.visibility import Visibility

if TYPE_CHECKING:
    from dragoman.parts.attention_function import AttentionArgs

PACK_MULTIPLE = 128  # tokens; the length of packed rows is a multiple of it
MIN_HEAD_WIDTH = 16  # of FlexAttention; narrower heads are padded with zeros


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_layout: SequenceLayout,
    key_layout: SequenceLayout,
    masks: AttentionMasks,
    args: AttentionArgs,
) -> Tensor:
    """Compute attention within the sequences of a packed row by FlexAttention: query 1 H T E, keys 1 G S E → 1 H T E.

    Each of the G heads of keys and values is shared by H/G query heads. The layouts say which columns of the row belong
    to which sequence; `args` holds mask, position biases and scale of the layer. Layers with the same `args.mask_key`
    share their mask in `masks`. Values, and with them the output, may be wider or narrower than keys.
    """
    mask = masks.blocks.get(args.mask_key)
    if mask is None:
        mask = block_mask(query_layout, key_layout, args.visibility)
        if args.mask_key is not None:
            masks.blocks[args.mask_key] = mask
    biased = [position for position in args.positions if position.has_score_bias]
    score_mod = (
        _score_mod(biased, query_layout.encoded_positions[0], key_layout.encoded_positions[0]) if biased else None
    )
    scale, width = args.scale_of(query), value.shape[-1]
    query, key, value = (_widen(x, MIN_HEAD_WIDTH) for x in (query, key, value))  # FlexAttention's minimum
    shares_heads = key.shape[1] != query.shape[1]
    y = flex_attention(query, key, value, score_mod=score_mod, block_mask=mask, scale=scale, enable_gqa=shares_heads)
    assert isinstance(y, Tensor)
    return y[..., :width]


def _widen(x: Tensor, width: int) -> Tensor:
    """Append zeros to the last dimension of x until it is `width` wide, unless it already is that wide."""
    return F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_layout: SequenceLayout,
    key_layout: SequenceLayout,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Compute attention within the sequences of a packed row by flash attention, without a bias: 1 H T E → 1 H T E.

    Keys and values may have fewer heads, each shared by several query heads. The layouts say where each sequence
    starts. `causal`: a query sees no later key. `scale` None is 1/√E. Flash attention needs half precision, and values
    as wide as keys: the narrower ones are padded with zeros.
    """
    assert query_layout.cu_seqlens is not None
    assert key_layout.cu_seqlens is not None
    assert query_layout.max_length is not None
    assert key_layout.max_length is not None
    dtype = query.dtype if query.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    heads_per_key = query.shape[1] // key.shape[1]  # query heads that share a head of keys
    scale, value_width = scale or query.shape[-1] ** -0.5, value.shape[-1]
    width = max(query.shape[-1], value_width)
    query_rows, key_rows, value_rows = (
        _widen(x, width)[0].transpose(0, 1).to(dtype) for x in (query, key, value)
    )  # T H E
    if heads_per_key > 1:
        key_rows, value_rows = (x.repeat_interleave(heads_per_key, 1) for x in (key_rows, value_rows))
    y = varlen_attn(
        query_rows,
        key_rows,
        value_rows,
        query_layout.cu_seqlens,
        key_layout.cu_seqlens,
        query_layout.max_length,
        key_layout.max_length,
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),  # visible tokens before and after; −1: all
    )
    assert isinstance(y, Tensor)
    return y.transpose(0, 1)[None, ..., :value_width].to(query.dtype)


def block_mask(query_layout: SequenceLayout, key_layout: SequenceLayout, visibility: Visibility | None) -> BlockMask:
    """Compute which blocks of keys each block of queries sees, and the mask within them, for FlexAttention.

    The layouts say where the sequences of the packed row lie, `visibility` which positions of a sequence see which
    (None: all). Since sequences lie one after another, a block of queries, whose tokens belong to the sequences from
    `first` to `last`, inclusive, sees the key blocks from `low` to `high`, inclusive, that these sequences cover. A
    block has `PACK_MULTIPLE` tokens.
    """
    assert query_layout.segment_ids is not None
    assert key_layout.segment_ids is not None
    assert key_layout.cu_seqlens is not None
    width, key_width = query_layout.segment_ids.shape[1], key_layout.segment_ids.shape[1]
    blocks, key_blocks = -(-width // PACK_MULTIPLE), -(-key_width // PACK_MULTIPLE)
    segment, key_segment = query_layout.segment_ids[0], key_layout.segment_ids[0]
    first = segment[::PACK_MULTIPLE]  # sequence of the first query of each block
    last = torch.cat((segment[PACK_MULTIPLE - 1 :: PACK_MULTIPLE], segment[-1:]))[:blocks]  # and of the last
    row_end = torch.full_like(key_layout.cu_seqlens[:1], key_width)
    ends = torch.cat((key_layout.cu_seqlens[1:], row_end))  # of each sequence, and of the unused columns
    low = (key_layout.cu_seqlens[first] // PACK_MULTIPLE).clamp(max=key_blocks - 1)
    high = torch.maximum((ends[last] - 1) // PACK_MULTIPLE, low)  # at least one block, even of an empty sequence
    if query_layout is key_layout and visibility is not None and visibility.past_only:
        high = torch.minimum(high, torch.arange(blocks, device=high.device))  # no block after that of the query
    # number of key blocks that each query block sees; `index` begins with their numbers, and is not read beyond them
    count = (high - low + 1).int()
    index = (low[:, None] + torch.arange(key_blocks, device=low.device)).clamp(max=key_blocks - 1).int()
    position, key_position = query_layout.positions[0], key_layout.positions[0]

    def mask_mod(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Whether the query in column i sees the key in column j: if both are in one sequence, and the mask allows it.

        `batch` and `head`, which FlexAttention passes too, do not matter.
        """
        same = segment[i] == key_segment[j]
        if visibility is None or visibility.full:
            return same
        return same & visibility.allows(position[i], key_position[j])

    return BlockMask.from_kv_blocks(
        count[None, None],
        index[None, None],
        BLOCK_SIZE=PACK_MULTIPLE,
        mask_mod=mask_mod,
        seq_lengths=(width, key_width),
    )


def _score_mod(parts: Sequence[Position], position: Tensor, key_position: Tensor) -> Callable[..., Tensor]:
    """Return FlexAttention's `score_mod`, which adds the biases of all position encodings (such as ALiBi) to a score.

    `position` (T) and `key_position` (S) are the positions of queries and keys.
    """

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Add the biases of all position encodings to the score of the query in column i and the key in column j.

        `head` is the number of the head; `batch`, which FlexAttention passes too, does not matter.
        """
        for part in parts:
            bias = part.bias_at_distance(head, key_position[j] - position[i])
            score = score if bias is None else score + bias
        return score

    return score_mod
