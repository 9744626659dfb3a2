"""Top-k, argmax and log-sum-exp over rows as long as a vocabulary, with fixed tie breaking: the lower index first.

The results are those of torch, computed faster: torch reads every number several times, and breaks ties differently for
different shapes. No shape depends on the values of a tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.parts import cpu_kernels
from dragoman.parts.precision import at_least_float32
from dragoman.parts.triton_support import TRITON_AVAILABLE

if TRITON_AVAILABLE:
    from dragoman.search import kernels

CHUNK = 64  # consecutive logits whose maximum decides whether they are read again
MIN_CHUNKED_SIZE = 2**16  # logits from which on chunks are faster for a single maximum
CACHE_SIZE = 2**18  # logits whose exponentials fit in the cache of a core
MIN_SPLIT_SIZE = 2**20  # logits from which on splitting by CACHE_SIZE is faster
MIN_CHUNKED_CONTINUATIONS = 4096  # continuations of a source from which on chunks are faster
MAX_KERNEL_COUNT = 64  # largest `count` of the GPU kernels


def kernel_input(logits: Tensor) -> Tensor:
    """Convert logits to float32 (float64 stays), unless Triton kernels will read them, which do so themselves."""
    return logits if TRITON_AVAILABLE and logits.is_cuda else at_least_float32(logits)


def topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of N values along the last dimension, and their indices (0 … N−1).

    Like torch.topk, but equal values are in the order of their indices. `values` is … N, both results are … `count`. On
    a CPU, values are compared by integers that combine the rank of the value and its index.
    """
    if TRITON_AVAILABLE and values.is_cuda and count <= MAX_KERNEL_COUNT:
        largest, index = kernels.topk(values.reshape(-1, values.shape[-1]), count)
        return largest.view(*values.shape[:-1], count), index.view(*values.shape[:-1], count)
    if values.shape[-1] <= CHUNK or values.dtype == torch.float64:
        ordered, index = values.sort(dim=-1, descending=True, stable=True)
        return ordered[..., :count], index[..., :count]
    bits = (values.float() + 0.0).view(torch.int32)  # + 0.0: −0.0 becomes 0.0
    ranks = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the values: negative ones are reversed
    keys = (ranks.long() << 32) - torch.arange(values.shape[-1], device=values.device)  # no two are equal
    index = keys.topk(count, dim=-1).indices
    return values.gather(-1, index), index


def first_true(chosen: Tensor, count: int) -> Tensor:
    """Return the indices of the first `count` true values of each row, in ascending order: B N → B `count`.

    Found as the top-k of −index. A row has at least `count` true values.
    """
    keys = torch.arange(0, -chosen.shape[1], -1, dtype=torch.float32, device=chosen.device)  # −index
    keys = keys.where(chosen, -torch.inf)
    # on a GPU a kernel is faster than Tensor.topk; on a CPU either works, since the largest keys are all different
    return topk(keys, count)[1] if keys.device.type != "cpu" else keys.topk(count, dim=-1).indices


