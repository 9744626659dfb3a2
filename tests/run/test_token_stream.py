"""Streamed translations: parts add up to the result of `translate`, and a stream can be closed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from untrained_runs import untrained

from dragoman.run import Run, StreamedTokens
from dragoman.search import Beam, LengthLimit, MinimumBayesRisk, Sample, SearchConfig, Speculative

TEXT = "the dog sleeps ."
SHORT = LengthLimit(0, 12, 12)


RUNS = {kind: untrained(kind) for kind in ("bpe", "byte", "word")}
DRAFT = untrained("bpe", "luong", 2)
SEARCHES: dict[str, SearchConfig] = {
    "greedy": Beam(1, length_limit=SHORT),
    "a sample": Sample(seed=4, length_limit=SHORT),
    "samples": Sample(n_best=3, length_limit=SHORT),
    "a beam": Beam(4, n_best=2, length_limit=SHORT),
    "a beam up to the limit": Beam(3, early_stopping="steps", length_limit=replace(SHORT, min=4)),
    "groups": Beam(4, num_groups=2, length_limit=SHORT),
    "minimum risk": MinimumBayesRisk(Sample(n_best=4, length_limit=SHORT)),
}


def checked(run: Run, pieces: list[StreamedTokens], expected: Any) -> None:
    *before, last = pieces
    assert last.translation == expected
    assert "".join(piece.text for piece in pieces) == expected.text
    assert [token for piece in pieces for token in piece.tokens] == expected.tokens
    assert all(piece.translation is None for piece in before)
    assert last.tentative_text == ""


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("text", [TEXT, "größe", ""])
def test_streamed_parts_add_up_to_the_translation(kind: str, name: str, text: str) -> None:
    run, search = RUNS[kind], SEARCHES[name]
    checked(run, list(run.stream(text, search=search)), run.translate([text], search=search)[0])


@pytest.mark.parametrize("search", [Beam(1, length_limit=SHORT), Sample(seed=4, length_limit=SHORT)])
def test_greedy_search_and_sampling_stream_token_by_token_with_scores(search: Beam | Sample) -> None:
    run = RUNS["bpe"]
    pieces = list(run.stream(TEXT, search=search))
    translation = pieces[-1].translation
    assert translation is not None
    assert len(translation.tokens) > 2
    assert all(len(piece.tokens) == 1 for piece in pieces[:-1])
    scored = run.score([TEXT], [translation.text])[0]
    if scored.tokens[: len(translation.tokens)] == translation.tokens:  # a text may be cut in another way
        assert [piece.score for piece in pieces] == pytest.approx(scored.token_scores, abs=1e-4)
    assert sum(piece.score or 0.0 for piece in pieces) == pytest.approx(translation.score, abs=1e-4)


def test_speculative_decoding_streams_several_tokens_at_once() -> None:
    run = RUNS["bpe"]
    search = Speculative(run, 3, Beam(1, length_limit=SHORT))
    pieces = list(run.stream(TEXT, search=search))
    checked(run, pieces, run.translate([TEXT], search=search)[0])
    assert max(len(piece.tokens) for piece in pieces) == 4
    assert "".join(piece.text for piece in pieces) == run.translate([TEXT], search=search.search)[0].text


def test_beam_search_streams_the_common_prefix_and_a_tentative_continuation() -> None:
    run = RUNS["bpe"]
    pieces = list(run.stream(TEXT, search=Beam(4, length_limit=replace(SHORT, min=8))))
    assert any(piece.tentative_text for piece in pieces)
    assert all(piece.score is None for piece in pieces)


def test_incomplete_characters_are_held_back() -> None:
    """ö has two bytes in UTF-8 and € three; a token of this tokenizer is one."""
    run = RUNS["byte"]
    pieces = list(run.stream(TEXT, search=Beam(1, length_limit=SHORT), prefix="aö€b"))
    assert [piece.text for piece in pieces[:7]] == ["a", "", "ö", "", "", "€", "b"]
    assert all(len(piece.tokens) == 1 for piece in pieces[:7])


@pytest.mark.parametrize(
    "search",
    [Beam(1, length_limit=SHORT), Beam(3, length_limit=SHORT), Speculative(DRAFT, 2, Beam(1, length_limit=SHORT))],
)
def test_closing_the_stream_stops_the_search(search: SearchConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUNS["bpe"]
    calls = 0
    decode = run.model.decode

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return decode(*given)

    monkeypatch.setattr(run.model, "decode", counted)
    list(run.stream(TEXT, search=search))
    all_of_it, calls = calls, 0
    pieces = run.stream(TEXT, search=search)
    next(pieces)
    begun = calls
    pieces.close()
    assert calls == begun < all_of_it


def test_streams_obey_included_and_excluded_phrases() -> None:
    run = RUNS["word"]
    search = Beam(4, length_limit=SHORT)
    pieces = list(run.stream(TEXT, search=search, include=["old house"]))
    checked(run, pieces, run.translate([TEXT], search=search, include=[["old house"]])[0])
    assert "old house" in "".join(piece.text for piece in pieces)
    pieces = list(run.stream(TEXT, search=search, exclude=["dog"]))
    checked(run, pieces, run.translate([TEXT], search=search, exclude=["dog"])[0])
