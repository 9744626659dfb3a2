"""Speculative decoding by hand: what is drafted, judged and kept, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.models import DecodingStart
from dragoman.models.model import first_tokens
from dragoman.parts.mixer import Context, State
from dragoman.search import (
    Beam,
    LengthLimit,
    Sample,
    SpecialTokens,
    Speculative,
    build_engine,
    search_from_dict,
    search_to_dict,
)
from dragoman.search.speculative import AcceptanceStats, SpeculativeEngine
from dragoman.systems import SYSTEMS, VocabularySizes

START, END = 0, 1
SYMBOLS = SpecialTokens(START, END, suppressed=(START,))


class Parrot(nn.Module):
    """Says the same words whatever it is fed, and remembers what was fed to it."""

    max_source_length: int | None = None

    def __init__(self, *words: int, vocabulary: int = 10) -> None:
        super().__init__()
        self.vocab_size, self.words = vocabulary, torch.tensor([*words, END])
        self.weight = nn.Parameter(torch.zeros(1))
        self.decoder = SimpleNamespace()
        self.fed: list[list[int]] = []  # of the first row, call by call

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        tokens = first_tokens(first, len(source), source.device)
        return DecodingStart(None, {"last": torch.zeros(len(source))}, tokens, torch.zeros_like(tokens), max_length)

    def decode(self, tokens: Tensor, ctx: Context, state: State) -> tuple[Tensor, State]:
        real = tokens if ctx.layout.token_mask is None else tokens.where(ctx.layout.token_mask, -1)
        self.fed.append([token for token in real[0].tolist() if token >= 0])
        said = self.words[ctx.layout.positions.clamp(max=len(self.words) - 1)]
        return 20.0 * nn.functional.one_hot(said, self.vocab_size).float(), state

    def grow_state(self, state: State, rows: int, places: int) -> tuple[State, int]:
        return state, places

    def copy_recurrent_state(self, state: State) -> State:
        return {"last": state["last"].clone()}


def spoken(model: Any, draft: Any, ahead: int, sources: int = 1) -> tuple[list[list[int]], SpeculativeEngine]:
    searching = SpeculativeEngine(build_engine([model], SYMBOLS, Beam(1)), draft, ahead)
    given = (torch.zeros(sources, 1, dtype=torch.long), torch.ones(sources, dtype=torch.long))
    found = searching.search(*given, torch.full((sources,), 12), torch.arange(sources))
    return [one.tokens for [one] in found], searching


def test_drafts_are_kept_up_to_the_first_that_is_wrong() -> None:
    """The draft says 5 6 9 8: of 5 6 9 the model takes two and says 7; then 8 and END are right, and it is over."""
    model, draft = Parrot(5, 6, 7, 8), Parrot(5, 6, 9, 8)
    found, searching = spoken(model, draft, 3)
    assert found == [[5, 6, 7, 8]]
    assert searching.acceptance == AcceptanceStats(rounds=2, proposed=5, accepted=4)
    assert searching.acceptance.mean_accepted == 2.0
    assert searching.acceptance.acceptance_rate == 0.8
    # what is not held by position is read once more, as far as it was right
    assert model.fed == [[START, 5, 6, 9], [START, 5, 6], [7, 8, END, END], [7, 8]]
    # the draft reads what has been written in its stead, and goes on from there
    assert draft.fed == [[START], [5], [6], [5, 6, 7], [8], [END]]


def test_a_draft_that_is_always_wrong_costs_no_words() -> None:
    found, searching = spoken(Parrot(5, 6, 7), Parrot(8, 8, 8, 8, 8, 8), 2)
    assert found == [[5, 6, 7]]
    assert searching.acceptance == AcceptanceStats(rounds=4, proposed=4, accepted=0)


@pytest.mark.parametrize("ahead", [1, 2, 7, 20])
def test_who_drafts_for_himself_is_always_right(ahead: int) -> None:
    """5 6 7 8 END are five words, of which each round writes one more than it drafts."""
    words = Parrot(5, 6, 7, 8)
    found, searching = spoken(words, words, ahead, sources=3)
    assert found == [[5, 6, 7, 8]] * 3
    assert searching.acceptance.accepted == searching.acceptance.proposed
    assert searching.acceptance.rounds == 3 * -(-5 // (ahead + 1))


def small(system: str, seed: int, **settings: Any) -> Any:
    torch.manual_seed(seed)
    spec = SYSTEMS[system].spec(
        VocabularySizes(13, 13, joint=True), "tiny", **({"model_dim": 16, "layers": 2} | settings)
    )
    model = spec.build().eval().double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    return model


@pytest.mark.parametrize("settings", [Beam(1), Sample(seed=2)])
def test_models_that_write_together_have_one_draft(settings: Beam | Sample) -> None:
    models, draft = [small("transformer", 1), small("luong", 2)], small("transformer", 3, layers=1)
    asked = (torch.randint(4, 13, (5, 6)), torch.tensor([6, 2, 4, 5, 6]), torch.tensor([20, 3, 30, 9, 1]))
    plain = build_engine(models, SpecialTokens(2, 3, (0, 1, 2)), settings)
    drafted = SpeculativeEngine(plain, draft, 3)
    expected = plain.search(*asked, torch.arange(5))
    for most in (None, 2):  # sources wait until others leave
        found = drafted.search(*asked, torch.arange(5), max_sources=most)
        assert [one.tokens for [one] in found] == [one.tokens for [one] in expected]
        assert [one.score for [one] in found] == pytest.approx([one.score for [one] in expected], abs=1e-4)


def test_where_there_is_no_place_for_drafts_the_model_writes_alone() -> None:
    """Both have positions for a target of twelve words, and this one is as long."""
    model, draft = (small("transformer", seed, position_encoding="learned", max_positions=12) for seed in (1, 2))
    asked = (torch.randint(4, 13, (3, 6)), torch.tensor([6, 2, 4]), torch.full((3,), 12), torch.arange(3))
    plain = build_engine([model], SpecialTokens(2, 3, (0, 1, 2)), Beam(1, length_limit=LengthLimit(min=11, max=12)))
    expected = plain.search(*asked)
    assert any(len(one.tokens) >= 11 for [one] in expected)
    found = SpeculativeEngine(plain, draft, 4).search(*asked)
    assert [one.tokens for [one] in found] == [one.tokens for [one] in expected]


def test_what_a_draft_cannot_be_is_said() -> None:
    with pytest.raises(UserError, match="a vocabulary of 11 tokens, but the model that it drafts for has 10"):
        spoken(Parrot(5), Parrot(5, vocabulary=11), 2)
    short = Parrot(5)
    short.max_source_length = 0
    with pytest.raises(UserError, match="a source has 1 tokens, but the draft model reads at most 0"):
        spoken(Parrot(5), short, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"draft_tokens": 0}, "draft_tokens must be at least 1"),
        ({"search": Beam(2)}, "generates one hypothesis per source"),
        ({"search": Beam(1, coverage_penalty=0.2)}, "generates one hypothesis per source"),
        ({"search": Sample(n_best=2)}, "generates one hypothesis per source"),
    ],
)
def test_what_cannot_be_speculated_on_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Speculative("runs/small", **given)


def test_it_is_described_like_other_searches() -> None:
    search = Speculative("runs/small", 3, Sample(top_k=5))
    assert search_to_dict(search)["draft_model"] == "runs/small"
    assert search_from_dict(search_to_dict(search)) == search
