"""Searches with packed weights: a hypothesis scores what the model itself gives it, for every system that generates.

In float64 matrices are not packed, but everything else is as in float32.
"""

from __future__ import annotations

import pytest
import torch
from small import ROUNDING, SYMBOLS, every_writer, exact, in_float32, pairs, small_model

from dragoman.parts import inference as packing
from dragoman.parts.attention import CrossAttentionMixer
from dragoman.parts.inference import optimize_for_inference
from dragoman.parts.positions import Sinusoidal
from dragoman.search import Beam, LengthLimit, Sample, TokenSearch, build_engine
from dragoman.search.forced_decoding import token_scores

SHORT, LONG = (
    LengthLimit(ratio=0, offset=9),
    LengthLimit(ratio=0, offset=20, min=18),
)  # longer than there is room for at first
SEARCHES: dict[str, TokenSearch] = {
    "greedy": Beam(1, length_limit=LONG),
    "a beam": Beam(3, n_best=3, length_limit=LONG),
    "a beam that looks": Beam(2, n_best=2, coverage_penalty=0.2, length_limit=SHORT),
    "samples": Sample(n_best=3, seed=5, length_limit=SHORT),
}


@every_writer
@pytest.mark.parametrize("name", SEARCHES)
def test_scores_are_those_of_the_model_that_was_packed(variant: str, name: str) -> None:
    check_scores(variant, name)


@pytest.mark.portable
@pytest.mark.float32
@in_float32
@pytest.mark.parametrize("name", SEARCHES)
def test_scores_in_float32_are_those_of_the_model_in_float64(variant: str, name: str) -> None:
    check_scores(variant, name, relative=ROUNDING)


def check_scores(variant: str, name: str, relative: float = 1e-9) -> None:
    model, settings, p = small_model(variant), SEARCHES[name], pairs(variant)
    if settings.length_limit is LONG and model.max_target_length(torch.tensor([9])) is not None:
        pytest.skip("there is no room for so long a target")
    attends = any(isinstance(part, CrossAttentionMixer) for part in model.modules())
    if isinstance(settings, Beam) and settings.coverage_penalty and not attends:
        pytest.skip("not about how it looks at a source")
    limits = settings.length_limit.max_lengths(p.source_lengths, [model])
    searching = build_engine([optimize_for_inference(model)], SYMBOLS, settings)
    found = searching.search(p.source, p.source_lengths, limits, torch.arange(len(p.source)))
    model = exact(model)
    for row, hypotheses in enumerate(found):
        source, length = p.source[row : row + 1, : p.source_lengths[row]], p.source_lengths[row : row + 1]
        for one in hypotheses:
            framed = torch.tensor([[SYMBOLS.bos, *one.tokens, *([SYMBOLS.eos] if one.finished else [])]])
            expected = token_scores(model, source, length, framed, torch.tensor([framed.shape[1]])).sum()
            assert one.score == pytest.approx(float(expected), rel=relative)


@pytest.mark.parametrize("halves", [False, True])
def test_positions_beyond_the_sinusoidal_table(halves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CPU_TABLE_LENGTH", 4)
    position = Sinusoidal(sines_first=halves).build(6)
    made = optimize_for_inference(torch.nn.ModuleDict({"position": position}))["position"]
    for width in (3, 4, 5, 9):
        layout = packing.SequenceLayout.padded(width, torch.tensor([width]))
        x = torch.zeros(1, width, 6)
        torch.testing.assert_close(made.embed(x, layout), position.embed(x, layout))
