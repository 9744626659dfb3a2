"""Positions by formula, and how far gradients reach."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dragoman.errors import UserError
from dragoman.lens.figures import positions_figure
from dragoman.lens.position_encodings import PositionEncoding, position_encodings
from dragoman.lens.text_view import position_lines
from dragoman.models import Model
from dragoman.parts.positions import ALiBi, Concatenated, Learned, NoPosition, RelativeBias, Rotary, Shaw, Sinusoidal
from dragoman.parts.spec import Spec


def shown(spec: Spec, dim: int, count: int = 5) -> list[PositionEncoding]:
    model = nn.Module()
    model.position = spec.build(dim)  # type: ignore[attr-defined]
    return position_encodings(model, count)  # type: ignore[arg-type]


def test_sinusoidal_encodings_follow_the_formula() -> None:
    """n = 5, d = 4: sin and cos of pos and of pos/100, whose products are cos(i − j) + cos((i − j)/100)."""
    (one,) = shown(Sinusoidal(), 4)
    assert one.encoding is not None
    assert one.encoding[3].tolist() == pytest.approx(
        [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)], abs=1e-6
    )
    for i in range(5):
        for j in range(5):
            expected = (math.cos(i - j) + math.cos((i - j) / 100)) / 2
            assert float(one.similarity[i, j]) == pytest.approx(expected, abs=1e-5)  # type: ignore[index]


def test_rotary_similarity_is_a_mean_of_cosines() -> None:
    (one,) = shown(Rotary(), 4)
    assert one.mechanism == "rotary"
    for d in range(5):
        expected = (math.cos(d) + math.cos(d / 100)) / 2
        assert float(one.similarity[0, d]) == pytest.approx(expected, abs=1e-5)  # type: ignore[index]


def test_learned_encodings_are_the_embedding_table() -> None:
    torch.manual_seed(0)
    model = nn.Module()
    model.position = Learned(4).build(6)  # type: ignore[attr-defined]
    (one,) = position_encodings(model, 9)  # type: ignore[arg-type]
    assert one.labels == (0, 1, 2, 3)
    assert torch.equal(one.encoding, model.position.table.weight.detach())  # type: ignore[arg-type]


def test_concatenated_encodings_are_shown_as_such() -> None:
    (one,) = shown(Concatenated(Sinusoidal(), 4), 10)
    assert (one.name, one.mechanism, one.paths) == ("Sinusoidal", "concatenated", ("position.position",))
    assert one.encoding is not None
    assert one.encoding[2].tolist() == pytest.approx(
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)], abs=1e-6
    )
    assert "concatenated to the embeddings" in position_lines([one])[0]


def test_alibi_bias_follows_its_slopes() -> None:
    (one,) = shown(ALiBi(2), 8)
    assert one.bias is not None
    assert one.bias[0, 4].tolist() == pytest.approx([-4 / 16, -3 / 16, -2 / 16, -1 / 16, 0])
    assert one.bias[1, 0].tolist() == pytest.approx([0, -1 / 256, -2 / 256, -3 / 256, -4 / 256])


def test_learned_bias_and_relative_keys() -> None:
    (bias,) = shown(RelativeBias(3), 8)
    assert bias.bias is not None
    assert bias.bias.shape == (3, 5, 5)
    assert float((bias.bias[:, 0, 1] - bias.bias[:, 1, 2]).abs().max()) == 0, "only the distance counts"
    (vectors,) = shown(Shaw(2), 8)
    assert vectors.labels == (-2, -1, 0, 1, 2)


def test_equal_encodings_are_merged() -> None:
    model = nn.ModuleList([Rotary().build(4), Rotary().build(4), Rotary(100.0).build(4), NoPosition().build(4)])
    found = position_encodings(model, 5)  # type: ignore[arg-type]
    assert [one.paths for one in found] == [("0", "1"), ("2",)]


def test_model_without_position_encodings() -> None:
    assert "recurrence" in position_lines(shown(NoPosition(), 4))[0]
    with pytest.raises(UserError, match="at least 2"):
        position_encodings(Model(), 1)


@pytest.mark.parametrize("spec", [Sinusoidal(), Learned(200), Rotary(), ALiBi(4), RelativeBias(2), Shaw(3)])
def test_figure_and_text_of_every_encoding(spec: Spec) -> None:
    found = shown(spec, 8, 120)
    assert positions_figure(found[0]).startswith("<svg")
    assert position_lines(found)
