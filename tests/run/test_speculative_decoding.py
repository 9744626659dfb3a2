"""Speculative decoding with a draft run, and the scores of tokens."""

from __future__ import annotations

import pytest
import torch
from untrained_runs import untrained

from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.search import Beam, LengthLimit, MinimumBayesRisk, Sample, SearchConfig, SearchRequest, Speculative

TEXTS = ["the dog sleeps .", "", "a cat sees an old house 🏠", "größe – 5 €", "cat"]
SHORT = LengthLimit(0, 12, 12)
RUN, SMALL = untrained("bpe"), untrained("bpe", "luong", 2)


@pytest.mark.parametrize(
    "search", [Beam(1, length_limit=SHORT, no_repeat_ngram_size=2), Sample(seed=4, length_limit=SHORT)]
)
def test_speculative_decoding_gives_the_translations_of_the_run_alone(search: Beam | Sample) -> None:
    for draft in (RUN, SMALL):
        plain, found = (RUN.translate(TEXTS, search=one) for one in (search, Speculative(draft, 3, search)))
        assert [one.text for one in found] == [one.text for one in plain]
        assert [one.score for one in found] == pytest.approx([one.score for one in plain], abs=1e-4)
        assert [one.alignment for one in found] == [one.alignment for one in plain]


def test_excluded_phrases_and_prefixes_hold_in_speculative_decoding() -> None:
    search, prefixes = Beam(1, length_limit=SHORT), ["a", "", "the dog", "", "größe"]
    plain, found = (
        RUN.translate(TEXTS, search=one, prefixes=prefixes, exclude=["cat", "an old"])
        for one in (search, Speculative(SMALL, 3, search))
    )
    assert [one.text for one in found] == [one.text for one in plain]
    assert all(one.text.startswith(prefix) for one, prefix in zip(found, prefixes) if one.text)


def test_acceptance_of_draft_tokens_is_measured() -> None:
    own, other = (
        Speculative(draft, 3, Beam(1, length_limit=SHORT)).acceptance(RUN, SearchRequest(*source, torch.arange(1)))
        for source in [RUN.pad_batch(RUN.encode_sources(TEXTS[:1]))]
        for draft in (RUN, SMALL)
    )
    assert own.accepted == own.proposed > 0
    assert 0 <= other.acceptance_rate < 1
    assert other.rounds > own.rounds


def test_a_draft_model_with_another_tokenizer_is_refused() -> None:
    with pytest.raises(
        UserError, match="has another vocabulary than untrained, but the run reads the tokens of the draft"
    ):
        RUN.translate(TEXTS, search=Speculative(untrained("byte"), 3))


@pytest.mark.parametrize("search", [Beam(1, length_limit=SHORT), Sample(length_limit=SHORT)])
def test_included_phrases_need_a_beam(search: Beam | Sample) -> None:
    with pytest.raises(UserError, match="beam"):
        RUN.translate(TEXTS[:1], search=Speculative(SMALL, 3, search), include=[["dog"]])


SEARCHES: list[SearchConfig] = [
    Beam(1, length_limit=SHORT),
    Beam(4, n_best=3, length_limit=SHORT),
    Sample(n_best=2, length_limit=SHORT),
    MinimumBayesRisk(Sample(n_best=4, length_limit=SHORT), n_best=2),
]


@pytest.mark.parametrize("run", [RUN, RUN.ensemble(SMALL)], ids=["one model", "two"])
@pytest.mark.parametrize("search", SEARCHES)
def test_token_scores_sum_to_the_score_of_the_translation(run: Run, search: SearchConfig) -> None:
    plain = run.translate(TEXTS, search=search)
    found = run.translate(TEXTS, search=search, token_scores=True)
    for before, one in zip(plain, found):
        assert before.token_scores is None
        assert (one.text, one.score, one.alignment) == (before.text, before.score, before.alignment)
        for each in (one, *one.alternatives):
            assert each.token_scores is not None
            assert len(each.token_scores) == (len(each.tokens) + each.finished if each.tokens else each.score < 0)
            assert sum(each.token_scores) == pytest.approx(each.score, abs=1e-4)


def test_token_scores_equal_those_of_the_scored_translation() -> None:
    run = untrained("byte")  # which cuts a text in one way alone
    one = run.translate(["cat"], search=Beam(1, length_limit=SHORT), prefixes=["a cat"], token_scores=True)[0]
    scored = run.score(["cat"], [one.text])[0]
    assert one.token_scores is not None
    if "\ufffd" not in one.text:
        assert one.token_scores == pytest.approx(scored.token_scores[: len(one.token_scores)], abs=1e-4)
