"""Markdown: headings, lists, quotations, tables and code stay as they are, and the texts in them are translated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dragoman.text.documents.html_document import HtmlDocument
from dragoman.text.documents.markdown_inline import HARD_BREAK, MarkdownText, parse_inline, restore_breaks
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.text_file import decode_text

#: what begins a line before its text: quotation marks, list items with check boxes, white space
_PREFIX = re.compile(r"(?:[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=\s|\Z)(?:[ \t]+\[[ xX]\](?=[ \t]))?))*[ \t]*")
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
    r"ol|p|section|summary|table|tbody|td|tfoot|th|thead|tr|ul)\b"
    r"|(?P<any>/?[a-z][\w-]*(?:\s(?:\"[^\"]*\"|'[^']*'|[^\"'<>])*)?/?>[ \t]*$))",  # a tag that is alone in its line
    re.IGNORECASE,
)
_CHECK_BOX = re.compile(r"\[[ xX]\][ \t]*")
_CODE_INDENT = 4  # columns; also the indentation of a footnote's text
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
        """Return the file with translated texts; `language` is ignored, as Markdown does not state its language."""
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
    """Return the labels of link definitions ([label]: address) in a document, in lower case and with single spaces."""
    # without indentation and quotation marks
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
    quotation: int = 0  # nesting depth of quotations (">") at its beginning
    item_indent: int = 0  # columns of the text of the last list item or footnote

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
        """Read the line `number`, or all lines of a block that begins there; return the number of the next line.

        A line of text is added to the present paragraph, or begins one; all other blocks end the paragraph, and are
        appended to `parts`: verbatim, or as texts to translate (headings, cells of tables, texts in HTML).
        """
        line = lines[number]
        # quotation marks (">"), list markers and indentation
        prefix = _PREFIX.match(line)[0]  # type: ignore[index]
        text = line[len(prefix) :].rstrip("\r\n\v\f\x85\u2028\u2029\x1c\x1d\x1e")
        is_item = bool(_LIST_ITEM.search(prefix))
        if not text.strip():
            return self._verbatim(lines, number, number + 1)
        if not prefix and not self.paragraph:
            self.item_indent = 0  # the line is in no list item
        if _FENCE.match(text):
            return self._verbatim(lines, number, _fence_end(lines, number, prefix, text))
        # indented code cannot interrupt a paragraph
        if (is_item or not self.paragraph) and self._is_code(prefix, is_item):
            return self._verbatim(lines, number, number + 1)
        # a thematic break or underline (---, ===), or a link definition ([label]: address)
        is_rule = _RULE.match(text) or _RULE.match(line.strip(" \t>\r\n"))  # the marks of * * * look like list markers
        if is_rule or (_DEFINITION.match(text) and not self.paragraph):
            return self._verbatim(lines, number, number + 1)
        html_start = _HTML_BLOCK.match(text)
        # a tag that is alone in its line (the group `any`) begins a block only outside paragraphs
        if html_start is not None and not (html_start["any"] and self.paragraph):
            return self._read_html(lines, number, html_start)
        if "|" in text and number + 1 < len(lines) and _is_table_rule(lines[number + 1]):
            return self._read_table(lines, number)
        heading, footnote = _HEADING.match(text), _FOOTNOTE.match(text)
        if is_item or heading or footnote or prefix.count(">") > self.quotation:
            self._end_paragraph()
        if is_item:
            self.item_indent = len(_CHECK_BOX.sub("", prefix).expandtabs(4))
        if heading is not None:  # one line, which is a text by itself
            end = re.search(r"(?:[ \t]+#+)?[ \t]*$", text)  # as in “## Title ##”
            content_end = end.start() if end and end.start() >= heading.end() else len(text)
            content = self._inline(text[heading.end() : content_end], begins_block=False)
            self.parts += [prefix + heading[0], *content]
            self.parts.append(text[content_end:] + line[len(prefix) + len(text) :])  # with the line break
            return number + 1
        if footnote is not None:
            self.item_indent = _CODE_INDENT
            if footnote.end() == len(text):  # its text begins in the next line
                return self._verbatim(lines, number, number + 1)
            prefix, text = prefix + footnote[0], text[footnote.end() :]
        self._add_line(prefix, text, line)
        return number + 1

    def _is_code(self, prefix: str, is_item: bool) -> bool:
        """Whether a line is code, by the white space that ends its prefix (list markers, “>”, indentation).

        After a list marker or “>”, the first space belongs to the marker; without them, the line may continue the list
        item before it, whose indentation does not count.
        """
        has_marker = is_item or ">" in prefix
        # what follows the last marker
        *_, space = re.split(r">|[-+*](?=[ \t])|[.)](?=[ \t])", _CHECK_BOX.sub("", prefix))
        return len(space.expandtabs(4)) - (1 if has_marker else self.item_indent) >= _CODE_INDENT

    def _add_line(self, prefix: str, text: str, line: str) -> None:
        """Append a line to the paragraph, or begin one with it; `line` consists of prefix, text and line break.

        If the line before it ends in two spaces or a backslash, there is a hard line break between them, for which the
        text gets a mark with its number. Its markup is appended to `breaks`; `end` is the white space and line break
        after the last line of the paragraph.
        """
        stripped = text.rstrip(" \t")
        if self.paragraph:
            hard = re.search(r"(?: {2,}|\\)$", self.paragraph[-1] + self.end.rstrip("\r\n"))
            if hard is not None:
                self.paragraph[-1] = self.paragraph[-1].removesuffix(hard[0]) + HARD_BREAK.format(len(self.breaks))
                self.breaks.append(hard[0] + self.end.lstrip(" ") + prefix)
        else:
            self.parts.append(prefix)
            self.quotation = prefix.count(">")  # nesting depth
        self.paragraph.append(stripped)
        self.end = line[len(prefix) + len(stripped) :]

    def _end_paragraph(self) -> None:
        """Append the paragraph that was read so far, if there is any, to the parts of the document."""
        if self.paragraph:
            # the mark of a hard line break (private characters) stands for the line feed after it, too
            text = "\n".join(self.paragraph).replace(f"{HARD_BREAK[-1]}\n", HARD_BREAK[-1])
            self.parts += [*self._inline(text), self.end]
        self.paragraph, self.breaks, self.end = [], [], ""

    def _inline(self, text: str, begins_block: bool = True) -> list[str | MarkdownText]:
        """Return a text with inline markup as a part of the document, in a list; one without letters is verbatim.

        `begins_block`: whether a list or heading could begin where the text does.
        """
        parsed = parse_inline(text, references=self.labels, breaks=self.breaks)
        if re.search(r"[^\W\d_]", parsed.block.text):
            return [replace(parsed, begins_block=begins_block)]
        return [restore_breaks(text, self.breaks)]

    def _verbatim(self, lines: Sequence[str], start: int, end: int) -> int:
        """End the paragraph, and append the lines from `start` to `end` (exclusive) as they are; return `end`."""
        self._end_paragraph()
        self.parts.append("".join(lines[start:end]))
        return end

    def _read_html(self, lines: Sequence[str], start: int, tag: re.Match[str]) -> int:
        """Read a block of HTML from line `start` on; return the number of the line after it.

        It ends before an empty line; elements without text (such as scripts) and comments end with the line of their
        end tag. `tag` matches the beginning: its groups say whether it is such an element (`raw`) or a `comment`.
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
        """Read a table, whose cells are texts, from line `start` on; return the number of the line after it.

        It ends before an empty line or another block; a line of text without | is a row with one cell.
        """
        self._end_paragraph()
        end = start
        while end < len(lines):
            prefix = _PREFIX.match(lines[end])[0]  # type: ignore[index]
            row = lines[end][len(prefix) :]
            begins_block = _LIST_ITEM.search(prefix) or any(
                pattern.match(row.strip()) for pattern in (_FENCE, _HEADING, _RULE, _HTML_BLOCK)
            )
            if not row.strip() or ("|" not in row and begins_block):
                break
            if end == start + 1:  # the line below the head
                self.parts.append(lines[end])
            else:
                self.parts.append(prefix)
                cells = _CELL_BORDER.split(row)
                for number, cell in enumerate(cells):
                    content = cell.strip()
                    # white space before the content and after it; all of an empty cell is before it
                    before = cell[: len(cell) - len(cell.lstrip())] if content else cell
                    texts = self._inline(content, begins_block=False) if content else []
                    self.parts += [before, *map(_as_cell, texts)]
                    self.parts.append(cell[len(before) + len(content) :] if content else "")
                    self.parts.append("|" if number < len(cells) - 1 else "")
            end += 1
        return end


