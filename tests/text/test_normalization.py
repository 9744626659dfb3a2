"""Unicode forms, lower case and white space: applied in a fixed order, and a second time without effect."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.text.normalization import TextNormalizer

FORMS = ["none", "NFC", "NFD", "NFKC", "NFKD"]


@pytest.mark.parametrize(
    ("normalizer", "text", "expected"),
    [
        (TextNormalizer(), " Ａ\u00a0é ", " Ａ\u00a0é "),
        (TextNormalizer(whitespace=True), " Ａ\u00a0B ", "Ａ B"),
        (TextNormalizer(unicode_form="NFC"), "e\u0301", "é"),
        (TextNormalizer(unicode_form="NFD"), "é", "e\u0301"),
        (TextNormalizer(unicode_form="NFKC"), "ﬁ Ａ ² \u3000", "fi A 2  "),
        (TextNormalizer(True, "NFKC", lowercase=True), "ﬁ\u3000ＡＢ ", "fi ab"),
        (TextNormalizer(unicode_form="NFKC", lowercase=True), "\u212a", "k"),  # KELVIN SIGN
        (TextNormalizer(lowercase=True), "ÄΣ Straße", "äς straße"),
    ],
)
def test_normalized_text(normalizer: TextNormalizer, text: str, expected: str) -> None:
    assert normalizer(text) == expected


@given(st.text(), st.sampled_from(FORMS), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_normalizing_twice_changes_nothing(text: str, form: str, whitespace: bool, lowercase: bool) -> None:
    normalizer = TextNormalizer(whitespace, form, lowercase)
    once = normalizer(text)
    assert normalizer(once) == once
    if form != "none" and not whitespace:
        assert unicodedata.is_normalized(form, once)


@given(st.text())
@settings(max_examples=25, deadline=None)
def test_the_number_of_words_does_not_change(text: str) -> None:
    normalizer = TextNormalizer(True, "NFKC", lowercase=True)
    assert len(normalizer.normalize_words(text).split()) == len(text.split())
    assert normalizer.normalize_words("A ¨ B") == "a \u0308 b"


def test_signatures_say_what_was_normalized() -> None:
    lower, form = TextNormalizer(lowercase=True), TextNormalizer(unicode_form="NFC")
    assert lower.signature("nrefs:1|case:mixed|tok:13a") == "nrefs:1|case:lc|tok:13a"
    assert lower.signature("") == "case:lc"
    assert form.signature("nrefs:1|case:mixed") == "nrefs:1|case:mixed|norm:NFC"
    assert TextNormalizer(whitespace=True).signature("nrefs:1") == "nrefs:1"
