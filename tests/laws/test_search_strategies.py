"""Every strategy of search over every system: honest scores, rules that are met, nothing that depends on a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import SYMBOLS, every_decoder_state, pairs, small_model

from dragoman.models import Model
from dragoman.search import Beam, Hypothesis, LengthLimit, Sample, TokenSearch, build_engine
from dragoman.search.constraints import ForcedPrefix
from dragoman.search.engine import LogitsProcessor
from dragoman.search.forced_decoding import token_scores
from dragoman.search.search_state import ConstraintTensors

SHORT = LengthLimit(ratio=0, offset=9)
LONG = LengthLimit(ratio=0, offset=22, min=19)  # longer than there is room for at first
STRATEGIES: dict[str, TokenSearch] = {
    "greedy without repeats": Beam(1, no_repeat_ngram_size=2, length_limit=SHORT),
    "a beam without repeated words": Beam(3, no_repeat_ngram_size=1, n_best=3, length_limit=SHORT),
    "a long beam": Beam(3, n_best=2, length_limit=LONG),
    "diverse": Beam(4, num_groups=2, n_best=4, length_limit=SHORT),
    "samples": Sample(n_best=3, seed=5, length_limit=SHORT),
    "long samples": Sample(n_best=2, min_p=0.02, typical_p=0.9, length_limit=LONG),
}


def run(
    models: list[Model],
    variant: str,
    settings: TokenSearch,
    rows: list[int],
    constraints: ConstraintTensors | None = None,
    *rules: LogitsProcessor,
) -> list[list[Hypothesis]]:
    p = pairs(variant)
    searching = build_engine(models, SYMBOLS, settings, rules)
    longest = int(p.source_lengths[rows].max())
    lengths = p.source_lengths[rows]
    limits = settings.length_limit.max_lengths(lengths, models[:1])
    return searching.search(p.source[rows, :longest], lengths, limits, torch.tensor(rows), constraints)


def forced(model: Model, variant: str, row: int, one: Hypothesis) -> float:
    """log p(y|x) by teacher forcing."""
    p = pairs(variant)
    source = p.source[row : row + 1, : p.source_lengths[row]]
    framed = torch.tensor([[SYMBOLS.bos, *one.tokens, *([SYMBOLS.eos] if one.finished else [])]])
    lengths = torch.tensor([source.shape[1]]), torch.tensor([framed.shape[1]])
    return float(token_scores(model, source, lengths[0], framed, lengths[1]).sum())


@every_decoder_state
@pytest.mark.parametrize("name", STRATEGIES)
def test_scores_are_those_of_teacher_forcing_in_any_batch(variant: str, name: str) -> None:
    model, settings = small_model(variant), STRATEGIES[name]
    if model.max_target_length(torch.tensor([9])) is not None and settings.length_limit is LONG:
        pytest.skip("there is no room for so long a target")
    together = run([model], variant, settings, [0, 1, 2])
    turned = run([model], variant, settings, [2, 0])
    for row, hypotheses in enumerate(together):
        assert hypotheses
        for one in hypotheses:
            assert one.score == pytest.approx(forced(model, variant, row, one), abs=1e-9)
            assert not set(one.tokens) & set(SYMBOLS.suppressed)
            if settings.no_repeat_ngram_size:
                grams = [
                    tuple(one.tokens[i : i + settings.no_repeat_ngram_size])
                    for i in range(len(one.tokens) - settings.no_repeat_ngram_size + 1)
                ]
                assert len(grams) == len(set(grams))
            if settings.length_limit.min:
                assert len(one.tokens) >= settings.length_limit.min
    for row, again in zip((2, 0), turned):
        assert [one.tokens for one in again] == [one.tokens for one in together[row]]
        assert [one.score for one in again] == pytest.approx([one.score for one in together[row]], abs=1e-9)


@every_decoder_state
@pytest.mark.parametrize(
    "settings",
    [Beam(1, length_limit=SHORT), Beam(3, n_best=2, length_limit=SHORT), Sample(n_best=2, length_limit=SHORT)],
)
def test_a_model_together_with_itself_changes_nothing(variant: str, settings: TokenSearch) -> None:
    model = small_model(variant)
    alone, doubled = (run([model] * count, variant, settings, [0, 1, 2]) for count in (1, 2))
    for one, other in zip(alone, doubled):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-9)


@every_decoder_state
def test_a_target_begins_as_it_is_told(variant: str) -> None:
    model = small_model(variant)
    prefixes = [[5, 9, 5], [], [7]]
    constraints = ConstraintTensors(
        torch.tensor([[*prefix, *[0] * (3 - len(prefix))] for prefix in prefixes]),
        torch.tensor([len(prefix) for prefix in prefixes]),
    )
    found = run([model], variant, Beam(3, n_best=3, length_limit=SHORT), [0, 1, 2], constraints, ForcedPrefix())
    free = run([model], variant, Beam(3, n_best=3, length_limit=SHORT), [0, 1, 2])
    assert [h.tokens for h in found[1]] == [h.tokens for h in free[1]]
    for row, (prefix, hypotheses) in enumerate(zip(prefixes, found)):
        assert len({tuple(one.tokens) for one in hypotheses}) == len(hypotheses)
        for one in hypotheses:
            assert one.tokens[: len(prefix)] == prefix
            assert one.score == pytest.approx(forced(model, variant, row, one), abs=1e-9)


@every_decoder_state
@pytest.mark.parametrize(
    "settings",
    [Beam(1, length_limit=LONG), Beam(3, n_best=2, length_limit=SHORT), Sample(n_best=2, length_limit=SHORT)],
)
def test_sources_that_wait_for_others_to_leave_find_the_same(variant: str, settings: TokenSearch) -> None:
    model, p = small_model(variant), pairs(variant)
    rows = torch.tensor([0, 1, 2, 1, 0, 2, 2])
    source, lengths = p.source[rows], p.source_lengths[rows]
    limits = torch.tensor([9, 4, 7, 2, 9, 5, 3])
    if settings.length_limit is LONG and model.max_target_length(lengths) is None:
        limits = limits * 2
    searching = build_engine([model], SYMBOLS, replace(settings, length_limit=SHORT))
    together, waiting = (searching.search(source, lengths, limits, rows, max_sources=most) for most in (None, 2))
    for one, other in zip(together, waiting, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-9)


def test_groups_without_diversity_are_so_many_beams() -> None:
    model = small_model("transformer")
    groups = run(
        [model], "transformer", Beam(4, num_groups=2, diversity_penalty=0.0, n_best=2, length_limit=SHORT), [0, 1, 2]
    )
    plain = run([model], "transformer", Beam(2, n_best=2, length_limit=SHORT), [0, 1, 2])
    assert [[h.tokens for h in one] for one in groups] == [[h.tokens for h in one] for one in plain]


def test_groups_keep_away_from_one_another() -> None:
    """With a cost above all differences of log p no two groups write the same word at the same step."""
    model = small_model("transformer")
    found = run(
        [model],
        "transformer",
        Beam(3, num_groups=3, diversity_penalty=100.0, n_best=3, length_limit=LengthLimit(0, 4, min=3)),
        [0],
    )[0]
    assert len(found) == 3
    for words in zip(*(one.tokens for one in found)):
        assert len(set(words)) == 3


@pytest.mark.parametrize(
    "settings",
    [Beam(1, no_repeat_ngram_size=1), Beam(3, no_repeat_ngram_size=1, n_best=3), Sample(no_repeat_ngram_size=1)],
)
def test_where_nothing_may_be_written_any_more_it_ends(settings: TokenSearch) -> None:
    """There are nine words, and none may come twice; nor may a target end before its twentieth."""
    model = small_model("transformer")
    for one in run([model], "transformer", replace(settings, length_limit=LengthLimit(0, 30, min=20)), [0, 1])[0]:
        assert sorted(one.tokens) == [4, 5, 6, 7, 8, 9, 10, 11, 12]
        assert one.finished
        assert one.score == pytest.approx(forced(model, "transformer", 0, one), abs=1e-9)
