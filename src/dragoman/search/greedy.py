"""Greedy search: at each step the likeliest token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dragoman.parts.triton_support import TRITON_AVAILABLE
from dragoman.search.engine import Hypothesis, SpecialTokens, Strategy
from dragoman.search.slots import Tree
from dragoman.search.topk import argmax_with_score

if TRITON_AVAILABLE:
    from dragoman.search import kernels

PAD = -1  # stands where a row that is over goes on only because others do


class IndependentRows(Strategy):
    """Rows that write each for itself, until END or their limit: what greedy search and sampling have in common."""

    def __init__(self, rows: int, end: int, penalty: Callable[[float], float] = lambda length: 1.0) -> None:
        """`penalty` gives what the score of so many tokens is divided by."""
        self.rows_per_source, self.end, self.penalty = rows, end, penalty

    def init_state(self, slots: Tree, longest: int) -> None:
        tokens = slots["tokens"]
        slots["scores"] = torch.zeros(tokens.shape, device=tokens.device)
        slots["ended"] = torch.zeros_like(tokens, dtype=torch.bool)
        slots["written"] = torch.full((*tokens.shape, longest), PAD, device=tokens.device)

    def write(self, slots: Tree, tokens: Tensor, log_p: Tensor) -> tuple[Tensor, None]:
        """Tokens and their log-probabilities, B K."""
        ended, step = slots["ended"], slots["step"]
        slots["scores"] = torch.where(ended, slots["scores"], slots["scores"] + log_p)
        written = slots["written"]
        slots["written"] = torch.where(ended[..., None], written, write_tokens(written, step, tokens))
        slots["ended"] = ended | (tokens == self.end) | (step + 1 >= slots["limit"])[:, None]
        slots["over"] = slots["ended"].all(1) if self.rows_per_source > 1 else slots["ended"][:, 0]
        return tokens, None

    def hypotheses(self, slots: Tree) -> list[list[Hypothesis]]:
        written = slots["written"].flatten(0, 1).cpu().numpy().tolist()  # numpy is quicker about it
        found = map(self._finish, written, slots["scores"].flatten().tolist())
        if self.rows_per_source == 1:
            return [[one] for one in found]
        return [sorted(group, key=lambda h: -h.score) for group in zip(*[found] * self.rows_per_source)]  # K at a time

    def _finish(self, row: list[int], score: float) -> Hypothesis:
        """The hypothesis of a row that ends at END, or unfinished at its limit."""
        tokens = row[: row.index(PAD)] if row[-1] == PAD else row
        finished = tokens[-1] == self.end
        return Hypothesis(tokens[:-1] if finished else tokens, score, score / self.penalty(len(tokens)), finished)


class Greedy(IndependentRows):
    """y_t = argmax p(y | y_<t, x)."""

    def select(self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, None]:
        best, tokens = argmax_with_score(logits)
        return self.write(slots, tokens, best - norm)

    def fused_step(self, slots: Tree, logits: Tensor, symbols: SpecialTokens, banned: Tensor) -> bool:
        if not TRITON_AVAILABLE or not logits.is_cuda:
            return False
        own = ("step", "limit", "tokens", "scores", "ended", "over", "written")
        kernels.greedy_step(logits[:, 0], banned, self.end, symbols.min_length, *(slots[name] for name in own))
        return True


def write_tokens(written: Tensor, step: Tensor, tokens: Tensor) -> Tensor:
    """What was written, B K T, with tokens (B K) at place `step` (B)."""
    places = step[:, None, None].expand(*tokens.shape, 1).clamp(max=written.shape[-1] - 1)
    return written.scatter(2, places, tokens[..., None])
