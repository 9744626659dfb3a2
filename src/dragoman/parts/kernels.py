"""Triton kernels for decoding steps on a GPU: attention of few queries, and layer norm of a sum.

torch's attention kernels are made for many queries: with one query per row they are slow and need an explicit mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # keys per iteration


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
    """Attend from one token per row to all earlier ones and itself: query R H E, its key and value R G E → R H E.

    R is the number of rows, G the number of heads of keys and values, each shared by H/G query heads. The caches `keys`
    and `values`, R S G E, hold the tokens before `positions` (R), where the new key and value are written. With
    `ancestors` (B K S), hypothesis k reads at position s what hypothesis ancestors[k, s] of the same source has
    written. Dot products are multiplied by `scale`.
    """
    return _single_query(
        query, keys, values, num_cached=positions, new_token=(key, value), ancestors=ancestors, scale=scale
    )


def _single_query(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    num_cached: Tensor,
    new_token: tuple[Tensor, Tensor] | None,
    ancestors: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention of one query per row, R H E → R H E, over the first `num_cached` (R) keys and values, R S G E.

    R is the number of rows, G the number of heads of keys and values, each shared by H/G query heads. `new_token` is a
    further key and value, R G E each, which the kernel also writes into `keys` and `values`; None: only what is stored
    is read. `ancestors` (B K S): which hypothesis of the beam wrote each key; None without a beam. The kernel runs once
    for each row and head; its arguments and their strides are passed in the order of its signature.
    """
    rows, heads, width = query.shape
    y = torch.empty(rows, heads, width, dtype=query.dtype, device=query.device)
    key, value = new_token or (query, query)  # a kernel argument must be a tensor, even if it is not read
    _single_query_kernel[rows, heads](
        query,
        keys,
        values,
        num_cached,
        y,
        key,
        value,
        num_cached if ancestors is None else ancestors,
        heads // keys.shape[2],  # query heads that share a head of keys
        1 if ancestors is None else ancestors.shape[1],  # beam size
        keys.shape[1],  # length of the caches
        *query.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        *key.stride()[:2],
        *value.stride()[:2],
        SCALE=scale,
        E=width,
        WIDTH=triton.next_power_of_2(width),
        # keys per iteration; half as many in short caches
        BLOCK=BLOCK if new_token is None or keys.shape[1] > 2 * BLOCK else BLOCK // 2,
        BEAMS=ancestors is not None,
        NEW=new_token is not None,
        num_warps=1,
    )
    return y


