"""The best of a vocabulary: the largest logits and the logarithm of their sum, over rows as long as a vocabulary is.

torch looks at every number more than once for them, and for the sum of many rows writes as many down as it reads. What
comes out here is what comes out there, only sooner. No operation's shape follows from what the tensors hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.parts.gpu import KERNELS
from dragoman.parts.precision import at_least_float32

if KERNELS:
    from dragoman.search import kernels

CHUNK = 64  # logits of which only the largest is looked at first
MANY = 2**16  # logits from which on that pays
PIECE = 2**18  # logits of which the exponentials stay in a core's cache
LARGE = 2**20  # logits from which on it pays to go by pieces
MOST = 64  # that these are asked for


def readable(logits: Tensor) -> Tensor:
    """In float32, but for a GPU's kernels, which read what they are given and count in float32 themselves."""
    return logits if KERNELS and logits.is_cuda else at_least_float32(logits)


def top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """… V → the `count` largest, largest first, and where they stand, … N, as from `topk`.

    The largest are in those chunks that have the largest maxima: only these are looked into.
    """
    if KERNELS and logits.is_cuda and count <= MOST:
        most, places = kernels.top(logits.reshape(-1, logits.shape[-1]), count)
        return most.view(*logits.shape[:-1], count), places.view(*logits.shape[:-1], count)
    chunks = logits.shape[-1] // CHUNK
    if logits.numel() < MANY or count > chunks:
        return logits.topk(count, dim=-1)
    chunked, rest = logits[..., : chunks * CHUNK].unflatten(-1, (chunks, CHUNK)), logits[..., chunks * CHUNK :]
    places = torch.arange(CHUNK, device=logits.device)
    best = chunked.amax(-1).topk(count, dim=-1).indices[..., None]  # … N 1
    found = [chunked.gather(-2, best.expand(*best.shape[:-1], CHUNK)).flatten(-2), rest]
    index = [(best * CHUNK + places).flatten(-2), (places[: rest.shape[-1]] + chunks * CHUNK).expand_as(rest)]
    values, order = torch.cat(found, -1).topk(count, dim=-1)
    return values, torch.cat(index, -1).gather(-1, order)


def largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """… V → the largest of a row and where it stands, …, the first of them where there are several, as from `max`."""
    if KERNELS and logits.is_cuda:
        values, index = top(logits, 1)
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


def continuations(scores: Tensor, logits: Tensor, norm: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """B K scores, B K V logits, B K norms → the largest scores + (logits − norm) of a source, largest first, with their
    rows and their places in them, B N each.

    A row's numbers grow with its logits: here too, whole chunks can be left out.
    """
    rows, width = logits.shape[1:]
    chunks = width // CHUNK
    if (
        logits.is_cuda or logits.numel() < MANY or count > rows * chunks
    ):  # the best of all are among the best of each row
        found, place = top(logits, min(count, width))  # B K N
        total = (scores[..., None] + (found - norm[..., None])).flatten(1)
        best, index = top(total, min(count, total.shape[1]))
        return best, index // found.shape[-1], place.flatten(1).gather(1, index)
    most = logits[..., : chunks * CHUNK].unflatten(-1, (chunks, CHUNK)).amax(-1)
    chunk = (scores[..., None] + (most - norm[..., None])).flatten(1).topk(count, dim=-1).indices[..., None]  # B N 1
    inside = torch.arange(CHUNK, device=logits.device)
    rest = torch.arange(chunks * CHUNK, width, device=logits.device)
    place = _beside((chunk % chunks * CHUNK + inside).flatten(1), rest.repeat(rows))
    row = torch.arange(rows, device=logits.device).repeat_interleave(len(rest))
    row = _beside((chunk // chunks).expand(-1, -1, CHUNK).flatten(1), row)
    found = logits.flatten(1).gather(1, row * width + place)
    best, order = (scores.gather(1, row) + (found - norm.gather(1, row))).topk(count, dim=-1)
    return best, row.gather(1, order), place.gather(1, order)


def _beside(some: Tensor, others: Tensor) -> Tensor:
    """B N and M, which all sources have → B N+M."""
    return torch.cat((some, others.expand(len(some), -1)), 1) if len(others) else some


def log_sum(logits: Tensor) -> Tensor:
    """log Σ exp, … V → …, as from `logsumexp`. On a CPU some rows at a time, whose exponentials stay in its cache."""
    if KERNELS and logits.is_cuda:
        return kernels.log_sum(logits.reshape(-1, logits.shape[-1])).view(logits.shape[:-1])
    if logits.device.type != "cpu" or logits.numel() < LARGE or torch.compiler.is_compiling():
        return logits.logsumexp(-1)
    rows = logits.reshape(-1, logits.shape[-1])
    return torch.cat([_log_sum(some) for some in rows.split(max(1, PIECE // rows.shape[1]))]).view(logits.shape[:-1])


def _log_sum(rows: Tensor) -> Tensor:
    limit = torch.finfo(rows.dtype).max  # ∞ − ∞ is no number
    most = rows.amax(-1, keepdim=True).clamp(-limit, limit)
    return ((rows - most).exp_().sum(-1, keepdim=True).log_() + most)[:, 0]
