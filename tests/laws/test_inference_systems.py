"""A model with packed weights is the same model within rounding: for every system.

In float64 matrices are not packed, but everything else is as in float32.
"""

from __future__ import annotations

import pytest
import torch
from small import (
    ROUNDING,
    SYMBOLS,
    TOLERANCE,
    VARIANTS,
    WRITERS,
    every_system,
    exact,
    in_float32,
    laws_over,
    pairs,
    small_model,
)
from torch import Tensor, nn

from dragoman.models import Model
from dragoman.parts.inference import optimize_for_inference
from dragoman.parts.mixer import Context, SequenceLayout


def whole(model: Model, variant: str) -> Tensor:
    p = pairs(variant)
    return model(p.source, p.source_lengths, p.target, p.target_lengths)


def same_in_float32(found: Tensor, expected: Tensor) -> None:
    """Within rounding relative to the largest logit."""
    assert (found - expected).abs().amax() <= ROUNDING * expected.abs().amax()


@laws_over(VARIANTS, always=VARIANTS)
@torch.no_grad()
def test_optimized_logits_and_steps_are_the_same(variant: str) -> None:
    model = small_model(variant)
    before = whole(model, variant)
    made = optimize_for_inference(model)
    if variant in WRITERS:
        torch.testing.assert_close(first_step(made, variant), first_step(model, variant), **TOLERANCE)
    torch.testing.assert_close(whole(made, variant), before, **TOLERANCE)
    assert torch.equal(whole(model, variant), before), "the model that was given has changed"


@pytest.mark.portable
@pytest.mark.float32
@in_float32
@torch.no_grad()
def test_logits_in_float32_are_those_in_float64(variant: str) -> None:
    model = small_model(variant)
    same_in_float32(whole(optimize_for_inference(model), variant), whole(exact(model), variant))


@pytest.mark.portable
@pytest.mark.float32
@in_float32
@torch.no_grad()
def test_steps_in_float32_are_those_in_float64(variant: str) -> None:
    model = small_model(variant)
    same_in_float32(first_step(optimize_for_inference(model), variant), first_step(exact(model), variant))


def first_step(model: Model, variant: str) -> Tensor:
    p = pairs(variant)
    begin = model.start_decoding(p.source, p.source_lengths, beam=2, max_length=3, first=SYMBOLS.bos)
    return model.decode(
        begin.tokens[:, None], Context(SequenceLayout.continuation(begin.positions), begin.memory), begin.state
    )[0]


@pytest.mark.float32
@every_system
@torch.no_grad()
def test_int8_logits_point_the_same_way(variant: str) -> None:
    """Half of the positions at least: where an expert was chosen by a hair, rounding chooses another.

    A byte rounds to 1/254 of the largest value, some 1 % of a typical one; over these few layers that adds up to a few
    hundredths of the logits' length, while a cosine of 0.99 allows for an error of 14 %.
    """
    model = small_model(variant)
    a, b = (
        made.nan_to_num(neginf=0.0)
        for made in (whole(model, variant), whole(optimize_for_inference(model, "int8"), variant))
    )
    assert nn.functional.cosine_similarity(a, b, dim=-1).median() > 0.99


def test_weights_are_shared_and_keep_their_names() -> None:
    model = small_model("transformer")
    made = optimize_for_inference(model)
    assert made.state_dict().keys() == model.state_dict().keys()
    pointers = {name: weight.data_ptr() for name, weight in model.state_dict().items()}
    assert {name: weight.data_ptr() for name, weight in made.state_dict().items()} == pointers
    assert not any(type(part) is nn.Linear for part in made.modules())
    assert any(type(part) is nn.Linear for part in model.modules())
