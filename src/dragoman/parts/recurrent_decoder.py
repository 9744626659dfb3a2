"""The recurrent decoder: one class whose orthogonal choices give Sutskever's, Cho's, Bahdanau's and Luong's,
and the bottom layer of deeper ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.parts.at_once import at_once
from dragoman.parts.cells import CELLS, CellKind
from dragoman.parts.dropout import dropout
from dragoman.parts.mixer import Ctx, Layout, Memory, Mixer, State, beams
from dragoman.parts.recurrence import go_on
from dragoman.parts.recurrent_context import (
    Attention,
    Context,
    FromContext,
    FromLast,
    FromSummary,
    FromZero,
    Plain,
    Readout,
)
from dragoman.parts.spec import Spec, built


@dataclass(frozen=True)
class RecurrentDecoder(Spec):
    """s_i = g(s_{i−1}, y_{i−1}, fed), c_i = context(s), output = readout(s_i, y_{i−1}, c_i).

    `asks`: whose state looks at the source, s_{i−1} before the step (Bahdanau) or s_i after it (Luong). `feeds`: what
    enters the cell beside the last word: nothing, the context, or the last output (input feeding, Luong §3.3).
    """

    cell: CellKind = "gru"
    layers: int = 1
    context: Spec = field(default_factory=Attention)
    asks: Literal["before", "after"] = "before"
    feeds: Literal["nothing", "context", "output"] = "context"
    start: FromZero | FromLast | FromSummary | FromContext = field(default_factory=FromSummary)
    readout: Spec = field(default_factory=Plain)
    dropout: float = 0.0

    def build(self, dim: int) -> RecurrentDecoderMixer:
        return RecurrentDecoderMixer(self, dim)


class RecurrentDecoderMixer(Mixer):
    packs = False

    def __init__(self, spec: RecurrentDecoder, dim: int) -> None:
        super().__init__()
        self.dim, self.dropout = dim, spec.dropout
        self.context = built(spec.context, dim, Context)
        self.readout = built(spec.readout, dim, Readout)
        self.start = spec.start.start(spec.layers, dim)
        self.asks_before = spec.asks == "before"
        self.feeds_context, self.feeds_output = spec.feeds == "context", spec.feeds == "output"
        #: does a step need what the step before it found? Otherwise whole sequences go through at once
        self.sequential = self.feeds_output or (self.context.looks and (self.asks_before or self.feeds_context))
        inputs = dim * (2 if self.feeds_context or self.feeds_output else 1)
        self.cells = CELLS[spec.cell](inputs, dim, spec.layers, spec.dropout)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return {"cells": self.cells.init_state(batch, like), "fed": like.new_zeros(batch, self.dim)}

    def remember(self, memory: Memory) -> dict[str, Tensor]:
        kept = self.context.remember(memory)
        start = self.start(memory, kept, self.cells.init_state(memory.states.shape[0], memory.states))
        return kept | {f"start {name}": value for name, value in start.items()}

    def forward(self, x: Tensor, ctx: Ctx, state: State | None = None) -> tuple[Tensor, State | None]:
        """Leaves in `ctx.context` what it saw of the source at each step, for the parts above."""
        assert ctx.memory is not None
        kept = ctx.memory.projected[self.path]
        cells, fed = self._begin(x, ctx, kept, state)
        # without a state nobody asks where rows ended, and padding comes after all that counts
        layout = Layout(ctx.layout.positions) if state is None else ctx.layout
        if self.sequential:
            with at_once():
                y, cells, fed = self._steps(x, ctx, kept, cells, fed, layout.real)
        else:
            y, cells = self._whole(x, ctx, kept, cells, layout)
        after = None if state is None else {"cells": cells, "fed": fed}
        return dropout(y, self.dropout, self.training), after

    def _begin(self, x: Tensor, ctx: Ctx, kept: dict[str, Tensor], state: State | None) -> tuple[State, Tensor]:
        """The state to go on from: at a sequence's first position, the one that the source gives."""
        assert ctx.memory is not None
        repeats = beams(x.shape[0], ctx.memory)
        names = [name for name in kept if name.startswith("start ")]
        start = {name.removeprefix("start "): kept[name].repeat_interleave(repeats, 0) for name in names}
        if state is None:
            return start, x.new_zeros(x.shape[0], self.dim)
        first = ctx.layout.positions[:, 0] == 0  # R
        cells = {name: torch.where(first[:, None, None], start[name], state["cells"][name]) for name in start}
        return cells, state["fed"].masked_fill(first[:, None], 0.0)

    def _whole(
        self, x: Tensor, ctx: Ctx, kept: dict[str, Tensor], cells: State, layout: Layout
    ) -> tuple[Tensor, State]:
        """Nothing is fed back: one call for the whole sequence."""
        inputs = torch.cat((x, self.context(x, ctx, kept, self.path)), -1) if self.feeds_context else x
        hidden, cells = go_on(self.cells, inputs, layout, cells)
        ctx.context = self.context(hidden, ctx, kept, self.path)
        return self.readout(x, hidden, ctx.context), cells

    def _steps(
        self, x: Tensor, ctx: Ctx, kept: dict[str, Tensor], cells: State, fed: Tensor, real: Tensor | None
    ) -> tuple[Tensor, State, Tensor]:
        """Word by word; the input's share of the gates is computed for all words beforehand."""
        gates = self.cells.project(x)  # R T G
        of_fed = self.cells.weight("ih", 0)[0][:, self.dim :]  # G D
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        outputs: list[Tensor] = []
        for step, (word, gate) in enumerate(zip(x.unbind(1), gates.unbind(1))):
            before, fed_before = cells, fed
            if self.asks_before:
                context = self.context(cells["hidden"][:, -1:], ctx, kept, self.path)[:, 0]
                fed = context if self.feeds_context else fed
            if self.feeds_context or self.feeds_output:
                gate = gate + F.linear(fed, of_fed)
            hidden, cells = self.cells.step(gate, cells)
            if not self.asks_before:
                context = self.context(hidden[:, None], ctx, kept, self.path)[:, 0]
                fed = context if self.feeds_context else fed
            if self.feeds_output:
                fed = self.readout(word, hidden, context)
                outputs.append(fed)
            states.append(hidden)
            contexts.append(context)
            if real is not None:  # a row that has come to its end stays there
                cells = {name: torch.where(real[:, step, None, None], cells[name], before[name]) for name in cells}
                fed = torch.where(real[:, step, None], fed, fed_before)
        ctx.context = torch.stack(contexts, 1)  # R T D
        if self.feeds_output:
            return torch.stack(outputs, 1), cells, fed
        return self.readout(x, torch.stack(states, 1), ctx.context), cells, fed
