"""The stepping engine under every search: one token a row, caches instead of prefixes, fixed shapes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.models import Model, Start
from dragoman.parts.mixer import Ctx, Layout, Memory, State, map_state


@dataclass(frozen=True)
class Symbols:
    """The token ids that a search must know; `banned` are never written."""

    start: int
    end: int
    banned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """A target that was found: its tokens without START and END, and log p(y|x) with END counted in."""

    tokens: list[int]
    score: float
    normalized: float  # score / |y|^α, by which it was chosen
    finished: bool  # did it reach END within the length limit?


class Stepper:
    """A model in the middle of writing: feeds one token a row and gives the log-probabilities of the next."""

    def __init__(self, model: Model, begin: Start, symbols: Symbols) -> None:
        self.model = model
        self.memory: Memory | None = begin.memory
        self.state: State = begin.state
        self.tokens, self.positions = begin.tokens, begin.positions
        self.symbols = symbols

    def step(self) -> Tensor:
        """R V: log p of every next token, −∞ for those that may not be written."""
        ctx = Ctx(Layout.steps(self.positions), self.memory)
        logits, state = self.model.decode(self.tokens[:, None], ctx, self.state)
        assert state is not None
        self.state = state
        self.positions = self.positions + 1
        log_p = logits[:, 0].float().log_softmax(-1)
        if self.symbols.banned:
            log_p[:, list(self.symbols.banned)] = -torch.inf
        return log_p

    def choose(self, tokens: Tensor, rows: Tensor | None = None) -> None:
        """Go on with `tokens` (R), each as the continuation of row `rows`."""
        self.tokens = tokens
        if rows is not None:
            self.state = map_state(lambda leaf: leaf.index_select(0, rows), self.state)
            self.positions = self.positions.index_select(0, rows)


PAST = -1  # stands where a row that is over goes on only because others do


def finish(row: list[int], score: float, end: int, alpha: float) -> Hypothesis:
    """The hypothesis of a row that ends at END, or unfinished at its limit."""
    tokens = row[: row.index(PAST)] if PAST in row else row
    finished = tokens[-1] == end
    return Hypothesis(tokens[:-1] if finished else tokens, score, score / len(tokens) ** alpha, finished)
