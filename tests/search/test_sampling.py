"""Sampling: what is cut off, how often each token is drawn, and what a draw depends on."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, cast

import pytest
import torch
from table_model import TableModel
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel
from dragoman.search import Hypothesis, LengthLimit, Sample, SpecialTokens
from dragoman.search.greedy_and_sampling import draw
from dragoman.systems import SYSTEMS, VocabularySizes
from search.plain_search import search

P = {0: 0.15, 1: 0.50, 2: 0.10, 3: 0.25}  # in no order, so that sorting shows
LOG_P = torch.tensor([P[token] for token in range(4)]).log()
GRID = 20_000


def frequencies(settings: Sample, log_p: Tensor = LOG_P) -> list[float]:
    """How often each token comes over an even grid of [0, 1): its probability, to 1 in `GRID`."""
    uniform = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    tokens = draw(log_p.expand(GRID, -1).clone(), uniform.float(), settings)
    return (torch.bincount(tokens, minlength=len(log_p)) / GRID).tolist()


@pytest.mark.parametrize("temperature", [0.25, 0.7, 1.0, 2.0, 10.0])
def test_tokens_come_as_often_as_the_softmax_at_that_temperature(temperature: float) -> None:
    """p^(1/T), normalised."""
    softened = [p ** (1 / temperature) for p in (P[0], P[1], P[2], P[3])]
    expected = [p / sum(softened) for p in softened]
    assert frequencies(Sample(temperature)) == pytest.approx(expected, abs=2 / GRID)


def test_a_low_temperature_takes_the_likeliest() -> None:
    assert frequencies(Sample(temperature=0.01)) == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Sample(temperature=1.2e-38), [0.0, 1.0, 0.0, 0.0]),  # the most likely token
        (Sample(temperature=3.4e38), [0.25, 0.25, 0.25, 0.25]),  # all tokens alike
        (Sample(top_p=1.2e-38), [0.0, 1.0, 0.0, 0.0]),
        (
            Sample(typical_p=1.2e-38),
            [0.0, 0.0, 0.0, 1.0],
        ),  # the one whose information content is nearest to the entropy
        (Sample(temperature=1.2e-38, top_p=1.2e-38, typical_p=1.2e-38, min_p=1.0, top_k=1), [0.0, 1.0, 0.0, 0.0]),
    ],
)
def test_a_token_is_drawn_at_the_ends_of_every_range(settings: Sample, expected: list[float]) -> None:
    assert frequencies(settings) == pytest.approx(expected, abs=2 / GRID)
    distant = torch.tensor([-3e38, 3e38, -torch.inf, 0.0])  # logits as far apart as float32 allows
    assert set(draw(distant.expand(4, -1), torch.tensor([0.0, 0.3, 0.6, 1 - 2**-24]), settings).tolist()) <= {0, 1, 3}


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (Sample(top_k=1), [1]),
        (Sample(top_k=2), [1, 3]),
        (Sample(top_k=3), [1, 3, 0]),
        (Sample(top_k=99), [1, 3, 0, 2]),
        (Sample(top_p=0.01), [1]),  # the likeliest is always in it
        (Sample(top_p=0.49), [1]),
        (Sample(top_p=0.51), [1, 3]),  # 0.50 does not reach it, 0.75 does
        (Sample(top_p=0.74), [1, 3]),
        (Sample(top_p=0.76), [1, 3, 0]),
        (Sample(top_p=0.95), [1, 3, 0, 2]),
        (Sample(top_p=1.0), [1, 3, 0, 2]),
        (Sample(top_k=3, top_p=0.80), [1, 3]),  # of the first three 0.75/0.9 = 0.83: the third is not needed
        (Sample(top_k=3, top_p=0.85), [1, 3, 0]),
        (Sample(top_k=1, top_p=1.0), [1]),
        (Sample(min_p=0.19), [1, 3, 0, 2]),  # at least 0.095
        (Sample(min_p=0.21), [1, 3, 0]),  # at least 0.105
        (Sample(min_p=0.51), [1]),
        (Sample(min_p=1.0), [1]),
        # the surprise is 1.90, 0.69, 2.30 and 1.39, its mean 1.21: 3 is nearest, then 1, 0 and 2
        (Sample(typical_p=0.24), [3]),
        (Sample(typical_p=0.26), [3, 1]),
        (Sample(typical_p=0.76), [3, 1, 0]),
        (Sample(typical_p=1.0), [3, 1, 0, 2]),
        (Sample(typical_p=0.76, min_p=0.35), [3, 1]),
    ],
)
def test_exactly_the_right_tokens_are_cut_off(settings: Sample, kept: list[int]) -> None:
    total = sum(P[token] for token in kept)
    expected = [P[token] / total if token in kept else 0.0 for token in range(4)]
    assert frequencies(settings) == pytest.approx(expected, abs=2 / GRID)


def test_the_temperature_acts_before_the_cut() -> None:
    """At T = 2 the probabilities are as √p: 0.387, 0.707, 0.316, 0.5 of 1.910: two of them reach 0.63, not 0.64."""
    assert [p > 0 for p in frequencies(Sample(2.0, top_p=0.63))] == [False, True, False, True]
    assert [p > 0 for p in frequencies(Sample(2.0, top_p=0.64))] == [True, True, False, True]


def test_what_may_not_be_written_is_never_drawn() -> None:
    log_p = torch.tensor([-torch.inf, math.log(0.6), math.log(0.4), -torch.inf])
    for settings in (Sample(), Sample(3.0), Sample(top_k=4), Sample(top_p=1.0)):
        counts = frequencies(settings, log_p)
        assert counts[0] == counts[3] == 0.0
    edge = torch.tensor([0.0, 1.0])  # rounding may make a 1 of a number below it
    assert draw(log_p.expand(2, -1).clone(), edge, Sample()).tolist() == [1, 2]


# ---- whole samples

FRUIT = {"apple": math.log(0.5), "banana": math.log(0.3), "cherry": math.log(0.2)}
FRUIT |= {f"{word} </s>": log_p for word, log_p in FRUIT.items()}  # then END for certain


def fruits(count: int, settings: Sample) -> tuple[TableModel, list[list[Hypothesis]]]:
    model = TableModel(FRUIT)
    source, lengths = torch.zeros(count, 1, dtype=torch.long), torch.ones(count, dtype=torch.long)
    limits, keys = torch.full((count,), 3), torch.arange(count)
    return model, search(cast(Any, model), source, lengths, model.symbols, settings, keys, limits)


@pytest.mark.parametrize("best", [1, 4])
def test_samples_follow_the_models_distribution(best: int) -> None:
    """Pearson's χ² with two degrees of freedom passes 13.8 once in a thousand."""
    count = 2000 // best
    model, found = fruits(count, Sample(n_best=best, seed=11))
    counts = Counter(model.sentence(h.tokens) for one in found for h in one)
    expected = {"apple": 0.5 * 2000, "banana": 0.3 * 2000, "cherry": 0.2 * 2000}
    assert counts.keys() == expected.keys()
    assert sum((counts[word] - n) ** 2 / n for word, n in expected.items()) < 13.8


