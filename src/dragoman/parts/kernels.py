"""Kernels in Triton for the steps of a search on a GPU: attention of few queries, and sums that are normalised.

The kernels that torch has are made for many queries; with one a row they are slow, and need a mask written out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # keys at a time


def cached_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    ancestors: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention of one token a row: query R H E, its key and value R G E → R H E, key and value put into the caches.

    keys and values R S G E hold what stands before position (R); with `ancestors` (B K S), the rows of a source hold it
    for one another: row k has at place s what row ancestors[k, s] has written there.
    """
    return _of_one(query, keys, values, positions, (key, value), ancestors, scale)


def _of_one(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    ends: Tensor,
    own: tuple[Tensor, Tensor] | None,
    ancestors: Tensor | None,
    scale: float,
) -> Tensor:
    """One query a row, R H E, over the first `ends` (R) of R S G E → R H E."""
    rows, heads, width = query.shape
    y = torch.empty(rows, heads, width, dtype=query.dtype, device=query.device)
    key, value = own or (query, query)
    _next[rows, heads](
        query,
        keys,
        values,
        ends,
        y,
        key,
        value,
        ends if ancestors is None else ancestors,
        heads // keys.shape[2],
        1 if ancestors is None else ancestors.shape[1],
        keys.shape[1],
        *query.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        *key.stride()[:2],
        *value.stride()[:2],
        SCALE=scale,
        E=width,
        WIDTH=triton.next_power_of_2(width),
        BLOCK=BLOCK if own is None or keys.shape[1] > 2 * BLOCK else BLOCK // 2,
        BEAMS=ancestors is not None,
        OWN=own is not None,
        num_warps=1,
    )
    return y


