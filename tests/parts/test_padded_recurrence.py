"""Rows read with their padding, as on a GPU, against rows read without it."""

from __future__ import annotations

import copy

import pytest
import torch

from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.recurrence import CELLS, CellKind, run_padded, run_rows

INPUTS, WIDTH = 5, 4
LENGTHS = torch.tensor([6, 1, 4, 6, 2])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_padding_changes_nothing(cell: CellKind, both_ways: bool, layers: int) -> None:
    """Outputs at real places, last states, and every gradient."""
    one = CELLS[cell](INPUTS, WIDTH, layers, 0.0, both_ways)
    other = copy.deepcopy(one)
    x = torch.randn(5, 6, INPUTS, requires_grad=True)
    layout = SequenceLayout.padded(6, LENGTHS)
    assert layout.token_mask is not None
    real = layout.token_mask[..., None]
    found, expected = run_padded(one, x, layout), run_rows(other, x, layout)
    torch.testing.assert_close(found[0] * real, expected[0] * real)
    assert found[1].keys() == expected[1].keys()
    for name, last in expected[1].items():
        assert found[1][name].shape == last.shape == (5, layers, WIDTH * (1 + both_ways))
        torch.testing.assert_close(found[1][name], last)
    gradients = []
    for cells, (y, last) in ((one, found), (other, expected)):
        wanted = torch.Generator().manual_seed(1)
        loss = (y * real * torch.randn(y.shape, generator=wanted)).sum()
        for name in sorted(last):
            loss = loss + (last[name] * torch.randn(last[name].shape, generator=wanted)).sum()
        gradients.append(torch.autograd.grad(loss, (x, *cells.parameters())))
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("cell", CELLS)
def test_padding_values_do_not_matter(cell: CellKind) -> None:
    cells = CELLS[cell](INPUTS, WIDTH, 2, 0.0, True)
    x = torch.randn(5, 6, INPUTS)
    layout = SequenceLayout.padded(6, LENGTHS)
    assert layout.token_mask is not None
    other = torch.where(layout.token_mask[..., None], x, 1e3 * torch.randn_like(x))
    (y, last), (again, last_again) = (run_padded(cells, one, layout) for one in (x, other))
    assert torch.equal(y[layout.token_mask], again[layout.token_mask])
    for name in last:
        assert torch.equal(last[name], last_again[name])


def test_large_lstm_cell_is_unchanged_by_padding() -> None:
    """Closed gates are exactly 0 and 1, whatever went before: a row's last cell does not depend on its padding."""
    cells = CELLS["lstm"](INPUTS, WIDTH, 1, 0.0)
    with torch.no_grad():
        for weight in cells.parameters():
            weight.mul_(20.0)
    x = 10 * torch.randn(3, 9, INPUTS)
    lengths = torch.tensor([9, 5, 1])
    _, padded = run_padded(cells, x, SequenceLayout.padded(9, lengths))
    for row, length in enumerate(lengths.tolist()):
        _, alone = run_padded(cells, x[row : row + 1, :length], SequenceLayout.padded(length, lengths[row : row + 1]))
        torch.testing.assert_close(padded["cell"][row], alone["cell"][0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_between_layers_only_in_training(cell: CellKind) -> None:
    cells = CELLS[cell](INPUTS, WIDTH, 2, 0.5, True)
    x = torch.randn(5, 6, INPUTS)
    for training, same in ((True, False), (False, True)):
        cells.train(training)
        one, other = (run_padded(cells, x, SequenceLayout.padded(6, LENGTHS))[0] for _ in range(2))
        assert torch.equal(one, other) is same
    single = CELLS[cell](INPUTS, WIDTH, 1, 0.5).train()
    one, other = (run_padded(single, x, SequenceLayout.padded(6, LENGTHS))[0] for _ in range(2))
    assert torch.equal(one, other)
