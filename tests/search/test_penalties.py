"""Length and coverage penalties: the formulas by hand, and what a hypothesis is chosen by."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from table_model import TableModel, beam_search
from test_beam import PIE
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.parts.mixer import Context, State
from dragoman.search import Beam, Hypothesis, LengthLimit, SpecialTokens
from dragoman.search.beam import coverage_penalty
from dragoman.search.forced_decoding import attention_weights, cross_attention
from dragoman.systems import SYSTEMS, VocabularySizes
from search.exhaustive import exhaustive_search
from search.plain_search import search

SYMBOLS = SpecialTokens(bos=2, eos=3, suppressed=(0, 1, 2))
SOURCE, LENGTHS = torch.tensor([[4, 5, 6, 7, 8], [8, 4, 5, 0, 0], [6, 0, 0, 0, 0]]), torch.tensor([5, 3, 1])
LOOKING = ["bahdanau", "luong", "gnmt", "deep-att", "transformer"]


# ---- the formulas


@pytest.mark.parametrize(
    ("settings", "length", "expected"),
    [
        (Beam(length_penalty=1.0), 7, 7.0),
        (Beam(length_penalty=0.5), 9, 3.0),
        (Beam(length_penalty=0.0), 9, 1.0),
        (Beam(length_penalty=1.0, length_normalization="gnmt"), 7, 2.0),  # 12/6
        (Beam(length_penalty=2.0, length_normalization="gnmt"), 13, 9.0),  # (18/6)²
        (Beam(length_penalty=0.2, length_normalization="gnmt"), 7, 1.148698),  # ⁵√2
        (Beam(length_penalty=0.0, length_normalization="gnmt"), 40, 1.0),
        (Beam(length_penalty=0.7, length_normalization="gnmt"), 1, 1.0),  # a single token is never punished
        (Beam(length_penalty=-1.0, length_normalization="gnmt"), 7, 0.5),
    ],
)
def test_what_a_score_is_divided_by(settings: Beam, length: int, expected: float) -> None:
    assert settings.length_divisor(length) == pytest.approx(expected, abs=1e-6)


def test_coverage_counts_what_was_looked_at_less_than_once() -> None:
    """0.2 · (ln ½ + ln 1 + ln 1 + ln ¼) = 0.2 · ln ⅛."""
    looks, real = torch.tensor([0.5, 2.0, 1.0, 0.25]), torch.tensor([True] * 4)
    assert float(coverage_penalty(looks, real, 0.2)) == pytest.approx(0.2 * math.log(1 / 8))
    assert float(coverage_penalty(looks, torch.tensor([True, True, True, False]), 0.2)) == pytest.approx(
        0.2 * math.log(1 / 2)
    )
    assert float(coverage_penalty(looks, real, 0.0)) == 0.0
    assert float(coverage_penalty(torch.tensor([1.0, 1.5, 3.0, 1.0]), real, 5.0)) == 0.0


def test_a_word_that_was_never_looked_at_still_leaves_a_number() -> None:
    never = coverage_penalty(torch.tensor([0.0, 1.0]), torch.tensor([True, True]), 1.0)
    hardly = coverage_penalty(torch.tensor([1e-6, 1.0]), torch.tensor([True, True]), 1.0)
    assert -100 < float(never) < float(hardly) == pytest.approx(math.log(1e-6))


# ---- by hand, on a table


class LookingModel(TableModel):
    """A table that looks at one of S source words, or at several, for every token that it writes."""

    memory_paths = ("looks",)

    def __init__(self, totals: dict[str, float], looks: dict[str, list[float]], words: int) -> None:
        super().__init__(totals)
        self.looks = {tuple(prefix.split()): torch.tensor(weights) for prefix, weights in looks.items()}
        self.anywhere = torch.full((words,), 1 / words)
        self.recorded: list[bool] = []

    def decode(self, tokens: Tensor, ctx: Context, state: State) -> tuple[Tensor, State]:
        logits, state = super().decode(tokens, ctx, state)
        self.recorded.append(ctx.recorder is not None)
        rows = torch.stack([self.looks.get(prefix, self.anywhere) for prefix in self.steps[-1]])  # K S, one source
        ctx.record("looks", rows[None, None])  # 1 H K S
        return logits, state


def run(model: TableModel, settings: Beam, longest: int, words: int = 1) -> list[Hypothesis]:
    source, limits = torch.zeros(1, words, dtype=torch.long), torch.tensor([longest])
    return beam_search(cast(Any, model), source, torch.tensor([words]), model.symbols, limits, settings)[0]


def test_the_winner_flips_where_gnmts_normalised_scores_cross() -> None:
    """3.8/(10/6)^α = 4.4/(12/6)^α where α = ln(4.4/3.8) / ln(12/10) = 0.8041."""
    crossing = math.log(4.4 / 3.8) / math.log(12 / 10)
    for alpha, winner in ((crossing - 0.01, "he hit a pie"), (crossing + 0.01, "he hit me with a pie")):
        model = TableModel(PIE)
        found = run(model, Beam(2, alpha, length_normalization="gnmt"), longest=10)
        assert model.sentence(found[0].tokens) == winner


#: der Hund bellt → "it barks" leaves out the dog, "the dog barks" does not
BARKING = {
    "it": math.log(0.6),
    "the": math.log(0.4),
    "it barks": math.log(0.6),
    "it barks </s>": math.log(0.6),
    "the dog": math.log(0.4),
    "the dog barks": math.log(0.4),
    "the dog barks </s>": math.log(0.4),
}
LOOKS = {
    "": [0.5, 0.5, 0.0],
    "it": [0.25, 0.0, 0.75],
    "it barks": [0.0, 0.0, 1.0],
    "the": [0.0, 1.0, 0.0],
    "the dog": [0.5, 0.0, 0.5],
    "the dog barks": [0.0, 0.0, 1.0],
}


def test_a_hypothesis_that_leaves_a_word_out_loses_where_coverage_counts() -> None:
    """it barks: 0.75, 0.5 and 1.75 looks; the dog barks: 1.0, 1.5 and 1.5. They cross at β = ln(6/4) / −ln(3/8)."""
    by_hand = {"it barks": (0.6, math.log(0.75 * 0.5)), "the dog barks": (0.4, 0.0)}
    crossing = math.log(0.6 / 0.4) / -math.log(0.75 * 0.5)
    for beta, order in (
        (0.0, ["it barks", "the dog barks"]),
        (crossing - 0.01, ["it barks", "the dog barks"]),
        (crossing + 0.01, ["the dog barks", "it barks"]),
        (5.0, ["the dog barks", "it barks"]),
    ):
        model = LookingModel(BARKING, LOOKS, words=3)
        found = run(model, Beam(2, length_penalty=0.0, n_best=2, coverage_penalty=beta), longest=6, words=3)
        assert [model.sentence(h.tokens) for h in found] == order
        for h in found:
            p, log_coverage = by_hand[model.sentence(h.tokens)]
            assert h.score == pytest.approx(math.log(p), abs=1e-5)
            assert h.normalized_score == pytest.approx(math.log(p) + beta * log_coverage, abs=1e-5)


def test_length_is_normalised_before_coverage_is_added() -> None:
    """log p / lp + cp, with 3 tokens of it barks END: lp = 8/6."""
    model = LookingModel(BARKING, LOOKS, words=3)
    settings = Beam(2, 1.0, n_best=2, length_normalization="gnmt", coverage_penalty=0.1)
    found = {model.sentence(h.tokens): h.normalized_score for h in run(model, settings, longest=6, words=3)}
    assert found["it barks"] == pytest.approx(math.log(0.6) / (8 / 6) + 0.1 * math.log(0.375), abs=1e-5)
    assert found["the dog barks"] == pytest.approx(math.log(0.4) / (9 / 6), abs=1e-5)


def test_what_the_limit_cuts_off_is_ordered_by_coverage_too() -> None:
    """After two tokens “it barks” has looked 0.75, 0.5 and 0.75 times, “the dog” 1.0, 1.5 and 0.5."""
    model = LookingModel(BARKING, LOOKS | {"the": [0.5, 1.0, 0.5]}, words=3)
    found = run(model, Beam(2, length_penalty=0.0, n_best=2, coverage_penalty=1.0), longest=2, words=3)
    assert [(model.sentence(h.tokens), h.finished) for h in found] == [("the dog", False), ("it barks", False)]
    assert found[0].normalized_score == pytest.approx(math.log(0.4) + math.log(0.5), abs=1e-5)
    assert found[1].normalized_score == pytest.approx(math.log(0.6) + math.log(0.75 * 0.5 * 0.75), abs=1e-5)


def test_attention_is_written_down_only_where_coverage_counts() -> None:
    for beta in (0.0, 0.1):
        model = LookingModel(BARKING, LOOKS, words=3)
        run(model, Beam(2, coverage_penalty=beta), longest=6, words=3)
        assert set(model.recorded) == {beta > 0}


# ---- on real systems


def model_of(name: str, vocabulary: int = 13) -> Model:
    torch.manual_seed(0)
    known = SYSTEMS[name].settings()
    small: dict[str, Any] = {key: value for key, value in {"layers": 3, "heads": 4}.items() if key in known}
    model = (
        SYSTEMS[name].spec(VocabularySizes(vocabulary, vocabulary, True), "tiny", model_dim=16, **small).build().eval()
    )
    with torch.no_grad():
        for weight in model.parameters():  # opinions
            weight.mul_(2.0).add_(torch.randn_like(weight) * 0.1)
    return model


def chosen_by(model: Model, source: Tensor, h: Hypothesis, alpha: float, beta: float) -> float:
    """log p / lp + cp, number by number from the attention of a teacher-forced pass."""
    target = torch.tensor([[SYMBOLS.bos, *h.tokens][: len(h.tokens) + h.finished]])
    source_lengths, lengths = torch.tensor([source.shape[1]]), torch.tensor([target.shape[1]])
    looks = cross_attention(model, attention_weights(model, source, source_lengths, target, lengths))
    assert looks is not None
    coverage = 0.0
    for j in range(source.shape[1]):
        coverage += math.log(min(sum(float(looks[0, i, j]) for i in range(target.shape[1])), 1.0))
    return h.score / ((5 + target.shape[1]) ** alpha / (5 + 1) ** alpha) + beta * coverage


@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.2), (1.0, 1.5)])
def test_coverage_is_that_of_a_teacher_forced_pass(name: str, alpha: float, beta: float) -> None:
    model = model_of(name, vocabulary=9)
    settings = Beam(
        4,
        alpha,
        n_best=4,
        length_limit=LengthLimit(ratio=0.5, offset=4),
        length_normalization="gnmt",
        coverage_penalty=beta,
    )
    finished = set()
    for row, hypotheses in enumerate(search(model, SOURCE, LENGTHS, SYMBOLS, settings, torch.arange(3))):
        assert len(hypotheses) == 4
        source = SOURCE[row : row + 1, : LENGTHS[row]]
        for h in hypotheses:
            assert h.normalized_score == pytest.approx(chosen_by(model, source, h, alpha, beta), abs=1e-4)
        finished |= {h.finished for h in hypotheses}
        for group in (True, False):
            values = [h.normalized_score for h in hypotheses if h.finished == group]
            assert values == sorted(values, reverse=True)
    assert True in finished


@pytest.mark.parametrize("name", ["bahdanau", "gnmt", "transformer"])
def test_a_beam_as_wide_as_the_space_finds_the_best_of_all(name: str) -> None:
    model = model_of(name, vocabulary=7)  # 3 words and END
    source = torch.tensor([[4, 6, 5]])
    wide = Beam(128, 0.6, early_stopping="steps", n_best=40, length_normalization="gnmt", coverage_penalty=0.4)
    found = beam_search(model, source, torch.tensor([3]), SYMBOLS, torch.tensor([4]), wide)[0]
    for best in (1, 5, 40):  # the exact rule returns the same
        exact = replace(wide, early_stopping="never", n_best=best)
        assert beam_search(model, source, torch.tensor([3]), SYMBOLS, torch.tensor([4]), exact)[0] == found[:best]
    every = exhaustive_search(model, source, SYMBOLS, max_length=4, alpha=0.0, n_best=40)
    order = sorted(every, key=lambda h: -chosen_by(model, source, h, 0.6, 0.4))
    assert [h.tokens for h in found if h.finished] == [h.tokens for h in order]
    assert [h.tokens for h in order] != [h.tokens for h in every]


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 1.0, 2.0])
def test_the_exact_rule_returns_what_a_full_search_returns_with_a_coverage_penalty(alpha: float) -> None:
    model = model_of("bahdanau")
    for best, normalisation in ((1, "power"), (2, "gnmt"), (4, "power")):
        length = LengthLimit(ratio=1, offset=5)
        settings = Beam(
            4,
            alpha,
            n_best=best,
            length_limit=length,
            length_normalization=cast(Any, normalisation),
            coverage_penalty=0.3,
        )
        full = replace(settings, early_stopping="steps")
        exact, every = (search(model, SOURCE, LENGTHS, SYMBOLS, one, torch.arange(3)) for one in (settings, full))
        assert exact == every


@pytest.mark.parametrize("name", ["luong", "transformer"])
def test_the_batch_never_changes_a_coverage(name: str) -> None:
    model = model_of(name)
    settings = Beam(3, n_best=2, length_limit=LengthLimit(ratio=1, offset=3), coverage_penalty=0.5)
    together = search(model, SOURCE, LENGTHS, SYMBOLS, settings, torch.arange(3))
    for row in range(3):
        source = SOURCE[row : row + 1, : LENGTHS[row]]
        alone = search(model, source, LENGTHS[row : row + 1], SYMBOLS, settings, torch.tensor([row]))[0]
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.normalized_score for h in alone] == pytest.approx(
            [h.normalized_score for h in together[row]], abs=1e-4
        )


def test_greedy_search_says_what_it_was_normalised_by() -> None:
    model = model_of("bahdanau")
    plain, gnmt, covered = (
        search(model, SOURCE, LENGTHS, SYMBOLS, settings, torch.arange(3))
        for settings in (
            Beam(1),
            Beam(1, length_normalization="gnmt"),
            Beam(1, length_normalization="gnmt", coverage_penalty=0.3),
        )
    )
    for row in range(3):
        one, other, third = plain[row][0], gnmt[row][0], covered[row][0]
        assert one.tokens == other.tokens == third.tokens
        count = len(one.tokens) + one.finished
        assert one.normalized_score == pytest.approx(one.score / count)
        assert other.normalized_score == pytest.approx(other.score / ((5 + count) / 6))
        source = SOURCE[row : row + 1, : LENGTHS[row]]
        assert third.normalized_score == pytest.approx(chosen_by(model, source, third, 1.0, 0.3), abs=1e-4)


@pytest.mark.parametrize("name", ["sutskever", "cho", "rnn-lm", "transformer-d"])
def test_coverage_without_attention_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="needs attention to the source, but this model has none"):
        search(model_of(name), SOURCE, LENGTHS, SYMBOLS, Beam(2, coverage_penalty=0.1), torch.arange(3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coverage_penalty": -0.1}, "Beam.coverage_penalty must be between 0 and 10, but is -0.1"),
        ({"coverage_penalty": 11.0}, "Beam.coverage_penalty must be between 0 and 10, but is 11.0"),
        ({"coverage_penalty": math.nan}, "Beam.coverage_penalty must be between 0 and 10, but is nan"),
        ({"length_normalization": "gnmd"}, "unknown length_normalization 'gnmd': did you mean 'gnmt'?"),
    ],
)
def test_a_penalty_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        Beam(**settings)
    assert str(error.value) == message
