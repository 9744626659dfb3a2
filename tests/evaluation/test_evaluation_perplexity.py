"""Perplexity is the size of the uniform choice that is as hard."""

from __future__ import annotations

import math

import pytest

from dragoman.errors import UserError
from dragoman.evaluation.likelihood import bits_per_character, likelihood_metric, perplexity, word_perplexity


@pytest.mark.parametrize("vocabulary", [1, 2, 50, 32_000])
def test_a_uniform_distribution_has_the_perplexity_of_its_size(vocabulary: int) -> None:
    score = perplexity(-17 * math.log(vocabulary), 17)
    assert score.value == pytest.approx(vocabulary)
    assert score.detail["cross_entropy"] == pytest.approx(math.log(vocabulary))


def test_perplexity_is_the_geometric_mean_of_inverse_probabilities() -> None:
    # 1/2 and 1/8: the root of 2 · 8 is 4.
    assert perplexity(math.log(1 / 2) + math.log(1 / 8), 2).value == pytest.approx(4)


def test_an_impossible_token_makes_perplexity_infinite() -> None:
    assert perplexity(-math.inf, 3).value == math.inf
    assert perplexity(-1e6, 3).value == math.inf


def test_perplexity_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="at least one token"):
        perplexity(0.0, 0)


def test_words_and_characters_include_eos() -> None:
    texts = ["ab c", ""]  # 2 words and 4 characters, and two ENDs
    assert word_perplexity(-4 * math.log(3), texts).value == pytest.approx(3)
    assert bits_per_character(-6 * math.log(2) * 1.5, texts).value == pytest.approx(1.5)
    assert likelihood_metric("perplexity", -5 * math.log(7), 5, texts).value == pytest.approx(7)
    for name in ("word-perplexity", "word_perplexity"):
        assert likelihood_metric(name, -4 * math.log(3), 5, texts).detail["words"] == 4
    with pytest.raises(UserError, match="at least one word"):
        word_perplexity(0.0, [])
