"""Words as people count them: a run of letters and digits, or one punctuation mark."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """The words of a text: ``words("Don't go.") == ["Don", "'", "t", "go", "."]``."""
    return _WORD.findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where each word begins and ends: ``text[begin:end]`` for every span gives ``words(text)``."""
    return [match.span() for match in _WORD.finditer(text)]