def _as_cell(part: str | MarkdownText) -> str | MarkdownText:
    """Return the content of a table cell with the rule that | is escaped in its translation, as it would end the cell.

    Markup (a string), which is not translated, is returned unchanged.
    """
    return part if isinstance(part, str) else replace(part, escapes={**part.escapes, "|": r"\|"})


def _fence_end(lines: Sequence[str], start: int, prefix: str, text: str) -> int:
    """Return the number of the line after a block of code or mathematics ($$) that begins at line `start`.

    That line consists of `prefix` and `text`. The block ends with the same fence (```, ~~~ or $$), with the quotation
    that it is in, or with the document.
    """
    fence = _FENCE.match(text)[0]  # type: ignore[index]
    if fence == "$$" and "$$" in text[2:]:  # it ends in the same line
        return start + 1
    quotation = re.compile(r"(?:[ \t]*>)" * prefix.count(">"))  # the beginning of each line inside a quotation
    for number in range(start + 1, len(lines)):
        quoted = quotation.match(lines[number])
        if quoted is None:
            return number
        line = lines[number][quoted.end() :].strip()
        if (line.startswith(fence) and not line.strip(fence[0])) or (fence == "$$" and line.endswith("$$")):
            return number + 1
    return len(lines)


def _is_table_rule(line: str) -> bool:
    """Whether a line separates the head of a table from its rows, such as | --- | :-: |."""
    text = line.strip(" \t>\r\n")
    return "|" in text and _TABLE_RULE.match(text) is not None
