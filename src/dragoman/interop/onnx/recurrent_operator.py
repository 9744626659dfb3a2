"""The recurrent layer of exported graphs (`dragoman::recurrent_layer`) as LSTM, GRU or RNN of ONNX."""

from __future__ import annotations

from typing import Any

from onnxscript import opset18

op: Any = opset18


def recurrent_layer(
    x: Any, hidden: Any, cell: Any, weight: Any, recurrent_weight: Any, bias: Any, kind: str
) -> tuple[Any, Any]:
    """Write a recurrent layer of one direction as operators of ONNX.

    `x` (B T I, with vectors of width I) are the inputs, `hidden` and, in an LSTM, `cell` the initial states (B D).
    `weight` is the matrix for the inputs, `recurrent_weight` that for the previous state. `kind` is lstm, rnn, gru
    (reset gate after the matrix product, as in torch) or the GRU of Cho et al. (before it). Returned are the outputs
    (B T D) and the last cell state of an LSTM or hidden state of others (B D).
    """
    sequence = op.Transpose(x, perm=[1, 0, 2])  # T B I
    # states, weights and biases of ONNX have a first axis for directions, here of size 1
    first_axis = op.Constant(value_ints=[0])
    matrices = [op.Unsqueeze(tensor, first_axis) for tensor in (weight, recurrent_weight, bias)]
    initial = op.Unsqueeze(hidden, first_axis)
    size = hidden.shape[-1]
    # argument None: there are no lengths of sequences, all have length T. Outputs: y of all steps, last hidden state
    # and, of an LSTM, last cell state
    if kind == "lstm":
        y, _, last = op.LSTM(sequence, *matrices, None, initial, op.Unsqueeze(cell, first_axis), hidden_size=size)
    elif kind == "rnn":
        y, last = op.RNN(sequence, *matrices, None, initial, hidden_size=size)
    else:
        y, last = op.GRU(sequence, *matrices, None, initial, hidden_size=size, linear_before_reset=int(kind == "gru"))
    outputs = op.Transpose(op.Squeeze(y, op.Constant(value_ints=[1])), perm=[1, 0, 2])  # T 1 B D → B T D
    return outputs, op.Squeeze(last, first_axis)
