"""Words in two senses: units of tokenization (`split_words`) and units of word alignment (`alignment_words`).

For tokenizers, a word is a run of letters and digits with their combining marks, or one punctuation mark. Alignments in
the Pharaoh format count whitespace tokens, so “3.5”, “well-known” and “sleeps.” are one word each.

White space is normalized before tokenization, both in training and in translation.
"""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"\w+|[^\w\s]")
_WHITESPACE_TOKEN = re.compile(r"\S+")
# Zero-width space, word joiner and byte-order mark have no meaning inside a sentence. The zero-width joiner and
# non-joiner are kept, because they change how letters and emoji are written.
_INVISIBLE = re.compile("[\u200b\u2060\ufeff]")

# The Unicode blocks of Thai, Lao, Burmese, Khmer, kana and Han, which are written without spaces.
_UNSPACED_SCRIPTS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
_UNSPACED_SCRIPTS += "\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(f"[{_UNSPACED_SCRIPTS}]")
_UNSPACED_WORD = re.compile(rf"[^\w\s]*(?:[{_UNSPACED_SCRIPTS}]|(?:(?![{_UNSPACED_SCRIPTS}])\w)+)[^\w\s]*")


def normalize_whitespace(text: str) -> str:
    """Strip the text and replace every run of Unicode white space (tabs, no-break spaces, …) by one space.

    Zero-width spaces (U+200B), word joiners (U+2060) and byte-order marks (U+FEFF) are removed.
    """
    if not text.isascii():
        text = _INVISIBLE.sub("", text)
    return " ".join(text.split())


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks: `split_words("Don't go.") == ["Don", "'", "t", "go", "."]`."""
    return [text[begin:end] for begin, end in word_spans(text)]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where each word or punctuation mark begins and ends in the text; combining marks are part of a word."""
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        begin, end = match.span()
        if spans and spans[-1][1] == begin and _continues_word(text, spans[-1][0], begin):
            begin = spans.pop()[0]
        spans.append((begin, end))
    return spans


def whitespace_spans(text: str) -> list[tuple[int, int]]:
    """Return where each whitespace-separated symbol begins and ends in the text."""
    return [match.span() for match in _WHITESPACE_TOKEN.finditer(text)]


def alignment_words(text: str) -> list[str]:
    """Split a text into the words that alignments count: `alignment_words("Don't go.") == ["Don't", "go."]`.

    Chinese, Japanese, Thai, Lao, Khmer and Burmese are written without spaces: if a text in one of these scripts has no
    white space, each character with the punctuation after it counts as a word.
    """
    return [text[begin:end] for begin, end in alignment_spans(text)]


def alignment_spans(text: str) -> list[tuple[int, int]]:
    """Return where each word that alignments count begins and ends in the text: whitespace-separated tokens.

    In a text without white space in a script such as Chinese (_UNSPACED), each character with its punctuation is one.
    """
    spans = whitespace_spans(text)  # one span: no white space inside
    if len(spans) == 1 and len(_UNSPACED.findall(text)) > 1:
        return [match.span() for match in _UNSPACED_WORD.finditer(text, *spans[0])] or spans
    return spans


def word_at_characters(text: str) -> list[int]:
    """Return for each character the index of its word in `alignment_words`, −1 for white space."""
    words = [-1] * len(text)
    for index, (begin, end) in enumerate(alignment_spans(text)):
        words[begin:end] = [index] * (end - begin)
    return words


def _continues_word(text: str, begin: int, position: int) -> bool:
    r"""Whether the word from index `begin` continues at `position`, where a regular expression with \w has ended it.

    It does at a combining mark, which \w does not match, and at a letter after one, if the word begins with a letter.
    """
    if _is_mark(text[position]):
        return True
    return _is_mark(text[position - 1]) and _is_letter(text[begin]) and _is_letter(text[position])


def _is_mark(character: str) -> bool:
    """Whether a character is a combining mark."""
    return not character.isascii() and unicodedata.category(character)[0] == "M"


def _is_letter(character: str) -> bool:
    """Whether a character is a letter, a digit or an underscore."""
    return character.isalnum() or character == "_"
