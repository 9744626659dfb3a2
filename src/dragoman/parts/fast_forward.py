"""Deep LSTMs with fast-forward connections: a linear way past the recurrence, from the words to the top.

    f^k_t = W^k [½f^{k−1}_t; h^{k−1}_t],   h^k_t = LSTM^k(f^k_t, h^k_{t±1}),   f^1_t = W^1 x_t

f is what enters the four gates of a layer from below, 4D wide; its first half goes on to the next layer beside the
layer's output h (Zhou et al. 2016, §3.1 and §3.2). Deviations: the LSTM is torch's, without peepholes and with biases
(in f as well), and the half of f is the one that torch puts first, that of the input and forget gates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.cells import Cells, LSTMCells
from dragoman.parts.dropout import Dropout
from dragoman.parts.mixer import Context, Layout, Mixer, State
from dragoman.parts.recurrence import continue_rows, flip
from dragoman.parts.recurrent_context import AttentionContext, FromZero
from dragoman.parts.recurrent_decoder import RecurrentDecoder
from dragoman.parts.spec import Spec


def above(cells: Cells, x: Tensor, hidden: Tensor) -> Tensor:
    """[½f; h], B T 3D: what the next layer reads, above one that has read x and put out `hidden`.

    Half of f is computed here a second time, because torch's kernel does not give it out.
    """
    weight, bias = cells.weight("ih", 0)
    half = F.linear(x, weight[: 2 * cells.dim], bias[: 2 * cells.dim])
    return torch.cat((half, hidden), -1)


def cells_of(layers: nn.ModuleList) -> list[LSTMCells]:
    return [cells for cells in layers if isinstance(cells, LSTMCells)]


@dataclass(frozen=True)
class FastForwardEncoder(Spec):
    """Two columns of LSTMs, each of which changes its direction from layer to layer; the second begins backwards.

    e_t = W_p [h_t; h'_t; f_t; f'_t] of the two columns' top layers (Zhou et al. 2016, §3.2). W_p projects to the width
    of the model, where the paper's projects to a quarter of the 10D that come in.
    """

    layers: int = 9
    dropout: float = 0.0

    def build(self, dim: int) -> FastForwardEncoderMixer:
        return FastForwardEncoderMixer(self, dim)


class FastForwardEncoderMixer(Mixer):
    supports_packing = False

    def __init__(self, spec: FastForwardEncoder, dim: int) -> None:
        super().__init__()
        self.columns = nn.ModuleList(FastForwardColumn(spec, dim, backward) for backward in (False, True))
        self.project = nn.Linear(10 * dim, dim, bias=False)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        if state is not None:
            raise UserError("a fast-forward encoder reads both ways and cannot go on word by word: use its decoder")
        hidden, entered = zip(*(column(x, context.layout) for column in self.columns))
        return self.project(torch.cat((*hidden, *entered), -1)), None


class FastForwardColumn(nn.Module):
    def __init__(self, spec: FastForwardEncoder, dim: int, backward: bool) -> None:
        super().__init__()
        self.backward, self.dropout = backward, Dropout(spec.dropout)
        self.layers = nn.ModuleList(LSTMCells(3 * dim if k else dim, dim, 1, 0.0) for k in range(spec.layers))

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """B T D → the top layer's h, B T D, and f, B T 4D."""
        last = len(self.layers) - 1
        for k, cells in enumerate(cells_of(self.layers)):
            turned = self.backward != bool(k % 2)
            hidden, _ = cells.read(flip(x, layout) if turned else x)  # turned or not, padding comes last
            hidden = flip(hidden, layout) if turned else hidden
            if k < last:
                x = above(cells, x, self.dropout(hidden))
        return hidden, cells.project(x)


@dataclass(frozen=True)
class FastForwardDecoder(Spec):
    """One column of forward LSTMs; the bottom one reads [y_{t−1}; c_t], its last state has asked for the context c_t.

    The top layer's h goes to the output layer (Zhou et al. 2016, §3.2). The first state, of which the paper says
    nothing, is zero.
    """

    layers: int = 7
    context: Spec = field(default_factory=AttentionContext)
    dropout: float = 0.0

    def build(self, dim: int) -> FastForwardDecoderMixer:
        return FastForwardDecoderMixer(self, dim)


class FastForwardDecoderMixer(Mixer):
    supports_packing = False

    def __init__(self, spec: FastForwardDecoder, dim: int) -> None:
        super().__init__()
        self.dropout = Dropout(spec.dropout)
        self.bottom = RecurrentDecoder("lstm", 1, spec.context, "before", "context", FromZero()).build(dim)
        self.layers = nn.ModuleList(LSTMCells(3 * dim, dim, 1, 0.0) for _ in range(spec.layers - 1))

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        states = {str(k): cells.init_state(batch, like) for k, cells in enumerate(cells_of(self.layers))}
        return {"bottom": self.bottom.init_state(batch, longest, like)} | states

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        hidden, bottom = self.bottom(x, context, None if state is None else state["bottom"])
        assert context.source_context is not None
        below, x = self.bottom.cells, torch.cat((x, context.source_context), -1)
        after: State = {"bottom": bottom}
        for k, cells in enumerate(cells_of(self.layers)):
            x = above(below, x, self.dropout(hidden))
            if state is None:
                hidden, _ = cells.read(x)  # padding comes after all that counts
            else:
                hidden, after[str(k)] = continue_rows(cells, x, context.layout, state[str(k)])
            below = cells
        return self.dropout(hidden), None if state is None else after
