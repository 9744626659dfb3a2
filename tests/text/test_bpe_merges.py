from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text import learn_merges

TEXTBOOK = {"low": 5, "lower": 2, "newest": 6, "widest": 3}


def by_definition(counts: dict[str, int], merges: int) -> list[tuple[str, str]]:
    """The algorithm as the paper writes it: count all pairs afresh, merge the first of the most frequent, repeat."""
    words = [(list(word), count) for word, count in counts.items()]
    result = []
    for _ in range(merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words:
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=pairs.__getitem__)
        result.append(best)
        for word, _ in words:
            place = 0
            while place < len(word) - 1:
                if (word[place], word[place + 1]) == best:
                    word[place : place + 2] = ["".join(best)]
                place += 1
    return result


def test_textbook_merges() -> None:
    counts = {(*word, "</w>"): count for word, count in TEXTBOOK.items()}
    assert learn_merges(counts, 5) == [("e", "s"), ("es", "t"), ("est", "</w>"), ("l", "o"), ("lo", "w")]


def test_merging_ends_when_every_word_is_one_symbol() -> None:
    assert learn_merges({"ab": 2, "c": 9}, 100) == [("a", "b")]
    assert learn_merges({}, 100) == []


def test_overlapping_pairs_are_merged_from_the_left() -> None:
    assert learn_merges({"aaaaa": 1}, 3) == [("a", "a"), ("aa", "aa"), ("aaaa", "a")]


@pytest.mark.parametrize("letters", ["ab", "abcd"])
def test_merges_follow_the_definition(letters: str) -> None:
    @given(st.dictionaries(st.text(letters, min_size=1, max_size=9), st.integers(1, 4), max_size=12))
    def check(counts: dict[str, int]) -> None:
        assert learn_merges(counts, 30) == by_definition(counts, 30)

    check()
