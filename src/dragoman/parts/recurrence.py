"""Recurrence: a part that reads sequences word by word, in either direction or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dragoman.errors import UserError
from dragoman.parts.cells import CELLS, CellKind, Cells
from dragoman.parts.dropout import dropout
from dragoman.parts.mixer import Context, Layout, Mixer, State
from dragoman.parts.spec import Spec


@dataclass(frozen=True)
class Recurrent(Spec):
    """h_t = g(x_t, h_{t−1}), in layers, read from left to right, from right to left, or both ways.

    Both ways (Schuster & Paliwal 1997) each direction has half of the width, so that what comes out has the width of
    what went in. `context`: what an attending part below saw of the source enters as well, g([x_t; c_t], h_{t−1}) (Wu
    et al. 2016, §3). Dropout is between layers, `input_dropout` is on what enters the first (Zaremba et al. 2014).
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
        self.both, self.backward = spec.direction == "both", spec.direction == "backward"
        if self.both and dim % 2:
            raise UserError(f"a width of {dim} cannot be halved for two directions: choose an even one")
        self.context, self.input_dropout = spec.attention_context, spec.input_dropout
        inputs, outputs = 2 * dim if spec.attention_context else dim, dim // 2 if self.both else dim
        self.cells = CELLS[spec.cell](inputs, outputs, spec.layers, spec.dropout, self.both)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return self.cells.init_state(batch, like)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        x = dropout(self._with_context(x, context), self.input_dropout, self.training)
        if self.both or self.backward:
            return self._around(x, context, state), None
        if state is not None:
            return continue_rows(self.cells, x, context.layout, state)
        if (
            context.memory is not None
        ):  # in a decoder nobody asks where rows ended, and padding comes after all that counts
            return self.cells.read(x)[0], None
        y, context.final_state = read_rows(self.cells, x, context.layout)
        return y, None

    def _with_context(self, x: Tensor, context: Context) -> Tensor:
        if not self.context:
            return x
        if context.source_context is None:
            raise UserError("a recurrent part with context reads what an attending part saw: put one below it")
        return torch.cat((x, context.source_context), -1)

    def _around(self, x: Tensor, context: Context, state: State | None) -> Tensor:
        if state is not None:
            raise UserError("a part that goes on word by word must read forwards: give it the direction 'forward'")
        y, context.final_state = read_rows(self.cells, flip(x, context.layout) if self.backward else x, context.layout)
        return flip(y, context.layout) if self.backward else y


def continue_rows(cells: Cells, x: Tensor, layout: Layout, state: State) -> tuple[Tensor, State]:
    """Further tokens, B T I → B T D, and the state after each row's own last one."""
    return cells.run(x, state) if layout.lengths is None else read_rows(cells, x, layout, state)


def read_rows(cells: Cells, x: Tensor, layout: Layout, state: State | None = None) -> tuple[Tensor, State]:
    """Whole rows through torch's kernels, B T I → B T D, and the state after each row's own last token.

    Rows that go on from a state are packed, which keeps padding out of their last one. Packing costs more than a little
    padding does, and to a GPU the lengths would have to be told by the processor, which would have to wait for them.
    """
    real = layout.token_mask
    if real is None or (state is None and not x.is_cuda and bool(real.all())):
        y, last = cells.read(x, state)
        return y, cells.unpack(last)
    if state is None:
        return read_padded(cells, x, layout)
    count = real.sum(1)  # B
    packed = pack_padded_sequence(x, count.cpu().clamp(min=1), batch_first=True, enforce_sorted=False)
    packed, last = cells.read(packed, state)
    y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
    after = cells.unpack(last)
    # a row without a token stays where it was
    return y, {name: torch.where((count > 0)[:, None, None], after[name], state[name]) for name in state}


def read_padded(cells: Cells, x: Tensor, layout: Layout) -> tuple[Tensor, State]:
    """The same layer by layer and direction by direction, each row turned round within its length to be read backwards.

    What is read behind a row's end changes nothing before it, and its last state is taken from where it ends.
    """
    assert layout.lengths is not None
    padding = layout.positions >= layout.lengths[:, None]
    ends = (layout.lengths - 1).clamp(min=0)[:, None, None]
    last: list[State] = []
    for layer in range(cells.layers):
        x = dropout(x, cells.dropout if layer else 0.0, cells.training)
        ways = []
        for turned in (False, True)[: 2 if cells.bidirectional else 1]:
            y, state = cells.read_layer(flip(x, layout) if turned else x, padding, layer, turned)
            state["hidden"] = y.gather(1, ends.expand(-1, 1, y.shape[-1]))[:, 0]
            ways.append((flip(y, layout) if turned else y, state))
        x = torch.cat([y for y, _ in ways], -1)
        last.append({name: torch.cat([state[name] for _, state in ways], -1) for name in ways[0][1]})  # B D
    return x, {name: torch.stack([one[name] for one in last], 1) for name in last[0]}


def flip(x: Tensor, layout: Layout) -> Tensor:
    """Each row turned round within its own length; padding stays where it is."""
    if layout.lengths is None:
        return x.flip(1)
    mirrored = layout.lengths[:, None] - 1 - layout.positions
    index = torch.where(mirrored >= 0, mirrored, layout.positions)  # B T
    return x.gather(1, index[..., None].expand_as(x))
