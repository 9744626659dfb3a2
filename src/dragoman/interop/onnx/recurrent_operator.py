"""The recurrent layer of exported graphs (`dragoman::recurrent_layer`) as LSTM, GRU or RNN of ONNX."""

from __future__ import annotations

from typing import Any

from onnxscript import opset18

op: Any = opset18


def recurrent_layer(
    x: Any, hidden: Any, cell: Any, weight: Any, recurrent_weight: Any, bias: Any, kind: str
) -> tuple[Any, Any]:
    """Translate the operation: x, B T I, and states, B D → outputs B T D, and the last cell or hidden state, B D.

    I is the dimension of the inputs, D that of the states; None as an argument leaves out the lengths of sequences.
    """
    sequence = op.Transpose(x, perm=[1, 0, 2])  # T B I
    zero = op.Constant(value_ints=[0])
    matrices = [op.Unsqueeze(tensor, zero) for tensor in (weight, recurrent_weight, bias)]  # one direction
    initial = op.Unsqueeze(hidden, zero)
    size = hidden.shape[-1]
    if kind == "lstm":
        y, _, last = op.LSTM(sequence, *matrices, None, initial, op.Unsqueeze(cell, zero), hidden_size=size)
    elif kind == "rnn":
        y, last = op.RNN(sequence, *matrices, None, initial, hidden_size=size)
    else:
        after = int(kind == "gru")  # the reset gate after the matrix product, as in torch, or before it
        y, last = op.GRU(sequence, *matrices, None, initial, hidden_size=size, linear_before_reset=after)
    outputs = op.Transpose(op.Squeeze(y, op.Constant(value_ints=[1])), perm=[1, 0, 2])  # B T D
    return outputs, op.Squeeze(last, zero)
