"""Recurrent layers over whole sequences or step by step, forward, backward or bidirectional."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dragoman.errors import UserError
from dragoman.parts.cells import CELLS, CellKind, Cells
from dragoman.parts.dropout import dropout
from dragoman.parts.mixer import Context, Layout, Mixer, MixerOutput, State
from dragoman.parts.spec import Spec


@dataclass(frozen=True)
class Recurrent(Spec):
    """h_t = g(x_t, h_{t−1}) with cell g, in `layers` layers.

    In direction "both" (Schuster & Paliwal 1997), each direction has half of the width. `attention_context`: the
    attention c_t of a layer below over the source is an additional input, g([x_t; c_t], h_{t−1}) (Wu et al. 2016, §3).
    `dropout` is applied between layers, `input_dropout` to the input of the first (Zaremba et al. 2014).
    """

    cell: CellKind = "lstm"
    layers: int = 1
    direction: Literal["forward", "backward", "both"] = "forward"
    dropout: float = 0.0
    attention_context: bool = False
    input_dropout: float = 0.0

    def build(self, dim: int) -> RecurrentMixer:
        return RecurrentMixer(self, dim)


class RecurrentMixer(Mixer):
    supports_packing = False

    def __init__(self, spec: Recurrent, dim: int) -> None:
        super().__init__()
        self.bidirectional, self.backward = spec.direction == "both", spec.direction == "backward"
        if self.bidirectional and dim % 2:
            raise UserError(f"a bidirectional layer needs an even width, but the width is {dim}")
        self.attention_context, self.input_dropout = spec.attention_context, spec.input_dropout
        inputs, outputs = 2 * dim if spec.attention_context else dim, dim // 2 if self.bidirectional else dim
        self.cells = CELLS[spec.cell](inputs, outputs, spec.layers, spec.dropout, self.bidirectional)

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        return self.cells.init_state(batch, like)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        layout = context.layout
        if self.attention_context:
            if context.source_context is None:
                raise UserError("a recurrent layer with attention_context needs an attention layer below it")
            x = torch.cat((x, context.source_context), -1)
        x = dropout(x, self.input_dropout, self.training)
        if self.backward or self.bidirectional:
            if state is not None:
                raise UserError("only forward recurrent layers can decode step by step: set direction to 'forward'")
            y, final = run_rows(self.cells, flip(x, layout) if self.backward else x, layout)
            return MixerOutput(flip(y, layout) if self.backward else y, final_state=final)
        if state is not None:
            return MixerOutput(*continue_rows(self.cells, x, layout, state))
        if context.memory is not None:  # In a decoder, the final state is not needed and padding comes last.
            return MixerOutput(self.cells.run_sequence(x)[0])
        y, final = run_rows(self.cells, x, layout)
        return MixerOutput(y, final_state=final)


def continue_rows(cells: Cells, x: Tensor, layout: Layout, state: State) -> tuple[Tensor, State]:
    """Read further tokens, B T I → B T D, and return the state after the last token of each row."""
    return cells.continue_sequence(x, state) if layout.lengths is None else run_rows(cells, x, layout, state)


def run_rows(cells: Cells, x: Tensor, layout: Layout, state: State | None = None) -> tuple[Tensor, State]:
    """Read whole rows, B T I → B T D, and return the state after the last token of each row.

    Rows that continue a state are read as a PackedSequence, which keeps padding out of the final state. For others,
    packing costs more than some padding, and on a GPU it would synchronize to get the lengths.
    """
    token_mask = layout.token_mask
    if token_mask is None or (state is None and not x.is_cuda and bool(token_mask.all())):
        y, last = cells.run_sequence(x, state)
        return y, cells.unpack(last)
    if state is None:
        return run_padded(cells, x, layout)
    lengths = token_mask.sum(1)  # B
    packed = pack_padded_sequence(x, lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False)
    packed, last = cells.run_sequence(packed, state)
    y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
    new = cells.unpack(last)
    # A row without a token keeps its state.
    return y, {name: torch.where((lengths > 0)[:, None, None], new[name], state[name]) for name in state}


def run_padded(cells: Cells, x: Tensor, layout: Layout) -> tuple[Tensor, State]:
    """Read padded rows layer by layer, each direction separately; for the backward one, rows are flipped.

    Padding comes last and does not change the outputs before it; the final state is taken at the end of each row.
    """
    assert layout.lengths is not None
    padding = layout.positions >= layout.lengths[:, None]
    ends = (layout.lengths - 1).clamp(min=0)[:, None, None]
    final: list[State] = []
    for layer in range(cells.layers):
        x = dropout(x, cells.dropout if layer else 0.0, cells.training)
        directions = []
        for backward in (False, True)[: 2 if cells.bidirectional else 1]:
            y, state = cells.run_layer(flip(x, layout) if backward else x, padding, layer, backward)
            state["hidden"] = y.gather(1, ends.expand(-1, 1, y.shape[-1]))[:, 0]
            directions.append((flip(y, layout) if backward else y, state))
        x = torch.cat([y for y, _ in directions], -1)
        final.append(
            {name: torch.cat([state[name] for _, state in directions], -1) for name in directions[0][1]}
        )  # B D
    return x, {name: torch.stack([state[name] for state in final], 1) for name in final[0]}


def flip(x: Tensor, layout: Layout) -> Tensor:
    """Reverse each row within its length; padding stays in place."""
    if layout.lengths is None:
        return x.flip(1)
    mirrored = layout.lengths[:, None] - 1 - layout.positions
    index = torch.where(mirrored >= 0, mirrored, layout.positions)  # B T
    return x.gather(1, index[..., None].expand_as(x))
