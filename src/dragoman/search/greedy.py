"""Greedy search: at each step the likeliest token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dragoman.parts.gpu import KERNELS
from dragoman.search.engine import Hypothesis, Strategy, Symbols
from dragoman.search.largest import largest
from dragoman.search.slots import Tree

if KERNELS:
    from dragoman.search import kernels

PAST = -1  # stands where a row that is over goes on only because others do


class Rows(Strategy):
    """Rows that write each for itself, until END or their limit: what greedy search and sampling have in common."""

    def __init__(self, rows: int, end: int, penalty: Callable[[float], float] = lambda length: 1.0) -> None:
        """`penalty` gives what the score of so many tokens is divided by."""
        self.rows, self.end, self.penalty = rows, end, penalty

    def begin(self, slots: Tree, longest: int) -> None:
        tokens = slots["tokens"]
        slots["scores"] = torch.zeros(tokens.shape, device=tokens.device)
        slots["ended"] = torch.zeros_like(tokens, dtype=torch.bool)
        slots["written"] = torch.full((*tokens.shape, longest), PAST, device=tokens.device)

    def write(self, slots: Tree, tokens: Tensor, log_p: Tensor) -> tuple[Tensor, None]:
        """Tokens and their log-probabilities, B K."""
        ended, step = slots["ended"], slots["step"]
        slots["scores"] = torch.where(ended, slots["scores"], slots["scores"] + log_p)
        written = slots["written"]
        slots["written"] = torch.where(ended[..., None], written, put(written, step, tokens))
        slots["ended"] = ended | (tokens == self.end) | (step + 1 >= slots["limit"])[:, None]
        slots["over"] = slots["ended"].all(1) if self.rows > 1 else slots["ended"][:, 0]
        return tokens, None

    def results(self, slots: Tree) -> list[list[Hypothesis]]:
        written = slots["written"].flatten(0, 1).cpu().numpy().tolist()  # numpy is quicker about it
        found = map(self._finish, written, slots["scores"].flatten().tolist())
        if self.rows == 1:
            return [[one] for one in found]
        return [sorted(group, key=lambda h: -h.score) for group in zip(*[found] * self.rows)]  # K at a time

    def _finish(self, row: list[int], score: float) -> Hypothesis:
        """The hypothesis of a row that ends at END, or unfinished at its limit."""
        tokens = row[: row.index(PAST)] if row[-1] == PAST else row
        finished = tokens[-1] == self.end
        return Hypothesis(tokens[:-1] if finished else tokens, score, score / self.penalty(len(tokens)), finished)


class Greedy(Rows):
    """y_t = argmax p(y | y_<t, x)."""

    def choose(self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, None]:
        best, tokens = largest(logits)
        return self.write(slots, tokens, best - norm)

    def write_at_once(self, slots: Tree, logits: Tensor, symbols: Symbols, banned: Tensor) -> bool:
        if not KERNELS or not logits.is_cuda:
            return False
        own = ("step", "limit", "tokens", "scores", "ended", "over", "written")
        kernels.write_largest(logits[:, 0], banned, self.end, symbols.least, *(slots[name] for name in own))
        return True


def put(written: Tensor, step: Tensor, tokens: Tensor) -> Tensor:
    """What was written, B K T, with tokens (B K) at place `step` (B)."""
    places = step[:, None, None].expand(*tokens.shape, 1).clamp(max=written.shape[-1] - 1)
    return written.scatter(2, places, tokens[..., None])
