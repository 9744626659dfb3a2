"""Recurrent layers: Elman RNN, LSTM and GRU cells, forward, backward or bidirectional.

Whole sequences use the kernels of `torch.nn.RNN/LSTM/GRU`, where torch has one. `Cells.step` computes the same
equations with the same weights, for loops with feedback and for compiled graphs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dragoman.errors import UserError
from dragoman.parts.deferred_gradients import deferred_weight_gradients
from dragoman.parts.dropout import dropout
from dragoman.parts.exported_recurrence import traced_layer
from dragoman.parts.mixer import Context, Mixer, MixerOutput, SequenceLayout, State
from dragoman.parts.spec import Spec
from dragoman.parts.tracing import Quantity

CellKind = Literal["rnn", "lstm", "gru", "gru-reset-before"]
INPUT_GATE = Quantity(
    "input gate", "TE", "i = σ(W_i x + U_i h)", "From 0 to 1: how much of the candidate is written to each cell."
)
FORGET_GATE = Quantity(
    "forget gate", "TE", "f = σ(W_f x + U_f h)", "From 0 to 1: how much of each cell is kept; 0 forgets it."
)
CANDIDATE = Quantity(
    "candidate", "TE", "g = tanh(W_g x + U_g h)", "From −1 to 1: what input and previous state propose to store."
)
OUTPUT_GATE = Quantity(
    "output gate", "TE", "o = σ(W_o x + U_o h)", "From 0 to 1: how much of each cell is visible in the state."
)
CELL_STATE = Quantity("cell state", "TE", "c = f ⊙ c + i ⊙ g", "The memory of the LSTM after this step.")
RESET_GATE = Quantity(
    "reset gate", "TE", "r = σ(W_r x + U_r h)", "From 0 to 1: how much of the previous state the candidate sees."
)
UPDATE_GATE = Quantity(
    "update gate",
    "TE",
    "z = σ(W_z x + U_z h)",
    "From 0 to 1: how much of the previous state is kept; the rest is the candidate.",
)
FORWARD_STATE = Quantity(
    "forward state", "TE", "→h", "The state after reading the sentence from its beginning up to this position."
)
BACKWARD_STATE = Quantity(
    "backward state", "TE", "←h", "The state after reading the sentence from its end back to this position."
)
SATURATED = 1e4  # input that closes or opens a gate exactly: σ(−10⁴) = 0 and σ(10⁴) = 1


class Cells(nn.Module):
    """`layers` stacked Elman cells, and the base class of other cells. State: hidden (LSTM: and cell), B L D."""

    kind: ClassVar[CellKind] = "rnn"
    state_formula: ClassVar[str] = "tanh(W x + U h)"  # of the new state, for a walk through the model
    state_names: tuple[str, ...] = ("hidden",)
    torch_module: type[nn.RNNBase] = nn.RNN
    kernel: Callable[..., tuple[Tensor, Tensor]] = staticmethod(torch.rnn_tanh)
    flatten_weights = True  # whether cuDNN's contiguous copy of the weights may be made; not for sharded weights

    def __init__(
        self,
        inputs: int,
        dim: int,
        layers: int,
        dropout: float,
        bidirectional: bool = False,
        cell_dim: int | None = None,
    ) -> None:
        """Create `layers` layers of cells, with the weights of torch's module of this kind.

        `inputs` is the width of x, `dim` that of the state per direction; `dropout` is applied between layers.
        `cell_dim` is the width of the cells of an LSTM whose output is projected to `dim`; None: no projection. If
        `bidirectional`, other cells read the sequences backward, and the outputs of both are concatenated.
        """
        super().__init__()
        self.layers, self.dim, self.dropout, self.bidirectional = layers, dim, dropout, bidirectional
        self.state_dims = {"hidden": dim, "cell": cell_dim or dim}
        module: Any = self.torch_module
        rnn = module(
            input_size=inputs,
            hidden_size=cell_dim or dim,
            num_layers=layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=bidirectional,
            **({} if cell_dim is None else {"proj_size": dim}),
        )
        self.blocks: dict[str, tuple[int, ...]] = {}  # name of a matrix → rows of each matrix stacked in it
        for name, weight in rnn.named_parameters():
            self.register_parameter(name, weight)
            if name.startswith("weight_hr"):  # the projection
                self.blocks[name] = (len(weight),)
            elif weight.dim() > 1:  # torch stacks one matrix per gate, with a row per cell
                self.blocks[name] = (rnn.hidden_size,) * (len(weight) // rnn.hidden_size)
        #: torch's module with the same weights; in a tuple, because the compiler does not support it as a submodule
        self.rnn = (rnn,)

    def train(self, mode: bool = True) -> Self:
        """Set training mode also in torch's module (`rnn[0]`), which is not registered as a submodule."""
        self.rnn[0].train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the weights, as in nn.Module, and make them contiguous again for cuDNN."""
        moved = super()._apply(fn, recurse)
        self.rnn[0].flatten_parameters()  # cuDNN needs contiguous weights wherever they have been moved to
        return moved

    def init_state(self, batch: int, like: Tensor) -> State:
        """Create a state of zeros for `batch` rows and L layers, B L D per name, with dtype and device of `like`."""
        return {name: like.new_zeros(batch, self.layers, self.state_dims[name]) for name in self.state_names}

    def run_sequence(self, x: Tensor | PackedSequence, state: State | None = None) -> tuple[Any, State]:
        """Read whole sequences with torch's module; return the outputs of the top layer and the final state.

        x is B T I (I = input width) or packed, and the outputs B T D or packed; `state` is the initial state, zero if
        None.
        """
        rnn = self.rnn[0]
        replaced = [name for name, weight in self.named_parameters() if getattr(rnn, name) is not weight]
        if replaced:  # loading or moving a model can replace the shared weights
            for name in replaced:
                setattr(rnn, name, getattr(self, name))
            if self.flatten_weights:  # not sharded weights: make them contiguous, as cuDNN needs them
                rnn.flatten_parameters()
        y, final = rnn(x, None if state is None else self.to_torch_state(state))
        return y, self.from_torch_state(final)

    def run_layer(self, x: Tensor, padding: Tensor, layer: int, backward: bool, initial: State) -> tuple[Tensor, State]:
        """Read whole sequences with one layer, by its number, and direction: x, B T I → outputs B T D.

        I is the width of the layer's input. With `backward`, the weights are those of the backward direction; the
        caller has reversed the sequences. `padding` (B T) is True at padding, which comes last. `initial` is the state
        before the first token, B D per name. The returned state holds what is not an output: the LSTM's cell after the
        last token of each row; here nothing.
        """
        weights, hidden = self.layer_weights(layer, backward), initial["hidden"][None]  # hidden state in torch: 1 B D
        if torch.compiler.is_exporting():
            return traced_layer(self.kind, x, hidden=initial["hidden"], cell=None, weights=weights)[0], {}
        with ignore_kernel_warnings():
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            y, _ = self.kernel(x, hidden, weights, True, 1, 0.0, self.training, False, True)
        return y, {}

    def layer_weights(self, layer: int, backward: bool) -> list[Tensor]:
        """Return the matrices for input and previous state, then their biases, of a layer and direction."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [getattr(self, f"{name}_l{layer}{'_reverse' if backward else ''}") for name in names]

    def continue_sequence(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Continue sequences: x, B T I (I = input width) → outputs of the top layer, B T D, and the new state."""
        if x.shape[1] == 1:  # a decoding step: plain operations, which can be compiled
            gates = self.project(x[:, 0])
            hidden, state = self.step(gates, state)
            return hidden[:, None], state
        return self.run_sequence(x, state)

    def project(self, x: Tensor) -> Tensor:
        """Return W x + b, the input of the bottom layer's gates: … I → … G.

        G is the number of gates times that of cells, which is D, or more if the output of the cells is projected to D.
        x may be the first part of the layer's input only: the caller then adds the product with the rest, which may be
        known later.
        """
        weight, bias = self.weight("ih", layer=0)
        return F.linear(x, weight[:, : x.shape[-1]], bias)

    def weight(self, side: str, layer: int) -> tuple[Tensor, Tensor]:
        """Return matrix and bias of a layer; `side` is "ih" for its input or "hh" for its previous hidden state."""
        return getattr(self, f"weight_{side}_l{layer}"), getattr(self, f"bias_{side}_l{layer}")

    def step(self, gates: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute one step of all L layers: the output of the top layer, B D, and the new state, B L D per name.

        `gates` (B G) is W x + b of the bottom layer, G numbers for all of its gates, as returned by `project`; `state`
        is the state before the step, "hidden" and, of an LSTM, "cell", B L D each.
        """
        if self.layers == 1:  # faster, because the states of layers need not be stacked
            previous = {name: value.squeeze(1) for name, value in state.items()}  # B D
            new = self.next_state(gates, previous, *self.recurrent_weights(0))
            return new["hidden"], {name: new[name].unsqueeze(1) for name in state}
        states: list[State] = []  # of each layer
        by_layer = {name: value.unbind(1) for name, value in state.items()}
        for layer in range(self.layers):
            if layer > 0:  # the input is the output of the layer below
                x = dropout(states[-1]["hidden"], self.dropout, self.training)
                gates = F.linear(x, *self.weight("ih", layer))
            previous = {name: values[layer] for name, values in by_layer.items()}  # B D
            states.append(self.next_state(gates, previous, *self.recurrent_weights(layer)))
        return states[-1]["hidden"], {name: torch.stack([s[name] for s in states], dim=1) for name in state}

    def gates_of_step(self, gates: Tensor, state: State) -> Iterator[tuple[Quantity, Tensor]]:
        """Yield the gates of all layers in one step, B D each, with their descriptions, to explain the model to a user.

        `gates` (B G) is W x + b of the bottom layer, G numbers for all of its gates, `state` the state before the step,
        B L D per name, with L layers.
        """
        new_state = self.step(gates, state)[1]
        for layer in range(self.layers):
            if layer > 0:
                gates = F.linear(new_state["hidden"][:, layer - 1], *self.weight("ih", layer))
            previous = {name: value[:, layer] for name, value in state.items()}
            label = f" of cell layer {layer + 1}" if self.layers > 1 else ""
            for quantity, value in self.gate_values(gates, previous, *self.recurrent_weights(layer)):
                yield replace(quantity, name=quantity.name + label), value

    def gate_values(self, gates: Tensor, previous: State, *weights: Tensor) -> list[tuple[Quantity, Tensor]]:
        """Return the gates of one layer in one step, B D each, with their descriptions; here, for Elman RNNs, none.

        `gates` (B G, G numbers for all gates) is W x + b, `previous` the state before the step (B D per name),
        `weights` are U and its bias.
        """
        return []

    def recurrent_weights(self, layer: int) -> tuple[Tensor, ...]:
        """Return the matrix U of a layer, from its previous hidden state to its gates, and the bias of that product."""
        return self.weight("hh", layer)

    def next_state(self, gates: Tensor, previous: State, *weights: Tensor) -> State:
        """Compute one step of one layer: the new state, B D per name, from the previous one.

        `gates` (B G) is W x + b, G numbers for all gates, as returned by `project`. `weights` are the matrix U, from
        the previous hidden state to the gates, and the bias of that product.
        """
        matrix, bias = weights
        return self.cell(gates, F.linear(previous["hidden"], matrix, bias), previous)

    def cell(self, gates: Tensor, recurrent: Tensor, previous: State) -> State:
        """Compute one step of an Elman RNN, h = tanh(W x + U h), with `gates` = W x and `recurrent` = U h, B D each.

        `previous`, the state before the step, is used by other cells; here U h is enough.
        """
        return {"hidden": torch.tanh(gates + recurrent)}

    def to_torch_state(self, state: State) -> Tensor | tuple[Tensor, ...]:
        """Convert a state (B L D, with L layers) to torch's format: L B D, for the LSTM a tuple of hidden and cell."""
        hidden, *cell = (state[name].transpose(0, 1).contiguous() for name in self.state_names)
        return (hidden, *cell) if cell else hidden

    def from_torch_state(self, final: Tensor | tuple[Tensor, ...]) -> State:
        """Convert torch's final state to a State of L layers, B L D per name, contiguous as that of `step`.

        Torch's has the shape L B D, or 2L B D/2 with both directions, whose parts are concatenated here.
        """
        state: State = {}
        for name, value in zip(self.state_names, (final,) if isinstance(final, Tensor) else final):
            by_row = value.unflatten(0, (self.layers, -1)).permute(2, 0, 1, 3).flatten(2)  # B L D
            state[name] = by_row.clone(memory_format=torch.contiguous_format)
        return state


@contextmanager
def ignore_kernel_warnings() -> Iterator[None]:
    """Ignore torch's warnings about slower kernels.

    For weights that are not contiguous, cuDNN copies them, which costs little for a single layer. For an LSTM with a
    projection, a CPU uses other kernels than oneDNN's.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
        yield


class LSTMCells(Cells):
    """i, f, o = σ(W_o x + U_o h), g = tanh(…); c = f ⊙ c + i ⊙ g; h = o ⊙ tanh(c) (Hochreiter & Schmidhuber 1997)."""

    kind: ClassVar[CellKind] = "lstm"
    state_formula = "o ⊙ tanh(c)"
    state_names = ("hidden", "cell")
    torch_module = nn.LSTM

    def run_layer(self, x: Tensor, padding: Tensor, layer: int, backward: bool, initial: State) -> tuple[Tensor, State]:
        """Read whole sequences with one layer, by its number, and direction: x, B T I → outputs B T D, final cell B D.

        I is the width of the layer's input, `initial` the state before the first token, B D per name. With `backward`,
        the weights are those of the backward direction; the caller has reversed the sequences. At padding, where
        `padding` (B T) is True, the cell stays unchanged: an additional input, 1 at padding, has such large weights
        that the input gate i is 0 and the forget gate f is 1.
        """
        input_weight, *others = self.layer_weights(layer, backward)
        dim = len(input_weight) // 4  # rows are those of the gates i, f, g and o
        flag_weight = input_weight.new_zeros(len(input_weight), 8)  # one column is enough; kernels prefer even widths
        flag_weight[:dim, 0], flag_weight[dim : 2 * dim, 0] = -SATURATED, SATURATED  # rows of i and of f
        padding_flag = F.pad(padding[..., None].to(x.dtype), (0, 7))  # B T 8: 1 at padding, in the first column
        state = tuple(initial[name][None] for name in self.state_names)  # hidden and cell, 1 B D each, as torch expects
        weights = [torch.cat((input_weight, flag_weight), 1), *others]
        inputs = torch.cat((x, padding_flag), -1)
        if torch.compiler.is_exporting():
            y, cell = traced_layer(self.kind, inputs, hidden=initial["hidden"], cell=initial["cell"], weights=weights)
            return y, {"cell": cell}
        with ignore_kernel_warnings():
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            y, _, cell = torch.lstm(inputs, state, weights, True, 1, 0.0, self.training, False, True)
        return y, {"cell": cell[0]}

    def cell(self, gates: Tensor, recurrent: Tensor, previous: State) -> State:
        """One step: c ← f ⊙ c + i ⊙ g, h = o ⊙ tanh(c) with gates i, f, o and candidate g, B D each.

        `gates` = W x and `recurrent` = U h, B 4D each, stack i, f, g and o; `previous` holds h and c ("cell").
        """
        # in training on a CPU, an explicit derivative is faster than autograd's
        if torch.is_grad_enabled() and gates.device.type == "cpu" and not torch.compiler.is_compiling():
            hidden, cell = LSTMCell.apply(gates, recurrent, previous["cell"])
            return {"hidden": hidden, "cell": cell}
        i, f, g, o = (gates + recurrent).chunk(4, dim=-1)
        cell = f.sigmoid() * previous["cell"] + i.sigmoid() * g.tanh()
        return {"hidden": o.sigmoid() * cell.tanh(), "cell": cell}

    def gate_values(self, gates: Tensor, previous: State, *weights: Tensor) -> list[tuple[Quantity, Tensor]]:
        """Return gates i, f and o, candidate g and new cell of one layer in one step, B D each, with descriptions.

        `gates` (B 4D) is W x + b, `previous` the state before the step, `weights` are U, its bias and, of cells whose
        output is projected, the projection, which is not needed here.
        """
        i, f, g, o = (gates + F.linear(previous["hidden"], *weights[:2])).chunk(4, dim=-1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        quantities = (FORGET_GATE, INPUT_GATE, CANDIDATE, CELL_STATE, OUTPUT_GATE)
        return list(zip(quantities, (f, i, g, f * previous["cell"] + i * g, o)))


class ProjectedLSTMCells(LSTMCells):
    """h = W_r (o ⊙ tanh(c)): an LSTM with more cells than outputs (Sak et al. 2014); the cell state is wider than h."""

    state_formula = "W_r (o ⊙ tanh(c))"

    def run_sequence(self, x: Tensor | PackedSequence, state: State | None = None) -> tuple[Any, State]:
        """Read whole sequences, B T I or packed, with torch's module; return its outputs (B T D) and final state.

        I is the width of the input. `state` is the initial state, zero if None. Torch's warning that oneDNN's kernels
        have no projection is ignored.
        """
        with ignore_kernel_warnings():
            return super().run_sequence(x, state)

    def layer_weights(self, layer: int, backward: bool) -> list[Tensor]:
        """Return the matrices for input and previous state of a layer and direction, their biases, and W_r.

        W_r projects the cells to the narrower output.
        """
        projection = getattr(self, f"weight_hr_l{layer}{'_reverse' if backward else ''}")
        return [*super().layer_weights(layer, backward), projection]

    def recurrent_weights(self, layer: int) -> tuple[Tensor, ...]:
        """Return the matrix U of a layer, from state to gates, its bias, and the projection W_r of its output."""
        return *super().recurrent_weights(layer), getattr(self, f"weight_hr_l{layer}")

    def next_state(self, gates: Tensor, previous: State, *weights: Tensor) -> State:
        """Compute one step of one layer: the new cell, B C for C cells, and the projected hidden state, B D.

        `gates` (B 4C) is W x + b, `previous` the state before the step; `weights` are U, its bias and the projection
        W_r.
        """
        matrix, bias, projection = weights
        state = super().next_state(gates, previous, matrix, bias)
        return state | {"hidden": F.linear(state["hidden"], projection)}


class LSTMCell(torch.autograd.Function):
    """The LSTM cell for training on a CPU, with an explicit derivative that avoids copies."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, recurrent: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden state o ⊙ tanh(c) and cell c, B D each, from `gates` = W x and `recurrent` = U h, B 4D each.

        Both stack i, f, g and o; `previous` (B D) is the cell before the step.
        """
        gates = gates + recurrent
        i, f, g, o = gates.chunk(4, -1)
        for gate in (i, f, o):
            gate.sigmoid_()
        g.tanh_()
        cell = torch.addcmul(f * previous, i, g)
        squashed = cell.tanh()
        ctx.save_for_backward(gates, previous, squashed)
        return o * squashed, cell

    @staticmethod
    def backward(ctx: Any, grad_hidden: Tensor, grad_cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of W x and U h (B 4D), which are equal, and of the previous cell (B D).

        They follow from the gradients of the new hidden state and cell, B D each.
        """
        # tanh_backward(g, y) is g (1 − y²), sigmoid_backward(g, y) is g y (1 − y), y being the value of the function
        gates, previous, squashed = ctx.saved_tensors  # the four gates, the previous cell, tanh of the new cell
        i, f, g, o = gates.chunk(4, -1)
        grad_cell = grad_cell + torch.ops.aten.tanh_backward(grad_hidden * o, squashed)
        grad_gates = torch.empty_like(gates)
        grad_i, grad_f, grad_g, grad_o = grad_gates.chunk(4, -1)
        torch.ops.aten.sigmoid_backward.grad_input(grad_cell * g, i, grad_input=grad_i)
        torch.ops.aten.sigmoid_backward.grad_input(grad_cell * previous, f, grad_input=grad_f)
        torch.ops.aten.tanh_backward.grad_input(grad_cell * i, g, grad_input=grad_g)
        torch.ops.aten.sigmoid_backward.grad_input(grad_hidden * squashed, o, grad_input=grad_o)
        return grad_gates, grad_gates, grad_cell * f


class GRUCells(Cells):
    """r, z = σ(W_z x + U_z h); n = tanh(W x + r ⊙ (U h + b)); h = (1 − z) ⊙ n + z ⊙ h.

    As in cuDNN, the reset gate is applied after the multiplication by U; in the paper before it (ResetBeforeGRUCells).
    """

    kind: ClassVar[CellKind] = "gru"
    state_formula = "(1 − z) ⊙ n + z ⊙ h"
    candidate: ClassVar[Quantity] = replace(CANDIDATE, formula="n = tanh(W_n x + r ⊙ U_n h)")
    torch_module = nn.GRU
    kernel = staticmethod(torch.gru)

    def cell(self, gates: Tensor, recurrent: Tensor, previous: State) -> State:
        """One step: h ← (1 − z) ⊙ n + z ⊙ h with gates r and z and candidate n, B D each.

        `gates` = W x and `recurrent` = U h, B 3D each, stack r, z and n; `previous` is the state h.
        """
        r, z, n = gates.chunk(3, dim=-1)
        r_recurrent, z_recurrent, n_recurrent = recurrent.chunk(3, dim=-1)
        z = (z + z_recurrent).sigmoid()
        n = torch.tanh(n + (r + r_recurrent).sigmoid() * n_recurrent)
        return {"hidden": n + z * (previous["hidden"] - n)}

    def gate_values(self, gates: Tensor, previous: State, *weights: Tensor) -> list[tuple[Quantity, Tensor]]:
        """Return gates r and z and candidate n of one layer in one step, B D each, with descriptions.

        `gates` (B 3D) is W x + b, `previous` the state before the step, `weights` are U and its bias.
        """
        r, z, n = gates.chunk(3, dim=-1)
        r_recurrent, z_recurrent, n_recurrent = F.linear(previous["hidden"], *weights).chunk(3, dim=-1)
        r, z = (r + r_recurrent).sigmoid(), (z + z_recurrent).sigmoid()
        return [(RESET_GATE, r), (self.candidate, torch.tanh(n + r * n_recurrent)), (UPDATE_GATE, z)]


class ResetBeforeGRUCells(GRUCells):
    """r, z = σ(W_z x + U_z h); n = tanh(W x + U (r ⊙ h)); h = (1 − z) ⊙ n + z ⊙ h (Cho et al. 2014, eq. 5–8).

    The reset gate is applied before the multiplication by U, for which torch has no kernel: sequences are read in a
    loop. Weights have torch's format, with both biases in every gate.
    """

    kind = "gru-reset-before"
    candidate = replace(CANDIDATE, formula="n = tanh(W_n x + U_n (r ⊙ h))")

    def run_sequence(self, x: Tensor | PackedSequence, state: State | None = None) -> tuple[Any, State]:
        """Read whole sequences step by step; return the outputs of the top layer and the final state.

        x is B T I (I = input width) or packed, and the outputs B T D or packed; `state` is the initial state, zero if
        None.
        """
        if isinstance(x, PackedSequence):
            rows, lengths = pad_packed_sequence(x, batch_first=True)
            y, final = run_padded(self, rows, SequenceLayout.padded(rows.shape[1], lengths.to(rows.device)), state)
            return pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False), final
        lengths = torch.full(x.shape[:1], x.shape[1], device=x.device)
        return run_padded(self, x, SequenceLayout.padded(x.shape[1], lengths), state)

    def run_layer(self, x: Tensor, padding: Tensor, layer: int, backward: bool, initial: State) -> tuple[Tensor, State]:
        """Read whole sequences step by step with one layer, by its number, and direction: x, B T I → outputs B T D.

        I is the width of the input. With `backward`, the weights are those of the backward direction, for which the
        caller has reversed the sequences. `initial` is the state before the first token. Padding comes last, so that it
        changes no output before it. No other state is returned (an empty dict): the last hidden state is an output.
        """
        if torch.compiler.is_exporting():
            return super().run_layer(x, padding, layer, backward, initial)
        input_matrix, matrix, input_bias, bias = self.layer_weights(layer, backward)
        gates, state, outputs = F.linear(x, input_matrix, input_bias), initial, []  # gates: B T 3D
        with deferred_weight_gradients():  # computes each weight's gradient once for all steps
            for step_gates in gates.unbind(1):
                state = self.next_state(step_gates, state, matrix, bias)
                outputs.append(state["hidden"])
        return torch.stack(outputs, 1), {}

    def next_state(self, gates: Tensor, previous: State, *weights: Tensor) -> State:
        """Compute one step: h ← (1 − z) ⊙ n + z ⊙ h, B D, with update gate z and candidate n.

        `gates` (B 3D) is W x + b for r, z and n, `previous` the state h; `weights` are U (3D D) and its bias (3D).
        """
        _, n, z = self._gates(gates, previous["hidden"], *weights)
        return {"hidden": n + z * (previous["hidden"] - n)}

    def gate_values(self, gates: Tensor, previous: State, *weights: Tensor) -> list[tuple[Quantity, Tensor]]:
        """Return reset gate r, candidate n and update gate z of one layer in one step, B D each, with descriptions.

        `gates` (B 3D) is W x + b, `previous` the state before the step, `weights` are U and its bias.
        """
        r, n, z = self._gates(gates, previous["hidden"], *weights)
        return [(RESET_GATE, r), (self.candidate, n), (UPDATE_GATE, z)]

    def _gates(self, gates: Tensor, hidden: Tensor, matrix: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return reset gate r, candidate n = tanh(W x + U (r ⊙ h)) and update gate z, B D each.

        `gates` (B 3D) is W x + b, `hidden` h (B D). `matrix` (3D D) stacks U of r, z and n, `bias` (3D) their biases.
        """
        sizes = (2 * self.dim, self.dim)  # rows of r and z, and of n
        (rz, n), (rz_matrix, n_matrix), (rz_bias, n_bias) = (
            gates.split(sizes, -1),
            matrix.split(sizes),
            bias.split(sizes),
        )
        r, z = (rz + F.linear(hidden, rz_matrix, rz_bias)).sigmoid().chunk(2, -1)
        return r, torch.tanh(n + F.linear(r * hidden, n_matrix, n_bias)), z


CELLS: dict[str, type[Cells]] = {cells.kind: cells for cells in (Cells, LSTMCells, GRUCells, ResetBeforeGRUCells)}


def build_cells(
    kind: CellKind, inputs: int, dim: int, layers: int, dropout: float, bidirectional: bool, cell_dim: int | None
) -> Cells:
    """Create recurrent cells with inputs of width `inputs` and outputs of width `dim`.

    With `cell_dim`, there are `cell_dim` LSTM cells, whose output is projected to `dim`: other kinds of cells, or not
    more cells than outputs, raise a UserError. If `bidirectional`, `dim` and `cell_dim` are those of each direction.
    """
    if cell_dim is None:
        return CELLS[kind](inputs, dim, layers=layers, dropout=dropout, bidirectional=bidirectional)
    if CELLS[kind] is not LSTMCells or cell_dim <= dim:
        raise UserError(
            f"cell_dim, the number of cells of an LSTM whose output is projected to {dim} numbers, must be above "
            f"{dim}, but cell_dim is {cell_dim} and the cell is {kind!r}: raise cell_dim or leave it out, and set the "
            "cell to 'lstm'"
        )
    return ProjectedLSTMCells(
        inputs, dim, layers=layers, dropout=dropout, bidirectional=bidirectional, cell_dim=cell_dim
    )


@dataclass(frozen=True)
class Recurrent(Spec):
    """h_t = g(x_t, h_{t−1}) with cell g, in `layers` layers.

    In direction "both" (Schuster & Paliwal 1997), each direction has half of the width. `attention_context`: the
    attention c_t of a layer below over the source is an additional input, g([x_t; c_t], h_{t−1}) (Wu et al. 2016, §3).
    `dropout` is applied between layers, `input_dropout` to the input of the first (Zaremba et al. 2014). `cell_dim`:
    the number of LSTM cells in all directions together, whose output is projected to the width of the model.
    """

    cell: CellKind = "lstm"
    layers: int = 1
    direction: Literal["forward", "backward", "both"] = "forward"
    dropout: float = 0.0
    attention_context: bool = False
    input_dropout: float = 0.0
    cell_dim: int | None = None

    def build(self, dim: int) -> RecurrentMixer:
        """Create the layer for vectors of width `dim`."""
        return RecurrentMixer(self, dim)


class RecurrentMixer(Mixer):
    title = "recurrent layer"
    supports_packing = False

    def __init__(self, spec: Recurrent, dim: int) -> None:
        """Create the cells for outputs of width `dim`: half of it per direction, if there are two.

        With `attention_context`, they read x and, concatenated to it, the attention over the source: 2 · dim. The
        spec's `cell_dim` counts the cells of both directions together. An odd width with two directions raises a
        UserError.
        """
        super().__init__()
        self.bidirectional, self.backward = spec.direction == "both", spec.direction == "backward"
        if self.bidirectional and dim % 2:
            raise UserError(
                f"a bidirectional recurrent layer needs an even width, but model_dim is {dim}: change model_dim"
            )
        self.attention_context, self.input_dropout = spec.attention_context, spec.input_dropout
        inputs, directions = 2 * dim if spec.attention_context else dim, 2 if self.bidirectional else 1
        cell_dim = spec.cell_dim // directions if spec.cell_dim else None
        self.cells = build_cells(
            spec.cell,
            inputs=inputs,
            dim=dim // directions,
            layers=spec.layers,
            dropout=spec.dropout,
            bidirectional=self.bidirectional,
            cell_dim=cell_dim,
        )

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create a state of zeros for `batch` rows, with dtype and device of `like`; `max_length` does not matter."""
        return self.cells.init_state(batch, like)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Read sequences with the cells: x, B T D → outputs B T D, and the new or the final state.

        Without a state, x holds whole sequences. With one, x continues its sequences; cells that read backward then
        raise a UserError. The context holds the lengths of the sequences and, for cells with `attention_context`, the
        attention over the source that a layer below has computed; without it, they raise a UserError.
        """
        layout = context.layout
        if self.attention_context:
            if context.source_context is None:
                raise UserError(
                    "a recurrent layer with attention_context, which also reads a layer's attention over the "
                    "source, needs a layer below it that attends to the source: put it above a RecurrentDecoder, "
                    "or leave out attention_context"
                )
            x = torch.cat((x, context.source_context), -1)
        x = dropout(x, self.input_dropout, self.training)
        if self.backward or self.bidirectional:
            if state is not None:
                raise UserError(
                    "a decoder generates token by token, so that its recurrent layers must read forward, but this one "
                    f"has direction {'backward' if self.backward else 'both'!r}: set direction to 'forward'"
                )
            y, final = run_rows(self.cells, flip(x, layout) if self.backward else x, layout)
            if self.bidirectional and context.is_traced:
                for quantity, half in zip((FORWARD_STATE, BACKWARD_STATE), y.chunk(2, -1)):
                    context.trace(self.path, quantity, half)
            return MixerOutput(flip(y, layout) if self.backward else y, final_state=final)
        if state is not None:
            y, new_state = continue_rows(self.cells, x, layout, state)
            return MixerOutput(y, new_state)
        if context.memory is not None:  # a decoder, which needs no final state; padding, being last, changes no token
            return MixerOutput(self.cells.run_sequence(x)[0])
        y, final = run_rows(self.cells, x, layout)
        return MixerOutput(y, final_state=final)


def continue_rows(cells: Cells, x: Tensor, layout: SequenceLayout, state: State) -> tuple[Tensor, State]:
    """Continue sequences from `state` with x, B T I (I = input width): outputs B T D, state after the last tokens.

    `layout.lengths` are the numbers of tokens of the rows, after which there is padding; None: no row is padded.
    """
    return cells.continue_sequence(x, state) if layout.lengths is None else run_rows(cells, x, layout, state)


def run_rows(cells: Cells, x: Tensor, layout: SequenceLayout, state: State | None = None) -> tuple[Tensor, State]:
    """Read padded rows from the start or from `state`: x, B T I → B T D, and the state after each row's last token.

    I is the width of the cells' input; `state` None: start with zeros. The layout holds the lengths of the rows. Rows
    that continue a state are read as a PackedSequence, which keeps padding out of the final state; a row without tokens
    keeps its state. For others, packing costs more than some padding, and on a GPU it would synchronize to get the
    lengths.
    """
    token_mask = layout.token_mask
    # reading values would synchronize with a GPU, and fix them in an exported graph
    may_read_mask = state is None and not x.is_cuda and not torch.compiler.is_exporting()
    if token_mask is None or (may_read_mask and bool(token_mask.all())):
        return cells.run_sequence(x, state)
    if state is None:
        return run_padded(cells, x, layout)
    lengths = token_mask.sum(1)  # B
    if torch.compiler.is_exporting():  # packing depends on the values of the lengths
        y, new = run_padded(cells, x, layout, state)
        return y, {name: torch.where((lengths > 0)[:, None, None], new[name], state[name]) for name in state}
    packed = pack_padded_sequence(x, lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False)
    packed, new = cells.run_sequence(packed, state)
    y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
    # A row without a token keeps its state.
    return y, {name: torch.where((lengths > 0)[:, None, None], new[name], state[name]) for name in state}


def run_padded(cells: Cells, x: Tensor, layout: SequenceLayout, state: State | None = None) -> tuple[Tensor, State]:
    """Read padded rows, x, B T I → outputs B T D and the final state, layer by layer, each direction separately.

    I is the width of the cells' input. The layout holds the lengths of the rows. For the backward direction, rows are
    reversed. Padding comes last and does not change the outputs before it; the final state is taken at the last token
    of each row. Rows of cells with one direction may continue a state; None: they start with zeros.
    """
    assert layout.lengths is not None
    padding = layout.positions >= layout.lengths[:, None]  # B T
    last_token = (layout.lengths - 1).clamp(min=0)[:, None, None]  # B 1 1
    zero = {name: x.new_zeros(x.shape[0], cells.state_dims[name]) for name in cells.state_names}
    final_states: list[State] = []  # of each layer, B D per name
    for layer in range(cells.layers):
        x = dropout(x, cells.dropout if layer else 0.0, cells.training)  # between layers only
        initial = zero if state is None else {name: value[:, layer] for name, value in state.items()}
        outputs, final = [], []  # of each direction
        for backward in (False, True) if cells.bidirectional else (False,):
            y, last = cells.run_layer(
                flip(x, layout) if backward else x, padding, layer=layer, backward=backward, initial=initial
            )
            outputs.append(flip(y, layout) if backward else y)
            # `run_layer` returns the LSTM's cell as it was after the last token, but no hidden state: this is an output
            final.append(last | {"hidden": y.gather(1, last_token.expand(-1, 1, y.shape[-1]))[:, 0]})
        x = torch.cat(outputs, -1)
        final_states.append({name: torch.cat([last[name] for last in final], -1) for name in final[0]})
    return x, {name: torch.stack([last[name] for last in final_states], 1) for name in final_states[0]}


def flip(x: Tensor, layout: SequenceLayout) -> Tensor:
    """Reverse each row of x, B T D, within its length (from the layout); padding stays in place."""
    if layout.lengths is None:
        return x.flip(1)
    mirrored = layout.lengths[:, None] - 1 - layout.positions  # B T; negative at padding
    index = torch.where(mirrored >= 0, mirrored, layout.positions)  # B T
    return x.gather(1, index[..., None].expand_as(x))
