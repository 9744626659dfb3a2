"""Writing systems: which scripts a text is written in, by the Unicode names of its letters."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping

#: scripts that are written without spaces between words
UNSPACED_SCRIPTS = frozenset(
    {"Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Javanese", "Balinese"}
)

#: scripts that are used together, in Japanese or with Chinese
EAST_ASIAN_SCRIPTS = frozenset({"Han", "Hiragana", "Katakana", "Bopomofo"})

#: scripts by the first word of the Unicode name of a letter, where this is not the script itself
_SCRIPT_OF_NAME = {"Cjk": "Han", "Ideographic": "Han", "Katakana-hiragana": "Katakana"}


def script_of(character: str) -> str | None:
    """Return the script of a letter, such as Latin, Cyrillic or Han; None for digits, marks, punctuation and symbols.

    The Unicode name of a letter begins with its script: LATIN SMALL LETTER A. Variants of letters, such as full-width
    or superscript ones, count as the letters that they stand for. Modifier letters, such as the length mark of phonetic
    transcriptions, belong to no script.
    """
    letter = unicodedata.normalize("NFKC", character)[0]
    if not letter.isalpha():
        return None
    name = unicodedata.name(letter, "").partition(" ")[0].capitalize()
    if name == "Modifier":
        return None
    return _SCRIPT_OF_NAME.get(name, name) or None  # None: the character has no name


def script_shares(characters: Mapping[str, int]) -> dict[str, float]:
    """Return the share of each script in the letters of a text, the most frequent first.

    `characters` has the count of each character of the text.
    """
    counts: Counter[str] = Counter()
    for character, count in sorted(characters.items()):  # so that the order of equal shares is always the same
        if script := script_of(character):
            counts[script] += count
    total = counts.total()
    return {script: count / total for script, count in counts.most_common()}


def has_no_spaces(scripts: Mapping[str, float]) -> bool:
    """Whether most letters belong to scripts without spaces between words; `scripts` are shares of the letters."""
    return sum(scripts.get(script, 0.0) for script in UNSPACED_SCRIPTS) > 0.5
