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
    """Read sequences with one layer in one direction: x, B T I → outputs B T D, and the last state, B D.

    The last state is the cell of an LSTM, and the hidden state of other kinds, which ignore `cell`.
    """
    raise NotImplementedError("this operation exists in exported graphs only")


@recurrent_layer.register_fake
def _shapes(
    x: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, recurrent_weight: Tensor, bias: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Return empty tensors with the shapes of the results."""
    return x.new_empty(*x.shape[:2], hidden.shape[-1]), torch.empty_like(hidden)


def traced_layer(
    kind: str, x: Tensor, hidden: Tensor, cell: Tensor | None, weights: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return `recurrent_layer` with torch's weights: matrices for input and state, then their biases.

    `kind` is a key of ONNX_GATES. x is B T I, `hidden` B D, and `cell` B D or None.
    """
    if len(weights) > 4:  # the fifth is the matrix of a projection
        raise UserError("an LSTM with a projection (cell_dim) cannot be exported to ONNX: leave out cell_dim")

    def reorder(weight: Tensor) -> Tensor:
        """Return a stack of one matrix or bias per gate in the order of ONNX."""
        gates = weight.chunk(len(ONNX_GATES[kind]))
        return torch.cat([gates[gate] for gate in ONNX_GATES[kind]])

    weight, recurrent_weight, *biases = map(reorder, weights)
    state = hidden if cell is None else cell
    return recurrent_layer(x, hidden, state, weight, recurrent_weight, torch.cat(biases), kind)
