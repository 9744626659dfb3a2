"""Held-out pairs are chosen by their source text alone, the same way every time, and never leak into train."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_encoding import choose_holdout, held_out

from dragoman.data import SentencePair, corpus_passes
from dragoman.data.corpus_passes import HoldoutSampler, default_holdout_size


def corpus(sources: list[str]) -> list[SentencePair]:
    return [SentencePair(source, f"t{number}", "c", number) for number, source in enumerate(sources, 1)]


@given(st.lists(st.sampled_from("abcdefghijklmnop"), min_size=2), st.integers(1, 20))
def test_train_and_valid_are_disjoint_by_source(sources: list[str], size: int) -> None:
    pairs = corpus(sources)
    held = choose_holdout(pairs, size)
    train, valid = list(held.training_pairs(pairs)), held_out(held, pairs)
    assert sorted(train + valid, key=lambda pair: pair.line) == pairs
    assert not {pair.source for pair in train} & {pair.source for pair in valid}
    assert len(valid) == held.pairs
    assert train
    assert bool(valid) == (len(set(sources)) > 1)


def test_the_split_depends_on_the_text_but_not_on_its_order() -> None:
    pairs = corpus([f"sentence {number}" for number in range(1000)])
    first, again = choose_holdout(pairs), choose_holdout(pairs[::-1])
    assert first == again
    assert len(held_out(first, pairs)) == 50


def test_distinct_sources_give_exactly_the_requested_size() -> None:
    pairs = corpus([f"sentence {number}" for number in range(300)])
    assert len(held_out(choose_holdout(pairs, 123), pairs)) == 123
    assert len(held_out(choose_holdout(pairs, 10_000), pairs)) == 299


def test_empty_pairs_are_not_chosen_for_validation() -> None:
    pairs = [SentencePair("", "x", "c", 1), SentencePair("a", " ", "c", 2), SentencePair("b", "x", "c", 3)]
    assert choose_holdout(pairs).pairs == 0
    assert held_out(choose_holdout(pairs), pairs) == []


@pytest.mark.parametrize(
    ("total", "size"),
    [(2, 1), (10, 1), (50, 5), (100, 10), (500, 50), (1_000, 50), (10_000, 500), (40_000, 2_000), (5_000_000, 2_000)],
)
def test_the_size_grows_with_the_corpus(total: int, size: int) -> None:
    assert default_holdout_size(total) == size


@given(st.lists(st.integers(0, 60), max_size=200), st.integers(1, 30), st.integers(1, 40))
def test_bounded_memory_does_not_change_the_split(numbers: list[int], size: int, waiting: int) -> None:
    hashes = np.array(numbers, np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_passes, "MAX_BUFFERED_HASHES", waiting)
        sampler = HoldoutSampler(size)
        for start in range(0, len(hashes), 7):
            sampler.add(hashes[start : start + 7])
        held = sampler.choose()
    distinct = sorted(set(numbers))
    expected = 0  # as many of the smallest as stay within the size, but one at least and never all
    while expected < len(distinct) - 1 and (
        expected == 0 or sum(number <= distinct[expected] for number in numbers) <= size
    ):
        expected += 1
    assert held.threshold == (distinct[expected - 1] if expected else -1)
    assert held.pairs == sum(number <= held.threshold for number in numbers)