def argmax_with_score(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum along the last dimension and its index, like Tensor.max; the lowest index of equal maxima.

    Logits are … V, both results …. On a CPU, long rows are divided into chunks of CHUNK logits: only the chunk with the
    largest maximum, and the logits after the last whole chunk (`rest`), are read again.
    """
    if TRITON_AVAILABLE and logits.is_cuda:
        values, index = topk(logits, 1)
        return values[..., 0], index[..., 0]
    width = logits.shape[-1]
    chunks = width // CHUNK
    if logits.numel() < MIN_CHUNKED_SIZE or not chunks:
        values, index = logits.max(-1)
        return values, index
    chunked, rest = logits[..., : chunks * CHUNK].unflatten(-1, (chunks, CHUNK)), logits[..., chunks * CHUNK :]
    best = chunked.amax(-1).argmax(-1, keepdim=True)  # … 1
    best_chunk = chunked.gather(-2, best[..., None].expand(*best.shape, CHUNK)).flatten(-2)  # … CHUNK
    values, index = torch.cat((best_chunk, rest), -1).max(-1)
    # from the index in the best chunk and the rest to that in all logits
    return values, torch.where(index < CHUNK, best[..., 0] * CHUNK + index, index + (chunks - 1) * CHUNK)


def topk_continuations(
    scores: Tensor, logits: Tensor, log_normalizer: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the N = `count` best continuations (a hypothesis and one more token) of each source, best first.

    Ties are broken by the lower row, then by the lower token. `Tensor.topk` orders equal values arbitrarily, so on a
    CPU one more continuation than needed is selected, and if any two scores are equal, the slower
    `_topk_lower_index_first` decides.

    Args:
        scores: B K, log p of the K hypotheses of each source.
        logits: B K V, of their next tokens.
        log_normalizer: B K, log Σ exp of the logits.

    Returns:
        the scores (log p with the new token), rows (indices 0 … K−1 of the hypotheses) and new tokens, B N each.
    """
    rows, width = logits.shape[1:]
    if logits.device.type != "cpu":  # the best continuations are among the best of each row
        best_logits, tokens = topk(logits, min(count, width))  # B K N
        candidates = _add_log_p(scores, best_logits, log_normalizer).flatten(1)
        best, index = topk(candidates, min(count, candidates.shape[1]))
        return best, index // best_logits.shape[-1], tokens.flatten(1).gather(1, index)
    if torch.compiler.is_compiling():  # one graph, without branches
        return _topk_lower_index_first(scores, logits, log_normalizer, count)
    functions = cpu_kernels.library()
    if functions is not None and cpu_kernels.can_read(scores, logits, log_normalizer) and count <= rows * width:
        best, index = cpu_kernels.best_continuations(functions, scores, logits, log_normalizer, count)
        row = index // width
        return best, row, index - row * width
    if rows * width < MIN_CHUNKED_CONTINUATIONS:  # too few to gain from selecting in advance
        candidates = _add_log_p(scores, logits, log_normalizer).flatten(1)
        best, index = candidates.topk(min(count + 1, candidates.shape[1]), dim=-1)
    else:
        # chunks are only faster for many logits, and there must be more of them than are read
        is_small = logits.numel() < MIN_CHUNKED_SIZE or rows * (width // CHUNK) <= count
        preselect = _best_of_rows if is_small else _best_of_chunks
        candidates, indices = preselect(scores, logits, log_normalizer, count)
        best, order = candidates.topk(count + 1, dim=-1)
        index = indices.gather(1, order)
    if not bool(best.diff(dim=-1).all()):  # there are equal scores (−∞ − −∞ is NaN, which counts as true)
        return _topk_lower_index_first(scores, logits, log_normalizer, count)
    index = index[:, :count]
    row = index // width
    return best[:, :count], row, index - row * width


def _add_log_p(scores: Tensor, logits: Tensor, log_normalizer: Tensor) -> Tensor:
    """Return the scores of continuations, B K N: that of the hypothesis (B K) plus log p of the token.

    log p is logits (B K N) − `log_normalizer` (B K, log Σ exp of all logits), at most 0: rounding must not raise it.
    """
    return scores[..., None] + (logits - log_normalizer[..., None]).clamp_(max=0)


def _best_of_rows(scores: Tensor, logits: Tensor, log_normalizer: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the N = `count` + 1 best continuations of each hypothesis (row): scores and indices in K·V, B K·N each.

    They include the `count` + 1 best continuations of the source, so that the caller notices a tie of the last two.
    `scores` (B K) are log p of the hypotheses, `logits` (B K V) those of their next tokens, `log_normalizer` (B K) is
    log Σ exp of the logits.
    """
    rows, width = logits.shape[1:]
    best_logits, tokens = logits.topk(min(count + 1, width), dim=-1)  # B K N
    first_index = torch.arange(0, rows * width, width, device=tokens.device)[:, None]  # K 1: of each row in K·V
    return _add_log_p(scores, best_logits, log_normalizer).flatten(1), (tokens + first_index).flatten(1)


def _best_of_chunks(
    scores: Tensor, logits: Tensor, log_normalizer: Tensor, count: int, first_of_equal_chunks: bool = False
) -> tuple[Tensor, Tensor]:
    """Return N continuations of each source that include the `count` best: their scores and indices in K·V, B N each.

    Logits (B K V) are divided into chunks of CHUNK tokens. Only the `count` chunks with the largest maxima are read
    again, besides the tokens after the last whole chunk. The last column is no continuation, but has the maximum of the
    next best chunk, which is not read: the caller must check for a tie with it. `first_of_equal_chunks`: among chunks
    with equal maxima, those with the lower index are read, so that no such tie matters; this is slower.

    `scores` (B K) are log p of the K hypotheses, `log_normalizer` (B K) is log Σ exp of the logits.
    """
    (rows, width), device = logits.shape[1:], logits.device
    chunks = width // CHUNK
    maxima = logits[..., : chunks * CHUNK].unflatten(-1, (chunks, CHUNK)).amax(-1)  # B K chunks
    maxima = _add_log_p(scores, maxima, log_normalizer).flatten(1)
    if first_of_equal_chunks:
        keys = _sort_keys(maxima, torch.arange(maxima.shape[1], device=device))
        chunk = keys.topk(count + 1, dim=-1, largest=False).indices
        maxima = maxima.gather(1, chunk)
    else:
        maxima, chunk = maxima.topk(count + 1, dim=-1)
    row = chunk // chunks
    begin = row * width + (chunk - row * chunks) * CHUNK  # B N+1: index in K·V of the first token of each chunk
    offsets, rest = torch.arange(CHUNK, device=device), torch.arange(chunks * CHUNK, width, device=device)
    # tokens of the chunks, of the rest of each row, and the first token of the chunk that is not read; and their rows
    index = [(begin[:, :count, None] + offsets).flatten(1), begin[:, count:]]
    index_rows = [row[:, :count, None].expand(-1, -1, CHUNK).flatten(1), row[:, count:]]
    if len(rest):
        all_rows = torch.arange(rows, device=device)[:, None].expand(-1, len(rest))
        index.insert(1, (all_rows * width + rest).flatten().expand(len(row), -1))
        index_rows.insert(1, all_rows.flatten().expand(len(row), -1))
    indices, row_of_index = torch.cat(index, 1), torch.cat(index_rows, 1)  # in K·V, and the hypothesis (row) of each
    log_p = (logits.flatten(1).gather(1, indices) - log_normalizer.gather(1, row_of_index)).clamp_(max=0)
    candidates = scores.gather(1, row_of_index) + log_p
    candidates[:, -1] = maxima[:, -1]  # of the chunk that is not read; its best token may be another one
    return candidates, indices


def _topk_lower_index_first(
    scores: Tensor, logits: Tensor, log_normalizer: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the N = `count` best continuations (a hypothesis and one more token) of each source, best first.

    Equal scores are in the order of their indices in K·V. `scores` (B K) are log p of the K hypotheses, `logits`
    (B K V) those of their next tokens, `log_normalizer` (B K) is log Σ exp of the logits. Returns the scores with the
    new token, the rows (indices 0 … K−1 of the hypotheses) and the new tokens, B N each.
    """
    rows, width = logits.shape[1:]
    # chunks are only useful if not all are read, and their sort keys need float32
    if rows * (width // CHUNK) > count and logits.dtype != torch.float64:
        candidates, indices = _best_of_chunks(scores, logits, log_normalizer, count, first_of_equal_chunks=True)
        candidates, indices = candidates[:, :-1], indices[:, :-1]  # the last column is no continuation, only a maximum
    else:
        candidates = _add_log_p(scores, logits, log_normalizer).flatten(1)  # B K·V
        indices = torch.arange(candidates.shape[1], device=logits.device).expand_as(candidates)
    count = min(count, candidates.shape[1])
    if candidates.dtype == torch.float64:  # a stable sort keeps the order of indices
        order = candidates.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    else:
        order = _sort_keys(candidates, indices).topk(count, dim=-1, largest=False).indices
    index = indices.gather(1, order)
    return candidates.gather(1, order), index // width, index % width


def _sort_keys(scores: Tensor, index: Tensor) -> Tensor:
    """Return int64 keys that sort by descending score, then by ascending index; no two are equal.

    Scores are float32 and ≤ 0. The larger the score, the smaller its magnitude, and so the integer with the same bits
    as that float64; converted from float32, its lower 29 bits are 0, and free for the index.
    """
    return scores.abs().double().view(torch.int64) + index


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return log Σ exp over the last dimension, … V → …, like torch.logsumexp but faster.

    On a GPU it is one Triton kernel; on a CPU large inputs are computed in blocks of rows that fit in the cache.
    """
    if TRITON_AVAILABLE and logits.is_cuda:
        return kernels.log_sum_exp(logits.reshape(-1, logits.shape[-1])).view(logits.shape[:-1])
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return logits.logsumexp(-1)
    functions = cpu_kernels.library()
    if functions is not None and cpu_kernels.can_read(logits):
        return cpu_kernels.log_sum_exp(functions, logits)
    if logits.numel() < MIN_SPLIT_SIZE:
        return logits.logsumexp(-1)
    rows = logits.reshape(-1, logits.shape[-1])
    blocks = rows.split(max(1, CACHE_SIZE // rows.shape[1]))
    return torch.cat([_log_sum(block) for block in blocks]).view(logits.shape[:-1])


def _log_sum(rows: Tensor) -> Tensor:
    """Return log Σ exp of each of R rows, R V → R; the maximum of a row is subtracted first, against overflow."""
    limit = torch.finfo(rows.dtype).max  # the maximum is kept finite: ∞ − ∞ would be NaN
    maximum = rows.amax(-1, keepdim=True).clamp(-limit, limit)
    return ((rows - maximum).exp_().sum(-1, keepdim=True).log_() + maximum)[:, 0]
