"""Unknown words: replaced through the alignment by the dictionary, or by the source word itself."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.search.unknown_words import UnknownWordReplacer, read_dictionary, source_words
from dragoman.text import Tokenizer, learn_tokenizer

DICTIONARY = {"portico": "Säulenhalle", "Pont": "Brücke", "york": "Yorker Schloss"}


# ---- words


def test_a_word_is_translated_by_its_exact_spelling_then_in_small_letters_or_else_copied() -> None:
    words = word_tokenizer("a")
    translation = UnknownWordReplacer(
        words, words, {"march": "marschieren", "March": "März", "rose": "Rose"}
    ).translation
    assert [translation(word) for word in ("March", "march", "ROSE", "Pont-de-Buis")] == [
        "März",
        "marschieren",
        "Rose",
        "Pont-de-Buis",
    ]


# ---- dictionaries


def test_a_dictionary_is_read_from_plain_and_gzipped_text(tmp_path: Path) -> None:
    text = "house\tHaus\nhouse\tGebäude\n New York \tNew York\nthe\tdie\n"
    expected = {"house": "Haus", "New York": "New York", "the": "die"}  # the first entry wins
    (tmp_path / "plain.txt").write_text(text, encoding="utf-8")
    with gzip.open(tmp_path / "packed.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    assert read_dictionary(tmp_path / "plain.txt") == expected
    assert read_dictionary(tmp_path / "packed.gz") == expected


@pytest.mark.parametrize("line", ["house Haus", "house\tHaus\tn", "house\t", "\tHaus", "", " \t "])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "words.tsv"
    path.write_text(f"the\tdie\n{line}\ncat\tKatze\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        read_dictionary(path)
    assert (
        str(error.value)
        == f"{path}, line 2: expected a word, a tab and its translation, but found {line!r}: correct the line"
    )


def test_a_dictionary_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("grün\tgreen\n".encode("latin-1"))
    with pytest.raises(UserError, match="latin, line 1 is not UTF-8"):
        read_dictionary(tmp_path / "latin")
    with pytest.raises(UserError, match="does not exist"):
        read_dictionary(tmp_path / "nowhere")


# ---- whole sentences


def word_tokenizer(text: str, marker: str = "initial") -> Tokenizer:
    return learn_tokenizer([text], kind="word", size=100, marker=marker)


def looks(rows: list[int], columns: int) -> Tensor:
    """Each target token looked at one source token alone."""
    return torch.eye(columns)[rows]


markers = pytest.mark.parametrize("marker", ["initial", "final"])


@markers
def test_a_sentence_is_written_with_its_unknown_words_replaced(marker: str) -> None:
    """the zorb sees quux . → der <unk> sieht <unk> ., in which zorb has a translation and quux has none."""
    source = word_tokenizer("the sees .", marker)
    target = word_tokenizer("der sieht .", marker)
    ids = target.encode("der Zorb sieht Quux .")
    assert target.decode(ids) == "der <unk> sieht <unk> ."
    rewriting = UnknownWordReplacer(source, target, {"zorb": "Zorb der Große"})
    text, links = rewriting.replace("the zorb sees quux .", ids, looks([0, 1, 2, 3, 4, 5], 6))
    assert text == "der Zorb der Große sieht quux ."
    assert text.split() == ["der", "Zorb", "der", "Große", "sieht", "quux", "."]
    assert links == [(0, 0), (1, 1), (1, 2), (1, 3), (2, 4), (3, 5), (4, 6)]


@markers
def test_words_in_another_order_are_found_by_the_alignment(marker: str) -> None:
    target = word_tokenizer("a b", marker)
    rewriting = UnknownWordReplacer(word_tokenizer("x", marker), target, {})
    text, links = rewriting.replace("one two x three", target.encode("? b ? a ?"), looks([3, 2, 0, 4, 1], 5))
    # for a END was looked at, and no word more than another
    assert text == "three b one a two"
    assert [link for link in links if link[1] != 3] == [(0, 2), (1, 4), (2, 1), (3, 0)]


def test_what_stands_next_to_an_unknown_word_stays_where_it_was() -> None:
    """A literal <unk> of three known words is no unknown word."""
    target = word_tokenizer("< unk > (a) <unk>")
    ids = target.encode("(a zorb) <unk>")
    assert target.decode(ids) == "(a <unk>) <unk>"
    rewriting = UnknownWordReplacer(word_tokenizer("b"), target, {"b": "Q"})
    weights = looks([0] * len(ids), 2)
    text, links = rewriting.replace("b", ids, weights)
    assert text == "(a Q) <unk>"
    assert links == [(0, n) for n in range(3)]


@markers
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("zorb, 3.57", [(0, 0), (1, 1)]),
        ("a well-known (quux).", [(0, 0), (1, 1), (2, 2)]),
        ("zorb zorb", [(0, 0), (1, 1)]),
    ],
)
def test_numbers_and_compounds_are_copied_whole(marker: str, source: str, expected: list[tuple[int, int]]) -> None:
    """Every token looks at the one in its own place, and all words are unknown."""
    target = word_tokenizer("x,-.()", marker)
    ids = target.encode(source)
    text, links = UnknownWordReplacer(target, target, {}).replace(source, ids, looks([*range(len(ids))], len(ids) + 1))
    assert text == source
    assert links == expected


def test_a_translation_without_unknown_words_stays_as_it_is() -> None:
    target = word_tokenizer("der Hund bellt .")
    ids = target.encode("der Hund bellt .")
    rewriting = UnknownWordReplacer(word_tokenizer("the dog barks ."), target, DICTIONARY)
    assert rewriting.replace("the dog barks.", ids, looks([0, 1, 2, 3], 5)) == (
        "der Hund bellt .",
        [(0, 0), (1, 1), (2, 2), (2, 3)],
    )
    assert rewriting.replace("the dog barks.", [], torch.zeros(1, 5)) == ("", [])


def test_a_source_that_was_cut_off_is_aligned_as_far_as_it_was_read() -> None:
    """Of five words three were read, and END: the fourth column is no word."""
    target = word_tokenizer("a")
    rewriting = UnknownWordReplacer(word_tokenizer("v w x y z"), target, {})
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    assert rewriting.replace("v w x y z", [target.unk], weights) == ("x", [(2, 0)])


def test_the_source_may_be_cut_into_pieces() -> None:
    source = learn_tokenizer(["low lower newest widest"] * 3, kind="bpe", size=280)
    target = word_tokenizer("a")
    text = "lower wider"
    pieces = source.encode(text)
    numbers = source.word_ids(pieces)
    assert len(pieces) > 2
    weights = torch.zeros(1, len(pieces) + 1)
    weights[0, numbers.index(1)] = 1.0
    assert UnknownWordReplacer(source, target, {}).replace(text, [target.unk], weights)[0] == "wider"


def test_a_target_that_spells_every_word_has_no_unknown_ones() -> None:
    spelling = learn_tokenizer(["abc"], kind="character", size=300)
    with pytest.raises(UserError, match="the target tokenizer of this run is of kind 'character'"):
        UnknownWordReplacer(spelling, spelling)


# ---- which piece belongs to which word


@markers
@pytest.mark.parametrize(
    "text",
    [
        "the cat",
        "zorb the cat, quux!",
        " the  cat ",
        "the\tcat",  # a tab is an unknown piece, and no word
        "the\u00a0quux cat",
        "\u2764\ufe0f the \u2764\ufe0f zorb",  # two pieces make one word
        "zorb",
    ],
)
def test_source_pieces_find_their_words_whether_they_are_known_or_not(marker: str, text: str) -> None:
    """A tokenizer that knows all of them can tell by itself."""
    knows, knows_little = word_tokenizer(text, marker), word_tokenizer("the cat", marker)
    ids = knows_little.encode(text)
    assert source_words(knows_little, text) == knows.word_ids(knows.encode(text))
    assert len(source_words(knows_little, text)) == len(ids)


def test_copied_unknown_words_are_those_with_the_same_token() -> None:
    source = learn_tokenizer(["please call at home"], "word", 20).with_unknown_words(100)
    target = learn_tokenizer(["bitte rufe zu Hause an"], "word", 20).with_unknown_words(100)
    text = "please call Zolmar , Brux at home"
    assert source.encode("Zolmar") != source.encode("Brux")  # CRC-32 modulo 100: 48 and 97
    ids = target.encode("bitte rufe Brux , Zolmar an")
    weights = torch.full((len(ids) + 1, 8), 1 / 8)  # says nothing
    assert UnknownWordReplacer(source, target).replace(text, ids, weights)[0] == "bitte rufe Brux , Zolmar an"
