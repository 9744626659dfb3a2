"""The running mean of the weights against its closed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dragoman.training.ema import WeightAverage


class Scalar(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value, dtype=torch.float64))


def follow(average: WeightAverage, weight: nn.Parameter, values: list[float]) -> None:
    for step, value in enumerate(values, 1):
        average.set_step(step)
        weight.data.fill_(value)
        average.update()


def test_average_of_a_scalar_follows_the_formula() -> None:
    model = Scalar(4.0)
    average = WeightAverage(model, 0.5)
    follow(average, model.weight, [2.0, 6.0, 1.0])
    first = 2 / 11 * 4 + 9 / 11 * 2  # (1 + 1) / (10 + 1) of the mean before
    second = 3 / 12 * first + 9 / 12 * 6
    third = 4 / 13 * second + 9 / 13 * 1
    assert float(average.averages["weight"]) == pytest.approx(third, rel=1e-6)


def test_decay_reaches_its_final_value() -> None:
    """From w̄ = 0, with w = 1 ever after: w̄ = 1 − kⁿ."""
    model = Scalar(0.0)
    average = WeightAverage(model, 0.9)
    model.weight.data.fill_(1.0)
    for step in range(1000, 1010):  # (1 + 1000) / (10 + 1000) > 0.9
        average.set_step(step)
        average.update()
    assert float(average.averages["weight"]) == pytest.approx(1 - 0.9**10, rel=1e-6)


def network() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3, bias=False))
    model[2].weight = nn.Parameter(model[0].weight.T.contiguous())
    return model


def randomise(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight))


def test_swap_restores_weights_exactly() -> None:
    model = network()
    average = WeightAverage(model, 0.9)
    randomise(model)
    average.set_step(1)
    average.update()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    places = [weight.data_ptr() for weight in model.parameters()]
    averages = {name: value.clone() for name, value in average.averages.items()}

    def look_and_stumble() -> None:
        with average.swap():
            inside = model.state_dict()
            assert all(torch.equal(inside[name], value) for name, value in averages.items())
            assert torch.equal(inside["1.running_mean"], before["1.running_mean"])
            assert all(torch.equal(average.averages[name], value) for name, value in averages.items())
            raise RuntimeError("as a validation might")

    with pytest.raises(RuntimeError):
        look_and_stumble()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert places == [weight.data_ptr() for weight in model.parameters()]
    assert all(weight.requires_grad for weight in model.parameters())


def test_saved_and_loaded_state_continues_bit_equal() -> None:
    model, other = network(), network()
    average = WeightAverage(model, 0.99)
    for step in (1, 2):
        randomise(model)
        average.set_step(step)
        average.update()
    again = WeightAverage(other, 0.99)
    again.load_state_tensors({name: value.clone() for name, value in average.averages.items()})
    other.load_state_dict(model.state_dict())
    for one in (average, again):
        one.set_step(3)
        one.update()
    assert all(torch.equal(value, again.averages[name]) for name, value in average.averages.items())


def test_update_compiles_into_one_graph() -> None:
    model = network()
    eager, compiled = WeightAverage(model, 0.9), WeightAverage(model, 0.9)
    update = torch.compile(compiled.update, fullgraph=True, backend="aot_eager")
    for step in (1, 2):
        randomise(model)
        eager.set_step(step)
        compiled.set_step(step)
        eager.update()
        update()
    for name, value in eager.averages.items():
        torch.testing.assert_close(compiled.averages[name], value)
