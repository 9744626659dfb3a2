"""Statistics of the text of a corpus: inventory, scripts, lengths and copying, counted by hand on a few lines."""

from __future__ import annotations

import pytest

from dragoman.data import DATA_FORMATS, Corpus, SentencePair, text_profile
from dragoman.data.corpus_passes import survey_corpora
from dragoman.data.text_profile import CorpusCounts, CorpusProfile, count_chunk
from dragoman.processes import process_map
from dragoman.text.scripts import script_of, script_shares


def profile_of(*pairs: tuple[str, str | None]) -> CorpusProfile:
    """Return the profile of pairs of source and target."""
    return count_chunk([SentencePair(source, target, "corpus", 1) for source, target in pairs]).profile()


def test_lengths_and_inventory_of_a_column() -> None:
    profile = profile_of(("a bb a", None), ("a ccc", None), ("dd", None), ("", None)).source
    assert profile is not None
    assert (profile.lines, profile.words_per_line, profile.single_word_lines) == (3, 2, 1 / 3)
    assert profile.characters_per_word == 10 / 6
    assert profile.symbols == 4
    assert profile.alphabet == 4
    assert profile.unseen_share == 3 / 6  # bb, ccc and dd occur in one line
    assert profile.coverage[100] == 1


def test_a_symbol_that_is_repeated_in_one_line_is_unseen_in_the_others() -> None:
    profile = profile_of(("x x x y", None), ("y", None)).source
    assert profile is not None
    assert profile.unseen_share == 1 / 5


def test_copied_words_and_rare_ones() -> None:
    pairs = [("see Smith and Jones", "siehe Smith und Jones")] + [("see it", "siehe es")] * 6
    profile = profile_of(*pairs)
    assert profile.copied_share == 2 / 16
    assert profile.rare_copied_share == 2 / 3  # und, Smith and Jones occur once, the others six or seven times


def test_pairs_with_as_many_words_on_both_sides() -> None:
    assert profile_of(("a b", "X Y"), ("a", "X Y"), ("a b c", "X Y Z"), ("a", "X")).equal_lengths == 3 / 4


def test_targets_that_repeat_their_sources_by_nature() -> None:
    assert profile_of(("color", "colour"), ("house", "house")).repeats_words  # spelling
    assert profile_of(("he go home", "he goes home"), ("a b c d", "a b c d")).repeats_words  # correction
    assert not profile_of(("see it", "siehe es"), ("OK", "OK")).repeats_words  # a translation
    assert not profile_of(("Bonn", "Бонн"), ("Rom", "Рим")).repeats_words  # another script


def test_lengths_of_targets_relative_to_their_sources() -> None:
    profile = profile_of(("aa", "aaaa"), ("aa", "aaaaaaaa"), ("aa", "a"))
    assert profile.length_ratios == (0.5, 2, 4)


def test_punctuation_attached_to_words() -> None:
    profile = profile_of(("the house is a house.", None), ("(the is a 'big house'", None)).source
    assert profile is not None
    # house. (the house' ; 'big occurs in one form only, and shorter words are not regarded
    assert profile.attached_punctuation == 3 / 10
    assert profile.sentence_lines == profile.attached_stops == 1 / 2


def test_stops_that_are_words_are_not_attached() -> None:
    profile = profile_of(("the house .", None), ("the house", None), ("the house .”", None), ("a house?)", None)).source
    assert profile is not None
    assert (profile.sentence_lines, profile.attached_stops) == (3 / 4, 1 / 4)


SCRIPTS = {
    "Latin": "ßＡʰÅ",  # full-width and superscript letters too
    "Cyrillic": "ж",
    "Han": "漢",
    "Hiragana": "か",
    "Katakana": "ー",
    "Hangul": "한",
    "Thai": "ไ",
    "Khmer": "ក",
    "Arabic": "ع",
    "Devanagari": "ह",
    None: "1。\u0301 ",
}


def test_phonetic_transcriptions_are_of_one_script() -> None:
    assert {script_of(modifier) for modifier in "ːˑʼˈ"} == {None}
    assert script_shares(dict.fromkeys("kʰaːtˤ", 1)) == {"Latin": 1.0}


def test_script_of_a_character() -> None:
    assert {script: {script_of(letter) for letter in letters} for script, letters in SCRIPTS.items()} == {
        script: {script} for script in SCRIPTS
    }


def test_scripts_of_a_text() -> None:
    assert script_shares({"a": 2, "б": 1, "1": 9, "в": 1}) == {"Cyrillic": 0.5, "Latin": 0.5}


def test_text_without_spaces() -> None:
    sentence = "私は昨日学校へ行って友達と話しました。"
    unspaced, words, segmented = (profile_of((text, None)).source for text in (sentence, "がっこう", "私 は 行く"))
    assert unspaced is not None
    assert not unspaced.writes_spaces
    assert words is not None
    assert not words.writes_spaces
    assert segmented is not None
    assert segmented.writes_spaces


def test_counting_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_profile, "MAX_COUNTED_SYMBOLS", 3)
    counts = CorpusCounts()
    for line in ("a b c", "d", "e", "f"):
        counts.merge(count_chunk([SentencePair(line, line, "corpus", 1)]))
    profile = counts.profile()
    assert profile.source is not None
    assert not profile.source.is_counted
    assert (profile.source.symbols, profile.source.lines) == (4, 4)
    assert profile.copied_share == 1


def test_equal_for_any_number_of_workers(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("".join(f"{number % 7} {number}\t{number}\n" for number in range(40)))
    pairs = DATA_FORMATS["pairs"]
    monkeypatch.setattr(type(pairs), "max_chunk_pairs", 3)  # the last chunk has one pair
    surveys = [survey_corpora(pairs, [Corpus(corpus)], None, process_map(workers), print) for workers in (1, 2)]
    assert surveys[0].text_counts == surveys[1].text_counts
    assert surveys[0].text_counts.profile().copied_share == 1


def test_one_line_and_no_line() -> None:
    assert profile_of() == CorpusProfile(None, None)
    profile = profile_of(("a", "b"))
    assert profile.source is not None
    assert profile.source.unseen_share == 1
    assert (profile.copied_share, profile.length_ratios) == (0, (1, 1, 1))
