"""Language codes: finding a language, the framing of a pair, and the file format."""

from __future__ import annotations

import json

import pytest

from dragoman.errors import UserError
from dragoman.text import Framing
from dragoman.text.language_codes import LanguageCodes
from dragoman.text.language_names import language_name, parse_language

NLLB = LanguageCodes({"eng_Latn": 10, "kin_Latn": 11, "zho_Hans": 12, "zho_Hant": 13, "srp_Cyrl": 14, "zsm_Latn": 15})
M2M = LanguageCodes({"en": 5, "fr": 6, "zh": 7})
TEMPLATE = Framing(pad=1, bos=2, eos=2, source_suffix=(2,), suppressed=(), languages=NLLB)


@pytest.mark.parametrize(
    ("codes", "language", "expected"),
    [
        (NLLB, "eng_Latn", "eng_Latn"),
        (NLLB, "ENG-latn", "eng_Latn"),
        (NLLB, "en", "eng_Latn"),
        (NLLB, "en-GB", "eng_Latn"),
        (NLLB, "English", "eng_Latn"),
        (NLLB, "rw", "kin_Latn"),
        (NLLB, "ms", "zsm_Latn"),
        (NLLB, "zh-Hant", "zho_Hant"),
        (NLLB, "sr", "srp_Cyrl"),
        (M2M, "eng_Latn", "en"),
        (M2M, "chinese", "zh"),
        (LanguageCodes({"en_XX": 3, "pt_XX": 4}), "pt-BR", "pt_XX"),
    ],
)
def test_a_language_is_found_by_its_code_iso_code_or_name(codes: LanguageCodes, language: str, expected: str) -> None:
    assert codes.find(language) == expected


@pytest.mark.parametrize(
    ("language", "hint"),
    [
        ("kin_Latin", "did you mean kin_Latn \\(Kinyarwanda\\)"),
        ("Kinyarwandan", "did you mean kin_Latn"),
        ("zh", "ambiguous: use one of zho_Hans \\(Chinese\\), zho_Hant"),
        ("srp_Latn", "did you mean srp_Cyrl \\(Serbian\\)"),  # not silently in another script
        ("xx", "knows 6 languages: eng_Latn \\(English\\), zho_Hans"),  # well-known languages first
        ("", "knows 6 languages"),
    ],
)
def test_an_unknown_language_is_an_error_with_the_nearest_codes(language: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        NLLB.find(language)


def test_the_codes_of_a_pair_stand_where_the_model_expects_them() -> None:
    framing = TEMPLATE.for_languages("eng_Latn", "kin_Latn")
    assert (framing.source_prefix, framing.source_suffix) == ((10,), (2,))  # NLLB: code x EOS
    assert framing.target_prefix == (2, 11)  # BOS code y EOS
    assert framing.languages is None
    mbart = LanguageCodes({"en_XX": 8, "ro_RO": 9}, "suffix", "bos")  # mBART-25: x EOS code, and code y EOS
    framing = Framing(bos=2, eos=2, source_suffix=(2,), languages=mbart).for_languages("en_XX", "ro_RO")
    assert (framing.source_prefix, framing.source_suffix, framing.target_prefix) == ((), (2, 8), (9,))
    marian = LanguageCodes({"fra": 3, "ita": 4}, "none", "source_prefix")  # the target code before the source
    framing = Framing(bos=5, eos=0, source_suffix=(0,), languages=marian).for_languages(target="it")
    assert (framing.source_prefix, framing.source_suffix, framing.target_prefix) == ((4,), (0,), (5,))
    whisper = LanguageCodes({"en": 3}, "none", "forced_bos")  # further tokens follow the code
    assert Framing(bos=1, forced_bos=(7, 8), languages=whisper).for_languages(target="en").target_prefix == (1, 3, 7, 8)


def test_missing_languages_are_the_default_or_an_error() -> None:
    with pytest.raises(
        UserError, match="6 languages: give the source \\(--from\\) and target \\(--to\\) language, such"
    ):
        TEMPLATE.for_languages()
    with pytest.raises(UserError, match="give the target \\(--to\\) language"):
        TEMPLATE.for_languages("en")
    default = TEMPLATE.with_default_languages("en", "rw")
    assert default.for_languages() == TEMPLATE.for_languages("eng_Latn", "kin_Latn")
    assert default.for_languages(target="sr").target_prefix == (2, 14)
    assert default.for_default_languages() == default.for_languages()
    assert TEMPLATE.for_default_languages() is TEMPLATE  # a run can be opened without a pair
    assert default.without_default_languages() == TEMPLATE
    with pytest.raises(UserError, match="recognizes the source language itself"):
        LanguageCodes({"fra": 3}, "none", "source_prefix").with_default("en", "fra")
    with pytest.raises(UserError, match="no language codes"):
        Framing().for_languages("en", "de")


def test_a_framing_with_languages_survives_json() -> None:
    for framing in (TEMPLATE, TEMPLATE.with_default_languages("en", "rw"), Framing()):
        stored = json.loads(json.dumps(framing.to_dict()))
        assert Framing.from_dict(stored) == framing
        assert list(Framing.from_dict(stored).to_dict()) == list(stored)
    assert "languages" not in Framing().to_dict()  # files of models without languages are as before
    assert hash(TEMPLATE) == hash(Framing.from_dict(TEMPLATE.to_dict()))


@pytest.mark.parametrize("damage", [{"ids": {"en": "x"}}, {"source": "de"}, {"target_position": "left"}, {"other": 1}])
def test_damaged_languages_are_refused(damage: dict[str, object]) -> None:
    values = TEMPLATE.to_dict()
    values["languages"] |= damage
    with pytest.raises((ValueError, TypeError)):
        Framing.from_dict(values)


def test_names_of_languages() -> None:
    assert parse_language("Norwegian Bokmål") == ("nb", None)
    assert parse_language("zho_Hant") == ("zh", "Hant")
    assert language_name("pbt_Arab") == "Pashto"
    assert language_name("qqq_Latn") == "qqq_Latn"
