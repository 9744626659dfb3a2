"""Cleaning: every filter by hand, duplicates with little memory, and the same result for any number of chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.config import CleaningConfig
from dragoman.data import DATA_FORMATS, cleaning
from dragoman.data.cleaning import CleanedCorpora, choose_filters, clean_corpora, letter_share, main_script
from dragoman.data.corpus import Corpus
from dragoman.data.data_formats import DataFormat
from dragoman.errors import UserError

GOOD = [
    (f"The dog sees house {word}.", f"Der Hund sieht Haus {word}.") for word in ["one", "two", "three", "four", "five"]
]


def corpus_of(folder: Path, pairs: list[tuple[str, str]], name: str = "a") -> Corpus:
    for side, language in enumerate(("en", "de")):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    return Corpus(folder / f"{name}.en", folder / f"{name}.de")


def clean(folder: Path, *corpora: Corpus, data_format: str = "pairs", **settings: Any) -> CleanedCorpora:
    config = CleaningConfig(**settings) if settings else CleaningConfig(enabled=True).with_defaults()
    return clean_corpora(DATA_FORMATS[data_format], corpora, config, folder, map, lambda text: None)


def removed(result: CleanedCorpora) -> dict[str, int]:
    return {reason: found.pairs for reason, found in result.report.removed.items()}


def texts(result: CleanedCorpora, data_format: DataFormat = DATA_FORMATS["pairs"]) -> list[tuple[str, str | None]]:
    return [(pair.source, pair.target) for pair in data_format.read(result.corpora)]


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (("", "nichts"), "source empty"),
        (("something there", " "), "target empty"),
        (("The d\x07og sees.", "Der Hund sieht."), "source with control characters"),
        (("The dog sees.", "Der H\ufffdnd sieht."), "target with control characters"),
        (("12.05. 13:45 = €", "Der Hund sieht."), "source with less than 30 % letters"),
        (("The dog sees it.", "The dog sees it."), "source and target equal"),
        (("The dog sees.", "Hund. " * 20), "lengths differ more than 4-fold from 1.04 to 1"),
        (("The dog sees it.", "Собака видит это."), "target not in Latin script"),
        (("Собака видит это.", "Der Hund sieht es."), "source not in Latin script"),
        (GOOD[0], "duplicate of an earlier pair"),
    ],
)
def test_a_bad_pair_is_removed_and_shown(tmp_path: Path, pair: tuple[str, str], reason: str) -> None:
    result = clean(tmp_path, corpus_of(tmp_path, [*GOOD, pair]))
    assert texts(result) == GOOD
    assert removed(result) == {reason: 1}
    assert (result.report.pairs_read, result.report.pairs) == (6, 5)
    example = result.report.removed[reason].examples[0]
    assert (example.location, example.source, example.target) == (f"{tmp_path}/a.en:6", *pair)
    assert f"  removed 1: {reason}" in result.report.lines()


def test_single_filters_can_be_used_alone(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [*GOOD, ("a", "a"), ("b" * 50, "b" * 50), GOOD[1]])
    assert removed(clean(tmp_path, corpus, deduplicate=True)) == {"duplicate of an earlier pair": 1}
    assert removed(clean(tmp_path, corpus, reject_identical=True)) == {"source and target equal": 2}
    assert removed(clean(tmp_path, corpus, min_characters=5)) == {"source shorter than 5 characters": 1}
    assert removed(clean(tmp_path, corpus, max_characters=40)) == {"source longer than 40 characters": 1}
    assert not CleaningConfig().with_defaults().is_active
    assert not CleaningConfig(deduplicate=False).is_active
    kept = CleaningConfig(enabled=True, match_script=False, max_length_ratio=2).with_defaults()
    assert (kept.match_script, kept.max_length_ratio, kept.deduplicate) == (False, 2, True)


@pytest.mark.parametrize(
    ("pairs", "letters", "identical"),
    [
        (GOOD, 0.3, True),
        ([("12 345", "twelve"), ("6 7", "six"), ("one", "one")], 0.0, True),
        ([("walk", "walk"), ("go", "goes"), ("put", "put")], 0.3, False),
    ],
)
def test_filters_suit_the_text(tmp_path: Path, pairs: list[tuple[str, str]], letters: float, identical: bool) -> None:
    """Numbers are no flaw if most texts of a side are numbers, nor are forms that equal their lemma."""
    corpora = [corpus_of(tmp_path, pairs)]
    settings = choose_filters(CleaningConfig(enabled=True), DATA_FORMATS["pairs"], corpora)
    assert (settings.min_letter_share, settings.reject_identical) == (letters, identical)
    given = CleaningConfig(enabled=True, min_letter_share=0.5, reject_identical=True)
    assert choose_filters(given, DATA_FORMATS["pairs"], corpora).min_letter_share == 0.5
    assert not choose_filters(CleaningConfig(), DATA_FORMATS["pairs"], corpora).is_active


def test_forms_with_features_may_equal_their_lemma(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("to put off\tto put off\tV;PST\n", encoding="utf-8")
    corpus = Corpus(path, features_column="2")
    assert not choose_filters(CleaningConfig(enabled=True), DATA_FORMATS["pairs"], [corpus]).reject_identical


def test_the_first_of_equal_pairs_is_kept_across_corpora_and_ranges(tmp_path: Path, monkeypatch) -> None:
    numbers = np.random.default_rng(0).integers(0, 60, 300)
    pairs = [(f"word {'ab' * int(n)}", f"Wort {'ab' * int(n)}") for n in numbers]
    corpora = [corpus_of(tmp_path, pairs[:170], "a"), corpus_of(tmp_path, pairs[170:], "b")]
    expected = list(dict.fromkeys(pairs))
    assert texts(clean(tmp_path, *corpora, deduplicate=True)) == expected
    monkeypatch.setattr(cleaning, "MAX_HASHES", 16)  # 19 ranges of hashes …
    monkeypatch.setattr(cleaning, "BLOCK_PAIRS", 7)  # … in 43 blocks
    monkeypatch.setattr(DataFormat, "max_chunk_pairs", 11)
    result = clean(tmp_path, *corpora, deduplicate=True)
    assert texts(result) == expected
    assert removed(result) == {"duplicate of an earlier pair": 300 - len(expected)}
    assert [example.location for example in result.report.removed["duplicate of an earlier pair"].examples] == [
        f"{tmp_path}/a.en:{index + 1}" for index in range(170) if pairs[index] in pairs[:index]
    ][:3]


def test_pairs_removed_for_another_reason_are_not_the_first_of_equal_ones(tmp_path: Path) -> None:
    result = clean(tmp_path, corpus_of(tmp_path, [("1", "2"), ("1", "2"), *GOOD]))
    assert removed(result) == {"source with less than 30 % letters": 2}


def test_the_usual_ratio_is_that_of_the_corpus(tmp_path: Path) -> None:
    pairs = [("ab" * n, "c" * 20 * n) for n in range(1, 20)]  # targets are ten times longer
    assert texts(clean(tmp_path, corpus_of(tmp_path, pairs))) == pairs


def test_a_mixture_of_scripts_is_kept_but_noted(tmp_path: Path) -> None:
    pairs = [*GOOD, ("Собака", "Hund"), ("кошка", "Katze")]
    result = clean(tmp_path, corpus_of(tmp_path, pairs))
    assert texts(result) == pairs
    assert "the source is written in several scripts, which are all kept" in result.report.usual


def test_lines_of_text_and_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("first line\n\x07\nthird line\n\nnew document\nfirst line\nlast line\n")
    result = clean(tmp_path, Corpus(path), data_format="documents")
    pairs = list(DATA_FORMATS["documents"].read(result.corpora))
    assert [(pair.source, pair.follows_previous) for pair in pairs] == [
        ("first line", False),
        ("third line", False),  # the line before was removed
        ("new document", False),
        ("last line", False),
    ]
    assert len(texts(clean(tmp_path, Corpus(path), data_format="text"), DATA_FORMATS["text"])) == 4


def test_cleaning_that_leaves_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cleaning removed all 2 pairs \(2 source and target equal\): check the files"):
        clean(tmp_path, corpus_of(tmp_path, [("one", "one"), ("two", "two")]))


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello, Иван", "Latin"),
        ("Привет, OK", "Cyrillic"),
        ("日本語のテキスト", "Han or kana"),
        ("Ünïcödé", "Latin"),
        ("한국어", "Hangul"),
        ("3.14 €", ""),
        ("नमस्ते", "Devanagari"),
    ],
)
def test_main_script(text: str, script: str) -> None:
    assert main_script(text) == script


def test_letter_share() -> None:
    assert letter_share("ab 12") == 0.5
    assert letter_share("é1") == 0.5
    assert letter_share("नमस्ते") == 1.0  # with vowel signs
    assert letter_share(" ") == 0.0


def test_other_languages_are_removed_if_lingua_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("lingua", reason="needs the package lingua-language-detector")
    french = ("Le chien regarde la maison de son ami.", "Der Hund sieht das Haus seines Freundes.")
    corpus = corpus_of(tmp_path, [*GOOD, french])
    settings = CleaningConfig(identify_language=True)
    result = clean_corpora(DATA_FORMATS["pairs"], [corpus], settings, tmp_path, map, lambda text: None, ("en", "de"))
    assert texts(result) == GOOD
    assert removed(result) == {"source not in en, as identified by lingua": 1}
