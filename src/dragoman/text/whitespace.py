"""White space normalization, applied before tokenization, both in training and in translation."""

from __future__ import annotations

import re

# Zero-width space, word joiner and byte-order mark have no meaning inside a sentence. The zero-width joiner and
# non-joiner are kept, because they change how letters and emoji are written.
_INVISIBLE = re.compile("[\u200b\u2060\ufeff]")


def normalize_whitespace(text: str) -> str:
    """Strip the text and replace every run of Unicode white space (tabs, no-break spaces, …) by one space.

    Zero-width spaces (U+200B), word joiners (U+2060) and byte-order marks (U+FEFF) are removed.
    """
    if not text.isascii():
        text = _INVISIBLE.sub("", text)
    return " ".join(text.split())
