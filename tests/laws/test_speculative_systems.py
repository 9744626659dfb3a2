"""Speculative decoding over every system: what is found is what is found without a draft."""

from __future__ import annotations

import pytest
import torch
from small import SYMBOLS, WRITERS, as_read, every_decoder_state, pairs, small_model
from torch import Tensor

from dragoman.models import Model
from dragoman.search import Beam, Hypothesis, LengthLimit, Sample, build_engine
from dragoman.search.constraints import ForcedPrefix
from dragoman.search.engine import LogitsProcessor
from dragoman.search.search_state import ConstraintTensors
from dragoman.search.speculative import AcceptanceStats, SpeculativeEngine

READS_VECTORS = [name for name in WRITERS if as_read(name, torch.tensor([[4]])).dim() == 3]
#: a cache, a recurrent state, a state that a position starts, buffers, and one sequence with the source
DRAFTS = ("transformer", "luong", "bahdanau", "convs2s", "gpt")
SHORT, LONG = LengthLimit(ratio=0, offset=9), LengthLimit(ratio=0, offset=22, min=19)
SEARCHES = [
    Beam(1, length_limit=SHORT),
    Beam(1, length_limit=LengthLimit(ratio=0, offset=9, min=5), no_repeat_ngram_size=2),
    Beam(1, length_limit=LONG),
    Sample(seed=3, length_limit=SHORT),
]


def shaken(variant: str, amount: float) -> Model:
    """A model that agrees with its like now and then."""
    model = small_model(variant)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(noise * weight.std(correction=0) * amount)
    return model


def both(
    model: Model,
    draft: Model,
    variant: str,
    settings: Beam | Sample,
    ahead: int = 4,
    rules: tuple[LogitsProcessor, ...] = (),
    constraints: ConstraintTensors | None = None,
    most: int | None = None,
) -> tuple[list[Hypothesis], AcceptanceStats]:
    """What is found without the draft, after it has been seen to be what is found with it."""
    p = pairs(variant)
    limits = settings.length_limit.max_lengths(p.source_lengths, [model])
    asked: tuple[Tensor, ...] = (p.source, p.source_lengths, limits, torch.arange(3))
    alone = build_engine([model], SYMBOLS, settings, rules)
    drafted = SpeculativeEngine(alone, draft, ahead)
    found = [one for [one] in drafted.search(*asked, constraints, most)]
    plain = [one for [one] in alone.search(*asked, constraints)]
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert [one.finished for one in found] == [one.finished for one in plain]
    assert [one.score for one in found] == pytest.approx([one.score for one in plain], abs=1e-9)
    assert [one.normalized_score for one in found] == pytest.approx([one.normalized_score for one in plain], abs=1e-9)
    return plain, drafted.acceptance


@every_decoder_state
def test_a_draft_changes_nothing(variant: str) -> None:
    """Drafts of every quality: the model itself, one that is right now and then, one that knows nothing."""
    model = small_model(variant)
    accepted = []
    for amount, ahead, some in ((0.0, 4, SEARCHES[2:]), (0.2, 3, SEARCHES), (3.0, 1, SEARCHES[:1])):
        draft = shaken(variant, amount)
        for settings in some:
            _, acceptance = both(model, draft, variant, settings, ahead)
            if not amount:
                assert acceptance.accepted == acceptance.proposed > 0
            accepted.append(acceptance)
    assert any(0 < one.accepted < one.proposed for one in accepted)


@every_decoder_state
def test_the_draft_may_be_another_system(variant: str) -> None:
    if variant in READS_VECTORS:
        pytest.skip("it reads no tokens")
    model = small_model(variant)
    for draft in DRAFTS if variant in DRAFTS else DRAFTS[:2]:
        both(model, small_model(draft), variant, Beam(1, length_limit=SHORT), ahead=2)


@every_decoder_state
def test_a_target_begins_as_it_is_told_with_a_draft_too(variant: str) -> None:
    constraints = ConstraintTensors(torch.tensor([[5, 9, 5], [0, 0, 0], [7, 0, 0]]), torch.tensor([3, 0, 1]))
    model, settings = small_model(variant), Beam(1, length_limit=SHORT)
    found, _ = both(model, shaken(variant, 0.2), variant, settings, 4, (ForcedPrefix(),), constraints, most=2)
    assert found[0].tokens[:3] == [5, 9, 5]
