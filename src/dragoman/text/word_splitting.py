"""Words in two senses: as a tokenizer separates them, and as word alignments count them.

To a tokenizer a word is a run of letters and digits with the marks on them, or one punctuation mark (`words`). Word
alignments in the Pharaoh format count whitespace tokens, so that “3.5”, “well-known” and “sleeps.” are one word each
(`alignment_words`).
"""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"\w+|[^\w\s]")
_TOKEN = re.compile(r"\S+")

# the blocks of Thai, Lao, Burmese, Khmer, kana and Han
_WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
_WITHOUT_SPACES += "\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(f"[{_WITHOUT_SPACES}]")
_CHARACTER = re.compile(rf"[^\w\s]*(?:[{_WITHOUT_SPACES}]|(?:(?![{_WITHOUT_SPACES}])\w)+)[^\w\s]*")


def split_words(text: str) -> list[str]:
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


def alignment_words(text: str) -> list[str]:
    """The words that alignments count: whitespace tokens, ``alignment_words("Don't go.") == ["Don't", "go."]``.

    Chinese, Japanese, Thai, Lao, Khmer and Burmese are written without spaces: a text without any white space in one of
    these scripts counts characters, each with the punctuation that follows it. If it is segmented by spaces, the
    segments count.
    """
    return [text[begin:end] for begin, end in alignment_spans(text)]


def alignment_spans(text: str) -> list[tuple[int, int]]:
    """Where each of `alignment_words` begins and ends."""
    spans = [match.span() for match in _TOKEN.finditer(text)]
    if len(spans) == 1 and len(_UNSPACED.findall(text)) > 1:
        return [match.span() for match in _CHARACTER.finditer(text, *spans[0])] or spans
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
