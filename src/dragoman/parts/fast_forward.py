"""Deep LSTMs with fast-forward connections: a linear path past the recurrence, from the embeddings to the top.

    f^k_t = W^k [½f^{k−1}_t; h^{k−1}_t],   h^k_t = LSTM^k(f^k_t, h^k_{t±1}),   f^1_t = W^1 x_t

f, of width 4D, is the input of the four gates of a layer; half of it is passed to the next layer together with the
output h (Zhou et al. 2016, §3.1 and §3.2). Deviations: torch's LSTM, without peepholes and with biases (also in f); the
half of f is that of the input and forget gates, which torch puts first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.dropout import Dropout
from dragoman.parts.flops import Workload, matrix_flops
from dragoman.parts.mixer import Context, Layout, Mixer, MixerOutput, State
from dragoman.parts.recurrence import Cells, LSTMCells, continue_rows, flip, run_rows
from dragoman.parts.recurrent_decoder import AttentionContext, FromZero, RecurrentDecoder
from dragoman.parts.spec import Spec


def next_input(cells: Cells, x: Tensor, hidden: Tensor) -> Tensor:
    """Return [½f; h], B T 3D, the input of the layer above `cells`, whose input is x and whose output h is `hidden`.

    f = W x, B T 4D, are the inputs of the gates, and ½f is the half for the input and forget gates.
    Computes half of f a second time, because torch's kernel does not return it.
    """
    weight, bias = cells.weight("ih", 0)  # from input to gates, of layer 0
    half = F.linear(x, weight[: 2 * cells.dim], bias[: 2 * cells.dim])
    return torch.cat((half, hidden), -1)


def input_size(cells: Cells) -> int:
    """Number of elements of the matrix from the input of an LSTM layer to its gates."""
    return cells.weight("ih", 0)[0].numel()


def cells_of(layers: nn.ModuleList) -> list[LSTMCells]:
    """Return the LSTM layers as a typed list, for the type checker."""
    return [cells for cells in layers if isinstance(cells, LSTMCells)]


@dataclass(frozen=True)
class FastForwardEncoder(Spec):
    """Two columns of LSTMs that alternate their direction from layer to layer; the second starts backward.

    e_t = W_p [h_t; h'_t; f_t; f'_t] of the top layers of both columns (Zhou et al. 2016, §3.2). W_p projects to the
    width of the model; in the paper, to a quarter of its 10D inputs.
    """

    layers: int = 9
    dropout: float = 0.0

    def build(self, dim: int) -> FastForwardEncoderMixer:
        """Create the encoder for vectors of width `dim`."""
        return FastForwardEncoderMixer(self, dim)


class FastForwardEncoderMixer(Mixer):
    title = "fast-forward encoder"
    supports_packing = False

    def __init__(self, spec: FastForwardEncoder, dim: int) -> None:
        """Two columns of LSTMs: the first starts with a forward LSTM, the second with a backward one."""
        super().__init__()
        self.columns = nn.ModuleList(FastForwardColumn(spec, dim, backward) for backward in (False, True))
        self.project = nn.Linear(10 * dim, dim, bias=False)  # of h (D) and f (4D) of two columns

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Read whole sequences: x, B T D → projection of the top layers' outputs and gate inputs, B T D."""
        if state is not None:
            raise UserError("FastForwardEncoder is bidirectional and cannot decode: use FastForwardDecoder")
        outputs, gate_inputs = zip(*(column(x, context.layout) for column in self.columns))  # h and f of both columns
        return MixerOutput(self.project(torch.cat((*outputs, *gate_inputs), -1)))


