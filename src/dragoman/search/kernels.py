"""Kernels in Triton for rows as long as a vocabulary: the logarithm of a sum of exponentials, and the largest."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # logits at a time
CHUNK = 64  # logits of which only the largest is looked at first
FEW = 128  # rows that a GPU has processors for
NARROW = 1024  # rows that are looked through at once
NONE = -(2**31)  # is below every number


def log_sum_exp(logits: Tensor) -> Tensor:
    """R V → R in float32."""
    rows, width = logits.shape
    found = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = _block(rows, width, BLOCK)
    _log_sum[(rows,)](logits, found, width, logits.stride(0), BLOCK=block, num_warps=_warps(block))
    return found


def greedy_step(
    logits: Tensor,
    banned: Tensor,
    end: int,
    least: int,
    step: Tensor,
    limit: Tensor,
    tokens: Tensor,
    scores: Tensor,
    ended: Tensor,
    over: Tensor,
    written: Tensor,
) -> None:
    """A step of greedy search at once: B V logits; all of B in place, `written` B T.

    The largest logit that is not `banned` (N), and not that of END before `least` words, is the token that is written
    at place `step`, unless the row has ended, and its log-probability is added to the score.
    """
    rows, width = logits.shape
    block = _block(rows, width, BLOCK // 2)
    _write_largest[(rows,)](
        logits,
        banned,
        step,
        limit,
        tokens,
        scores,
        ended,
        over,
        written,
        width,
        logits.stride(0),
        len(banned),
        end,
        least,
        written.shape[-1],
        BLOCK=block,
        num_warps=_warps(block),
    )


def _block(rows: int, width: int, many: int) -> int:
    """How much is looked at at a time, of `many` rows or of so few that each has a processor to itself."""
    return min(many if rows > FEW else 2 * BLOCK, triton.next_power_of_2(width))


def _warps(block: int) -> int:
    """For so many numbers at a time: 32 a thread."""
    return max(1, block // 1024)


def topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """R V → the `count` largest in float32, largest first, and where they stand, R N.

    The largest are in those chunks that have the largest maxima: only these are looked into.
    """
    rows, width = logits.shape
    values = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    places = torch.empty(rows, count, dtype=torch.long, device=logits.device)
    if width <= NARROW:
        block = triton.next_power_of_2(width)
        _best[(rows,)](
            logits, values, places, width, count, logits.stride(0), BLOCK=block, NONE=NONE, num_warps=1 + (block > 256)
        )
        return values, places
    chunks = triton.cdiv(width, CHUNK)
    maxima = torch.empty(rows, chunks, dtype=logits.dtype, device=logits.device)
    _maxima[rows, triton.cdiv(width, BLOCK // 2)](
        logits, maxima, width, chunks, logits.stride(0), CHUNK=CHUNK, CHUNKS=BLOCK // 2 // CHUNK, num_warps=4
    )
    _best_of_chunks[(rows,)](
        logits,
        maxima,
        values,
        places,
        width,
        chunks,
        count,
        logits.stride(0),
        CHUNK=CHUNK,
        CHUNKS=triton.next_power_of_2(chunks),
        COUNT=triton.next_power_of_2(count),
        NONE=NONE,
        num_warps=4,
    )
    return values, places


@triton.jit
def _log_sum(logits, found, width, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    most = -float("inf")
    total = 0.0
    for first in range(0, width, BLOCK):
        x = tl.load(logits + row * stride + first + place, mask=first + place < width, other=-float("inf"))
        x = x.to(tl.float32)
        above = tl.maximum(most, tl.max(x, 0))
        base = tl.where(above == -float("inf"), 0.0, above)  # ∞ − ∞ is no number
        total = total * tl.exp(most - base) + tl.sum(tl.exp(x - base), 0)
        most = above
    tl.store(found + row, most + tl.log(total))


@triton.jit
def _write_largest(
    logits,
    banned,
    step,
    limit,
    tokens,
    scores,
    ended,
    over,
    written,
    width,
    stride,
    bans,
    end,
    least,
    longest,
    BLOCK: tl.constexpr,
):
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    now, last, is_over = tl.load(step + row), tl.load(limit + row), tl.load(ended + row) != 0
    closed = tl.where(now < tl.minimum(last - 1, least), end, -1)  # END may not come yet; a limit is a limit
    most = -float("inf")
    total = 0.0
    token = now * 0
    for first in range(0, width, BLOCK):
        x = tl.load(logits + row * stride + first + place, mask=first + place < width, other=-float("inf"))
        x = x.to(tl.float32)
        largest = tl.max(x, 0)
        above = tl.maximum(most, largest)
        base = tl.where(above == -float("inf"), 0.0, above)  # ∞ − ∞ is no number
        total = total * tl.exp(most - base) + tl.sum(tl.exp(x - base), 0)
        if largest > most:  # the first of those that are as large
            token = first + tl.min(tl.where(x == largest, place, BLOCK), 0).to(tl.int64)
        most = above
    best, allowed = most, token != closed
    for n in range(bans):
        allowed = allowed & (token != tl.load(banned + n))
    if not allowed:  # once more, without those that may not be written
        best = -float("inf")
        token = now * 0
        for first in range(0, width, BLOCK):
            x = tl.load(logits + row * stride + first + place, mask=first + place < width, other=-float("inf"))
            x = tl.where(first + place == closed, -float("inf"), x.to(tl.float32))
            for n in range(bans):
                x = tl.where(first + place == tl.load(banned + n), -float("inf"), x)
            largest = tl.max(x, 0)
            if largest > best:
                token = first + tl.min(tl.where(x == largest, place, BLOCK), 0).to(tl.int64)
                best = largest
    tl.store(tokens + row, token)
    score = tl.load(scores + row) + (best - (most + tl.log(total)))
    tl.store(scores + row, score, mask=not is_over)
    tl.store(written + row * longest + tl.minimum(now, longest - 1), token, mask=not is_over)
    is_over = is_over | (token == end) | (now + 1 >= last)
    tl.store(ended + row, is_over)
    tl.store(over + row, is_over)
    tl.store(step + row, now + 1)


@triton.jit
def _maxima(logits, maxima, width, chunks, stride, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    place = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    x = tl.load(logits + row * stride + place, mask=place < width, other=-float("inf")).to(tl.float32)
    tl.store(maxima + row * chunks + chunk, tl.max(x, 1).to(maxima.dtype.element_ty), mask=chunk < chunks)


@triton.jit
def _ranks(x):
    """float32 as whole numbers in the same order, none of them the least of all: that is for what was taken away."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _numbers(ranks):
    """What `_ranks` was given."""
    return (ranks ^ ((ranks >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _best(logits, values, places, width, count, stride, BLOCK: tl.constexpr, NONE: tl.constexpr):
    """By looking for the largest, taking it away, and looking again."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + place, mask=place < width, other=0.0).to(tl.float32)
    ranks = tl.where(place < width, _ranks(x), NONE)
    for n in range(count):
        best = tl.argmax(ranks, 0)
        tl.store(values + row * count + n, _numbers(tl.max(ranks, 0)))
        tl.store(places + row * count + n, best.to(tl.int64))
        ranks = tl.where(place == best, NONE, ranks)


@triton.jit
def _best_of_chunks(
    logits,
    maxima,
    values,
    places,
    width,
    chunks,
    count,
    stride,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    COUNT: tl.constexpr,
    NONE: tl.constexpr,
):
    row, chunk, number = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNKS), tl.arange(0, COUNT)
    x = tl.load(maxima + row * chunks + chunk, mask=chunk < chunks, other=0.0).to(tl.float32)
    ranks = tl.where(chunk < chunks, _ranks(x), NONE)
    chosen = tl.full([COUNT], CHUNKS, dtype=tl.int32)  # none
    for n in range(count):
        best = tl.argmax(ranks, 0)
        chosen = tl.where(number == n, best, chosen)
        ranks = tl.where(chunk == best, NONE, ranks)
    place = chosen[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    y = tl.load(logits + row * stride + place, mask=place < width, other=0.0).to(tl.float32)
    ranks = tl.reshape(tl.where(place < width, _ranks(y), NONE), [COUNT * CHUNK])
    place = tl.reshape(place, [COUNT * CHUNK])
    for n in range(count):
        most = tl.max(ranks, 0)
        best = tl.min(tl.where(ranks == most, place, CHUNKS * CHUNK), 0)  # of equal values the lower index
        tl.store(values + row * count + n, _numbers(most))
        tl.store(places + row * count + n, best.to(tl.int64))
        ranks = tl.where(place == best, NONE, ranks)
