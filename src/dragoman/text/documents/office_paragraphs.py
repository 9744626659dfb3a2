"""Paragraphs of Word, PowerPoint and OpenDocument files as blocks.

A formatted run is a tag around its text. Runs that are formatted like most of the paragraph have no tag, so that words
of the translation without a partner look like the rest. Tabs and line breaks separate blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dragoman.text.documents.marked_text import MarkedText, MarkedTextBuilder, Tag
from dragoman.text.documents.xml_tree import Element, XmlText, escape_xml

RUN = "run"  # name of a tag whose opening markup is the format of a run
_BLOCK_REFERENCE = re.compile("\0(\\d+)\0")  # zero bytes do not occur in XML


@dataclass(frozen=True)
class Item:
    """A part of a paragraph."""

    #: a text with its format, the beginning (open) or end (close) of an element, markup without text (point), a tab or
    #: line break (break), or spaces (space)
    kind: Literal["text", "open", "close", "point", "break", "space"]
    markup: str  # the XML of the part; of a text: that of its format
    text: str = ""  # the text, of a part of kind text
    name: str = ""  # of the element, of a part of kind open


@dataclass
class XmlBlocks:
    """The blocks of an XML file. In its markup, a number between zero bytes stands for a block."""

    markup: str = ""  # the file
    blocks: list[MarkedText] = field(default_factory=list)  # what is translated
    #: for each block, the function that returns its XML
    renderers: list[Callable[[MarkedText], str]] = field(default_factory=list)

    def add(self, block: MarkedText, render: Callable[[MarkedText], str]) -> str:
        """Append a block; return what stands for it in the markup: its number between zero bytes.

        `render` returns the XML of the block or its translation.
        """
        self.blocks.append(block)
        self.renderers.append(render)
        return f"\0{len(self.blocks) - 1}\0"

    def render(self, translated: Sequence[MarkedText]) -> str:
        """Return the file with translated blocks in place of the references in its markup.

        `translated` has one for each of `blocks`. Blocks may be inside the markup of others (text boxes), so that
        references are replaced repeatedly.
        """
        parts = [render(block) for render, block in zip(self.renderers, translated)]
        markup = self.markup
        while _BLOCK_REFERENCE.search(markup):
            markup = _BLOCK_REFERENCE.sub(lambda match: parts[int(match[1])], markup)
        return markup


# ---- Word and PowerPoint


def find_office_blocks(root: Element, prefix: str) -> XmlBlocks:
    """Return the paragraphs of an XML file of a Word (prefix `w:`) or PowerPoint (`a:`) file as blocks.

    The most frequent format of a paragraph gets no tag.
    """
    blocks = XmlBlocks()
    for paragraph in _paragraphs(root, {f"{prefix}p"}):
        items = list(_merged(_fields(list(_run_items(paragraph, prefix)), prefix)))
        formats = Counter[str]()  # of a format: number of characters
        for item in items:
            formats[item.markup] += len(item.text) if item.kind == "text" else 0
        base = formats.most_common(1)[0][0] if formats else ""  # the most frequent format

        def render(block: MarkedText, base: str = base) -> str:  # a default, because the variable changes in the loop
            """Return a translated block as runs (pieces of text of one format); `base` is the format without a tag."""
            return _render_runs(block.text, 0, len(block.text), block.tags, run_format=base, prefix=prefix)

        _replace_content(paragraph, blocks, items, base=base, render=render, is_collapsed=False)
    blocks.markup = root.to_xml()
    return blocks


def _run_items(parent: Element, prefix: str) -> Iterator[Item]:
    """Yield the content of a paragraph, or of an element in it; `prefix` is w: in Word, a: in PowerPoint.

    Items of the kind "point" are markup that is kept as it is, at its place in the text.
    """
    properties = {f"{prefix}{name}" for name in ("pPr", "endParaRPr")}  # formats of the paragraph
    opaque = {f"{prefix}{name}" for name in ("del", "moveFrom", "fld")}  # deleted or moved text, and fields
    for child in parent.children:
        if not isinstance(child, Element):
            yield Item("point", child if isinstance(child, str) else child.markup)  # a comment, or white space
        elif child.name == f"{prefix}proofErr":  # a mark of the spelling checker
            continue
        elif child.name == f"{prefix}r":
            yield from _items_of_run(child, prefix)
        elif child.name == f"{prefix}br":
            yield Item("break", child.to_xml())
        elif child.name in properties | opaque or not any(inner.name == f"{prefix}r" for inner in child.walk()):
            yield Item("point", child.to_xml())
        else:
            yield Item("open", child.opening, name="a" if child.name == f"{prefix}hyperlink" else child.name)
            yield from _run_items(child, prefix)
            yield Item("close", child.closing)


def _items_of_run(run: Element, prefix: str) -> Iterator[Item]:
    """Yield the texts of a run (the element w:r, text of one format), and its other content as runs of their own.

    `prefix` is that of the XML elements: w: in Word, a: in PowerPoint.
    """
    run_format = next((child.to_xml() for child in run.elements if child.name == f"{prefix}rPr"), "")
    for child in run.elements:
        if child.name == f"{prefix}t":
            yield Item("text", run_format, child.text)
        elif child.name == f"{prefix}noBreakHyphen":
            yield Item("text", run_format, "\u2011")
        elif child.name != f"{prefix}rPr":
            is_break = child.name in (f"{prefix}tab", f"{prefix}br", f"{prefix}cr")
            yield Item("break" if is_break else "point", f"<{prefix}r>{run_format}{child.to_xml()}</{prefix}r>")


def _fields(items: Sequence[Item], prefix: str) -> Iterator[Item]:
    """Yield the parts of a paragraph, with each field (a link, a page number, …) as an element around its result.

    A field that contains another one, or whose result is not only text, is markup (a point) with all that is in it. Of
    one that does not end in the paragraph, such as a table of contents, only the marks are. `prefix` is that of the XML
    elements, such as w:.
    """
    marks = [_field_mark(item, prefix) for item in items]  # begin, separate, end, or ''
    ends = _field_ends(items, marks)
    position = 0
    while position < len(items):
        if position not in ends:
            yield items[position]
            position += 1
            continue
        end = ends[position] + 1
        field, field_marks = items[position:end], marks[position:end]
        # between the marks "separate" and "end"
        result = field[field_marks.index("separate") + 1 : -1] if field_marks.count("separate") == 1 else []
        is_simple = field_marks.count("begin") == 1 and all(item.kind == "text" for item in result) and result
        if is_simple:
            begin = "".join(item.markup for item in field[: field_marks.index("separate") + 1])
            yield from (Item("open", begin, name="a"), *result, Item("close", field[-1].markup))
        else:
            markup = [
                _text_run(item.text, item.markup, prefix) if item.kind == "text" else item.markup for item in field
            ]
            yield Item("point", "".join(markup))
        position = end


def _field_ends(items: Sequence[Item], marks: Sequence[str]) -> dict[int, int]:
    """Return the index of the mark "end" of each field that has one in the same element, by the index of its "begin".

    `marks` has for each of the `items` of a paragraph the mark of a field, or ''.
    """
    pending, ends = [list[int]()], dict[int, int]()  # pending: fields that have begun, in each element that is open
    for index, (item, mark) in enumerate(zip(items, marks)):
        if item.kind == "open":
            pending.append([])
        elif item.kind == "close":
            pending.pop()
        elif mark == "begin":
            pending[-1].append(index)
        elif mark == "end" and pending[-1]:
            ends[pending[-1].pop()] = index
    return ends


def _field_mark(item: Item, prefix: str) -> str:
    """Return "begin", "separate" or "end" if an item is this mark of a field (a link, a page number, …), else ''.

    `prefix` is that of the XML elements, such as w:.
    """
    match = (
        re.search(rf"<{prefix}fldChar\b[^>]*{prefix}fldCharType=[\"'](\w+)", item.markup)
        if item.kind == "point"
        else None
    )
    return match[1] if match else ""


def _merged(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the parts of a paragraph; neighboring texts of the same format are joined into one."""
    pending: Item | None = None  # the text before, which the next one may continue
    for item in items:
        # the markup of a text is its format
        if pending is not None and item.kind == "text" and item.markup == pending.markup:
            pending = Item("text", item.markup, pending.text + item.text)
            continue
        if pending is not None:
            yield pending
        pending = item if item.kind == "text" else None
        if item.kind != "text":
            yield item
    if pending is not None:
        yield pending


