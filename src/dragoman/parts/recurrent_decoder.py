"""The recurrent decoder of Sutskever, Cho, Bahdanau and Luong, and the bottom layer of deeper ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.parts.cells import CELLS, CellKind
from dragoman.parts.deferred_gradients import deferred_weight_gradients
from dragoman.parts.dropout import dropout
from dragoman.parts.mixer import Context, Layout, Memory, Mixer, MixerOutput, State, beam_size
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
    """s_i = g(s_{i−1}, y_{i−1}, feedback), c_i = context(s), output = readout(s_i, y_{i−1}, c_i).

    `attends`: the query of the context is s_{i−1}, "before" the step (Bahdanau), or s_i, "after" it (Luong).
    `feedback`: additional input of the cell: "nothing", the "context", or the last "output" (Luong §3.3).
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
        self.start = spec.initial_state.build_initial_state(spec.layers, dim)
        self.attends_before = spec.attends == "before"
        self.feeds_context, self.feeds_output = spec.feedback == "context", spec.feedback == "output"
        #: whether a step needs a result of the previous step; otherwise whole sequences are computed at once
        self.sequential = self.feeds_output or (self.context.attends and (self.attends_before or self.feeds_context))
        inputs = dim * (2 if self.feeds_context or self.feeds_output else 1)
        self.cells = CELLS[spec.cell](inputs, dim, spec.layers, spec.dropout)

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        return {"cells": self.cells.init_state(batch, like), "fed": like.new_zeros(batch, self.dim)}

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        projections = self.context.project_memory(memory)
        start = self.start(memory, projections, self.cells.init_state(memory.states.shape[0], memory.states))
        return projections | {f"start {name}": value for name, value in start.items()}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        assert context.memory is not None
        projections = self.memory_projections(context.memory)
        cells, fed = self._initial(x, context, projections, state)
        # Without a state, the final state is not needed, and padding comes last.
        layout = Layout(context.layout.positions) if state is None else context.layout
        if self.sequential:
            with deferred_weight_gradients():
                y, source_context, cells, fed = self._run_steps(x, context, projections, cells, fed, layout.token_mask)
        else:
            y, source_context, cells = self._run_sequence(x, context, projections, cells, layout)
        new_state = None if state is None else {"cells": cells, "fed": fed}
        return MixerOutput(dropout(y, self.dropout, self.training), new_state, source_context)

    def _initial(
        self, x: Tensor, context: Context, projections: dict[str, Tensor], state: State | None
    ) -> tuple[State, Tensor]:
        """Return the state to continue from: the initial one at the first position of a sequence."""
        assert context.memory is not None
        beam = beam_size(x.shape[0], context.memory)
        names = [name for name in projections if name.startswith("start ")]
        start = {name.removeprefix("start "): projections[name].repeat_interleave(beam, 0) for name in names}
        if state is None:
            return start, x.new_zeros(x.shape[0], self.dim)
        is_first = context.layout.positions[:, 0] == 0  # R
        cells = {name: torch.where(is_first[:, None, None], start[name], state["cells"][name]) for name in start}
        return cells, state["fed"].masked_fill(is_first[:, None], 0.0)

    def _run_sequence(
        self, x: Tensor, context: Context, projections: dict[str, Tensor], cells: State, layout: Layout
    ) -> tuple[Tensor, Tensor, State]:
        """Compute whole sequences at once: output, context and final state."""
        inputs = torch.cat((x, self.context(x, context, projections, self.path)), -1) if self.feeds_context else x
        hidden, cells = continue_rows(self.cells, inputs, layout, cells)
        source_context = self.context(hidden, context, projections, self.path)
        return self.readout(x, hidden, source_context), source_context, cells

    def _run_steps(
        self,
        x: Tensor,
        context: Context,
        projections: dict[str, Tensor],
        cells: State,
        fed: Tensor,
        token_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, State, Tensor]:
        """Compute step by step: output, context, final state and last feedback.

        The input's contribution to the gates is computed for all steps in advance.
        """
        gates = self.cells.project(x)  # R T G
        feedback_weight = self.cells.weight("ih", 0)[0][:, self.dim :]  # G D
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        outputs: list[Tensor] = []
        for step, (token, gate) in enumerate(zip(x.unbind(1), gates.unbind(1))):
            previous, previous_fed = cells, fed
            if self.attends_before:
                attended = self.context(cells["hidden"][:, -1:], context, projections, self.path)[:, 0]
                fed = attended if self.feeds_context else fed
            if self.feeds_context or self.feeds_output:
                gate = gate + F.linear(fed, feedback_weight)
            hidden, cells = self.cells.step(gate, cells)
            if not self.attends_before:
                attended = self.context(hidden[:, None], context, projections, self.path)[:, 0]
                fed = attended if self.feeds_context else fed
            if self.feeds_output:
                fed = self.readout(token, hidden, attended)
                outputs.append(fed)
            states.append(hidden)
            contexts.append(attended)
            if token_mask is not None:  # padding does not change the state
                mask = token_mask[:, step, None]
                cells = {name: torch.where(mask[..., None], cells[name], previous[name]) for name in cells}
                fed = torch.where(mask, fed, previous_fed)
        source_context = torch.stack(contexts, 1)  # R T D
        if self.feeds_output:
            return torch.stack(outputs, 1), source_context, cells, fed
        return self.readout(x, torch.stack(states, 1), source_context), source_context, cells, fed
