"""Plain text: every line is a block, and line breaks and empty lines are kept."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import UserError
from dragoman.text.documents.marked_text import MarkedText

_LINE_BREAK = re.compile(r"(\r\n|\n|\r)")
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def decode_text(content: bytes, declared: str = "utf-8") -> tuple[str, str]:
    """Decode the content of a file, and return its text and its encoding.

    The encoding is that of the byte-order mark, or without one that which the file declares (`declared`).
    """
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if content.startswith(mark)), declared)
    try:
        text = content.decode(encoding)
    except (ValueError, LookupError):
        raise UserError(f"the file is not {encoding.removesuffix('-sig').upper()} text: save it as UTF-8") from None
    if "\0" in text:
        raise UserError(
            "the file is not text, because it contains zero bytes: name a text file, or rename the file with the "
            "ending of its actual format, such as .docx"
        )
    return text, encoding


@dataclass(frozen=True)
class TextFile:
    """A plain text file."""

    parts: list[str]  # lines and line breaks in turn
    encoding: str = "utf-8"

    @classmethod
    def parse(cls, content: bytes, translate_attributes: bool = False) -> TextFile:
        """Split a file into lines.

        A text has no attributes to translate: `translate_attributes`, which all formats take, is ignored.
        """
        text, encoding = decode_text(content)
        return cls(_LINE_BREAK.split(text), encoding)

    @property
    def blocks(self) -> list[MarkedText]:
        """The lines that are not empty, which are translated one by one."""
        return [MarkedText(line) for line in self.parts if line.strip()]

    def render(self, translated: Sequence[MarkedText], language: str = "") -> bytes:
        """Return the file with translated lines; `language` is ignored, as a text file does not state it."""
        blocks = iter(translated)
        return "".join(next(blocks).text if part.strip() else part for part in self.parts).encode(self.encoding)