class FastForwardColumn(nn.Module):
    def __init__(self, spec: FastForwardEncoder, dim: int, backward: bool) -> None:
        """`backward`: the direction of the bottom layer, which alternates from layer to layer."""
        super().__init__()
        self.backward, self.dropout = backward, Dropout(spec.dropout)
        self.layers = nn.ModuleList(  # the bottom layer reads embeddings, the others [½f; h] of the layer below
            LSTMCells(inputs=3 * dim if k else dim, dim=dim, layers=1, dropout=0.0) for k in range(spec.layers)
        )

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Embeddings, B T D → output h, B T D, and gate inputs f = W x, B T 4D, of the top layer.

        x is the input of a layer: the embeddings, then [½f; h] of the layer below. The layout holds the rows' lengths.
        """
        last = len(self.layers) - 1
        for k, cells in enumerate(cells_of(self.layers)):
            is_backward = self.backward != bool(k % 2)  # alternates
            rows = flip(x, layout) if is_backward else x  # padding comes last in both directions
            # An exported graph has the recurrence as one operation, which only rows with lengths use.
            hidden, _ = run_rows(cells, rows, layout) if torch.compiler.is_exporting() else cells.run_sequence(rows)
            hidden = flip(hidden, layout) if is_backward else hidden
            if k < last:
                x = next_input(cells, x, self.dropout(hidden))
        gate_inputs = cells.project(x)  # f
        return hidden, gate_inputs

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: the LSTMs, and what is computed twice.

        That is half of the gate inputs of lower layers, and all of the top layer's.
        """
        *lower, top = cells_of(self.layers)
        repeated = sum(input_size(cells) // 2 for cells in lower) + input_size(top)
        return matrix_flops(self, work) + 2 * work.tokens * repeated


@dataclass(frozen=True)
class FastForwardDecoder(Spec):
    """One column of forward LSTMs; the bottom one reads [y_{t−1}; c_t], with its previous state as the query of c_t.

    The output is h of the top layer (Zhou et al. 2016, §3.2). The initial state, not specified in the paper, is zero.
    """

    layers: int = 7
    context: Spec = field(default_factory=AttentionContext)
    dropout: float = 0.0

    def build(self, dim: int) -> FastForwardDecoderMixer:
        """Create the decoder for vectors of width `dim`."""
        return FastForwardDecoderMixer(self, dim)


class FastForwardDecoderMixer(Mixer):
    title = "fast-forward decoder"
    supports_packing = False

    def __init__(self, spec: FastForwardDecoder, dim: int) -> None:
        """`bottom` attends to the source; `layers` are the LSTMs above it.

        Their input, of width 3 · dim, is half of the gate inputs of the layer below and its output.
        """
        super().__init__()
        self.dropout = Dropout(spec.dropout)
        bottom = RecurrentDecoder(
            "lstm", layers=1, context=spec.context, attends="before", feedback="context", initial_state=FromZero()
        )
        self.bottom = bottom.build(dim)
        self.layers = nn.ModuleList(
            LSTMCells(inputs=3 * dim, dim=dim, layers=1, dropout=0.0) for _ in range(spec.layers - 1)
        )

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the states of all layers, with dtype and device of `like`: "bottom", and "0", "1", … above it."""
        states = {str(k): cells.init_state(batch, like) for k, cells in enumerate(cells_of(self.layers))}
        return {"bottom": self.bottom.init_state(batch, max_length, like)} | states

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x, R T D (R rows) → output of the top layer, R T D, the new state, and the bottom's attention to the source.

        The input of a layer is [½f; h] of the layer below (`next_input`): half of its gate inputs, and its output.
        """
        result = self.bottom(x, context, None if state is None else state["bottom"])
        hidden, source_context = result.output, result.source_context  # R T D: output, attention over the source
        below, x = self.bottom.cells, torch.cat((x, source_context), -1)
        new_state: State = {"bottom": result.state}
        for k, cells in enumerate(cells_of(self.layers)):
            x = next_input(below, x, self.dropout(hidden))
            if state is None:
                hidden, _ = cells.run_sequence(x)  # padding comes last
            else:
                hidden, new_state[str(k)] = continue_rows(cells, x, context.layout, state[str(k)])
            below = cells
        return MixerOutput(self.dropout(hidden), None if state is None else new_state, source_context)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: all layers, and half of the gate inputs below the top, computed twice."""
        lower = [self.bottom.cells, *cells_of(self.layers)][:-1]
        return matrix_flops(self, work) + 2 * work.tokens * sum(input_size(cells) // 2 for cells in lower)
