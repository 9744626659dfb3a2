"""HTML: what stands between tags is translated, the tags stay as they are."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

KEPT = "script|style|code|pre|kbd|samp|textarea|svg|math"  # what stands in these is not translated
TAG = re.compile(
    rf"<!--.*?-->|<({KEPT})\b[^<>]*>.*?</\1\s*>|</?[a-z](?:\"[^\"]*\"|'[^']*'|[^\"'<>])*>|<[!?][^<>]*>", re.S | re.I
)


class HtmlText:
    """A piece of HTML, parted into texts and what stands between them."""

    def __init__(self, source: str) -> None:
        self.texts: list[str] = []  # as they are read, not as they are written in HTML
        self.between: list[str] = []
        place = 0
        for tag in TAG.finditer(source):
            self._add(source[place : tag.start()], tag.group())
            place = tag.end()
        self._add(source[place:], "")

    def _add(self, text: str, tag: str) -> None:
        self.texts.append(html.unescape(text))
        self.between.append(tag)

    def join(self, translations: Sequence[str]) -> str:
        return "".join(html.escape(text, quote=False) + tag for text, tag in zip(translations, self.between))