def short_query_attention(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """query B H T E, key and value B G S E, of which the first `lengths` (B) are real → B H T E."""
    batch, heads, count, width = query.shape
    if count == 1:
        found = _of_one(query[:, :, 0], key.transpose(1, 2), value.transpose(1, 2), lengths, None, None, scale)
        return found[:, :, None]
    y = torch.empty(batch, count, heads, width, dtype=query.dtype, device=query.device)
    strides = query.stride()[:3], key.stride()[:3], value.stride()[:3]
    _look[batch, heads](
        query,
        key,
        value,
        lengths,
        y,
        heads // key.shape[1],
        count,
        *strides[0],
        *strides[1],
        *strides[2],
        SCALE=scale,
        E=width,
        WIDTH=max(16, triton.next_power_of_2(width)),
        COUNT=max(16, triton.next_power_of_2(count)),
        BLOCK=BLOCK,
        num_warps=1 if count <= 16 else 4,
    )
    return y.transpose(1, 2)


@triton.jit
def _look(
    query,
    keys,
    values,
    ends,
    y,
    shared,
    count,
    query_row,
    query_head,
    query_place,
    key_row,
    key_head,
    key_place,
    value_row,
    value_head,
    value_place,
    SCALE: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All queries of one row and head a program: softmax(Q K) V over the first `ends` keys, with running maxima."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group, heads = head // shared, tl.num_programs(1)
    t, e, s = tl.arange(0, COUNT), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    asked = (t < count)[:, None] & (e < E)[None, :]
    place = query + row * query_row + head * query_head + t[:, None] * query_place + e[None, :]
    q = tl.load(place, mask=asked, other=0.0)
    end = tl.load(ends + row)
    found = tl.zeros([COUNT, WIDTH], dtype=tl.float32)
    total = tl.zeros([COUNT], dtype=tl.float32)
    most = tl.full([COUNT], -float("inf"), dtype=tl.float32)
    for first in range(0, end, BLOCK):
        seen = first + s < end
        there = seen[:, None] & (e < E)[None, :]
        places = keys + row * key_row + group * key_head + (first + s)[:, None] * key_place + e[None, :]
        k = tl.load(places, mask=there, other=0.0)
        places = values + row * value_row + group * value_head + (first + s)[:, None] * value_place + e[None, :]
        v = tl.load(places, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        scores = tl.where(seen[None, :], scores, -float("inf"))
        above = tl.maximum(most, tl.max(scores, 1))
        shrunk, weights = tl.exp(most - above), tl.exp(scores - above[:, None])
        found = found * shrunk[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * shrunk + tl.sum(weights, 1)
        most = above
    found = found / tl.maximum(total, 1e-30)[:, None]  # nothing at all where nothing is seen
    place = ((row * count + t) * heads + head)[:, None] * E + e[None, :]
    tl.store(y + place, found.to(y.dtype.element_ty), mask=asked)


@triton.jit
def _next(
    query,
    keys,
    values,
    ends,
    y,
    own_key,
    own_value,
    ancestors,
    shared,
    beams,
    longest,
    query_row,
    query_head,
    key_row,
    key_place,
    key_head,
    value_row,
    value_place,
    value_head,
    own_key_row,
    own_key_head,
    own_value_row,
    own_value_head,
    SCALE: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BEAMS: tl.constexpr,
    OWN: tl.constexpr,
):
    """One row and head a program: softmax(q K) V over the first `ends` keys, block by block, and the query's own."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group, heads = head // shared, tl.num_programs(1)
    e = tl.arange(0, WIDTH)
    inside = e < E
    end = tl.load(ends + row)
    q = tl.load(query + row * query_row + head * query_head + e, mask=inside, other=0.0).to(tl.float32) * SCALE
    most, total, found = -float("inf"), 0.0, tl.zeros([WIDTH], dtype=tl.float32)
    if OWN:
        k = tl.load(own_key + row * own_key_row + group * own_key_head + e, mask=inside, other=0.0)
        v = tl.load(own_value + row * own_value_row + group * own_value_head + e, mask=inside, other=0.0)
        if head % shared == 0:
            tl.store(keys + row * key_row + end * key_place + group * key_head + e, k, mask=inside)
            tl.store(values + row * value_row + end * value_place + group * value_head + e, v, mask=inside)
        most, total, found = tl.sum(q * k.to(tl.float32), 0), total + 1.0, v.to(tl.float32)
    for first in range(0, end, BLOCK):
        s = first + tl.arange(0, BLOCK)
        seen = s < end
        home = row + tl.zeros([BLOCK], dtype=tl.int64)
        if BEAMS:
            home = row // beams * beams + tl.load(ancestors + row * longest + s, mask=seen, other=0)
        there = seen[:, None] & inside[None, :]
        places = keys + (home * key_row + s * key_place)[:, None] + group * key_head + e[None, :]
        answers = tl.load(places, mask=there, other=0.0).to(tl.float32)
        places = values + (home * value_row + s * value_place)[:, None] + group * value_head + e[None, :]
        block = tl.load(places, mask=there, other=0.0).to(tl.float32)
        scores = tl.where(seen, tl.sum(q[None, :] * answers, 1), -float("inf"))
        above = tl.maximum(most, tl.max(scores, 0))
        shrunk, weights = tl.exp(most - above), tl.exp(scores - above)
        found = found * shrunk + tl.sum(weights[:, None] * block, 0)
        total = total * shrunk + tl.sum(weights, 0)
        most = above
    found = found / tl.maximum(total, 1e-30)  # nothing at all where nothing is seen
    tl.store(y + (row * heads + head) * E + e, found.to(y.dtype.element_ty), mask=inside)


def add_and_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """LayerNorm(x + y) over the last dimension, the sum rounded as x is."""
    found = torch.empty_like(x, memory_format=torch.contiguous_format)
    width = x.shape[-1]
    _sum_normalised[(x.numel() // width,)](
        x.contiguous(),
        y.contiguous(),
        found,
        weight,
        weight if bias is None else bias,
        width,
        EPSILON=epsilon,
        BIAS=bias is not None,
        WIDTH=triton.next_power_of_2(width),
        num_warps=1 if width <= 512 else 4,
    )
    return found


@triton.jit
def _sum_normalised(x, y, found, weight, bias, width, EPSILON: tl.constexpr, BIAS: tl.constexpr, WIDTH: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = d < width
    a = tl.load(x + row * width + d, mask=inside, other=0.0)
    total = (a + tl.load(y + row * width + d, mask=inside, other=0.0)).to(a.dtype).to(tl.float32)
    away = tl.where(inside, total - tl.sum(total, 0) / width, 0.0)
    z = away * tl.rsqrt(tl.sum(away * away, 0) / width + EPSILON)
    z = z * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        z += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(found + row * width + d, z.to(found.dtype.element_ty), mask=inside)
