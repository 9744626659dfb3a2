"""Recurrent parts against torch.nn.RNN, LSTM and GRU with the same weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.mixer import Context, SequenceLayout, State
from dragoman.parts.recurrence import CELLS, CellKind, Recurrent, RecurrentMixer, flip

WIDTH, LAYERS = 6, 3
LENGTHS = torch.tensor([5, 2, 1, 4])
TORCHS: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
TORCHS_CELLS: dict[str, Any] = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}
every_cell = pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])


def close(a: Tensor | None, b: Tensor | None) -> None:
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def pair(cell: CellKind, direction: Any) -> tuple[RecurrentMixer, nn.RNNBase]:
    """Ours and torch's, with the same weights."""
    ours = Recurrent(cell, LAYERS, direction).build(WIDTH)
    both = direction == "both"
    torchs = TORCHS[cell](WIDTH, WIDTH // 2 if both else WIDTH, LAYERS, batch_first=True, bidirectional=both)
    torchs.load_state_dict(ours.cells.state_dict())
    return ours, torchs


def hidden_of(last: Any) -> Tensor:
    return last[0] if isinstance(last, tuple) else last


@every_cell
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_a_padded_batch_equals_torch_on_each_row_alone(cell: CellKind, direction: str) -> None:
    ours, torchs = pair(cell, direction)
    x = torch.randn(4, 5, WIDTH)
    context = Context(SequenceLayout.padded(5, LENGTHS))
    y, _, _, final_state, *_ = ours(x, context)
    assert final_state is not None
    for row, length in enumerate(LENGTHS.tolist()):
        alone = x[row : row + 1, :length]
        if direction == "backward":
            states, last = torchs(alone.flip(1))
            states = states.flip(1)
        else:
            states, last = torchs(alone)
        close(y[row, :length], states[0])
        finals = {"hidden": last[0], "cell": last[1]} if cell == "lstm" else {"hidden": last}
        assert final_state.keys() == finals.keys()
        for name, final in finals.items():
            for layer in range(LAYERS):
                if direction == "both":  # torch: forward and backward of each layer one after the other
                    expected = torch.cat((final[2 * layer, 0], final[2 * layer + 1, 0]))
                else:
                    expected = final[layer, 0]
                close(final_state[name][row, layer], expected)


@every_cell
@pytest.mark.parametrize("direction", ["forward", "both"])
def test_outputs_and_gradients_equal_torch(cell: CellKind, direction: str) -> None:
    ours, torchs = pair(cell, direction)
    x = torch.randn(2, 4, WIDTH)
    y = ours(x, Context(SequenceLayout.padded(4, torch.tensor([4, 4])))).output
    unpadded = ours(x, Context(SequenceLayout(torch.arange(4).expand(2, 4)))).output
    expected, _ = torchs(x)
    close(y, expected)
    close(unpadded, expected)
    answer = torch.randn_like(y)
    (y * answer).sum().backward()
    (expected * answer).sum().backward()
    gradients = dict(torchs.named_parameters())
    for name, weight in ours.cells.named_parameters():
        close(weight.grad, gradients[name].grad)


@every_cell
def test_step_equals_stacked_torch_cells(cell: CellKind) -> None:
    ours = CELLS[cell](WIDTH + 1, WIDTH, LAYERS, dropout=0.0)
    cells = []
    for layer in range(LAYERS):
        torchs = TORCHS_CELLS[cell](WIDTH + 1 if layer == 0 else WIDTH, WIDTH)
        weights = ours.state_dict()
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        torchs.load_state_dict({name: weights[f"{name}_l{layer}"] for name in names})
        cells.append(torchs)
    state = {name: torch.randn(2, LAYERS, WIDTH) for name in ours.init_state(2, torch.zeros(1))}
    for x in torch.randn(3, 2, WIDTH + 1):
        below = x
        expected: State = {name: [] for name in state}
        for layer, torchs in enumerate(cells):
            before = tuple(state[name][:, layer] for name in ("hidden", "cell") if name in state)
            after = torchs(below, before if cell == "lstm" else before[0])
            below = hidden_of(after)
            for name, value in zip(("hidden", "cell"), after if cell == "lstm" else (after,)):
                expected[name].append(value)
        top, state = ours.step(ours.project(x), state)
        close(top, below)
        for name, values in expected.items():
            close(state[name], torch.stack(values, 1))


@every_cell
def test_the_bottom_layers_input_may_be_projected_in_pieces(cell: CellKind) -> None:
    """W [x; c] + b = (W_x x + b) + W_c c."""
    ours = CELLS[cell](2 * WIDTH, WIDTH, 1, dropout=0.0)
    x, c = torch.randn(2, WIDTH), torch.randn(2, WIDTH)
    close(ours.project(x) + c @ ours.weight("ih", 0)[0][:, WIDTH:].T, ours.project(torch.cat((x, c), -1)))


@every_cell
@pytest.mark.parametrize("chunks", [[1, 1, 1, 1], [2, 1, 1], [3, 1], [4]])
def test_reading_in_chunks_equals_torch_on_the_whole(cell: CellKind, chunks: list[int]) -> None:
    ours, torchs = pair(cell, "forward")
    x = torch.randn(2, 4, WIDTH)
    expected, last = torchs(x)
    state: State | None = ours.init_state(2, 4, x)
    read = []
    for chunk in x.split(chunks, dim=1):
        y, state, *_ = ours(chunk, Context(SequenceLayout(torch.zeros(0))), state)
        read.append(y)
    assert state is not None
    close(torch.cat(read, 1), expected)
    close(state["hidden"].transpose(0, 1), hidden_of(last))


def test_flip_reverses_each_row_within_its_length() -> None:
    x = torch.arange(10.0).view(2, 5, 1)
    assert flip(x, SequenceLayout.padded(5, torch.tensor([5, 3])))[..., 0].tolist() == [
        [4, 3, 2, 1, 0],
        [7, 6, 5, 8, 9],
    ]
    assert flip(x, SequenceLayout(torch.arange(5).expand(2, 5)))[..., 0].tolist() == [[4, 3, 2, 1, 0], [9, 8, 7, 6, 5]]


@every_cell
def test_dropout_between_layers_only_in_training(cell: CellKind) -> None:
    part = Recurrent(cell, 2, dropout=0.5).build(WIDTH)
    x, context = torch.randn(1, 4, WIDTH), Context(SequenceLayout.padded(4, torch.tensor([4])))
    part.eval()
    assert torch.equal(part(x, context)[0], part(x, context)[0])
    part.train()
    assert not torch.equal(part(x, context)[0], part(x, context)[0])
    one_layer = Recurrent(cell, 1, dropout=0.5).build(WIDTH).train()
    assert torch.equal(one_layer(x, context)[0], one_layer(x, context)[0])


def _load(part: RecurrentMixer, other: RecurrentMixer) -> RecurrentMixer:
    part.load_state_dict(other.state_dict())
    return part


def _load_in_place_of(part: RecurrentMixer, other: RecurrentMixer) -> RecurrentMixer:
    part.load_state_dict({name: weight.clone() for name, weight in other.state_dict().items()}, assign=True)
    return part


def _load_onto_nothing(part: RecurrentMixer, other: RecurrentMixer) -> RecurrentMixer:
    with torch.device("meta"):
        empty = Recurrent("lstm", LAYERS).build(WIDTH)
    return _load(empty.to_empty(device="cpu"), other)


def _copy(part: RecurrentMixer, other: RecurrentMixer) -> RecurrentMixer:
    copied = copy.deepcopy(other)
    with torch.no_grad():
        for weight in other.parameters():  # what happens to the original is nothing to the copy
            weight.zero_()
    return copied


@pytest.mark.parametrize("way", [_load, _load_in_place_of, _load_onto_nothing, _copy])
def test_loaded_weights_are_used_for_whole_sequences(way: Any) -> None:
    other, torchs = pair("lstm", "forward")
    ours = way(Recurrent("lstm", LAYERS).build(WIDTH), other)
    x = torch.randn(2, 4, WIDTH)
    close(ours(x, Context(SequenceLayout.padded(4, torch.tensor([4, 4]))))[0], torchs(x)[0])


def test_two_directions_need_an_even_width() -> None:
    with pytest.raises(UserError, match="a bidirectional recurrent layer needs an even width, but model_dim is 7"):
        Recurrent("gru", direction="both").build(7)


# ---- the reset gate before the matrix product

RESET_BEFORE: CellKind = "gru-reset-before"


def test_reset_gate_before_the_product_by_hand() -> None:
    """Cho et al. (2014), eq. 5–8, in NumPy: h̃ = tanh(W x + U (r ⊙ h)), h = z h + (1 − z) h̃."""
    part = Recurrent(RESET_BEFORE).build(WIDTH)
    for weight in part.parameters():  # biases too
        nn.init.normal_(weight)
    x = torch.randn(2, 4, WIDTH)
    y = part(x, Context(SequenceLayout.padded(4, torch.tensor([4, 4])))).output
    weights = (weight.detach().double().numpy() for weight in part.cells.layer_weights(0, backward=False))
    (W_r, W_z, W), (U_r, U_z, U), (b_r, b_z, b), (c_r, c_z, c) = (np.split(weight, 3) for weight in weights)
    for row in range(2):
        h = np.zeros(WIDTH)
        for t in range(4):
            x_t = x[row, t].double().numpy()
            r = 1 / (1 + np.exp(-(W_r @ x_t + b_r + U_r @ h + c_r)))
            z = 1 / (1 + np.exp(-(W_z @ x_t + b_z + U_z @ h + c_z)))
            h = z * h + (1 - z) * np.tanh(W @ x_t + b + U @ (r * h) + c)
            np.testing.assert_allclose(y[row, t].detach().numpy(), h, atol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_both_grus_agree_if_the_matrix_is_diagonal(direction: Any) -> None:
    """U (r ⊙ h) = r ⊙ (U h) for a diagonal U without a bias; outputs, final states and gradients equal torch's."""
    before, after = (Recurrent(cell, LAYERS, direction).build(WIDTH) for cell in (RESET_BEFORE, "gru"))
    width = before.cells.dim
    with torch.no_grad():
        for name, weight in before.cells.named_parameters():
            nn.init.normal_(weight, std=0.5)
            if name.startswith("weight_hh"):
                weight[2 * width :] *= torch.eye(width)
            elif name.startswith("bias_hh"):
                weight[2 * width :] = 0
    after.load_state_dict(before.state_dict())
    x, context = torch.randn(4, 5, WIDTH, requires_grad=True), Context(SequenceLayout.padded(5, LENGTHS))
    real, answer = torch.arange(5) < LENGTHS[:, None], torch.randn(4, 5, WIDTH)
    found, expected = before(x, context), after(x, context)
    close(found.output[real], expected.output[real])
    assert found.final_state is not None
    assert expected.final_state is not None
    close(found.final_state["hidden"], expected.final_state["hidden"])
    names = [name for name, _ in before.cells.named_parameters() if "_hh" not in name]  # U's gradient is not diagonal
    gradients = [
        torch.autograd.grad((y * answer)[real].sum(), [x, *(part.cells.get_parameter(name) for name in names)])
        for y, part in ((found.output, before), (expected.output, after))
    ]
    for ours, torchs in zip(*gradients):
        close(ours, torchs)


@pytest.mark.parametrize("chunks", [[1, 1, 1, 1], [2, 1, 1], [3, 1]])
def test_reset_gate_before_the_product_in_chunks(chunks: list[int]) -> None:
    part, x = Recurrent(RESET_BEFORE, LAYERS).build(WIDTH), torch.randn(2, 4, WIDTH)
    expected, _, _, final, *_ = part(x, Context(SequenceLayout.padded(4, torch.tensor([4, 4]))))
    state: State | None = part.init_state(2, 4, x)
    read = []
    for chunk in x.split(chunks, dim=1):
        y, state, *_ = part(chunk, Context(SequenceLayout(torch.zeros(0))), state)
        read.append(y)
    assert state is not None
    assert final is not None
    close(torch.cat(read, 1), expected)
    close(state["hidden"], final["hidden"])


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # said by torch's module
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@torch.no_grad()
def test_projected_lstm_equals_torchs_on_each_row_alone(direction: Any) -> None:
    """Six outputs of ten cells, in both directions three of five each: outputs and final states, h and the wider c."""
    ours = Recurrent("lstm", 2, direction, cell_dim=10).build(WIDTH)
    ways = 2 if direction == "both" else 1
    torchs = nn.LSTM(WIDTH, 10 // ways, 2, batch_first=True, bidirectional=ways == 2, proj_size=WIDTH // ways)
    torchs.load_state_dict(ours.cells.state_dict())
    x = torch.randn(4, 5, WIDTH)
    result = ours(x, Context(SequenceLayout.padded(5, LENGTHS)))
    assert result.final_state is not None
    for row, length in enumerate(LENGTHS.tolist()):
        alone = x[row : row + 1, :length]
        states, last = torchs(alone.flip(1) if direction == "backward" else alone)
        close(result.output[row, :length], states[0].flip(0) if direction == "backward" else states[0])
        for name, final in zip(("hidden", "cell"), last):
            close(result.final_state[name][row], final[:, 0].unflatten(0, (2, ways)).flatten(1))
    if direction == "forward":
        state = ours.init_state(4, 9, x)
        for t in range(5):
            y, state, *_ = ours(x[:, t : t + 1], Context(SequenceLayout.continuation(torch.full((4,), t))), state)
            close(y[:, 0], ours(x, Context(SequenceLayout.padded(5, torch.full((4,), 5)))).output[:, t])


@pytest.mark.parametrize(("cell", "cell_dim"), [("gru", 10), ("lstm", WIDTH)])
def test_only_a_wider_lstm_is_projected(cell: Any, cell_dim: int) -> None:
    with pytest.raises(UserError, match=r"raise cell_dim or leave it out, and set the cell to 'lstm'"):
        Recurrent(cell, cell_dim=cell_dim).build(WIDTH)
