from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.text import word_spans, words


def test_punctuation_is_a_word_of_its_own() -> None:
    assert words("Don't go (now)...") == ["Don", "'", "t", "go", "(", "now", ")", ".", ".", "."]


def test_digits_and_letters_of_any_script_make_words() -> None:
    assert words("  42 Häuser,\tשלום 你好 x_1 ") == ["42", "Häuser", ",", "שלום", "你好", "x_1"]


def test_combining_marks_stay_with_their_letters() -> None:
    assert words("e\u0301te\u0301!") == ["e\u0301te\u0301", "!"]
    assert words("हिन्दी है") == ["हिन्दी", "है"]
    assert words("!\u0301a") == ["!\u0301", "a"]


def test_there_are_no_words_in_white_space() -> None:
    assert words("") == words(" \t\n") == []


@given(st.text())
def test_spans_are_the_places_of_the_words(text: str) -> None:
    assert [text[begin:end] for begin, end in word_spans(text)] == words(text)
