"""Markdown: headings, lists, quotations, tables and code stay as they are, and the texts in them are translated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dragoman.text.documents.html_document import HtmlDocument
from dragoman.text.documents.markdown_inline import HARD_BREAK, MarkdownText, parse_inline
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.text_file import decode_text

#: what begins a line before its text: quotation marks, list items with check boxes, white space
_PREFIX = re.compile(r"(?:[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t])(?:[ \t]+\[[ xX]\](?=[ \t]))?))*[ \t]*")
_LIST_ITEM = re.compile(r"[-+*]|\d+[.)]")
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}|\$\$")
_HEADING = re.compile(r"#{1,6}(?=\s|$)[ \t]*")
_RULE = re.compile(r"(?:[-*_][ \t]*){3,}$|=+[ \t]*$|-+[ \t]*$")
_TABLE_RULE = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_DEFINITION = re.compile(r"\[(?P<label>[^\[\]^][^\[\]]*)\]:\s*\S")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]:[ \t]*")
_HTML_BLOCK = re.compile(
    r"<(?:(?P<raw>pre|script|style|textarea)\b|(?P<comment>!--|\?|![A-Z])|/?(?:address|article|aside|blockquote|body|"
    r"center|details|dialog|dd|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]|header|hr|html|li|main|menu|nav|"
    r"ol|p|section|summary|table|tbody|td|tfoot|th|thead|tr|ul)\b)",
    re.IGNORECASE,
)
_CHECK_BOX = re.compile(r"\[[ xX]\][ \t]*")
_CODE_INDENT = 4  # columns
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass
class MarkdownFile:
    """A Markdown file: verbatim markup, and texts."""

    parts: list[str | MarkdownText | HtmlDocument] = field(default_factory=list)
    encoding: str = "utf-8"

    @classmethod
    def parse(cls, content: bytes, translate_attributes: bool = False) -> MarkdownFile:
        """Split a file into markup and texts.

        Alternative texts of images are not translated: `translate_attributes`, which the parsers of all formats take,
        is ignored.
        """
        text, encoding = decode_text(content)
        file = cls(encoding=encoding)
        _Parser(file.parts, labels=_link_labels(text)).parse(text)  # appends to the parts
        return file

    @property
    def blocks(self) -> list[MarkedText]:
        """The texts to translate, in order."""
        blocks = list[MarkedText]()
        for part in self.parts:
            if isinstance(part, MarkdownText):
                blocks.append(part.block)
            elif isinstance(part, HtmlDocument):
                blocks += part.blocks
        return blocks

    def render(self, translated: Sequence[MarkedText], language: str = "") -> bytes:
        """Return the file with translated texts; `language` is ignored, as Markdown does not say its language."""
        blocks, texts = iter(translated), list[str]()
        for part in self.parts:
            if isinstance(part, MarkdownText):
                texts.append(part.render(next(blocks)))
            elif isinstance(part, HtmlDocument):
                texts.append(part.render([next(blocks) for _ in part.blocks]))
            else:
                texts.append(part)
        return "".join(texts).encode(self.encoding)


def _link_labels(text: str) -> frozenset[str]:
    """Return the labels of link definitions ([label]: address), in lower case and with single spaces."""
    lines = (line.lstrip(" \t>") for line in text.splitlines())
    return frozenset(" ".join(match["label"].split()).lower() for line in lines if (match := _DEFINITION.match(line)))


@dataclass
class _Parser:
    """Reads a document line by line, and appends its parts to a list."""

    parts: list[str | MarkdownText | HtmlDocument]
    labels: frozenset[str]
    paragraph: list[str] = field(default_factory=list)  # texts of its lines, without line breaks
    breaks: list[str] = field(default_factory=list)  # markup of its hard line breaks
    end: str = ""  # white space and line break after its last line
    quotation: int = 0  # how many quotations it is in
    item_indent: int = 0  # columns of the text of the last list item

    def parse(self, text: str) -> None:
        """Read a whole document, and append its texts and the markup between them to `parts`."""
        if front_matter := _FRONT_MATTER.match(text):
            self.parts.append(front_matter[0])
            text = text[front_matter.end() :]
        lines, number = text.splitlines(keepends=True), 0
        while number < len(lines):
            number = self._read_block(lines, number)
        self._end_paragraph()

    def _read_block(self, lines: Sequence[str], number: int) -> int:
        """Read the line `number`, or all lines of a block that begins there; return the number of the next line."""
        line = lines[number]
        prefix = _PREFIX.match(line)[0]  # type: ignore[index]
        text = line[len(prefix) :].rstrip("\r\n\v\f\x85\u2028\u2029\x1c\x1d\x1e")
        is_item = bool(_LIST_ITEM.search(prefix))
        if not text.strip():
            return self._verbatim(lines, number, number + 1)
        if not prefix and not self.paragraph:
            self.item_indent = 0  # the line is in no list item
        if _FENCE.match(text):
            return self._verbatim(lines, number, _fence_end(lines, number, text))
        if (is_item or not self.paragraph) and self._is_code(prefix, is_item):
            return self._verbatim(lines, number, number + 1)
        if _RULE.match(text) or (_DEFINITION.match(text) and not self.paragraph):  # --- or [label]: address
            return self._verbatim(lines, number, number + 1)
        if not self.paragraph and (html_start := _HTML_BLOCK.match(text)):
            return self._read_html(lines, number, html_start)
        if "|" in text and number + 1 < len(lines) and _is_table_rule(lines[number + 1]):
            return self._read_table(lines, number)
        heading = _HEADING.match(text) or _FOOTNOTE.match(text)
        if is_item or heading or prefix.count(">") > self.quotation:
            self._end_paragraph()
        if is_item:
            self.item_indent = len(_CHECK_BOX.sub("", prefix).expandtabs(4))
        if heading is not None:
            end = re.search(r"(?:[ \t]+#+)?[ \t]*$", text)  # as in “## Title ##”
            closing = end.start() if end and end.start() >= heading.end() and text.startswith("#") else len(text)
            self.parts += [prefix + heading[0], *self._inline(text[heading.end() : closing])]
            self.parts.append(text[closing:] + line[len(prefix) + len(text) :])
            return number + 1
        self._add_line(prefix, text, line)
        return number + 1

    def _is_code(self, prefix: str, is_item: bool) -> bool:
        """Whether a line is code, by the white space that ends its prefix (list markers, “>”, indentation).

        After a list marker or “>”, the first space belongs to the marker; without them, the line may continue the list
        item before it, whose indentation does not count.
        """
        has_marker = is_item or ">" in prefix
        *_, space = re.split(r">|[-+*](?=[ \t])|[.)](?=[ \t])", _CHECK_BOX.sub("", prefix))
        return len(space.expandtabs(4)) - (1 if has_marker else self.item_indent) >= _CODE_INDENT

    def _add_line(self, prefix: str, text: str, line: str) -> None:
        """Append a line to the paragraph, or begin one with it; `line` consists of prefix, text and line break.

        If the line before it ends in two spaces or a backslash, there is a hard line break between them.
        """
        stripped = text.rstrip(" \t")
        if self.paragraph:
            hard = re.search(r"(?: {2,}|\\)$", self.paragraph[-1] + self.end.rstrip("\r\n"))
            if hard is not None:
                self.paragraph[-1] = self.paragraph[-1].removesuffix("\\") + HARD_BREAK.format(len(self.breaks))
                self.breaks.append(hard[0] + self.end.lstrip(" ") + prefix)
        else:
            self.parts.append(prefix)
            self.quotation = prefix.count(">")
        self.paragraph.append(stripped)
        self.end = line[len(prefix) + len(stripped) :]

    def _end_paragraph(self) -> None:
        """Append the paragraph that was read so far, if there is any, to the parts of the document."""
        if self.paragraph:
            text = "\n".join(self.paragraph).replace(f"{HARD_BREAK[-1]}\n", HARD_BREAK[-1])
            self.parts += [*self._inline(text), self.end]
        self.paragraph, self.breaks, self.end = [], [], ""

    def _inline(self, text: str) -> list[str | MarkdownText]:
        """Return the parts of a text with inline markup; one without letters is verbatim."""
        parsed = parse_inline(text, self.labels, self.breaks)
        if re.search(r"[^\W\d_]", parsed.block.text):
            return [parsed]
        return [re.sub("\ue000(\\d+)\ue001", lambda mark: self.breaks[int(mark[1])], text)]

    def _verbatim(self, lines: Sequence[str], start: int, end: int) -> int:
        """Append lines as they are; return the number of the line after them."""
        self._end_paragraph()
        self.parts.append("".join(lines[start:end]))
        return end

    def _read_html(self, lines: Sequence[str], start: int, tag: re.Match[str]) -> int:
        """Read a block of HTML from line `start` on; return the number of the line after it.

        It ends before an empty line; elements without text (such as scripts) and comments end after their end tag.
        """
        closing = f"</{tag['raw'].lower()}>" if tag["raw"] else "-->" if tag["comment"] == "!--" else None
        end = start
        while end < len(lines) and (closing is not None or lines[end].strip()):
            end += 1
            if closing is not None and closing in lines[end - 1].lower():
                break
        if closing is not None or tag["comment"]:
            return self._verbatim(lines, start, end)
        self._end_paragraph()
        self.parts.append(HtmlDocument.parse("".join(lines[start:end])))
        return end

    def _read_table(self, lines: Sequence[str], start: int) -> int:
        """Read a table, whose cells are texts, from line `start` on; return the number of the line after it."""
        self._end_paragraph()
        end = start
        while end < len(lines) and "|" in lines[end] and lines[end].strip():
            if end == start + 1:  # the line below the head
                self.parts.append(lines[end])
            else:
                cells = _CELL_BORDER.split(lines[end])
                for number, cell in enumerate(cells):
                    content = cell.strip()
                    before = cell[: len(cell) - len(cell.lstrip())] if content else cell
                    self.parts += [before, *(map(_as_cell, self._inline(content)) if content else [])]
                    self.parts.append(cell[len(before) + len(content) :] if content else "")
                    self.parts.append("|" if number < len(cells) - 1 else "")
            end += 1
        return end


def _as_cell(part: str | MarkdownText) -> str | MarkdownText:
    """Return the content of a cell, in whose translation a border is escaped."""
    return part if isinstance(part, str) else replace(part, escapes={**part.escapes, "|": r"\|"})


def _fence_end(lines: Sequence[str], start: int, text: str) -> int:
    """Return the number of the line after a block of code or mathematics ($$) that begins at line `start`.

    `text` is the content of that line; the block ends with the same fence (```, ~~~ or $$), or with the document.
    """
    fence = _FENCE.match(text)[0]  # type: ignore[index]
    if fence == "$$" and "$$" in text[2:]:
        return start + 1
    for number in range(start + 1, len(lines)):
        line = lines[number].strip(" \t>\r\n")
        if (line.startswith(fence) and not line.strip(fence[0])) or (fence == "$$" and line.endswith("$$")):
            return number + 1
    return len(lines)


def _is_table_rule(line: str) -> bool:
    """Whether a line separates the head of a table from its rows."""
    text = line.strip(" \t>\r\n")
    return "|" in text and _TABLE_RULE.match(text) is not None
