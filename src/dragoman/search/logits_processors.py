"""Rules: what may be written next, whatever the strategy."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.search.engine import LogitsProcessor
from dragoman.search.slots import Tree


class ForcedPrefix(LogitsProcessor):
    """Targets that begin as they are told: `wishes["prefix"]` (B P) up to `wishes["prefix_length"]` (B).

    What is forced costs what the model says that it costs, so that scores stay those of teacher forcing.
    """

    def __call__(self, slots: Tree, logits: Tensor) -> Tensor:
        prefix, length, step = slots["wishes"]["prefix"], slots["wishes"]["prefix_length"], slots["step"]
        token = prefix.gather(1, step.clamp(max=prefix.shape[1] - 1)[:, None])  # B 1
        index = token[:, None].expand(-1, logits.shape[1], 1)
        only = torch.full_like(logits, -torch.inf).scatter(2, index, logits.gather(2, index))
        return torch.where((step < length)[:, None, None], only, logits)


class NoRepeatNGram(LogitsProcessor):
    """No n-gram of tokens twice in a target (Paulus et al. 2018, §2.5)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, slots: Tree, logits: Tensor) -> Tensor:
        written, step = slots["written"], slots["step"]
        longest, n = written.shape[-1], self.size
        if longest < n:
            return logits
        grams = written.unfold(-1, n, 1)  # B K N n
        places = step[:, None] + torch.arange(1 - n, 0, device=step.device)  # B n−1: of the last words
        last = written.gather(2, places.clamp(0, longest - 1)[:, None].expand(-1, written.shape[1], -1))  # B K n−1
        whole = torch.arange(n - 1, longest, device=step.device) < step[:, None]  # B N: n-grams that were written
        again = (grams[..., :-1] == last[:, :, None]).all(-1) & whole[:, None] & (step >= n - 1)[:, None, None]
        token = torch.where(again, grams[..., -1], 0).clamp(min=0)  # below 0 where a row is over
        least = torch.where(again, -torch.inf, torch.inf)
        return logits.scatter_reduce(2, token, least, "amin")
