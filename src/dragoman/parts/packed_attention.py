"""Attention over packed rows: blocks of keys that no query of a block may see are never looked at (FlexAttention).

One row holds all sequences of a batch one after another, so that a block of queries sees only the blocks of keys where
its own sequences lie: the work grows with the tokens, not with their square. For sentences this is faster than flash
attention with variable lengths, which fills a tile for every sequence however short (benchmarks/attention.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.attention.varlen import varlen_attn

from dragoman.parts.mixer import Context, Layout
from dragoman.parts.positions import Position
from dragoman.parts.visibility import Visibility

BLOCK = 128  # tokens; rows are packed to a multiple of it
NARROWEST = 16  # head that the kernels can do; zeros make up for what is missing


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Layout,
    keys: Layout,
    context: Context,
    visibility: Visibility | None,
    positions: Sequence[Position],
    scale: float | None,
) -> Tensor:
    """query 1 H T E, key and value 1 G S E → 1 H T E, within the sequences and what the visibility allows."""
    name = (queries is keys, visibility)
    if name not in context.masks:
        context.masks[name] = block_mask(queries, keys, visibility)
    biased = [position for position in positions if type(position).bias_at_distance is not Position.bias_at_distance]
    score_mod = _bias(biased, queries.positions[0], keys.positions[0]) if biased else None
    width = query.shape[-1]
    if width < NARROWEST:
        scale = scale or width**-0.5
        query, key, value = (F.pad(x, (0, NARROWEST - width)) for x in (query, key, value))
    y = flex_attention(
        query,
        key,
        value,
        score_mod,
        context.masks[name],
        scale=scale,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    assert isinstance(y, Tensor)
    return y[..., :width]


def varying_attention(
    query: Tensor, key: Tensor, value: Tensor, queries: Layout, keys: Layout, causal: bool, scale: float | None
) -> Tensor:
    """The same sequence by sequence, by flash attention: without a compiler, within sequences, with no bias."""
    assert queries.cu_seqlens is not None
    assert keys.cu_seqlens is not None
    assert queries.max_length is not None
    assert keys.max_length is not None
    kind = query.dtype if query.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    shared = query.shape[1] // key.shape[1]
    query_rows, key_rows, value_rows = (x[0].transpose(0, 1).to(kind) for x in (query, key, value))  # T H E
    if shared > 1:
        key_rows, value_rows = (x.repeat_interleave(shared, 1) for x in (key_rows, value_rows))
    y = varlen_attn(
        query_rows,
        key_rows,
        value_rows,
        queries.cu_seqlens,
        keys.cu_seqlens,
        queries.max_length,
        keys.max_length,
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),
    )
    assert isinstance(y, Tensor)
    return y.transpose(0, 1)[None].to(query.dtype)


def block_mask(queries: Layout, keys: Layout, visibility: Visibility | None) -> BlockMask:
    """Which blocks of keys each block of queries sees, and within them who sees whom."""
    assert queries.segment_ids is not None
    assert keys.segment_ids is not None
    assert keys.cu_seqlens is not None
    width, key_width = queries.segment_ids.shape[1], keys.segment_ids.shape[1]
    blocks, key_blocks = -(-width // BLOCK), -(-key_width // BLOCK)
    own, other = queries.segment_ids[0], keys.segment_ids[0]
    first = own[::BLOCK]
    last = torch.cat((own[BLOCK - 1 :: BLOCK], own[-1:]))[:blocks]
    ends = torch.cat((keys.cu_seqlens[1:], torch.full_like(keys.cu_seqlens[:1], key_width)))  # of what is left as well
    low = (keys.cu_seqlens[first] // BLOCK).clamp(max=key_blocks - 1)
    high = torch.maximum((ends[last] - 1) // BLOCK, low)
    if queries is keys and visibility is not None and visibility.past_only:
        high = torch.minimum(high, torch.arange(blocks, device=high.device))
    count = (high - low + 1).int()
    which = (low[:, None] + torch.arange(key_blocks, device=low.device)).clamp(max=key_blocks - 1).int()
    place, key_place = queries.positions[0], keys.positions[0]

    def may_see(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        same = own[i] == other[j]
        return same if visibility is None or visibility.full else same & visibility.allows(place[i], key_place[j])

    return BlockMask.from_kv_blocks(
        count[None, None], which[None, None], BLOCK_SIZE=BLOCK, mask_mod=may_see, seq_lengths=(width, key_width)
    )


def _bias(positions: Sequence[Position], place: Tensor, key_place: Tensor) -> Callable[..., Tensor]:
    def score_mod(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for position in positions:
            bias = position.bias_at_distance(head, key_place[j] - place[i])
            score = score if bias is None else score + bias
        return score

    return score_mod
