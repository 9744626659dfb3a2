"""Recurrence: a part that reads sequences word by word, in either direction or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dragoman.errors import UserError
from dragoman.parts.cells import CELLS, CellKind
from dragoman.parts.mixer import Ctx, Layout, Mixer, State
from dragoman.parts.spec import Spec


@dataclass(frozen=True)
class Recurrent(Spec):
    """h_t = g(x_t, h_{t−1}), in layers, read from left to right, from right to left, or both ways.

    Both ways (Schuster & Paliwal 1997) each direction has half of the width, so that what comes out has the width of
    what went in. Dropout is between layers (Zaremba et al. 2014).
    """

    cell: CellKind = "lstm"
    layers: int = 1
    direction: Literal["forward", "backward", "both"] = "forward"
    dropout: float = 0.0

    def build(self, dim: int) -> RecurrentMixer:
        return RecurrentMixer(self, dim)


class RecurrentMixer(Mixer):
    packs = False

    def __init__(self, spec: Recurrent, dim: int) -> None:
        super().__init__()
        self.both, self.backward = spec.direction == "both", spec.direction == "backward"
        if self.both and dim % 2:
            raise UserError(f"a width of {dim} cannot be halved for two directions: choose an even one")
        self.cells = CELLS[spec.cell](dim, dim // 2 if self.both else dim, spec.layers, spec.dropout, self.both)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return self.cells.init_state(batch, like)

    def forward(self, x: Tensor, ctx: Ctx, state: State | None = None) -> tuple[Tensor, State | None]:
        lengths = ctx.layout.lengths
        if state is not None and lengths is None:
            return self.cells.run(x, state)
        if self.backward:
            x = flip(x, ctx.layout)
        if lengths is None:
            y, last = self.cells.read(x)
        else:  # packing keeps padding out of the last state and out of the backward direction's first
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            packed, last = self.cells.read(packed, state)
            y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        if state is not None:
            return y, self.cells.unpack(last)
        ctx.final = self.cells.unpack(last)
        return flip(y, ctx.layout) if self.backward else y, None


def flip(x: Tensor, layout: Layout) -> Tensor:
    """Each row turned round within its own length; padding stays where it is."""
    if layout.lengths is None:
        return x.flip(1)
    mirrored = layout.lengths[:, None] - 1 - layout.positions
    index = torch.where(mirrored >= 0, mirrored, layout.positions)  # B T
    return x.gather(1, index[..., None].expand_as(x))
