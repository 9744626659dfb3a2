"""Recurrent parts that go on from a state: rows of different lengths, and parts that cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel
from dragoman.parts.fast_forward import FastForwardEncoder
from dragoman.parts.mixer import Context, Memory, SequenceLayout, State
from dragoman.parts.recurrence import CELLS, Recurrent
from dragoman.systems import SYSTEMS, VocabularySizes

WIDTH = 8
SYSTEMS_AND_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("sutskever", {"layers": 2}),
    ("cho", {}),
    ("bahdanau", {}),
    ("luong", {"layers": 2}),
    ("luong", {"layers": 2, "input_feeding": False}),
    ("gnmt", {"layers": 4}),
    ("deep-att", {"layers": 2, "decoder_layers": 3}),
]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def leaves(state: State) -> list[Tensor]:
    return [leaf for value in state.values() for leaf in (leaves(value) if isinstance(value, dict) else [value])]


@torch.no_grad()
@pytest.mark.parametrize(("name", "settings"), SYSTEMS_AND_SETTINGS)
def test_prefill_of_rows_with_different_lengths(name: str, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = SYSTEMS[name].spec(VocabularySizes(12, 12), "tiny", model_dim=WIDTH, **settings).build().eval()
    assert isinstance(model, EncoderDecoderModel)
    source, source_lengths = torch.randint(4, 12, (3, 5)), torch.tensor([5, 3, 4])
    target, lengths = torch.randint(4, 12, (3, 4)), torch.tensor([2, 4, 1])
    begin = model.start_decoding(source, source_lengths, beam=1, max_length=9, first=2)
    form = [(leaf.shape, leaf.dtype, leaf.stride()) for leaf in leaves(begin.state)]
    logits, state = model.decode(target, Context(SequenceLayout.padded(4, lengths), begin.memory), begin.state)
    assert state is not None
    assert [(leaf.shape, leaf.dtype, leaf.stride()) for leaf in leaves(state)] == form
    further = torch.randint(4, 12, (3, 1))
    after, _ = model.decode(further, Context(SequenceLayout.continuation(lengths), begin.memory), state)
    whole = torch.cat((target, torch.zeros_like(further)), 1).scatter(1, lengths[:, None], further)
    expected = model(source, source_lengths, whole, lengths + 1)
    for row, length in enumerate(lengths.tolist()):
        close(logits[row, :length], expected[row, :length])
        close(after[row, 0], expected[row, length])


@torch.no_grad()
@pytest.mark.parametrize("cell", CELLS)
def test_empty_row_keeps_its_state(cell: Any) -> None:
    part = Recurrent(cell, 2).build(WIDTH)
    x = torch.randn(3, 4, WIDTH)
    state = {name: torch.randn_like(value) for name, value in part.init_state(3, 9, x).items()}
    after = part(x, Context(SequenceLayout.padded(4, torch.tensor([4, 0, 2]))), state).state
    for name, value in state.items():
        assert torch.equal(after[name][1], value[1])
        assert not torch.equal(after[name][0], value[0])


@pytest.mark.parametrize("direction", ["backward", "both"])
def test_backward_layers_cannot_decode(direction: Any) -> None:
    part = Recurrent("lstm", direction=direction).build(WIDTH)
    x = torch.zeros(1, 1, WIDTH)
    with pytest.raises(UserError, match=rf"must read forward, but this one has direction '{direction}'"):
        part(x, Context(SequenceLayout.continuation(torch.tensor([0]))), part.init_state(1, 1, x))


def test_fast_forward_encoder_cannot_decode() -> None:
    part = FastForwardEncoder(2).build(WIDTH)
    x = torch.zeros(1, 1, WIDTH)
    with pytest.raises(UserError, match="cannot generate token by token"):
        part(x, Context(SequenceLayout.continuation(torch.tensor([0]))), part.init_state(1, 1, x))


@torch.no_grad()
def test_attention_context_is_concatenated_to_the_input() -> None:
    """h_t = g([x_t; c_t], h_{t−1}): torch's LSTM over both side by side."""
    part = Recurrent("lstm", attention_context=True).build(WIDTH)
    torchs = torch.nn.LSTM(2 * WIDTH, WIDTH, batch_first=True)
    torchs.load_state_dict(part.cells.state_dict())
    x, context = torch.randn(2, 3, WIDTH), torch.randn(2, 3, WIDTH)
    layout = SequenceLayout.padded(3, torch.tensor([3, 2]))
    expected = torchs(torch.cat((x, context), -1))[0]
    for memory in (None, Memory(x, layout)):  # in an encoder and in a decoder
        y = part(x, Context(layout, memory, source_context=context)).output
        close(y[0], expected[0])
        close(y[1, :2], expected[1, :2])


def test_attention_context_needs_an_attention_layer() -> None:
    part = Recurrent("lstm", attention_context=True).build(WIDTH)
    with pytest.raises(UserError, match="needs a layer below it that attends"):
        part(torch.zeros(1, 2, WIDTH), Context(SequenceLayout.padded(2, torch.tensor([2]))))


def test_dropout_of_the_input_is_for_training_alone() -> None:
    part = Recurrent("gru", input_dropout=0.5).build(WIDTH)
    x, context = torch.randn(1, 4, WIDTH), Context(SequenceLayout.padded(4, torch.tensor([4])))
    part.eval()
    assert torch.equal(part(x, context)[0], part(x, context)[0])
    part.train()
    assert not torch.equal(part(x, context)[0], part(x, context)[0])