def _text_run(text: str, run_format: str, prefix: str) -> str:
    """Return a run element, which has a text of one format; '' for an empty text.

    `run_format` is the XML of the format, `prefix` the namespace of the elements, such as w:.
    """
    space = ' xml:space="preserve"' if prefix == "w:" else ""
    return f"<{prefix}r>{run_format}<{prefix}t{space}>{escape_xml(text)}</{prefix}t></{prefix}r>" if text else ""


def _render_runs(text: str, start: int, end: int, tags: Sequence[Tag], run_format: str, prefix: str) -> str:
    """Return text[start:end] as run elements (texts of one format), with the markup of the `tags` in it around them.

    `prefix` is the XML namespace of the elements, such as w:. The format of a text is the opening markup of its
    innermost tag with the name RUN, which itself is not written, and `run_format` outside such tags.
    """
    parts, position = [], start
    for tag in tags:
        parts.append(_text_run(text[position : tag.start], run_format, prefix))
        position = tag.next_position(text, end)
        is_run = tag.name == RUN
        inner_format = tag.opening if is_run else run_format
        inner = _render_runs(text, tag.start, tag.end, tag.children, inner_format, prefix)
        parts.append(inner if is_run else tag.opening + inner + tag.closing)
    return "".join([*parts, _text_run(text[position:end], run_format, prefix)])


