"""The best of a vocabulary: the largest logits and the logarithm of their sum, over rows as long as a vocabulary is.

torch reads every number more than once for them, and for the sum of many rows writes as many as it reads. The results
here are the same, only faster, and ties are broken by one rule, the lower index first, where `topk` breaks them
differently from shape to shape. No operation's shape depends on the values of a tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.parts.precision import at_least_float32
from dragoman.parts.triton_support import TRITON_AVAILABLE

if TRITON_AVAILABLE:
    from dragoman.search import kernels

CHUNK = 64  # logits of which only the largest is looked at first
MANY = 2**16  # logits from which on that pays for a single maximum
PIECE = 2**18  # logits of which the exponentials stay in a core's cache
LARGE = 2**20  # logits from which on it pays to go by pieces
WIDE = 4096  # continuations of a source from which on chunks pay
MOST = 64  # largest `count` of the GPU kernels


def kernel_input(logits: Tensor) -> Tensor:
    """In float32, but for a GPU's kernels, which read what they are given and count in float32 themselves."""
    return logits if TRITON_AVAILABLE and logits.is_cuda else at_least_float32(logits)


def topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """… N → the `count` largest values, largest first, and their indices; of equal values the lower index first."""
    if TRITON_AVAILABLE and values.is_cuda and count <= MOST:
        most, places = kernels.topk(values.reshape(-1, values.shape[-1]), count)
        return most.view(*values.shape[:-1], count), places.view(*values.shape[:-1], count)
    if values.shape[-1] <= CHUNK or values.dtype == torch.float64:
        found, index = values.sort(dim=-1, descending=True, stable=True)
        return found[..., :count], index[..., :count]
    bits = (values.float() + 0.0).view(torch.int32)  # + 0.0: there is one zero
    ranks = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # whole numbers in the order of the values
    keys = (ranks.long() << 32) - torch.arange(values.shape[-1], device=values.device)  # no two are equal
    index = keys.topk(count, dim=-1).indices
    return values.gather(-1, index), index


def first_true(chosen: Tensor, count: int) -> Tensor:
    """B N truth values → B C: where the first `count` true ones of each row stand."""
    order = torch.arange(0, -chosen.shape[1], -1, dtype=torch.float32, device=chosen.device)
    order = order.where(chosen, -torch.inf)
    return topk(order, count)[1] if order.is_cuda else order.topk(count, dim=-1).indices


def argmax_with_score(logits: Tensor) -> tuple[Tensor, Tensor]:
    """… V → the largest of a row and where it stands, …, the first of them where there are several, as from `max`."""
    if TRITON_AVAILABLE and logits.is_cuda:
        values, index = topk(logits, 1)
        return values[..., 0], index[..., 0]
    width = logits.shape[-1]
    chunks = width // CHUNK
    if logits.numel() < MANY or not chunks:
        values, index = logits.max(-1)
        return values, index
    chunked, rest = logits[..., : chunks * CHUNK].unflatten(-1, (chunks, CHUNK)), logits[..., chunks * CHUNK :]
    best = chunked.amax(-1).argmax(-1, keepdim=True)  # … 1
    found = chunked.gather(-2, best[..., None].expand(*best.shape, CHUNK)).flatten(-2)  # … CHUNK
    values, order = torch.cat((found, rest), -1).max(-1)
    return values, torch.where(order < CHUNK, best[..., 0] * CHUNK + order, order + (chunks - 1) * CHUNK)


