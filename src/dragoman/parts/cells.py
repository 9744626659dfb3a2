"""Recurrent cells: plain RNN, LSTM and GRU, over whole sequences at once or one step at a time.

Whole sequences are read by the kernels of `torch.nn.RNN/LSTM/GRU`; `step` writes the same equations out over the same
weights, for loops that feed something back and for graphs that are compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from dragoman.parts.dropout import dropout
from dragoman.parts.mixer import State

CellKind = Literal["rnn", "lstm", "gru"]
CLOSED = 1e4  # what closes a gate: σ(−10⁴) = 0 and σ(10⁴) = 1, exactly


class Cells(nn.Module):
    """`layers` cells on top of one another. State: hidden (and cell, for the LSTM), B L D."""

    kind: CellKind = "rnn"
    flatten_weights = (
        True  # may the weights be moved to lie side by side? Not where they are put together from many processes
    )
    kernel: Callable[..., tuple[Tensor, Tensor]]

    def __init__(self, inputs: int, dim: int, layers: int, dropout: float, bidirectional: bool = False) -> None:
        super().__init__()
        kinds = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
        self.layers, self.dim, self.dropout, self.bidirectional = layers, dim, dropout, bidirectional
        whole = kinds[self.kind](
            inputs,
            dim,
            layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=bidirectional,
        )
        for name, weight in whole.named_parameters():
            self.register_parameter(name, weight)
        self.blocks = {name: (dim,) * (len(w) // dim) for name, w in whole.named_parameters() if w.dim() > 1}  # gates
        #: torch's own module over the same weights, in a tuple so that it is no submodule: the compiler refuses those
        self.whole = (whole,)

    def train(self, mode: bool = True) -> Self:
        self.whole[0].train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        moved = super()._apply(fn, recurse)
        self.whole[0].flatten_parameters()  # cuDNN wants the weights side by side wherever they have moved to
        return moved

    def init_state(self, batch: int, like: Tensor) -> State:
        return {"hidden": like.new_zeros(batch, self.layers, self.dim)}

    def read(self, x: Tensor | PackedSequence, state: State | None = None) -> tuple[Any, Any]:
        """Whole sequences through torch's kernels: what torch's own module returns."""
        whole = self.whole[0]
        strangers = [name for name, weight in self.named_parameters() if getattr(whole, name) is not weight]
        if strangers:  # loading and moving may have put other weights in the place of those that the two shared
            for name in strangers:
                setattr(whole, name, getattr(self, name))
            if self.flatten_weights:
                whole.flatten_parameters()
        return whole(x, None if state is None else self.pack(state))

    def read_layer(self, x: Tensor, padding: Tensor, layer: int, turned: bool) -> tuple[Tensor, State]:
        """Whole sequences through one layer, B T I → B T D, by torch's kernel; `padding` is B T.

        The state is what can be told of the last one: nothing, or what padding has left as it was.
        """
        weights = self.layer_weights(layer, turned)
        first = x.new_zeros(1, x.shape[0], weights[1].shape[1])
        with one_chunk_or_not():
            y, _ = self.kernel(x, first, weights, True, 1, 0.0, self.training, False, True)
        return y, {}

    def layer_weights(self, layer: int, turned: bool) -> list[Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [getattr(self, f"{name}_l{layer}{'_reverse' if turned else ''}") for name in names]

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Whole sequences: x B T I → top layer's states B T D, and the last state."""
        if x.shape[1] == 1:  # a step of a search: plain operations, which compile into one graph
            hidden, state = self.step(self.project(x[:, 0]), state)
            return hidden[:, None], state
        y, last = self.read(x, state)
        return y, self.unpack(last)

    def project(self, x: Tensor, start: int = 0) -> Tensor:
        """What x, at column `start` of the bottom layer's input, adds to its gates; the bias comes with the first."""
        weight, bias = self.weight("ih", 0)
        return F.linear(x, weight[:, start : start + x.shape[-1]], bias if start == 0 else None)

    def weight(self, side: str, layer: int) -> tuple[Tensor, Tensor]:
        """Matrix and bias of a layer, from below (“ih”) or from its own last state (“hh”)."""
        return getattr(self, f"weight_{side}_l{layer}"), getattr(self, f"bias_{side}_l{layer}")

    def step(self, gates: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from the bottom layer's projected input, B G: the top layer's state B D, and all of them."""
        below: list[State] = []
        rows = {name: [value.squeeze(1)] if self.layers == 1 else value.unbind(1) for name, value in state.items()}
        for layer in range(self.layers):
            if layer > 0:
                x = dropout(below[-1]["hidden"], self.dropout, self.training)
                gates = F.linear(x, *self.weight("ih", layer))
            before = {name: values[layer] for name, values in rows.items()}
            below.append(self.cell(gates, F.linear(before["hidden"], *self.weight("hh", layer)), before))
        if self.layers == 1:  # nothing needs to be copied
            return below[0]["hidden"], {name: below[0][name].unsqueeze(1) for name in state}
        return below[-1]["hidden"], {name: torch.stack([one[name] for one in below], dim=1) for name in state}  # B L D

    def cell(self, gates: Tensor, recurrent: Tensor, before: State) -> State:
        """h = tanh(W x + U h)."""
        return {"hidden": torch.tanh(gates + recurrent)}

    def pack(self, state: State) -> Tensor | tuple[Tensor, Tensor]:
        return state["hidden"].transpose(0, 1).contiguous()  # L B D

    def unpack(self, last: Tensor | tuple[Tensor, Tensor]) -> State:
        assert isinstance(last, Tensor)
        return {"hidden": self._batch_first(last)}

    def _batch_first(self, last: Tensor) -> Tensor:
        """L·2 B D/2 or L B D → B L D, the two directions side by side, in the strides that a step leaves."""
        rows = last.unflatten(0, (self.layers, -1)).permute(2, 0, 1, 3).flatten(2)
        return rows.clone(memory_format=torch.contiguous_format)


@contextmanager
def one_chunk_or_not() -> Iterator[None]:
    """cuDNN wants weights side by side, and says so; copying those of one layer together costs next to nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


class RNNCells(Cells):
    kind = "rnn"
    kernel = staticmethod(torch.rnn_tanh)


class LSTMCells(Cells):
    """i, f, o = σ(…), g = tanh(…); c = f ⊙ c + i ⊙ g; h = o ⊙ tanh(c) (Hochreiter & Schmidhuber 1997)."""

    kind = "lstm"

    def read_layer(self, x: Tensor, padding: Tensor, layer: int, turned: bool) -> tuple[Tensor, State]:
        """Padding closes the gates, i = 0 and f = 1, through an input of its own, so that the cell stays as it was."""
        of_input, *others = self.layer_weights(layer, turned)
        dim = others[0].shape[1]
        closing = of_input.new_zeros(len(of_input), 8)  # one is enough, but kernels like even widths
        closing[:dim, 0], closing[dim : 2 * dim, 0] = -CLOSED, CLOSED
        flag = F.pad(padding[..., None].to(x.dtype), (0, 7))
        first = x.new_zeros(1, x.shape[0], dim)
        weights = [torch.cat((of_input, closing), 1), *others]
        inputs = torch.cat((x, flag), -1)
        with one_chunk_or_not():
            y, _, cell = torch.lstm(inputs, (first, first), weights, True, 1, 0.0, self.training, False, True)
        return y, {"cell": cell[0]}

    def init_state(self, batch: int, like: Tensor) -> State:
        return super().init_state(batch, like) | {"cell": like.new_zeros(batch, self.layers, self.dim)}

    def cell(self, gates: Tensor, recurrent: Tensor, before: State) -> State:
        if torch.is_grad_enabled() and gates.device.type == "cpu" and not torch.compiler.is_compiling():
            hidden, cell = LSTMCell.apply(gates, recurrent, before["cell"])
            return {"hidden": hidden, "cell": cell}
        enter, forget, new, leave = (gates + recurrent).chunk(4, dim=-1)
        cell = forget.sigmoid() * before["cell"] + enter.sigmoid() * new.tanh()
        return {"hidden": leave.sigmoid() * cell.tanh(), "cell": cell}

    def pack(self, state: State) -> tuple[Tensor, Tensor]:
        return state["hidden"].transpose(0, 1).contiguous(), state["cell"].transpose(0, 1).contiguous()

    def unpack(self, last: Tensor | tuple[Tensor, Tensor]) -> State:
        return {"hidden": self._batch_first(last[0]), "cell": self._batch_first(last[1])}


class LSTMCell(torch.autograd.Function):
    """The same for training on a CPU, with a derivative that is written out and does without copies."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, recurrent: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        gates = gates + recurrent
        enter, forget, new, leave = gates.chunk(4, -1)
        for gate in (enter, forget, leave):
            gate.sigmoid_()
        new.tanh_()
        cell = torch.addcmul(forget * before, enter, new)
        squashed = cell.tanh()
        ctx.save_for_backward(gates, before, squashed)
        return leave * squashed, cell

    @staticmethod
    def backward(ctx: Any, of_hidden: Tensor, of_cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, before, squashed = ctx.saved_tensors
        enter, forget, new, leave = gates.chunk(4, -1)
        of_cell = of_cell + torch.ops.aten.tanh_backward(of_hidden * leave, squashed)
        found = torch.empty_like(gates)
        into = found.chunk(4, -1)
        torch.ops.aten.sigmoid_backward.grad_input(of_cell * new, enter, grad_input=into[0])
        torch.ops.aten.sigmoid_backward.grad_input(of_cell * before, forget, grad_input=into[1])
        torch.ops.aten.tanh_backward.grad_input(of_cell * enter, new, grad_input=into[2])
        torch.ops.aten.sigmoid_backward.grad_input(of_hidden * squashed, leave, grad_input=into[3])
        return found, found, of_cell * forget


class GRUCells(Cells):
    """r, z = σ(…); n = tanh(W x + r ⊙ (U h + b)); h = (1 − z) ⊙ n + z ⊙ h (Cho et al. 2014).

    As in cuDNN the reset gate acts after the multiplication by U, where the paper's acts before it.
    """

    kind = "gru"
    kernel = staticmethod(torch.gru)

    def cell(self, gates: Tensor, recurrent: Tensor, before: State) -> State:
        reset, update, new = gates.chunk(3, dim=-1)
        reset_recurrent, update_recurrent, new_recurrent = recurrent.chunk(3, dim=-1)
        update = (update + update_recurrent).sigmoid()
        new = torch.tanh(new + (reset + reset_recurrent).sigmoid() * new_recurrent)
        return {"hidden": new + update * (before["hidden"] - new)}


CELLS: dict[str, type[Cells]] = {"rnn": RNNCells, "lstm": LSTMCells, "gru": GRUCells}
