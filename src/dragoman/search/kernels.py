"""Triton kernels for rows of logits: log-sum-exp, top-k, and a fused step of greedy search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from dragoman.search.engine import SpecialTokens
    from dragoman.search.search_state import SearchState

LOGITS_BLOCK = 8192  # logits that a Triton program reads at a time
LOGITS_CHUNK = 64  # logits whose maximum decides whether they are read again
NUM_MULTIPROCESSORS = 128  # of a GPU, roughly: with at most as many rows, each row has one of its own
MAX_SINGLE_BLOCK = 1024  # rows of at most this width are read at once
MIN_RANK = -(2**31)  # below the rank of every number


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return log Σ exp of each of R rows of logits, R V → R, in float32."""
    rows, width = logits.shape
    result = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = _block_size(rows, width, LOGITS_BLOCK)
    _log_sum_exp_kernel[(rows,)](logits, result, width, logits.stride(0), BLOCK=block, num_warps=_num_warps(block))
    return result


def greedy_step(logits: Tensor, suppressed: Tensor, special_tokens: SpecialTokens, state: SearchState) -> None:
    """Perform a step of greedy search on a GPU, in place: append the most probable token of each source to `state`.

    Logits are B V, one hypothesis per source. The tokens `suppressed` (N ids), and EOS before `min_length` tokens, are
    not generated. Scores get log p of the token. Hypotheses that have ended do not change. `block` is the number of
    logits that a Triton program reads at a time.
    """
    rows, width = logits.shape
    block = _block_size(rows, width, LOGITS_BLOCK // 2)
    tensors = (state.step, state.max_length, state.tokens, state.scores, state.strategy.ended_rows, state.done)
    sizes = (width, logits.stride(0), len(suppressed), state.output_tokens.shape[-1])
    _greedy_step_kernel[(rows,)](
        logits,
        suppressed,
        *tensors,
        state.output_tokens,
        *sizes,
        special_tokens.eos,
        special_tokens.min_length,
        BLOCK=block,
        num_warps=_num_warps(block),
    )


def topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the N = `count` largest values of each row of `logits` (R V), in float32, and their indices, R N each.

    They are in descending order, equal ones in that of their indices. Rows of more than MAX_SINGLE_BLOCK values are
    divided into chunks: a first kernel stores the maximum of each chunk, and a second one reads only the `count` chunks
    with the largest maxima, which contain the largest values.
    """
    rows, width = logits.shape
    values = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    indices = torch.empty(rows, count, dtype=torch.long, device=logits.device)
    if width <= MAX_SINGLE_BLOCK:
        block = triton.next_power_of_2(width)
        sizes = (width, count, logits.stride(0))
        _topk_kernel[(rows,)](
            logits, values, indices, *sizes, BLOCK=block, MIN_RANK=MIN_RANK, num_warps=2 if block > 256 else 1
        )
        return values, indices
    chunks = triton.cdiv(width, LOGITS_CHUNK)
    maxima = torch.empty(rows, chunks, dtype=logits.dtype, device=logits.device)
    sizes = (width, chunks, logits.stride(0))
    _chunk_maxima_kernel[rows, triton.cdiv(width, LOGITS_BLOCK // 2)](
        logits, maxima, *sizes, CHUNK=LOGITS_CHUNK, CHUNKS=LOGITS_BLOCK // 2 // LOGITS_CHUNK, num_warps=4
    )
    _topk_of_chunks_kernel[(rows,)](
        logits,
        maxima,
        values,
        indices,
        *sizes,
        count,
        CHUNK=LOGITS_CHUNK,
        CHUNKS=triton.next_power_of_2(chunks),
        COUNT=triton.next_power_of_2(count),
        MIN_RANK=MIN_RANK,
        num_warps=4,
    )
    return values, indices


def _block_size(rows: int, width: int, many_rows_block: int) -> int:
    """Return how many logits of a row (of `width` logits) a Triton program, one per row, reads at a time.

    `many_rows_block` (at most LOGITS_BLOCK) if there are more rows than NUM_MULTIPROCESSORS; otherwise each row has a
    multiprocessor of the GPU for itself, and reads twice LOGITS_BLOCK. Never more than `width`, rounded up to a power
    of 2.
    """
    return min(many_rows_block if rows > NUM_MULTIPROCESSORS else 2 * LOGITS_BLOCK, triton.next_power_of_2(width))


def _num_warps(block: int) -> int:
    """Return the number of warps of a Triton program that reads `block` logits: 32 logits for each of its threads."""
    return max(1, block // 1024)


@triton.jit
def _log_sum_exp_kernel(logits, result, width, stride, BLOCK: tl.constexpr):
    """Store log Σ exp of each row of logits in `result`; one Triton program per row.

    A running maximum and a running sum are updated with BLOCK logits at a time. `width` is the number of logits of a
    row, `stride` the distance between two rows in memory, in elements; `logits` and `result` are pointers.
    """
    row = tl.program_id(0).to(tl.int64)
    offset = tl.arange(0, BLOCK)
    maximum = -float("inf")
    total = 0.0  # Σ exp(x − maximum) of the logits x so far
    for start in range(0, width, BLOCK):
        x = tl.load(logits + row * stride + start + offset, mask=start + offset < width, other=-float("inf"))
        x = x.to(tl.float32)
        new_maximum = tl.maximum(maximum, tl.max(x, 0))
        base = tl.where(new_maximum == -float("inf"), 0.0, new_maximum)  # avoids ∞ − ∞
        total = total * tl.exp(maximum - base) + tl.sum(tl.exp(x - base), 0)
        maximum = new_maximum
    tl.store(result + row, maximum + tl.log(total))


@triton.jit
def _greedy_step_kernel(
    logits,
    suppressed,
    step,
    max_length,
    tokens,
    scores,
    ended,
    done,
    output_tokens,
    width,
    stride,
    num_suppressed,
    output_length,
    eos,
    min_length,
    BLOCK: tl.constexpr,
):
    """Perform a step of greedy search; one Triton program per source, which has one row of logits.

    It finds the most probable token and log Σ exp in one pass, then updates the tensors of the search state. If that
    token must not be generated (it is one of the `suppressed`, or EOS before `min_length` tokens), the logits are read
    again without such tokens.

    Pointers with one element per source: `step` (number of generated tokens), `max_length`, `tokens` (the last token),
    `scores` (log p), `ended` and `done`. `output_tokens` points to rows of `output_length` tokens, `suppressed` to
    `num_suppressed` token ids. A row has `width` logits, of which BLOCK are read at a time; `stride` is the distance of
    two rows in elements. `eos` is the id of EOS.
    """
    row, offset = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    num_generated, limit, has_ended = tl.load(step + row), tl.load(max_length + row), tl.load(ended + row) != 0
    # EOS while the target is too short, but not as the last token before the limit; −1 is no token
    forbidden_eos = tl.where(num_generated < tl.minimum(limit - 1, min_length), eos, -1)
    maximum = -float("inf")
    total = 0.0  # Σ exp(x − maximum) of the logits x so far
    token = num_generated * 0  # 0 of the integer type of `num_generated`
    for start in range(0, width, BLOCK):
        x = tl.load(logits + row * stride + start + offset, mask=start + offset < width, other=-float("inf"))
        x = x.to(tl.float32)
        largest = tl.max(x, 0)
        new_maximum = tl.maximum(maximum, largest)
        base = tl.where(new_maximum == -float("inf"), 0.0, new_maximum)  # avoids ∞ − ∞
        total = total * tl.exp(maximum - base) + tl.sum(tl.exp(x - base), 0)
        if largest > maximum:  # the first one of equal logits
            token = start + tl.min(tl.where(x == largest, offset, BLOCK), 0).to(tl.int64)
        maximum = new_maximum
    best, allowed = maximum, token != forbidden_eos
    for n in range(num_suppressed):
        allowed = allowed & (token != tl.load(suppressed + n))
    if not allowed:  # again, without the tokens that must not be generated
        best = -float("inf")
        token = num_generated * 0
        for start in range(0, width, BLOCK):
            x = tl.load(logits + row * stride + start + offset, mask=start + offset < width, other=-float("inf"))
            x = tl.where(start + offset == forbidden_eos, -float("inf"), x.to(tl.float32))
            for n in range(num_suppressed):
                x = tl.where(start + offset == tl.load(suppressed + n), -float("inf"), x)
            largest = tl.max(x, 0)
            if largest > best:
                token = start + tl.min(tl.where(x == largest, offset, BLOCK), 0).to(tl.int64)
                best = largest
    tl.store(tokens + row, token)
    score = tl.load(scores + row) + (best - (maximum + tl.log(total)))
    tl.store(scores + row, score, mask=not has_ended)
    position = tl.minimum(num_generated, output_length - 1)
    tl.store(output_tokens + row * output_length + position, token, mask=not has_ended)
    has_ended = has_ended | (token == eos) | (num_generated + 1 >= limit)
    tl.store(ended + row, has_ended)
    tl.store(done + row, has_ended)
    tl.store(step + row, num_generated + 1)


@triton.jit
def _chunk_maxima_kernel(logits, maxima, width, chunks, stride, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """Store the maximum of every chunk of CHUNK logits in `maxima`; each Triton program reads CHUNKS chunks of one row.

    `logits` points to rows of `width` values, `stride` elements apart; `maxima` to rows of `chunks` values.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    index = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    x = tl.load(logits + row * stride + index, mask=index < width, other=-float("inf")).to(tl.float32)
    tl.store(maxima + row * chunks + chunk, tl.max(x, 1).to(maxima.dtype.element_ty), mask=chunk < chunks)


@triton.jit
def _rank(x):
    """Map float32 numbers to int32 in the same order: the larger the number, the larger its rank.

    All ranks are above MIN_RANK, which marks values that have been selected already. Reading the bits of a float as an
    integer keeps the order of positive numbers; the lower 31 bits of negative ones are inverted, which reverses theirs.
    """
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _from_rank(rank):
    """Return the float32 number of a rank: the inverse of `_rank`, which maps floats to int32 in the same order."""
    return (rank ^ ((rank >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _topk_kernel(logits, values, indices, width, count, stride, BLOCK: tl.constexpr, MIN_RANK: tl.constexpr):
    """Store the `count` largest logits of each row in `values`, and their indices in `indices`; one program per row.

    `logits` points to rows of `width` ≤ BLOCK logits, `stride` elements apart. Logits are compared by their ranks,
    integers in the same order; MIN_RANK marks those that have been selected, and padding.
    """
    row, index = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + index, mask=index < width, other=0.0).to(tl.float32)
    rank = tl.where(index < width, _rank(x), MIN_RANK)
    for n in range(count):  # find the largest, remove it, and repeat
        best = tl.argmax(rank, 0)
        tl.store(values + row * count + n, _from_rank(tl.max(rank, 0)))
        tl.store(indices + row * count + n, best.to(tl.int64))
        rank = tl.where(index == best, MIN_RANK, rank)


@triton.jit
def _topk_of_chunks_kernel(
    logits,
    maxima,
    values,
    indices,
    width,
    chunks,
    stride,
    count,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    COUNT: tl.constexpr,
    MIN_RANK: tl.constexpr,
):
    """Store the `count` largest logits of each row in `values`, and their indices in `indices`; one program per row.

    It selects the `count` chunks of CHUNK logits with the largest `maxima` (one per chunk), then the largest logits in
    these chunks. A row has `width` logits and `chunks` maxima; rows are `stride` logits apart. CHUNKS and COUNT are
    `chunks` and `count`, rounded up to powers of 2. Values are compared by their ranks, integers in the same order;
    MIN_RANK marks those that have been selected, and padding.
    """
    row, chunk, number = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNKS), tl.arange(0, COUNT)
    x = tl.load(maxima + row * chunks + chunk, mask=chunk < chunks, other=0.0).to(tl.float32)
    rank = tl.where(chunk < chunks, _rank(x), MIN_RANK)
    chosen = tl.full([COUNT], CHUNKS, dtype=tl.int32)  # beyond the last chunk
    for n in range(count):
        best = tl.argmax(rank, 0)
        chosen = tl.where(number == n, best, chosen)
        rank = tl.where(chunk == best, MIN_RANK, rank)
    index = chosen[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    y = tl.load(logits + row * stride + index, mask=index < width, other=0.0).to(tl.float32)
    rank = tl.reshape(tl.where(index < width, _rank(y), MIN_RANK), [COUNT * CHUNK])
    index = tl.reshape(index, [COUNT * CHUNK])
    for n in range(count):
        maximum = tl.max(rank, 0)
        best = tl.min(tl.where(rank == maximum, index, CHUNKS * CHUNK), 0)  # the lower index of equal values
        tl.store(values + row * count + n, _from_rank(maximum))
        tl.store(indices + row * count + n, best.to(tl.int64))
        rank = tl.where(index == best, MIN_RANK, rank)
