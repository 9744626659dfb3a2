"""HTML files: the encoding that they declare is kept."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.text.documents.html_document import HtmlDocument
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.text_file import decode_text

_CHARSET = re.compile(rb"<meta[^<>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]{1,40})", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^<>]{0,200}?encoding\s*=\s*[\"']([\w-]{1,40})", re.IGNORECASE)
DECLARATION_BYTES = 4096  # where the encoding is declared
#: what browsers read instead of a declared encoding (by Python's name): Windows-1252 has quotation marks and dashes in
#: place of control characters, and a declaration in ASCII letters is not UTF-16
_READ_AS = {"iso8859-1": "cp1252", "ascii": "cp1252", "utf-16": "utf-8", "utf-16-le": "utf-8", "utf-16-be": "utf-8"}


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
        text, encoding = decode_text(content, _encoding(declared[1].decode()) if declared else "utf-8")
        return cls(HtmlDocument.parse(text, translate_attributes), encoding)

    @property
    def blocks(self) -> list[MarkedText]:
        """What is to be translated: the texts between block elements, then the values of attributes."""
        return self.document.blocks

    def render(self, translated: Sequence[MarkedText], language: str = "") -> bytes:
        """Return the file with translated blocks, in its encoding; characters that this lacks are written as &#…;."""
        return self.document.render(translated, language).encode(self.encoding, errors="xmlcharrefreplace")


def _encoding(declared: str) -> str:
    """Return the encoding that browsers use for a file with the `declared` one, which is returned if it is unknown."""
    try:
        return _READ_AS.get(codecs.lookup(declared).name, declared)
    except LookupError:
        return declared
