"""Texts are split into sentences and joined again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.sentences import single_sentence, split_sentences


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("He said: “Go.” Then he left.", ["He said: “Go.”", "Then he left."]),
        ("Dr. Smith met J. Doe at 3. Mai.", ["Dr. Smith met J. Doe at 3. Mai."]),
        ("In 1999. Then 3.5 or 1,000.", ["In 1999.", "Then 3.5 or 1,000."]),
        ("e.g. this, z. B. das, etc. and so on", ["e.g. this, z. B. das, etc. and so on"]),
        ("what? he asked. No. Yes.", ["what? he asked.", "No.", "Yes."]),
        ("你好。你是谁？我是「他。」好！", ["你好。", "你是谁？", "我是「他。」", "好！"]),
        ("كيف حالك؟ أنا بخير.", ["كيف حالك؟", "أنا بخير."]),
        ("राम घर जाता है। वह खुश है।", ["राम घर जाता है।", "वह खुश है।"]),
        ("a line\nanother\tand a cell", ["a line", "another", "and a cell"]),
        ("… and so on", ["… and so on"]),
        ("Hello! {name} reads. {} is here.", ["Hello!", "{name} reads.", "{} is here."]),
        ("Read it. https://a.org/b. See www.c.de.", ["Read it.", "https://a.org/b.", "See www.c.de."]),
        ("Write to us. info@a.org answers.", ["Write to us.", "info@a.org answers."]),
        ("He paid. iPhones and eBay. macOS too.", ["He paid.", "iPhones and eBay.", "macOS too."]),
        ("hello there. how are you? i am fine. ok", ["hello there.", "how are you?", "i am fine.", "ok"]),
        ("it costs approx. five euros, max. ten.", ["it costs approx. five euros, max. ten."]),
        ("well... i think so", ["well... i think so"]),
        ("“are you there?” he asked. “yes, i am.” and so on", ["“are you there?” he asked.", "“yes, i am.” and so on"]),
        ("The engl. word, see fig. {n}, e.g. https://a.org.", ["The engl. word, see fig. {n}, e.g. https://a.org."]),
        ("Room No. 5 and Nr. {n}. No. We left.", ["Room No. 5 and Nr. {n}.", "No.", "We left."]),
        ("It takes a min. Then eat a fig. Good.", ["It takes a min.", "Then eat a fig.", "Good."]),
        ("Preis inkl. Mehrwertsteuer. Danke.", ["Preis inkl. Mehrwertsteuer.", "Danke."]),
        ("The book (see ch. two) is old. (the end) Yes", ["The book (see ch. two) is old. (the end) Yes"]),
        ("", []),
        (" \n\t ", []),
        ("with\0control\x07characters\x85", ["with control characters"]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, sentences: list[str]) -> None:
    assert split_sentences(text, words, 100).sentences == sentences


@given(st.text(st.sampled_from("aB1. !?\n\t\r  。」,\x00é"), max_size=60), st.integers(1, 4))
def test_joined_sentences_are_the_text(text: str, most: int) -> None:
    found = split_sentences(text, words, most)
    kept = found.join(found.sentences, "zh")
    assert kept.replace("\0", " ") == text.replace("\0", " ")
    assert len(found.gaps) == len(found.sentences) + 1
    assert all(sentence.strip() == sentence and sentence for sentence in found.sentences)


def test_paragraphs_and_white_space_are_kept() -> None:
    found = split_sentences("  First.  Second.\n\n\tThird.\n", words, 100)
    assert found.join(["1", "2", "3"], "de") == "  1  2\n\n\t3\n"


def test_a_space_is_inserted_if_the_target_language_has_spaces() -> None:
    found = split_sentences("你好。再见。", words, 100)
    assert found.join(["Hallo.", "Tschüss."], "de") == "Hallo. Tschüss."
    assert found.join(["やあ。", "またね。"], "ja") == "やあ。またね。"


def test_a_long_sentence_is_split_near_its_middle() -> None:
    assert split_sentences("a b c, d e f", words, 4).sentences == ["a b c,", "d e f"]
    assert split_sentences("a b c d", words, 2).sentences == ["a b", "c d"]
    assert split_sentences("abcdefgh", len, 4).sentences == ["abcd", "efgh"]


def test_a_text_can_be_one_sentence() -> None:
    assert single_sentence(" One. Two. ").sentences == ["One. Two."]
    assert single_sentence(" One. Two. ").join(["x"], "de") == " x "


def test_without_a_target_language_full_width_punctuation_takes_no_space() -> None:
    found = split_sentences("你好。再见。", words, 100)
    assert found.join(["Hallo.", "Tschüss."]) == "Hallo. Tschüss."
    assert found.join(["やあ。", "またね。"]) == "やあ。またね。"
