"""HTML files: the encoding that they declare is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.text.documents.html_document import HtmlDocument
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.text_file import decode_text

_CHARSET = re.compile(rb"<meta[^<>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]{1,40})", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^<>]{0,200}?encoding\s*=\s*[\"']([\w-]{1,40})", re.IGNORECASE)
DECLARATION_BYTES = 4096  # where the encoding is declared


@dataclass(frozen=True)
class HtmlFile:
    """An HTML file and its encoding."""

    document: HtmlDocument
    encoding: str

    @classmethod
    def parse(cls, content: bytes, translate_attributes: bool = False) -> HtmlFile:
        """Read an HTML file; with `translate_attributes`, values of alt, title, … are blocks too."""
        head = content[:DECLARATION_BYTES]
        declared = _XML_ENCODING.search(head) or _CHARSET.search(head)
        text, encoding = decode_text(content, declared[1].decode() if declared else "utf-8")
        return cls(HtmlDocument.parse(text, translate_attributes), encoding)

    @property
    def blocks(self) -> list[MarkedText]:
        """The texts between block elements, and attributes."""
        return self.document.blocks

    def render(self, translated: Sequence[MarkedText], language: str = "") -> bytes:
        """Return the file with translated blocks; characters that the encoding lacks become references."""
        return self.document.render(translated, language).encode(self.encoding, errors="xmlcharrefreplace")
