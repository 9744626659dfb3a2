from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.text import alignment_spans, alignment_words, split_words, word_spans


def test_punctuation_is_a_word_of_its_own() -> None:
    assert split_words("Don't go (now)...") == ["Don", "'", "t", "go", "(", "now", ")", ".", ".", "."]


def test_digits_and_letters_of_any_script_make_words() -> None:
    assert split_words("  42 Häuser,\tשלום 你好 x_1 ") == ["42", "Häuser", ",", "שלום", "你好", "x_1"]


def test_combining_marks_stay_with_their_letters() -> None:
    assert split_words("e\u0301te\u0301!") == ["e\u0301te\u0301", "!"]
    assert split_words("हिन्दी है") == ["हिन्दी", "है"]
    assert split_words("!\u0301a") == ["!\u0301", "a"]


def test_there_are_no_words_in_white_space() -> None:
    assert split_words("") == split_words(" \t\n") == []


@given(st.text())
def test_spans_are_the_positions_of_the_words(text: str) -> None:
    assert [text[begin:end] for begin, end in word_spans(text)] == split_words(text)


def test_alignments_count_whitespace_tokens() -> None:
    assert alignment_words(" He paid 3.5 €,\u00a0well-known. ") == ["He", "paid", "3.5", "€,", "well-known."]
    assert alignment_words("我们 爱 北京 。") == ["我们", "爱", "北京", "。"]  # segmented by its writer


def test_a_text_without_spaces_counts_characters() -> None:
    assert alignment_words("我爱「北京」。") == ["我", "爱「", "北", "京」。"]
    assert alignment_words("iPhone12を買う。") == ["iPhone12", "を", "買", "う。"]
    assert alignment_words("犬") == ["犬"]
    assert alignment_words("…") == ["…"]


@given(st.text(st.characters(exclude_categories=("Cs",))) | st.text(st.sampled_from("我爱aé1。「 \u0e33")))
def test_the_words_of_an_alignment_cover_all_but_white_space(text: str) -> None:
    spans = alignment_spans(text)
    assert "".join(text[begin:end] for begin, end in spans) == "".join(text.split())
    assert all(begin < end for begin, end in spans)
