"""Deep LSTMs with fast-forward connections: a linear path past the recurrence, from the embeddings to the top.

    f^k_t = W^k [½f^{k−1}_t; h^{k−1}_t],   h^k_t = LSTM^k(f^k_t, h^k_{t±1}),   f^1_t = W^1 x_t

f, of width 4D, is the input of the four gates of a layer; half of it is passed to the next layer together with the
output h (Zhou et al. 2016, §3.1 and §3.2). Deviations: torch's LSTM, without peepholes and with biases (also in f); the
half of f is that of the input and forget gates, which torch puts first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.dropout import Dropout
from dragoman.parts.flops import Workload, matrix_flops
from dragoman.parts.mixer import Context, Mixer, MixerOutput, SequenceLayout, State
from dragoman.parts.recurrence import Cells, LSTMCells, continue_rows, flip, run_rows
from dragoman.parts.recurrent_decoder import AttentionContext, FromZero, RecurrentDecoder
from dragoman.parts.spec import Spec


def input_of_next_layer(cells: Cells, x: Tensor, hidden: Tensor) -> Tensor:
    """Return [½f; h], B T 3D, the input of the LSTM above `cells`, whose input is x and whose output h is `hidden`.

    f = W x + b, B T 4D, is what x adds to the four gates of `cells`, and ½f its first half, for input and forget gates
    (Zhou et al. 2016, §3.1). It is computed a second time, because torch's kernel does not return it.
    """
    weight, bias = cells.weight("ih", layer=0)  # from the input to the gates
    half = F.linear(x, weight[: 2 * cells.dim], bias[: 2 * cells.dim])  # B T 2D: torch puts these two gates first
    return torch.cat((half, hidden), -1)


def input_matrix_size(cells: Cells) -> int:
    """Return the number of elements of the matrix from the input of an LSTM layer to its four gates."""
    return cells.weight("ih", layer=0)[0].numel()


def lstm_layers(layers: nn.ModuleList) -> list[LSTMCells]:
    """Return `layers`, which are all LSTMs, as a list with this type, for the type checker."""
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
        """Create two columns of stacked LSTMs: the bottom LSTM of the first reads forward, that of the second backward.

        `project` maps what both top LSTMs return, their outputs h (D) and gate inputs f = W x + b (4D), to width D.
        """
        super().__init__()
        self.columns = nn.ModuleList(FastForwardColumn(spec, dim, backward=backward) for backward in (False, True))
        self.project = nn.Linear(2 * (dim + 4 * dim), dim, bias=False)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Read whole sequences: x, B T D → projection of the top layers' outputs and gate inputs, B T D.

        In decoding, that is with a state, a UserError is raised. The context holds the lengths of the sequences.
        """
        if state is not None:
            raise UserError(
                "FastForwardEncoder reads sequences in both directions, so that it cannot generate token by token: use "
                "FastForwardDecoder in the decoder"
            )
        first, second = (column(x, context.layout) for column in self.columns)
        column_outputs = torch.cat((first.hidden, second.hidden, first.gate_inputs, second.gate_inputs), -1)  # B T 10D
        return MixerOutput(self.project(column_outputs))


class ColumnOutput(NamedTuple):
    """What a column of LSTMs returns: output and gate inputs of its top layer."""

    hidden: Tensor  # B T D: h
    gate_inputs: Tensor  # B T 4D: f = W x + b


