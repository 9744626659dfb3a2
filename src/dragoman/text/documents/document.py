"""The formats of documents, by the endings of file names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.errors import UserError
from dragoman.text.documents.html_file import HtmlFile
from dragoman.text.documents.markdown_file import MarkdownFile
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.office_file import OPEN_DOCUMENT, POWERPOINT, WORD, OfficeFile, OfficeKind
from dragoman.text.documents.subtitles import SubtitleFile
from dragoman.text.documents.text_file import TextFile


class Document(Protocol):
    """A document whose blocks can be replaced by their translations."""

    @property
    def blocks(self) -> Sequence[MarkedText]:
        """The texts to translate, such as paragraphs, in the order of the document."""

    def render(self, translated: Sequence[MarkedText], language: str) -> bytes:
        """Return the content of the file with translated blocks.

        `translated` has one text for each of `blocks`. `language` is that of the translations, '' if it is unknown.
        """


@dataclass(frozen=True)
class MarkupFormat:
    """A file format: its name, the endings of its files, and the function that reads a document."""

    name: str
    suffixes: tuple[str, ...]
    media_type: str
    parse: Callable[[bytes, bool], Document]  # of a file's content, and whether to translate attributes such as alt


def _office(kind: OfficeKind) -> Callable[[bytes, bool], Document]:
    """Return the function that reads office files of a kind (Word, PowerPoint, …).

    They have no attributes to translate: its parameter `translate_attributes` is ignored.
    """
    return lambda content, translate_attributes: OfficeFile.parse(content, kind)


_OOXML = "application/vnd.openxmlformats-officedocument"
DOCUMENT_FORMATS = {
    document_format.name: document_format
    for document_format in (
        MarkupFormat("txt", (".txt",), "text/plain; charset=utf-8", TextFile.parse),
        MarkupFormat("html", (".html", ".htm", ".xhtml"), "text/html", HtmlFile.parse),
        MarkupFormat("md", (".md", ".markdown"), "text/markdown; charset=utf-8", MarkdownFile.parse),
        MarkupFormat("srt", (".srt",), "application/x-subrip", SubtitleFile.parse),
        MarkupFormat("vtt", (".vtt",), "text/vtt", SubtitleFile.parse),
        MarkupFormat("docx", (".docx",), f"{_OOXML}.wordprocessingml.document", _office(WORD)),
        MarkupFormat("pptx", (".pptx",), f"{_OOXML}.presentationml.presentation", _office(POWERPOINT)),
        MarkupFormat("odt", (".odt",), "application/vnd.oasis.opendocument.text", _office(OPEN_DOCUMENT)),
        MarkupFormat("odp", (".odp",), "application/vnd.oasis.opendocument.presentation", _office(OPEN_DOCUMENT)),
    )
}


def document_suffixes() -> list[str]:
    """Return the file name endings of documents that can be translated, such as .html."""
    return [suffix for document_format in DOCUMENT_FORMATS.values() for suffix in document_format.suffixes]


def format_of_file(name: str) -> MarkupFormat | None:
    """Return the format of a file by the ending of its name; None if it is not known."""
    for document_format in DOCUMENT_FORMATS.values():
        if name.lower().endswith(document_format.suffixes):
            return document_format
    return None


def parse_document(content: bytes, name: str, translate_attributes: bool = False) -> Document:
    """Read a document in the format that the ending of its `name` says.

    An unknown ending or damaged `content` is a UserError. With `translate_attributes`, attributes such as alt in HTML
    are translated too.
    """
    document_format = format_of_file(name)
    if document_format is None:
        known = ", ".join(document_suffixes())
        raise UserError(
            f"{name} cannot be translated as a document, because its ending is not that of a supported format: "
            f"expected one of {known}"
        )
    return document_format.parse(content, translate_attributes)