def short_query_attention(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Attention of few queries (T ≤ 32), B H T E, over the first `lengths` (B) keys and values of B G S E → B H T E.

    G is the number of heads of keys and values, each shared by H/G query heads. Dot products are multiplied by `scale`.
    """
    batch, heads, count, width = query.shape
    if count == 1:
        keys, values = key.transpose(1, 2), value.transpose(1, 2)  # B S G E
        y = _single_query(query[:, :, 0], keys, values, num_cached=lengths, new_token=None, ancestors=None, scale=scale)
        return y[:, :, None]
    y = torch.empty(batch, count, heads, width, dtype=query.dtype, device=query.device)  # B T H E
    _short_query_kernel[batch, heads](
        query,
        key,
        value,
        lengths,
        y,
        heads // key.shape[1],  # query heads that share a head of keys
        count,
        *query.stride()[:3],
        *key.stride()[:3],
        *value.stride()[:3],
        SCALE=scale,
        E=width,
        WIDTH=max(16, triton.next_power_of_2(width)),  # tl.dot needs at least 16
        COUNT=max(16, triton.next_power_of_2(count)),
        BLOCK=BLOCK,  # keys per iteration
        num_warps=1 if count <= 16 else 4,
    )
    return y.transpose(1, 2)


@triton.jit
def _short_query_kernel(
    query,
    keys,
    values,
    ends,
    y,
    heads_per_key,
    count,
    query_row,
    query_head,
    query_position,
    key_row,
    key_head,
    key_position,
    value_row,
    value_head,
    value_position,
    SCALE: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per row and head: softmax(SCALE · Q Kᵀ) V over the first `ends` keys of a row, block by block.

    The result is stored in `y`. Arguments `…_row`, `…_head` and `…_position` are strides. E is the head width, WIDTH
    and COUNT are powers of two not below E and the number of queries `count`; `heads_per_key` query heads share a key
    head. BLOCK is the number of keys per iteration; as in flash attention, earlier sums are rescaled whenever a block
    has a larger maximum score.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group, heads = head // heads_per_key, tl.num_programs(1)
    t, e, s = tl.arange(0, COUNT), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    query_mask = (t < count)[:, None] & (e < E)[None, :]
    query_address = query + row * query_row + head * query_head + t[:, None] * query_position + e[None, :]
    q = tl.load(query_address, mask=query_mask, other=0.0)
    end = tl.load(ends + row)
    weighted = tl.zeros([COUNT, WIDTH], dtype=tl.float32)
    total = tl.zeros([COUNT], dtype=tl.float32)
    maximum = tl.full([COUNT], -float("inf"), dtype=tl.float32)
    # so far: `maximum` of the scores, `total` of exp(score − maximum), and with these weights the sum of the values
    for first in range(0, end, BLOCK):
        visible = first + s < end
        mask = visible[:, None] & (e < E)[None, :]
        key_address = keys + row * key_row + group * key_head + (first + s)[:, None] * key_position + e[None, :]
        k = tl.load(key_address, mask=mask, other=0.0)
        value_address = values + row * value_row + group * value_head
        value_address += (first + s)[:, None] * value_position + e[None, :]
        v = tl.load(value_address, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        scores = tl.where(visible[None, :], scores, -float("inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        rescale, weights = tl.exp(maximum - new_maximum), tl.exp(scores - new_maximum[:, None])
        weighted = weighted * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * rescale + tl.sum(weights, 1)
        maximum = new_maximum
    weighted = weighted / tl.maximum(total, 1e-30)[:, None]  # 0 if no key is visible
    output = ((row * count + t) * heads + head)[:, None] * E + e[None, :]
    tl.store(y + output, weighted.to(y.dtype.element_ty), mask=query_mask)


@triton.jit
def _single_query_kernel(
    query,
    keys,
    values,
    ends,
    y,
    new_key,
    new_value,
    ancestors,
    heads_per_key,
    beam,
    cache_length,
    query_row,
    query_head,
    key_row,
    key_position,
    key_head,
    value_row,
    value_position,
    value_head,
    new_key_row,
    new_key_head,
    new_value_row,
    new_value_head,
    SCALE: tl.constexpr,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BEAMS: tl.constexpr,
    NEW: tl.constexpr,
):
    """One program per row and head: softmax(SCALE · q Kᵀ) V over the first `ends` keys of a row, and a new key.

    The result is stored in `y`. Arguments `…_row`, `…_head` and `…_position` are strides. E is the head width, WIDTH a
    power of two not below it; `heads_per_key` query heads share a key head. NEW: there is a new key, which is written
    at `ends`. BEAMS: `ancestors` (row × `cache_length`) says which of the `beam` rows of a source holds each key. BLOCK
    is the number of keys per iteration; as in flash attention, earlier sums are rescaled whenever a block has a larger
    maximum score.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group, heads = head // heads_per_key, tl.num_programs(1)
    e = tl.arange(0, WIDTH)
    in_width = e < E
    end = tl.load(ends + row)
    q = tl.load(query + row * query_row + head * query_head + e, mask=in_width, other=0.0).to(tl.float32) * SCALE
    # so far: maximum of the scores, total of exp(score − maximum), and with these weights the sum of the values
    maximum, total, weighted = -float("inf"), 0.0, tl.zeros([WIDTH], dtype=tl.float32)
    if NEW:
        k = tl.load(new_key + row * new_key_row + group * new_key_head + e, mask=in_width, other=0.0)
        v = tl.load(new_value + row * new_value_row + group * new_value_head + e, mask=in_width, other=0.0)
        if head % heads_per_key == 0:  # one of the query heads that share a key stores it
            tl.store(keys + row * key_row + end * key_position + group * key_head + e, k, mask=in_width)
            tl.store(values + row * value_row + end * value_position + group * value_head + e, v, mask=in_width)
        maximum, total, weighted = tl.sum(q * k.to(tl.float32), 0), total + 1.0, v.to(tl.float32)
    for first in range(0, end, BLOCK):
        s = first + tl.arange(0, BLOCK)
        visible = s < end
        source_row = row + tl.zeros([BLOCK], dtype=tl.int64)
        if BEAMS:
            source_row = row // beam * beam + tl.load(ancestors + row * cache_length + s, mask=visible, other=0)
        mask = visible[:, None] & in_width[None, :]
        address = keys + (source_row * key_row + s * key_position)[:, None] + group * key_head + e[None, :]
        k_block = tl.load(address, mask=mask, other=0.0).to(tl.float32)
        address = values + (source_row * value_row + s * value_position)[:, None] + group * value_head + e[None, :]
        v_block = tl.load(address, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(visible, tl.sum(q[None, :] * k_block, 1), -float("inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 0))
        rescale, weights = tl.exp(maximum - new_maximum), tl.exp(scores - new_maximum)
        weighted = weighted * rescale + tl.sum(weights[:, None] * v_block, 0)
        total = total * rescale + tl.sum(weights, 0)
        maximum = new_maximum
    weighted = weighted / tl.maximum(total, 1e-30)  # 0 if no key is visible
    tl.store(y + (row * heads + head) * E + e, weighted.to(y.dtype.element_ty), mask=in_width)


def add_and_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """LayerNorm(x + y) over the last dimension, D, with `weight` and `bias` (D; None: no bias), in one kernel.

    `epsilon` is added to the variance. As in torch, the sum x + y is rounded to the dtype of x.
    """
    z = torch.empty_like(x, memory_format=torch.contiguous_format)
    width = x.shape[-1]
    _add_and_norm_kernel[(x.numel() // width,)](
        x.contiguous(),
        y.contiguous(),
        z,
        weight,
        weight if bias is None else bias,  # a kernel argument must be a tensor, even if it is not read
        width,
        EPSILON=epsilon,
        BIAS=bias is not None,
        WIDTH=triton.next_power_of_2(width),
        num_warps=1 if width <= 512 else 4,
    )
    return z


@triton.jit
def _add_and_norm_kernel(
    x, y, output, weight, bias, width, EPSILON: tl.constexpr, BIAS: tl.constexpr, WIDTH: tl.constexpr
):
    """One program per vector of `width` numbers: store LayerNorm(x + y) in `output`.

    WIDTH is `width` rounded up to a power of 2; BIAS says whether there is a `bias`. As in torch, the sum x + y is
    rounded to the dtype of x. EPSILON is added to the variance; `weight` and `bias` have `width` numbers.
    """
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    in_width = d < width
    a = tl.load(x + row * width + d, mask=in_width, other=0.0)
    total = (a + tl.load(y + row * width + d, mask=in_width, other=0.0)).to(a.dtype).to(tl.float32)
    centered = tl.where(in_width, total - tl.sum(total, 0) / width, 0.0)
    z = centered * tl.rsqrt(tl.sum(centered * centered, 0) / width + EPSILON)
    z = z * tl.load(weight + d, mask=in_width, other=0.0).to(tl.float32)
    if BIAS:
        z += tl.load(bias + d, mask=in_width, other=0.0).to(tl.float32)
    tl.store(output + row * width + d, z.to(output.dtype.element_ty), mask=in_width)
