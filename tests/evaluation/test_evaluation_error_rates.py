"""Edit distance against its textbook recurrence and its laws; error rates worked by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.evaluation.error_rates import (
    bracket_f1,
    character_error_rate,
    edit_distance,
    exact_match,
    item_error_rate,
    phoneme_error_rate,
    span_f1,
    symbol_error_rate,
    token_accuracy,
    word_error_rate,
)

words = st.lists(st.sampled_from("abc"), max_size=12)
sentences = words.map(" ".join)


def textbook_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The recurrence as Wagner and Fischer (1974) write it down, the whole table at once."""
    table = [[i + j for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i, left in enumerate(a, 1):
        for j, right in enumerate(b, 1):
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (left != right))
    return table[len(a)][len(b)]


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("kitten", "sitting", 3),  # k→s, e→i, +g
        ("Saturday", "Sunday", 3),  # −a, −t, r→n
        ("", "abc", 3),
        ("abc", "", 3),
        ("abc", "abc", 0),
        ("ab", "ba", 2),  # a transposition is two edits
    ],
)
def test_edit_distance_by_hand(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == distance


@given(words, words)
def test_edit_distance_equals_the_textbook_recurrence(a: list[str], b: list[str]) -> None:
    assert edit_distance(a, b) == textbook_distance(a, b)


def test_edit_distance_equals_the_recurrence_beyond_a_machine_word() -> None:
    chance = random.Random(1)
    for length in (63, 64, 65, 128, 200):
        a, b = chance.choices("abcd", k=length), chance.choices("abcd", k=length - 5)
        assert edit_distance(a, b) == textbook_distance(a, b)


@given(words, words, words)
def test_edit_distance_is_a_metric(a: list[str], b: list[str], c: list[str]) -> None:
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


@given(st.lists(st.tuples(sentences, sentences.filter(bool)), min_size=1, max_size=4))
def test_an_error_rate_is_zero_exactly_for_equal_sentences(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = map(list, zip(*pairs))
    equal = hypotheses == references
    assert (word_error_rate(hypotheses, references).value == 0) == equal
    assert (phoneme_error_rate(hypotheses, references).value == 0) == equal
    assert (item_error_rate(hypotheses, references).value == 0) == equal
    assert (token_accuracy(hypotheses, references).value == 100) == equal
    assert exact_match(hypotheses, references).value == pytest.approx(
        100 - item_error_rate(hypotheses, references).value
    )


def test_word_error_rate_by_hand() -> None:
    # One substitution in four words, one insertion to three: 2 of 7.
    score = word_error_rate(["a cat sat down", "it is not raining"], ["the cat sat down", "it is raining"])
    assert score.value == pytest.approx(100 * 2 / 7)
    assert score.detail == {"errors": 2, "words": 7}
    assert (score.better, score.unit) == ("lower", "%")


def test_word_error_rate_can_exceed_one_hundred() -> None:
    assert word_error_rate(["one two three"], ["four"]).value == 300


def test_closest_of_several_references_counts() -> None:
    score = phoneme_error_rate(["T AH M EY T OW"], [["T AA M AA T OW", "T AH M EY DX OW", "T M EY T OW Z"]])
    assert score.detail == {"errors": 1, "phonemes": 6}
    assert score.name == "phoneme error rate"


def test_of_equally_close_references_the_longest_counts() -> None:
    for references in (["K AE T S", "K AE"], ["K AE", "K AE T S"]):
        assert phoneme_error_rate(["K AE T"], [references]).value == 25


def test_the_two_word_error_rates_of_two_communities_differ() -> None:
    hypotheses = ["K AE T", "D AO G Z", "F IH SH", "B ER D"]
    references = [["K AE T"], ["D AO G", "D AA G"], ["F IH S", "F IH SH"], ["B ER D Z"]]
    assert item_error_rate(hypotheses, references).value == 50  # 2 of 4 words are wrong …
    assert phoneme_error_rate(hypotheses, references).value == pytest.approx(100 * 2 / 13)  # … by a phoneme each
    assert exact_match(hypotheses, references).detail == {"right": 2, "items": 4}


def test_token_accuracy_counts_positions() -> None:
    assert token_accuracy(["DET NOUN VERB", "PRON VERB"], ["DET NOUN NOUN", "PRON VERB"]).value == 80
    # A word lost at the front puts all that follow out of place: 0 of 3.
    assert token_accuracy(["b c"], ["a b c"]).value == 0
    # A surplus word is one wrong place more: 2 of 3.
    assert token_accuracy(["a b x"], ["a b"]).value == pytest.approx(100 * 2 / 3)


def test_span_f1_counts_labels_and_both_ends() -> None:
    """By hand: 1 of 2 predicted and of 3 gold spans is right: 2 · 1 / (2 + 3)."""
    assert span_f1(["B-PER I-PER O B-LOC"], ["B-PER I-PER B-LOC B-ORG"]).value == 40
    assert span_f1(["O B I O"], ["O B I I"]).value == 0  # another end
    assert span_f1(["B-PER"], ["B-LOC"]).value == 0
    assert span_f1(["I I O I"], ["B I O B"]).value == 100  # an I that continues nothing begins a span
    assert span_f1(["B B"], ["B I"]).value == 0
    assert span_f1(["O O", "B"], ["O O", "B"]).value == 100  # a sentence without spans counts for nothing
    assert span_f1(["B O"], [["O B", "B O"]]).value == 100
    with pytest.raises(UserError, match="no spans"):
        span_f1(["O"], ["O"])


def test_bracket_f1_compares_constituents_without_parts_of_speech() -> None:
    """By hand: S 0–5, NP 0–2, VP 2–5, NP 3–5 against another attachment of the last word."""
    gold = "(S (NP (D the) (N man)) (VP (V sees) (NP (D a) (N dog))))"
    assert bracket_f1([gold], [gold]).detail == {"right": 4, "predicted_and_gold_constituents": 8}
    assert bracket_f1([gold.replace("(N dog)", "(X dog)")], [gold]).value == 100  # parts of speech do not count
    flat = "(S (NP (D the) (N man)) (VP (V sees) (D a) (N dog)))"
    assert bracket_f1([flat], [gold]).value == pytest.approx(100 * 2 * 3 / (3 + 4))
    spaced = "(S (NP (D the ) (N man ) ) (VP (V sees ) (NP (D a ) (N dog ) ) ) )"
    assert bracket_f1([spaced], [gold]).value == 100
    # S and VP are not closed: 2 constituents are left, both right
    assert bracket_f1([gold.removesuffix("))")], [gold]).value == pytest.approx(100 * 2 * 2 / (2 + 4))
    assert bracket_f1([f"{gold} )"], [gold]).value == 100


def test_an_empty_hypothesis_is_all_wrong_and_an_empty_line_harms_nothing() -> None:
    assert word_error_rate([""], ["two words"]).value == 100
    assert word_error_rate(["", "two words"], ["", "two words"]).value == 0


def test_references_without_a_word_are_refused() -> None:
    with pytest.raises(UserError, match="no words"):
        word_error_rate(["something"], [" "])


def test_many_items_have_the_mean_rate_of_their_parts() -> None:
    """Twelve thousand items of seven phonemes each, at once and in three parts of the same size."""
    chance = random.Random(1)
    hypotheses = [" ".join(chance.choices("abcdefgh", k=7)) for _ in range(12_000)]
    references = [" ".join(chance.choices("abcdefgh", k=7)) for _ in range(12_000)]
    parts = [
        phoneme_error_rate(hypotheses[start : start + 4000], references[start : start + 4000]).value
        for start in (0, 4000, 8000)
    ]
    assert phoneme_error_rate(hypotheses, references).value == pytest.approx(sum(parts) / 3)


def test_symbol_error_rate_by_hand() -> None:
    score = symbol_error_rate(["WALK WALK LOOK", "JUMP"], ["WALK LOOK LOOK", "JUMP TURN_LEFT JUMP"])
    # one substitution in 3 symbols, two deletions in 3
    assert score.value == pytest.approx(100 * 3 / 6)
    assert (score.name, dict(score.detail)) == ("symbol error rate", {"errors": 3, "symbols": 6})


def test_character_error_rate_by_hand() -> None:
    score = character_error_rate(["kitten", "ging weg"], ["sitting", "ging w"])
    # kitten → sitting: 3 edits, 7 characters; "ging weg" → "ging w": 2 edits, 6 characters with the space
    assert score.value == pytest.approx(100 * 5 / 13)
    assert (score.name, dict(score.detail)) == ("character error rate", {"errors": 5, "characters": 13})


def test_error_rates_use_the_closest_reference() -> None:
    assert character_error_rate(["colour"], [["color", "colours"]]).value == pytest.approx(100 / 7)  # the longer one
    assert symbol_error_rate(["T AH M EY T OW"], [["T AH M AA T OW", "T AH M EY T OW"]]).value == 0
    assert item_error_rate(["T AH M EY T OW", "K AE T"], [["T AH M AA T OW", "T AH M EY T OW"], ["K AH T"]]).value == 50


@given(st.lists(st.tuples(sentences, sentences.filter(bool)), min_size=1, max_size=4))
def test_error_rates_equal_another_library(pairs: list[tuple[str, str]]) -> None:
    nltk = pytest.importorskip("nltk")
    hypotheses, references = map(list, zip(*pairs))
    characters = sum(nltk.edit_distance(h, r) for h, r in pairs) / sum(map(len, references))
    symbols = sum(nltk.edit_distance(h.split(), r.split()) for h, r in pairs) / sum(len(r.split()) for r in references)
    assert character_error_rate(hypotheses, references).value == pytest.approx(100 * characters)
    assert symbol_error_rate(hypotheses, references).value == pytest.approx(100 * symbols)
