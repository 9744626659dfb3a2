"""Word (.docx), PowerPoint (.pptx) and OpenDocument files (.odt, .odp): XML files in a ZIP archive.

Only the XML files with text are changed. All other files of the archive are copied.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import UserError
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.office_paragraphs import XmlBlocks, find_odf_blocks, find_office_blocks
from dragoman.text.documents.xml_tree import parse_xml

MAX_ARCHIVE_FILES = 10_000
MAX_ARCHIVE_BYTES = 200_000_000  # of all files, uncompressed
MAX_XML_BYTES = 50_000_000  # of a file with text
MAX_COMPRESSION = 200  # times smaller than the uncompressed file, above MIN_CHECKED_BYTES
MIN_CHECKED_BYTES = 1_000_000
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class OfficeKind:
    """A kind of office file: the file that it must have, the files with text, and the prefix of their elements."""

    name: str
    main_file: str
    text_files: re.Pattern[str]
    prefix: str = ""  # '' for OpenDocument


WORD = OfficeKind(
    "Word document",
    "word/document.xml",
    re.compile(r"word/(?:document|footnotes|endnotes|comments|header\d*|footer\d*)\.xml"),
    "w:",
)
POWERPOINT = OfficeKind(
    "PowerPoint presentation",
    "ppt/presentation.xml",
    re.compile(r"ppt/(?:slides/slide|notesSlides/notesSlide|diagrams/data|comments/comment)\d+\.xml"),
    "a:",
)
OPEN_DOCUMENT = OfficeKind("OpenDocument file", "content.xml", re.compile(r"(?:content|styles)\.xml"))


@dataclass(frozen=True)
class OfficeFile:
    """An office file: its content, and the blocks of each file with text in it."""

    content: bytes
    parts: dict[str, XmlBlocks]

    @classmethod
    def parse(cls, content: bytes, kind: OfficeKind) -> OfficeFile:
        """Read an office file; one that is damaged, encrypted or far too large is a UserError."""
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                _check_archive(archive, kind)
                if (damaged := archive.testzip()) is not None:
                    raise UserError(
                        f"the office file is damaged: the file {damaged} in it cannot be read; save it again"
                    )
                names = sorted(filter(kind.text_files.fullmatch, archive.namelist()), key=_natural_order)
                parts = {name: _read_part(archive.read(name), name, kind) for name in names}
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError) as error:
            raise UserError(f"the file is not a {kind.name}, or it is damaged ({error}): save it again") from None
        return cls(content, parts)

    @property
    def blocks(self) -> list[MarkedText]:
        """The paragraphs of all files with text."""
        return [block for part in self.parts.values() for block in part.blocks]

    def render(self, translated: Sequence[MarkedText], language: str = "") -> bytes:
        """Return the file with translated paragraphs; the `language` is not written into it."""
        replaced, start = dict[str, bytes](), 0  # replaced: new contents of files in the archive, by name
        for name, part in self.parts.items():
            stop = start + len(part.blocks)  # its paragraphs are translated[start:stop]
            replaced[name] = part.render(translated[start:stop]).encode()
            start = stop
        output = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self.content)) as archive, zipfile.ZipFile(output, "w") as result:
            for info in archive.infolist():
                content = replaced.get(info.filename)
                result.writestr(info, archive.read(info) if content is None else content, info.compress_type)
        return output.getvalue()


def _check_archive(archive: zipfile.ZipFile, kind: OfficeKind) -> None:
    """Raise a UserError if an archive is not of this kind of office file, encrypted, or would take too much memory."""
    files = archive.infolist()
    names = {info.filename for info in files}
    if kind.main_file not in names:
        raise UserError(
            f"the file is not a {kind.name}: {kind.main_file} is missing in it; rename the file with the ending of its "
            "actual format"
        )
    if any(info.flag_bits & 1 for info in files):  # the bit of encryption in the ZIP format
        raise UserError("the office file is encrypted: save it without a password")
    if len(files) > MAX_ARCHIVE_FILES or sum(info.file_size for info in files) > MAX_ARCHIVE_BYTES:
        raise UserError(
            f"the office file, a ZIP archive, is too large: it may contain at most {MAX_ARCHIVE_FILES:,} files of "
            f"{MAX_ARCHIVE_BYTES:,} bytes in total, so split the document"
        )
    for info in files:
        is_zip_bomb = info.file_size > MIN_CHECKED_BYTES and info.file_size > MAX_COMPRESSION * info.compress_size
        if is_zip_bomb or (kind.text_files.fullmatch(info.filename) and info.file_size > MAX_XML_BYTES):
            raise UserError(
                f"the office file is refused, because the file {info.filename} in it has {info.file_size:,} bytes "
                "when decompressed, which is suspiciously many (a ZIP bomb?): split the document"
            )


def _read_part(content: bytes, name: str, kind: OfficeKind) -> XmlBlocks:
    """Return the paragraphs (blocks to translate) of an XML file in an office file; `name` is for error messages."""
    root = parse_xml(content, name)
    # the prefix of XML elements, such as w: in Word; OpenDocument has none
    return find_office_blocks(root, kind.prefix) if kind.prefix else find_odf_blocks(root)


def _natural_order(name: str) -> list[str | int]:
    """Return a key that sorts slide2.xml before slide10.xml."""
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]
