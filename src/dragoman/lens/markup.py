"""HTML and SVG by construction: text that is put into a tag is escaped, so that nobody's words become markup."""

from __future__ import annotations

import html
import re

VOID = ("br", "meta")
# What XML cannot hold, however it is written: control characters, lone surrogates, two non-characters.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text that is markup already, and is put into a tag as it is."""

    __slots__ = ()


def tag(name: str, /, *content: str, **attributes: object) -> Markup:
    """`<name attributes>content</name>`; an underscore in an attribute's name is a hyphen, at its end nothing.

    An attribute that is None is left out.
    """
    named = {key.removesuffix("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    opening = "".join([f"<{name}", *(f' {key}="{escape(str(value))}"' for key, value in named.items()), ">"])
    return Markup(opening if name in VOID else f"{opening}{join(*content)}</{name}>")


def join(*content: str) -> Markup:
    """Pieces of a page one after the other: markup as it is, text escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content))


def escape(text: str) -> str:
    """The text as HTML and XML write it, with U+FFFD for what neither can."""
    return html.escape(replace_control_characters(text))


def replace_control_characters(text: str) -> str:
    """The text with U+FFFD for control characters: on a terminal they would be commands."""
    return _UNPRINTABLE.sub("\ufffd", text)