def test_a_sample_scores_what_the_model_gives_it_whatever_the_temperature() -> None:
    model, found = fruits(50, Sample(temperature=3.0, n_best=3))
    for hypotheses in found:
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            assert h.score == pytest.approx(FRUIT[model.sentence(h.tokens)], abs=1e-5)
            assert h.finished


def test_a_sample_that_never_ends_is_cut_at_its_limit() -> None:
    model = TableModel({"la": 0.0, "la la": 0.0, "la la la": 0.0})
    source, ones = torch.zeros(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long)
    limits = torch.tensor([3, 2])
    found = search(cast(Any, model), source, ones, model.symbols, Sample(), torch.arange(2), limits)
    assert [model.sentence(one[0].tokens) for one in found] == ["la la la", "la la"]
    assert not any(one[0].finished for one in found)


# ---- what a draw depends on

SYMBOLS = SpecialTokens(bos=2, eos=3, suppressed=(0, 1, 2))


@pytest.fixture(scope="module")
def model() -> EncoderDecoderModel:
    torch.manual_seed(0)
    return (
        SYSTEMS["transformer"].spec(VocabularySizes(14, 14, joint=True), "tiny", model_dim=16, layers=1).build().eval()
    )


SOURCE = torch.randint(4, 14, (4, 6), generator=torch.Generator().manual_seed(5))
LENGTHS = torch.tensor([6, 4, 1, 5])
LENGTH = LengthLimit(ratio=1, offset=3)  # every source has another limit


