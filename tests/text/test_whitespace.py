"""White space is normalized before text is tokenized."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.word_splitting import normalize_whitespace


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Der Hund schläft.", "Der Hund schläft."),
        ("Der\tHund\u00a0schläft. ", "Der Hund schläft."),
        ("Der \u2009\u3000Hund\r\n", "Der Hund"),
        ("\ufeffDer Do\u200bnau\u2060", "Der Donau"),
        ("می\u200cخواهم 👩\u200d🚀", "می\u200cخواهم 👩\u200d🚀"),  # joiners are part of the spelling
        (" \u00a0\u200b", ""),
    ],
)
def test_runs_of_white_space_become_one_space(text: str, expected: str) -> None:
    assert normalize_whitespace(text) == expected


@given(st.text())
def test_normalizing_twice_changes_nothing(text: str) -> None:
    once = normalize_whitespace(text)
    assert normalize_whitespace(once) == once
    assert once == once.strip()