def topk_continuations(scores: Tensor, logits: Tensor, norm: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """B K scores, B K V logits, B K norms → the largest of scores + log p of a source, largest first, with their rows
    and their tokens, B N each; log p = min(logits − norm, 0), for rounding must not raise a score.

    Ties are broken by the lower row, then by the lower token, whatever the shapes. `topk` orders equal values at will,
    so where there are some (a CPU can look, a GPU would have to wait) keys that are never equal are compared instead.
    """
    rows, width = logits.shape[1:]
    if logits.is_cuda:  # the best of all are among the best of each row
        found, place = topk(logits, min(count, width))  # B K N
        total = (scores[..., None] + (found - norm[..., None]).clamp_(max=0)).flatten(1)
        best, index = topk(total, min(count, total.shape[1]))
        return best, index // found.shape[-1], place.flatten(1).gather(1, index)
    if torch.compiler.is_compiling():  # one graph, without branches
        return _without_ties(scores, logits, norm, count)
    if rows * width < WIDE:
        total = (scores[..., None] + (logits - norm[..., None]).clamp_(max=0)).flatten(1)
        best, index = total.topk(min(count + 1, total.shape[1]), dim=-1)
    else:
        narrow = logits.numel() < MANY or rows * (width // CHUNK) <= count
        total, places = (_best_of_rows if narrow else _best_of_chunks)(scores, logits, norm, count + 1)
        best, order = total.topk(count + 1, dim=-1)
        index = places.gather(1, order)
    if not bool(best.diff(dim=-1).all()):  # some are equal, and not −∞
        return _without_ties(scores, logits, norm, count)
    index = index[:, :count]
    row = index // width
    return best[:, :count], row, index - row * width


def _best_of_rows(scores: Tensor, logits: Tensor, norm: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best continuations of each row, which the `count` best of a source are among; indices in K·V, B N each.

    A row's best stand for what is left out of it: what ties with one of them is `count` places behind it.
    """
    rows, width = logits.shape[1:]
    found, place = logits.topk(min(count, width), dim=-1)  # B K N
    total = scores[..., None] + (found - norm[..., None]).clamp_(max=0)
    return total.flatten(1), (place + torch.arange(0, rows * width, width)[:, None]).flatten(1)


def _best_of_chunks(
    scores: Tensor, logits: Tensor, norm: Tensor, count: int, keyed: bool = False
) -> tuple[Tensor, Tensor]:
    """The same by chunks: a row's scores grow with its logits, so the best are in the chunks with the best maxima.

    The last continuation stands for what is left out: the best of it, so that a tie with it shows. With `keyed`, of
    equal chunks the first are taken: the best continuations, ties by index, are then among all but the last one.
    """
    rows, width = logits.shape[1:]
    chunks, count = width // CHUNK, count - 1
    most = logits[..., : chunks * CHUNK].unflatten(-1, (chunks, CHUNK)).amax(-1)
    most = (scores[..., None] + (most - norm[..., None]).clamp_(max=0)).flatten(1)
    if keyed:
        chunk = _keys(most, torch.arange(most.shape[1])).topk(count + 1, dim=-1, largest=False).indices
        most = most.gather(1, chunk)
    else:
        most, chunk = most.topk(count + 1, dim=-1)
    row = chunk // chunks
    begin = row * width + (chunk - row * chunks) * CHUNK  # B N+1
    inside, rest = torch.arange(CHUNK), torch.arange(chunks * CHUNK, width)
    index = [(begin[:, :count, None] + inside).flatten(1), begin[:, count:]]
    of_row = [row[:, :count, None].expand(-1, -1, CHUNK).flatten(1), row[:, count:]]
    if len(rest):
        every = torch.arange(rows)[:, None].expand(-1, len(rest))
        index.insert(1, (every * width + rest).flatten().expand(len(row), -1))
        of_row.insert(1, every.flatten().expand(len(row), -1))
    places, owner = torch.cat(index, 1), torch.cat(of_row, 1)
    log_p = (logits.flatten(1).gather(1, places) - norm.gather(1, owner)).clamp_(max=0)
    total = scores.gather(1, owner) + log_p
    total[:, -1] = most[:, -1]
    return total, places


def _without_ties(scores: Tensor, logits: Tensor, norm: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """`continuations` by keys in which a lower index decides between equal scores."""
    rows, width = logits.shape[1:]
    wide = rows * (width // CHUNK) > count and logits.dtype != torch.float64
    if wide:
        total, places = (some[:, :-1] for some in _best_of_chunks(scores, logits, norm, count + 1, keyed=True))
    else:
        total = (scores[..., None] + (logits - norm[..., None]).clamp_(max=0)).flatten(1)
        places = torch.arange(total.shape[1]).expand_as(total)
    count = min(count, total.shape[1])
    if total.dtype == torch.float64:  # in order of their places
        order = total.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    else:
        order = _keys(total, places).topk(count, dim=-1, largest=False).indices
    index = places.gather(1, order)
    return total.gather(1, order), index // width, index % width


def _keys(scores: Tensor, index: Tensor) -> Tensor:
    """Whole numbers, smallest for the largest score, of equal scores for the lower index; no two are equal.

    The scores are float32 and ≤ 0: the magnitude of one as float64 has its lower 29 bits free for the index.
    """
    return scores.abs().double().view(torch.int64) + index


def log_sum_exp(logits: Tensor) -> Tensor:
    """log Σ exp, … V → …, as from `logsumexp`. On a CPU some rows at a time, whose exponentials stay in its cache."""
    if TRITON_AVAILABLE and logits.is_cuda:
        return kernels.log_sum_exp(logits.reshape(-1, logits.shape[-1])).view(logits.shape[:-1])
    if logits.device.type != "cpu" or logits.numel() < LARGE or torch.compiler.is_compiling():
        return logits.logsumexp(-1)
    rows = logits.reshape(-1, logits.shape[-1])
    return torch.cat([_log_sum(some) for some in rows.split(max(1, PIECE // rows.shape[1]))]).view(logits.shape[:-1])


def _log_sum(rows: Tensor) -> Tensor:
    limit = torch.finfo(rows.dtype).max  # ∞ − ∞ is no number
    most = rows.amax(-1, keepdim=True).clamp(-limit, limit)
    return ((rows - most).exp_().sum(-1, keepdim=True).log_() + most)[:, 0]