# ---- OpenDocument

_SPLITTING = {"text:tab", "text:line-break"}
_INLINE_ODF = {"text:span", "text:a", "text:meta", "text:ruby", "text:ruby-base"}


def find_odf_blocks(root: Element) -> XmlBlocks:
    """Return the paragraphs and headings of an XML file of an OpenDocument as blocks.

    Formats are elements (`text:span`) here, and white space is collapsed as in HTML.
    """
    blocks = XmlBlocks()
    for paragraph in _paragraphs(root, {"text:p", "text:h"}):
        items = list(_odf_items(paragraph))
        _replace_content(
            paragraph, blocks, items, base="", render=lambda block: block.render(escape_xml), is_collapsed=True
        )
    blocks.markup = root.to_xml()
    return blocks


def _odf_items(parent: Element) -> Iterator[Item]:
    """Yield the content of a paragraph of OpenDocument, or of an element in it.

    Items of the kind "point" are markup that is kept as it is, at its place in the text.
    """
    for child in parent.children:
        if isinstance(child, XmlText):
            yield Item("text", "", child.text)
        elif isinstance(child, str):  # other markup, such as a comment
            yield Item("point", child)
        elif child.name == "text:s":  # one or several spaces besides those that are collapsed
            yield Item("space", child.to_xml())
        elif child.name in _INLINE_ODF and child.closing:
            yield Item("open", child.opening, name="a" if child.name == "text:a" else child.name)
            yield from _odf_items(child)
            yield Item("close", child.closing)
        else:
            yield Item("break" if child.name in _SPLITTING else "point", child.to_xml())


# ---- both


def _paragraphs(root: Element, names: set[str]) -> list[Element]:
    """Return all elements in `root` with these names, which are those of paragraphs, last ones first.

    So a paragraph inside another one, as in a text box, comes before the outer one, whose content is replaced later.
    """
    return [element for element in root.walk() if element.name in names][::-1]


def _replace_content(
    paragraph: Element,
    blocks: XmlBlocks,
    items: Sequence[Item],
    base: str,
    render: Callable[[MarkedText], str],
    is_collapsed: bool,
) -> None:
    """Replace the content of a paragraph by blocks and the markup between them, if it has text with letters.

    `items` are its parts. Tabs and line breaks outside elements separate blocks, which are appended to `blocks`. `base`
    is the format that needs no tag; `render` returns the XML of a block; `is_collapsed`: several spaces count as one.
    """
    groups: list[list[Item]] = [[]]
    depth = 0
    for item in items:
        depth += (item.kind == "open") - (item.kind == "close")
        if item.kind == "break" and depth == 0:
            groups += [[item], []]
        else:
            groups[-1].append(item)
    if not any(_has_letters(group) for group in groups):
        return
    content = []
    for group in groups:
        if len(group) == 1 and group[0].kind == "break":
            content.append(group[0].markup)
            continue
        builder = MarkedTextBuilder(is_collapsed=is_collapsed)
        for item in group:
            _add_item(builder, item, base)
        block = builder.build()
        content.append(blocks.add(block, render) if _has_letters(group) else render(block))  # else it is kept
    paragraph.children = ["".join(content)]


def _has_letters(items: Sequence[Item]) -> bool:
    """Whether one of the texts among the parts of a paragraph has letters."""
    return any(item.kind == "text" and any(map(str.isalpha, item.text)) for item in items)


def _add_item(builder: MarkedTextBuilder, item: Item, base: str) -> None:
    """Append a part of a paragraph to a block; a text of another format than `base` gets a tag (RUN) around it.

    The opening markup of that tag is the format.
    """
    if item.kind == "text" and item.markup == base:
        builder.add_text(item.text)
    elif item.kind == "text":
        builder.open(item.markup, RUN)
        builder.add_text(item.text)
        builder.close("")
    elif item.kind == "open":
        builder.open(item.markup, item.name)
    elif item.kind == "close":
        builder.close(item.markup)
    else:  # a break is inside a link here, where it separates no blocks but words
        builder.add_point(item.markup, separates=item.kind in ("break", "space"))