def tokens_of(model: EncoderDecoderModel, settings: Sample, rows: list[int], keys: list[int]) -> list[list[list[int]]]:
    lengths = LENGTHS[rows]
    source = SOURCE[rows][:, : int(lengths.max())]
    found = search(model, source, lengths, SYMBOLS, settings, torch.tensor(keys))
    return [[h.tokens for h in one] for one in found]


def test_a_seed_reproduces_its_samples_and_another_does_not(model: EncoderDecoderModel) -> None:
    rows = [0, 1, 2, 3]
    first = tokens_of(model, Sample(seed=1, length_limit=LENGTH), rows, rows)
    assert tokens_of(model, Sample(seed=1, length_limit=LENGTH), rows, rows) == first
    assert tokens_of(model, Sample(seed=2, length_limit=LENGTH), rows, rows) != first
    torch.manual_seed(99)  # the random state of others is nothing to it
    assert tokens_of(model, Sample(seed=1, length_limit=LENGTH), rows, rows) == first


def test_the_batch_that_a_source_stands_in_never_changes_its_samples(model: EncoderDecoderModel) -> None:
    settings = Sample(seed=1, n_best=3, length_limit=LENGTH)
    together = tokens_of(model, settings, [0, 1, 2, 3], [0, 1, 2, 3])
    for row in range(4):
        assert tokens_of(model, settings, [row], [row]) == [together[row]]
    assert tokens_of(model, settings, [3, 1], [3, 1]) == [together[3], together[1]]


def test_the_same_source_with_another_key_has_other_samples(model: EncoderDecoderModel) -> None:
    found = tokens_of(model, Sample(length_limit=LENGTH), [0] * 8, list(range(8)))
    assert len({tuple(one[0]) for one in found}) > 4


def test_asking_for_more_samples_keeps_those_that_were_there(model: EncoderDecoderModel) -> None:
    few = tokens_of(model, Sample(n_best=2, length_limit=LENGTH), [0], [0])[0]
    many = tokens_of(model, Sample(n_best=5, length_limit=LENGTH), [0], [0])[0]
    assert len(many) == 5
    assert all(one in many for one in few)
    assert len({tuple(one) for one in many}) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *[
            (
                {"temperature": value},
                f"Sample.temperature must be above 0 and at most 3.4e+38, but is {value}: for greedy search use a beam "
                "of 1",
            )
            for value in (0.0, -1.0, 1e-38, 1e39, math.inf, math.nan)
        ],
        *[
            ({"top_p": value}, f"Sample.top_p must be above 0 and at most 1, but is {value}")
            for value in (0.0, 1.1, 1e-300, math.nan)
        ],
        *[
            ({"typical_p": value}, f"Sample.typical_p must be above 0 and at most 1, but is {value}")
            for value in (0.0, 1.1, 1e-300, math.nan)
        ],
        ({"min_p": math.nan}, "Sample.min_p must be between 0 and 1, but is nan"),
        ({"top_k": 0}, "Sample.top_k must be at least 1, but is 0"),
        ({"min_p": 1.5}, "Sample.min_p must be between 0 and 1, but is 1.5"),
        ({"no_repeat_ngram_size": -1}, "Sample.no_repeat_ngram_size must be at least 0, but is -1"),
        ({"n_best": 0}, "Sample.n_best must be at least 1, but is 0"),
        ({"seed": -1}, "Sample.seed must be between 0 and 9223372036854775807, but is -1"),
        ({"seed": 2**63}, "Sample.seed must be between 0 and 9223372036854775807, but is 9223372036854775808"),
    ],
)
def test_a_sampling_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        Sample(**settings)
    assert str(error.value) == message
