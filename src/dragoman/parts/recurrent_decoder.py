"""The recurrent decoder: one class whose orthogonal choices give Sutskever's, Cho's, Bahdanau's and Luong's,
and the bottom layer of deeper ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.parts.cells import CELLS, CellKind
from dragoman.parts.deferred_gradients import deferred_weight_gradients
from dragoman.parts.dropout import dropout
from dragoman.parts.mixer import Context, Layout, Memory, Mixer, State, beam_size
from dragoman.parts.recurrence import continue_rows
from dragoman.parts.recurrent_context import (
    AttentionContext,
    ContextModule,
    FromContext,
    FromLast,
    FromSummary,
    FromZero,
    ReadoutModule,
    StateReadout,
)
from dragoman.parts.spec import Spec, build_part


@dataclass(frozen=True)
class RecurrentDecoder(Spec):
    """s_i = g(s_{i−1}, y_{i−1}, fed), c_i = context(s), output = readout(s_i, y_{i−1}, c_i).

    `asks`: whose state looks at the source, s_{i−1} before the step (Bahdanau) or s_i after it (Luong). `feeds`: what
    enters the cell beside the last word: nothing, the context, or the last output (input feeding, Luong §3.3).
    """

    cell: CellKind = "gru"
    layers: int = 1
    context: Spec = field(default_factory=AttentionContext)
    attends: Literal["before", "after"] = "before"
    feedback: Literal["nothing", "context", "output"] = "context"
    initial_state: FromZero | FromLast | FromSummary | FromContext = field(default_factory=FromSummary)
    readout: Spec = field(default_factory=StateReadout)
    dropout: float = 0.0

    def build(self, dim: int) -> RecurrentDecoderMixer:
        return RecurrentDecoderMixer(self, dim)


class RecurrentDecoderMixer(Mixer):
    supports_packing = False

    def __init__(self, spec: RecurrentDecoder, dim: int) -> None:
        super().__init__()
        self.dim, self.dropout = dim, spec.dropout
        self.context = build_part(spec.context, dim, ContextModule)
        self.readout = build_part(spec.readout, dim, ReadoutModule)
        self.start = spec.initial_state.start(spec.layers, dim)
        self.asks_before = spec.attends == "before"
        self.feeds_context, self.feeds_output = spec.feedback == "context", spec.feedback == "output"
        #: does a step need what the step before it found? Otherwise whole sequences go through at once
        self.sequential = self.feeds_output or (self.context.attends and (self.asks_before or self.feeds_context))
        inputs = dim * (2 if self.feeds_context or self.feeds_output else 1)
        self.cells = CELLS[spec.cell](inputs, dim, spec.layers, spec.dropout)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return {"cells": self.cells.init_state(batch, like), "fed": like.new_zeros(batch, self.dim)}

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        kept = self.context.project_memory(memory)
        start = self.start(memory, kept, self.cells.init_state(memory.states.shape[0], memory.states))
        return kept | {f"start {name}": value for name, value in start.items()}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """Leaves in `context.context` what it saw of the source at each step, for the parts above."""
        assert context.memory is not None
        kept = context.memory.projections[self.path]
        cells, fed = self._begin(x, context, kept, state)
        # without a state nobody asks where rows ended, and padding comes after all that counts
        layout = Layout(context.layout.positions) if state is None else context.layout
        if self.sequential:
            with deferred_weight_gradients():
                y, cells, fed = self._steps(x, context, kept, cells, fed, layout.token_mask)
        else:
            y, cells = self._whole(x, context, kept, cells, layout)
        after = None if state is None else {"cells": cells, "fed": fed}
        return dropout(y, self.dropout, self.training), after

    def _begin(self, x: Tensor, context: Context, kept: dict[str, Tensor], state: State | None) -> tuple[State, Tensor]:
        """The state to go on from: at a sequence's first position, the one that the source gives."""
        assert context.memory is not None
        repeats = beam_size(x.shape[0], context.memory)
        names = [name for name in kept if name.startswith("start ")]
        start = {name.removeprefix("start "): kept[name].repeat_interleave(repeats, 0) for name in names}
        if state is None:
            return start, x.new_zeros(x.shape[0], self.dim)
        first = context.layout.positions[:, 0] == 0  # R
        cells = {name: torch.where(first[:, None, None], start[name], state["cells"][name]) for name in start}
        return cells, state["fed"].masked_fill(first[:, None], 0.0)

    def _whole(
        self, x: Tensor, context: Context, kept: dict[str, Tensor], cells: State, layout: Layout
    ) -> tuple[Tensor, State]:
        """Nothing is fed back: one call for the whole sequence."""
        inputs = torch.cat((x, self.context(x, context, kept, self.path)), -1) if self.feeds_context else x
        hidden, cells = continue_rows(self.cells, inputs, layout, cells)
        context.source_context = self.context(hidden, context, kept, self.path)
        return self.readout(x, hidden, context.source_context), cells

    def _steps(
        self, x: Tensor, context: Context, kept: dict[str, Tensor], cells: State, fed: Tensor, real: Tensor | None
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
                attended = self.context(cells["hidden"][:, -1:], context, kept, self.path)[:, 0]
                fed = attended if self.feeds_context else fed
            if self.feeds_context or self.feeds_output:
                gate = gate + F.linear(fed, of_fed)
            hidden, cells = self.cells.step(gate, cells)
            if not self.asks_before:
                attended = self.context(hidden[:, None], context, kept, self.path)[:, 0]
                fed = attended if self.feeds_context else fed
            if self.feeds_output:
                fed = self.readout(word, hidden, attended)
                outputs.append(fed)
            states.append(hidden)
            contexts.append(attended)
            if real is not None:  # a row that has come to its end stays there
                cells = {name: torch.where(real[:, step, None, None], cells[name], before[name]) for name in cells}
                fed = torch.where(real[:, step, None], fed, fed_before)
        context.source_context = torch.stack(contexts, 1)  # R T D
        if self.feeds_output:
            return torch.stack(outputs, 1), cells, fed
        return self.readout(x, torch.stack(states, 1), context.source_context), cells, fed
