"""Builders for SVG that escape all text, so that content never becomes markup."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

# Characters that XML cannot represent: control characters, lone surrogates, two non-characters.
_INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def tag(name: str, /, *content: str, **attributes: object) -> Markup:
    """Build `<name attributes>content</name>`, without the attributes that are None.

    Underscores in attribute names become hyphens; a trailing underscore is dropped (`class_`). Numbers of type float,
    which are pixels, get one decimal place.
    """
    opening = f"<{name}"
    for key, value in attributes.items():
        if value is not None:
            written = f"{value:.1f}" if isinstance(value, float) else join(str(value))
            opening += f' {key.removesuffix("_").replace("_", "-")}="{written}"'
    return Markup(f"{opening}>{join(*content)}</{name}>")


def join(*content: str) -> Markup:
    """Concatenate markup and text; text is escaped, with U+FFFD for characters that XML cannot represent."""
    parts = (part if isinstance(part, Markup) else escape(replace_control_characters(part)) for part in content)
    return Markup("".join(parts))


def replace_control_characters(text: str) -> str:
    """Replace control characters, which a terminal would execute, by U+FFFD."""
    return _INVALID_CHARACTERS.sub("\ufffd", text)
