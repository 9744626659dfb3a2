"""The sum and the largest of many logits, as a search asks for them at every step, without copies of them all."""

from __future__ import annotations

import torch
from torch import Tensor

CACHED = 2**18  # numbers that a CPU's cache holds: 1 MiB of float32
BLOCK = 96  # logits of which at first only the largest is looked at


def log_sum(logits: Tensor) -> Tensor:
    """log Σ exp over the last dimension, … V → …; on a CPU some rows at a time, so that no copy of them all is made."""
    rows = max(1, CACHED // logits.shape[-1])
    if logits.device.type != "cpu" or logits[..., 0].numel() <= rows:
        return logits.logsumexp(-1)
    flat = logits.flatten(0, -2)  # R V
    return torch.cat([some.logsumexp(-1) for some in flat.split(rows)]).view(logits.shape[:-1])


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest over the last dimension and their places, as from `topk`: … V → … count.

    On a CPU by blocks: the k largest numbers lie in the k blocks whose largest are largest.
    """
    size = logits.shape[-1]
    blocks = size // BLOCK
    if logits.device.type != "cpu" or 4 * count > blocks:
        return logits.topk(count, dim=-1)
    parted = logits[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK))  # … N BLOCK
    chosen = parted.amax(-1).topk(count, dim=-1).indices  # … count
    rest = torch.arange(blocks * BLOCK, size, device=logits.device).expand(*logits.shape[:-1], -1)
    places = torch.cat(((chosen[..., None] * BLOCK + torch.arange(BLOCK)).flatten(-2), rest), -1)
    values, index = logits.gather(-1, places).topk(count, dim=-1)
    return values, places.gather(-1, index)
