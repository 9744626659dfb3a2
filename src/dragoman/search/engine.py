"""The stepping engine under every search: one token a row, caches instead of prefixes, fixed shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.models import Model, Start
from dragoman.parts.mixer import Ctx, Layout, Memory, State, map_state
from dragoman.search.alignment import cross_attention


@dataclass(frozen=True)
class Symbols:
    """The token ids that a search must know; `banned` are never written, what is `forced` is written first of all.

    `start`, which is fed first, may be another for every source (B).
    """

    start: int | Tensor
    end: int
    banned: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()  # at no cost: its log p is 0
    closed: bool = False  # at the length limit END is forced as well


@dataclass(frozen=True)
class Hypothesis:
    """A target that was found: its tokens without START and END, and log p(y|x) with END counted in."""

    tokens: list[int]
    score: float
    normalized: float  # by which it was chosen: score / |y|^α, or with the penalties that were asked for
    finished: bool  # did it reach END within the length limit?


class Stepper:
    """A model in the middle of writing: feeds one token a row and gives the log-probabilities of the next."""

    def __init__(self, model: Model, begin: Start, symbols: Symbols, limits: Tensor, watches: bool = False) -> None:
        """`limits`: how long the targets of each source (B) may get.

        `watches`: after each step `looks` says where in the source every row has looked.
        """
        self.model = model
        self.memory: Memory | None = begin.memory
        self.state: State = begin.state
        self.tokens, self.positions, self.places = begin.tokens, begin.positions, begin.places
        self.symbols, self.written = symbols, 0
        self.limits = limits.repeat_interleave(len(begin.tokens) // len(limits))  # R
        self.watches = watches
        self.looks: Tensor | None = None  # B K S; None where nobody watches, and where there is no attention

    def step(self) -> Tensor:
        """R V: log p of every next token, −∞ for those that may not be written."""
        recorder: dict[str, list[Tensor]] | None = {} if self.watches else None
        ctx = Ctx(Layout.steps(self.positions), self.memory, recorder=recorder)
        logits, state = self.model.decode(self.tokens[:, None], ctx, self.state)
        assert state is not None
        if recorder is not None:  # the rows of a source ask side by side, as so many queries
            self.looks = cross_attention(self.model, {path: weights[0] for path, weights in recorder.items()})
        self.state = state
        self.positions = (self.positions + 1).clamp(max=self.places - 1)
        log_p = logits[:, 0].float().log_softmax(-1)
        if self.symbols.banned:
            log_p[:, list(self.symbols.banned)] = -torch.inf
        if self.written < len(self.symbols.forced):
            log_p.fill_(-torch.inf)[:, self.symbols.forced[self.written]] = 0.0
        self.written += 1
        if self.symbols.closed:
            last = self.limits == self.written  # R
            log_p = log_p.masked_fill(last[:, None], -torch.inf)
            log_p[:, self.symbols.end] = log_p[:, self.symbols.end].masked_fill(last, 0.0)
        return log_p

    def choose(self, tokens: Tensor, rows: Tensor | None = None) -> None:
        """Go on with `tokens` (R), each as the continuation of row `rows`."""
        self.tokens = tokens
        if rows is not None:
            self.state = map_state(lambda leaf: leaf.index_select(0, rows), self.state)
            self.positions = self.positions.index_select(0, rows)


PAST = -1  # stands where a row that is over goes on only because others do


def finish(row: list[int], score: float, end: int, penalty: Callable[[int], float] = lambda length: 1.0) -> Hypothesis:
    """The hypothesis of a row that ends at END, or unfinished at its limit; its score is divided by `penalty`(|y|)."""
    tokens = row[: row.index(PAST)] if PAST in row else row
    finished = tokens[-1] == end
    return Hypothesis(tokens[:-1] if finished else tokens, score, score / penalty(len(tokens)), finished)