class FastForwardColumn(nn.Module):
    def __init__(self, spec: FastForwardEncoder, dim: int, backward: bool) -> None:
        """Create `spec.layers` LSTMs; the bottom one reads `backward` or forward, and directions alternate above it.

        The bottom one (k = 0) reads embeddings, `dim` wide, the others the output of the LSTM below (`dim`) and half of
        its gate inputs W x + b (2 · dim), a path past its recurrence (Zhou et al. 2016, §3.1).
        """
        super().__init__()
        self.backward, self.dropout = backward, Dropout(spec.dropout)
        self.layers = nn.ModuleList(
            LSTMCells(inputs=3 * dim if k else dim, dim=dim, layers=1, dropout=0.0) for k in range(spec.layers)
        )

    def forward(self, x: Tensor, layout: SequenceLayout) -> ColumnOutput:
        """Read embeddings, B T D, in rows with the lengths of `layout`; return output and gate inputs of the top layer.

        The input x of the bottom layer are the embeddings, that of the others is [½f; h] of the layer below: half of
        its gate inputs f = W x + b, and its output h.
        """
        top = len(self.layers) - 1
        for k, cells in enumerate(lstm_layers(self.layers)):
            is_backward = self.backward != bool(k % 2)  # directions alternate from layer to layer
            rows = flip(x, layout) if is_backward else x  # padding comes last in both directions
            # `run_rows` needs the lengths only for export, where it makes the recurrence one operation of the graph.
            hidden, _ = run_rows(cells, rows, layout) if torch.compiler.is_exporting() else cells.run_sequence(rows)
            hidden = flip(hidden, layout) if is_backward else hidden
            if k < top:
                x = input_of_next_layer(cells, x, self.dropout(hidden))
        return ColumnOutput(hidden, gate_inputs=cells.project(x))

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: the matrices of all LSTMs, and the gate inputs W x + b computed twice.

        These are half of those of lower layers and all of the top layer's, which torch's LSTM does not return.
        """
        *lower, top = lstm_layers(self.layers)
        repeated = sum(input_matrix_size(cells) // 2 for cells in lower) + input_matrix_size(top)
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
        """Create the decoder of Zhou et al. (2016, §3.2): an LSTM that attends to the source, and LSTMs above it.

        At step t the LSTM `bottom` attends to the source with its state before the step as the query, and reads the
        previous token and the attention's result, [y_{t−1}; c_t]. Each LSTM of `layers` reads the output of the one
        below (`dim`) and half of its gate inputs W x + b (2 · dim), a path past its recurrence.
        """
        super().__init__()
        self.dropout = Dropout(spec.dropout)
        bottom = RecurrentDecoder(
            cell="lstm",
            layers=1,
            context=spec.context,  # computes c_t from the source, by default with additive attention
            attends="before",  # the query is the state before the step, s_{t−1}
            feedback="context",  # c_t is an input of the cell
            initial_state=FromZero(),
        )
        self.bottom = bottom.build(dim)
        self.layers = nn.ModuleList(
            LSTMCells(inputs=3 * dim, dim=dim, layers=1, dropout=0.0) for _ in range(spec.layers - 1)
        )

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the states of all layers, with dtype and device of `like`: "bottom", and "0", "1", … above it."""
        states = {str(k): cells.init_state(batch, like) for k, cells in enumerate(lstm_layers(self.layers))}
        return {"bottom": self.bottom.init_state(batch, max_length, like)} | states

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x, R T D (R rows) → output of the top layer, R T D, the new state, and the bottom's attention to the source.

        The bottom layer reads x and attends to the source. The input of another layer is [½f; h] of the layer below:
        half of its gate inputs f = W x + b, and its output h. With a state, x continues the sequences that it has read.
        """
        result = self.bottom(x, context, None if state is None else state["bottom"])
        hidden, source_context = result.output, result.source_context  # R T D: output, attention over the source
        cells_below, x = self.bottom.cells, torch.cat((x, source_context), -1)
        new_state: State = {"bottom": result.state}
        for k, cells in enumerate(lstm_layers(self.layers)):
            x = input_of_next_layer(cells_below, x, self.dropout(hidden))
            if state is None:
                hidden, _ = cells.run_sequence(x)  # padding comes last, where it changes no output before it
            else:
                hidden, new_state[str(k)] = continue_rows(cells, x, context.layout, state[str(k)])
            cells_below = cells
        return MixerOutput(
            self.dropout(hidden), state=None if state is None else new_state, source_context=source_context
        )

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: the matrices of all layers, and the gate inputs W x + b computed twice.

        These are half of those of all layers but the top one, which torch's LSTM does not return.
        """
        lower = [self.bottom.cells, *lstm_layers(self.layers)][:-1]
        return matrix_flops(self, work) + 2 * work.tokens * sum(input_matrix_size(cells) // 2 for cells in lower)
