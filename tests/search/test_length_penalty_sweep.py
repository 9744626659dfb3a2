"""One beam search for several length penalties finds what a search for each of them finds."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from table_model import TableModel
from test_beam import PIE

from dragoman.errors import UserError
from dragoman.search import Beam, LengthLimit, SpecialTokens
from dragoman.search.length_penalty_sweep import LengthPenaltySweep
from dragoman.systems import SYSTEMS, VocabularySizes
from search.plain_search import search

PENALTIES = (0.0, 0.5, 1.0, 1.5, 2.0, -1.0)


def test_each_penalty_has_its_winner_by_hand() -> None:
    """3.8/(10/6)^α = 4.4/(12/6)^α where α = ln(4.4/3.8) / ln(12/10): the shorter pie wins below, the longer above."""
    crossing = math.log(4.4 / 3.8) / math.log(12 / 10)
    beam, model = Beam(2, length_normalization="gnmt"), TableModel(PIE)
    sweep = LengthPenaltySweep.of(beam, (crossing + 0.01, crossing - 0.01))
    one, limit = torch.ones(1, dtype=torch.long), torch.tensor([10])
    found = search(cast(Any, model), one[None], one, model.symbols, sweep, one, limit)[0]
    assert [model.sentence(hypothesis.tokens) for hypothesis in found] == ["he hit me with a pie", "he hit a pie"]
    assert found[0].normalized_score == pytest.approx(-4.4 / 2 ** (crossing + 0.01), abs=1e-5)


@pytest.mark.parametrize(
    "beam",
    [
        Beam(3, length_limit=LengthLimit(ratio=2, offset=6)),
        Beam(2, early_stopping="steps", coverage_penalty=0.3, length_limit=LengthLimit(ratio=0, offset=9)),
        Beam(5, length_normalization="gnmt", length_limit=LengthLimit(ratio=0, offset=1)),  # most are truncated
    ],
)
def test_one_search_equals_a_search_for_each_penalty(beam: Beam) -> None:
    torch.manual_seed(2)
    spec = SYSTEMS["bahdanau"].spec(VocabularySizes(source=9, target=9, joint=True), "tiny", model_dim=8)
    model = spec.build().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # so that targets have different lengths
    source, lengths = torch.randint(4, 9, (12, 6)), torch.randint(1, 7, (12,))
    special_tokens, keys = SpecialTokens(bos=2, eos=3, suppressed=(0, 1, 2)), torch.arange(12)
    with torch.inference_mode():
        swept = search(model, source, lengths, special_tokens, LengthPenaltySweep.of(beam, PENALTIES), keys)
        separate = [
            search(model, source, lengths, special_tokens, single, keys)
            for single in LengthPenaltySweep.of(beam, PENALTIES).beams
        ]
    assert [single.length_penalty for single in LengthPenaltySweep.of(beam, PENALTIES).beams] == list(PENALTIES)
    for place, single_results in enumerate(separate):
        found, expected = [results[place] for results in swept], [results[0] for results in single_results]
        assert [(h.tokens, h.score, h.finished) for h in found] == [(h.tokens, h.score, h.finished) for h in expected]
    if beam.size == 3:
        assert any(len({tuple(hypothesis.tokens) for hypothesis in results}) > 1 for results in swept)


@pytest.mark.parametrize(
    "beam", [Beam(1), Beam(4, early_stopping=True), Beam(4, num_groups=2), Beam(4, rank_unfinished="by_score")]
)
def test_searches_that_depend_on_more_than_the_best_hypothesis_are_refused(beam: Beam) -> None:
    assert not LengthPenaltySweep.supports(beam)
    with pytest.raises(UserError, match="for each length penalty separately"):
        LengthPenaltySweep.of(beam, PENALTIES)
