"""Words as people count them: a run of letters and digits with the marks on them, or one punctuation mark."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """The words of a text: ``words("Don't go.") == ["Don", "'", "t", "go", "."]``."""
    return [text[begin:end] for begin, end in word_spans(text)]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where each word begins and ends: ``text[begin:end]`` for every span gives ``words(text)``."""
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        begin, end = match.span()
        if spans and spans[-1][1] == begin and _goes_on(text, spans[-1][0], begin):
            begin = spans.pop()[0]
        spans.append((begin, end))
    return spans


def _goes_on(text: str, begin: int, place: int) -> bool:
    r"""Does the word from `begin` go on at `place`? Python's \w leaves out the marks that combine with letters."""
    if _is_mark(text[place]):
        return True
    return _is_mark(text[place - 1]) and _is_letter(text[begin]) and _is_letter(text[place])


def _is_mark(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character)[0] == "M"


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"
