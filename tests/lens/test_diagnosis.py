"""Diagnosis: every failure is found where it is, and not where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import UserError
from dragoman.lens.diagnosis import diagnose, language_pair, validation_pairs
from dragoman.lens.diagnosis.content_coverage import alignment_error, coverage, length_ratio, quality_by_length
from dragoman.lens.diagnosis.diagnosis_report import diagnosis_lines, diagnosis_page
from dragoman.lens.diagnosis.diagnosis_types import Diagnosis, GenderChoice, TranslatedSet
from dragoman.lens.diagnosis.gender import TARGET_PRONOUNS, builtin_templates, gender, load_templates, parse_templates
from dragoman.lens.diagnosis.hallucination import (
    copying,
    find_loop,
    hallucination,
    repeated_input,
    words_of_both_languages,
)
from dragoman.run import Run, Translation


class Parrot:
    """A run that answers by a function."""

    def __init__(self, answer: Callable[[str], str], finished: bool = True) -> None:
        self.answer, self.finished, self.member_folders = answer, finished, [Path("nowhere")]

    def translate(self, texts: list[str], **_: Any) -> list[Translation]:
        return [Translation(self.answer(text), 0.0, finished=self.finished) for text in texts]

    def align(self, sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
        return [[(n, n) for n in range(min(len(s.split()), len(t.split())))] for s, t in zip(sources, targets)]


def said(*texts: str) -> list[Translation]:
    return [Translation(text, 0.0, alignment=[(n, n) for n in range(len(text.split()))]) for text in texts]


# ---- gender


def test_gender_of_translations_is_counted() -> None:
    run: Any = Parrot(
        lambda text: "Sie liest." if "arst" in text else "He reads." if "õpetaja" in text else "Yes, she reads."
    )
    found = gender(run, "et-en", None)
    assert found.value == pytest.approx(100 * 26 / 28)  # of 15 · 2 sentences two are not English, two have “he”
    assert found.metrics["masculine"] == pytest.approx(100 * 2 / 30)
    assert found.metrics["nothing"] == pytest.approx(100 * 2 / 30)
    assert "came out feminine" in found.explanation


def test_the_pronoun_of_each_occupation_is_reported() -> None:
    """The example of the lecture: Malay has one pronoun, English has to choose."""
    english = {
        "Dia bekerja sebagai jururawat.": "She works as a nurse.",
        "Dia bekerja sebagai pengaturcara.": "He works as a programmer.",
        "Dia seorang pengaturcara.": "They are a programmer.",
    }
    run: Any = Parrot(lambda text: english.get(text, "A person."))
    found = gender(run, "ms-en", None)
    words = {choice.label: choice.words for choice in found.choices}
    assert words["jururawat (nurse)"] == {"she": 1, "": 1}
    assert words["pengaturcara (programmer)"] == {"he": 1, "they": 1}
    assert words["doktor (doctor)"] == {"": 2}
    lines = diagnosis_lines(Diagnosis("run", "system", "best", 1, (found,)))
    (line,) = (line for line in lines if "jururawat (nurse)" in line)
    assert line.split("  ")[-1] == "she 1, – 1"
    assert "jururawat (nurse)" in diagnosis_page(Diagnosis("run", "system", "best", 1, (found,)))


def test_german_words_show_the_gender_with_their_own_letters() -> None:
    run: Any = Parrot(lambda text: "Die Ärztin schläft." if "doctor" in text else "Nichts.")
    assert gender(run, "en-de", None).choices[0] == GenderChoice("doctor", "", {"Ärztin": 3})


def test_gender_is_recognized_by_whole_words() -> None:
    doctor = next(one for one in load_templates("en-de", None) if "doctor" in one.source)
    assert doctor.gender("Die Ärztin ist müde.") == "feminine"
    assert doctor.gender("Der Arzt ist müde.") == "masculine"
    assert doctor.gender("Arzt und Ärztin.") == "both"
    assert doctor.gender("Die Arztpraxis.") == "nothing"


def test_language_pair_without_templates_is_explained() -> None:
    run: Any = Parrot(str)
    assert gender(run, "en-hu", None).formatted_value == "not measured"
    assert "for the language pair en-hu, only for en-de" in gender(run, "en-hu", None).explanation
    assert "--language-pair" in gender(run, None, None).explanation


def test_templates_of_a_file_are_added(tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    file.write_text("# mine\n[en-hu]\nframe\tThe {} sleeps.\nking\tkirálynő\tkirály\tfej\n[xx-en]\nO.\tshe\the\n")
    (one,) = load_templates("en-hu", file)
    assert one.source == "The king sleeps."
    assert one.gender("A király alszik.") == "masculine"
    assert one.gender("A fej.") == "neutral"
    with pytest.raises(UserError, match="for the language pair en-zz, but for en-hu, xx-en"):
        load_templates("en-zz", file)
    with pytest.raises(UserError, match="line 1: the line of the language pair"):
        parse_templates("doctor\ta\tb", "mine")
    with pytest.raises(UserError, match="line 2: expected a source"):
        parse_templates("[a-b]\ndoctor", "mine")


def test_built_in_templates_are_valid() -> None:
    found = builtin_templates()
    genderless = [
        f"{code}-{target}"
        for code in ["ms", "id", "tr", "fi", "et", "hu", "fa", "bn", "sw"]
        for target in TARGET_PRONOUNS
    ]
    assert {"en-de", *genderless} <= set(found)
    for templates in found.values():
        assert len(templates) >= 10
        assert len({one.source for one in templates}) == len(templates)
        assert not any(one.feminine & one.masculine for one in templates)


# ---- odd input


def test_loops_are_consecutive_repetitions() -> None:
    assert find_loop("a a a a") == "a"
    assert find_loop("x a b a b a b a b y") == "a b"
    assert find_loop("a b c a b c") is None


def test_unfinished_and_long_translations_are_hallucinations() -> None:
    sources = ["The man sleeps.", "The man eats."]
    assert hallucination(Parrot(str), sources, "en-de").value == 0  # type: ignore[arg-type]
    assert hallucination(Parrot(str, finished=False), sources, "en-de").value == 100  # type: ignore[arg-type]
    prophet: Any = Parrot(lambda text: "the end of days draws near and all of us must be ready for it now")
    assert hallucination(prophet, sources, "en-de").metrics["repeated input"] > 70
    assert repeated_input(sources)[0] == " ".join(["The"] * 20)


def test_source_words_outside_the_reference_are_copies() -> None:
    sources = ["Anna sees the dog.", "Peter sleeps."]
    references = ["Anna sieht den Hund.", "Peter schläft."]
    found = copying(TranslatedSet(sources, said("Anna sieht the Hund.", "Peter sleeps."), references))
    assert found.value == pytest.approx(100 * 2 / 6)  # “the” and “sleeps”
    assert found.metrics["whole sentences"] == 50
    assert [one.remark for one in found.examples] == ["copied: the", "copied: sleeps"]


def test_a_copied_sentence_without_copied_words_is_told() -> None:
    """Words that exist in both languages do not count as copied, but the sentence should have been translated."""
    found = copying(TranslatedSet(["in Person"], said("in Person"), ["selbst"]), shared_words={"in", "Person"})
    assert (found.value, found.metrics["whole sentences"]) == (0, 100)
    assert [one.remark for one in found.examples] == ["copied: the whole sentence"]


def test_words_of_both_languages_are_not_copies() -> None:
    """“in” is German too: another reference has it, though not this one, which says “im”."""
    sources = ["he is in the house", "we live in Rome", "they are in Spain"]
    references = ["er ist im Haus", "wir leben in Rom", "sie sind in Spanien"]
    run: Any = Parrot(str)
    shared = words_of_both_languages(run, sources, references)
    assert "in" in shared
    assert "the" not in shared
    found = copying(TranslatedSet(sources, said("er ist in the Haus", *references[1:]), references), shared)
    assert [one.remark for one in found.examples] == ["copied: the"]


# ---- content


def test_dropped_and_repeated_words_are_found_by_alignment() -> None:
    translations = [
        Translation("der Hund Hund", 0.0, alignment=[(0, 0), (1, 1), (1, 2)]),
        Translation("er schläft", 0.0, alignment=[(0, 0), (1, 1)]),
    ]
    run: Any = Parrot(str)
    dropped, repeated = coverage(
        run, TranslatedSet(["the dog sleeps", "he sleeps"], translations, ["der Hund schläft", "er schläft"])
    )
    assert dropped.value == pytest.approx(100 / 5)
    assert dropped.metrics["references not aligned"] == 0
    assert dropped.examples[0].remark == "dropped: sleeps"
    assert repeated.value == 50
    assert repeated.examples[0].remark == "again: Hund"


def test_reference_translation_drops_nothing() -> None:
    """Attention leaves source words without a link even where the translation is the reference itself."""
    sources, references = (
        ["the train station is old", "he really sleeps"],
        ["der Bahnhof ist alt", "er wirklich schläft"],
    )
    translations = [
        Translation("der Bahnhof ist alt", 0.0, alignment=[(0, 0), (2, 1), (3, 2)]),  # “train” and “old” have no link
        Translation("er schläft", 0.0, alignment=[(0, 0), (2, 1)]),
    ]
    run: Any = Parrot(str)  # which aligns references word by word
    dropped, _ = coverage(run, TranslatedSet(sources, translations, references))
    assert [(one.source, one.remark) for one in dropped.examples] == [("he really sleeps", "dropped: really")]
    assert dropped.value == pytest.approx(100 / 8)
    assert dropped.metrics["not aligned"] == pytest.approx(100 * 3 / 8)


def test_without_references_rarely_aligned_words_are_not_dropped() -> None:
    translations = [
        Translation("Hund schläft", 0.0, alignment=[(1, 0), (2, 1)]),
        Translation("Katze", 0.0, alignment=[(1, 0)]),
    ]
    run: Any = Parrot(str)
    dropped, _ = coverage(run, TranslatedSet(["the dog sleeps", "the cat purrs"], translations, None))
    assert [one.remark for one in dropped.examples] == ["dropped: purrs"]


def test_coverage_needs_attention() -> None:
    run: Any = Parrot(str)
    found = coverage(run, TranslatedSet(["a"], [Translation("b", 0.0)], ["b"]))
    assert [one.value for one in found] == [None, None]


def test_length_ratio_is_relative_to_the_reference() -> None:
    found = length_ratio(TranslatedSet(["a b c d", "e f"], said("x", "y z"), ["x x x x", "y z"]))
    assert found.value == pytest.approx(3 / 6)
    assert found.metrics["outliers"] == 50


def test_quality_by_length_finds_a_drop() -> None:
    short, long = "a b c d", " ".join("abcdefghijkl")
    sources, references = [short] * 5 + [long] * 5, [short] * 5 + [long] * 5
    found = quality_by_length(TranslatedSet(sources, said(*[short] * 5, *["q r s t"] * 5), references))
    assert found.value is not None
    assert found.value > 80
    assert [band.exact_match for band in found.bands] == [100, 0]
    assert quality_by_length(TranslatedSet(sources, said(*references), None)).value is None


def test_alignment_error_rate_against_gold() -> None:
    found = alignment_error([[(0, 0), (1, 1)]], [[(0, 0), (1, 2)]])
    assert found.value == pytest.approx(50)
    assert alignment_error(None, [[]]).value is None


# ---- all of it


def test_diagnosis_of_a_run_as_json_text_and_page(run: Run) -> None:
    sources, references = validation_pairs(run, 3)
    assert len(sources) == len(references) == 3
    assert language_pair(run) == "en-de"
    brief = copy(run)  # it has not learned to end
    brief.config = replace(run.config, search=replace(run.config.search, beam_size=1, max_target_length=30))
    found = diagnose(brief, sources, references, gold=[[(0, 0)]] * 3)
    names = ["gender", "hallucination", "copying", "dropped", "repeated", "length", "quality-by-length", "alignment"]
    assert [one.name for one in found.findings] == names
    assert json.dumps(found.to_dict(), allow_nan=False)
    written = "\n".join(diagnosis_lines(found))
    drawn = diagnosis_page(found)
    for one in found.findings:
        assert one.title in written
        assert one.explanation
        assert f'id="{one.name}"' in drawn
    assert "<script>alert" not in drawn


def test_invalid_input_of_diagnosis_is_rejected(run: Run) -> None:
    with pytest.raises(UserError, match="nothing to diagnose"):
        diagnose(run, [])
    with pytest.raises(UserError, match="1 source sentences but 2 references"):
        diagnose(run, ["a"], ["b", "c"])
    with pytest.raises(UserError, match="gold alignments need reference translations"):
        diagnose(run, ["a"], gold=[[]])
