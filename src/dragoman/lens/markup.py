"""Builders for HTML and SVG that escape all text, so that content never becomes markup."""

from __future__ import annotations

import html
import re

VOID_ELEMENTS = ("br", "meta")
# Characters that XML cannot represent: control characters, lone surrogates, two non-characters.
_INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """A string that is valid markup and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *content: str, **attributes: object) -> Markup:
    """Build `<name attributes>content</name>`, without the attributes that are None.

    Underscores in attribute names become hyphens; a trailing underscore is dropped (`class_`).
    """
    named = {key.removesuffix("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    opening = "".join([f"<{name}", *(f' {key}="{escape(str(value))}"' for key, value in named.items()), ">"])
    return Markup(opening if name in VOID_ELEMENTS else f"{opening}{join(*content)}</{name}>")


def join(*content: str) -> Markup:
    """Concatenate markup and text; text is escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content))


def escape(text: str) -> str:
    """Escape text for HTML and XML, with U+FFFD for characters that they cannot represent."""
    return html.escape(replace_control_characters(text))


def replace_control_characters(text: str) -> str:
    """Replace control characters, which a terminal would execute, by U+FFFD."""
    return _INVALID_CHARACTERS.sub("\ufffd", text)
