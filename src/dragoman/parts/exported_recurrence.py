"""A recurrent layer as one operation of an exported graph.

torch traces its own recurrent kernels step by step, with a fixed number of steps. While a model is exported, this
operation takes their place. It has the order of gates of ONNX and no kernel: the exporter translates it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.errors import UserError

#: gates of torch's matrices in the order of ONNX: iofc (LSTM) and zrh (GRU), of torch's ifgo and rzn
ONNX_GATES = {"rnn": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "gru-reset-before": (1, 0, 2)}


@torch.library.custom_op("dragoman::recurrent_layer", mutates_args=())
def recurrent_layer(
    x: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, recurrent_weight: Tensor, bias: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Read sequences with one recurrent layer in one direction: x, B T I → outputs B T D, and the last state, B D.

    I is the width of the input. `kind` is that of the cells, such as "lstm"; `hidden` and `cell` (B D) are their state
    before the first step. The weights are those of ONNX: W (gates·D I), R (gates·D D), and both biases one after the
    other (2·gates·D). The last state is the cell of an LSTM, and the hidden state of other kinds, which ignore `cell`.
    Has no implementation.
    """
    raise NotImplementedError("this operation exists in exported graphs only")


@recurrent_layer.register_fake
def _shapes(
    x: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, recurrent_weight: Tensor, bias: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Return empty tensors with the shapes of the results of `recurrent_layer`, outputs and last state, for tracing."""
    return x.new_empty(*x.shape[:2], hidden.shape[-1]), torch.empty_like(hidden)


def traced_layer(
    kind: str, x: Tensor, hidden: Tensor, cell: Tensor | None, weights: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Call the operation `recurrent_layer` with weights of torch: matrices for input and state, then their biases.

    The gates, which torch stacks in each weight, are put in the order of ONNX. `kind` is that of the cells, such as
    "lstm"; x is B T I (I is the width of the input), the state before the first step `hidden`, B D, and `cell`, B D, or
    None for cells other than LSTMs. Returns outputs, B T D, and the last state, B D: the cell of an LSTM, the hidden
    state of others. An LSTM whose output is projected raises a UserError.
    """
    if len(weights) > 4:  # the fifth is the matrix of a projection
        raise UserError(
            "this LSTM has more cells than outputs (system.settings.cell_dim), which ONNX cannot express: train a "
            "model without cell_dim to export it"
        )

    def reorder(weight: Tensor) -> Tensor:
        """Put the gates' matrices or biases, stacked in `weight` in torch's order, in the order of ONNX."""
        gates = weight.chunk(len(ONNX_GATES[kind]))
        return torch.cat([gates[number] for number in ONNX_GATES[kind]])

    weight, recurrent_weight, *biases = map(reorder, weights)
    cell = hidden if cell is None else cell  # the operation needs a tensor, also for cells that ignore it
    return recurrent_layer(x, hidden, cell, weight, recurrent_weight, torch.cat(biases), kind)
