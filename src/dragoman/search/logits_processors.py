"""Logits processors: restrictions on the next token that any strategy can use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.search.engine import LogitsProcessor
from dragoman.search.search_state import SearchState


class ForcedPrefix(LogitsProcessor):
    """Targets begin with `constraints.prefix` (B P), up to `constraints.prefix_length` (B).

    Forced tokens keep the log-probability that the model gives them, so that scores are those of teacher forcing.
    """

    def __call__(self, state: SearchState, own_state: Any, logits: Tensor) -> Tensor:
        prefix, length = state.constraints.prefix, state.constraints.prefix_length
        assert prefix is not None
        assert length is not None
        token = prefix.gather(1, state.step.clamp(max=prefix.shape[1] - 1)[:, None])  # B 1
        index = token[:, None].expand(-1, logits.shape[1], 1)
        forced = torch.full_like(logits, -torch.inf).scatter(2, index, logits.gather(2, index))
        return torch.where((state.step < length)[:, None, None], forced, logits)


class NoRepeatNGram(LogitsProcessor):
    """No n-gram of tokens occurs twice in a target (Paulus et al. 2018, §2.5)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, state: SearchState, own_state: Any, logits: Tensor) -> Tensor:
        tokens, step, n = state.output_tokens, state.step, self.size
        max_length = tokens.shape[-1]
        if max_length < n:
            return logits
        ngrams = tokens.unfold(-1, n, 1)  # B K N n
        positions = step[:, None] + torch.arange(1 - n, 0, device=step.device)  # B n−1: of the last tokens
        last = tokens.gather(2, positions.clamp(0, max_length - 1)[:, None].expand(-1, tokens.shape[1], -1))  # B K n−1
        generated = torch.arange(n - 1, max_length, device=step.device) < step[:, None]  # B N
        repeats = (ngrams[..., :-1] == last[:, :, None]).all(-1) & generated[:, None] & (step >= n - 1)[:, None, None]
        token = torch.where(repeats, ngrams[..., -1], 0).clamp(min=0)  # PAD, which is negative, in rows that have ended
        return logits.scatter_reduce(2, token, torch.where(repeats, -torch.inf, torch.inf), "amin")
