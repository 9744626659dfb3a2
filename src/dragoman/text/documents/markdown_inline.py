"""Inline markup of Markdown (CommonMark): emphasis, links, code, HTML tags and line breaks become tags of a text."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dragoman.text.documents.html_document import VERBATIM
from dragoman.text.documents.marked_text import MarkedText, MarkedTextBuilder, Tag

#: stands for hard line break number N of a paragraph, with private characters
HARD_BREAK = "\ue000{}\ue001"
_HARD_BREAK_MARK = re.compile("\ue000(\\d+)\ue001")
_PUNCTUATION = r"!-/:-@\[-`{-~"
_TITLE = r"(?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\([^()]*\))"
#: the address of a link or image, which may have brackets, and its title
_ADDRESS = rf"\(\s*(?:<[^<>\n]*>|(?:\\.|[^()\s\\]|\((?:\\.|[^()\s\\])*+\))*+)(?:\s+{_TITLE})?\s*\)"
_TOKEN = re.compile(
    r"(?P<break>\ue000(?P<number>\d+)\ue001)"
    rf"|\\(?P<escaped>[{_PUNCTUATION}])"
    r"|(?P<ticks>`+)"
    r"|(?P<autolink><(?:[a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\s<>]*|[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)>)"
    r"|<(?P<slash>/?)(?P<element>[a-zA-Z][\w-]*)(?:\"[^\"]*\"|'[^']*'|[^\"'<>])*>"
    r"|(?P<point><!--.*?-->|\[\^[^\]\s]+\]"  # comments and footnotes
    rf"|!\[(?:\\.|[^\[\]\\]|\[[^\[\]]*\])*+\](?:{_ADDRESS}|\[[^\[\]]*\])?)"
    r"|(?P<bracket>\[)"
    rf"|(?P<target>\](?:{_ADDRESS}|\[(?P<reference>[^\[\]]*)\])?)"
    r"|(?P<delimiter>\*+|_+|(?<!~)~~(?!~))"
    r"|(?P<entity>&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});)",
    re.DOTALL,
)
_EMPHASIS = frozenset({"*", "**", "_", "__", "~~"})
_EMPTY_ELEMENTS = frozenset({"br", "img", "wbr", "hr", "input"})
#: what would begin a heading, list, quotation or fence at the start of a line
_BLOCK_MARKER = re.compile(r"#{1,6}(?=\s)|[-+*](?=\s)|(?P<number>\d{1,9})[.)](?=\s)|>|~~~")


@dataclass
class _Piece:
    """A part of a paragraph.

    Attributes:
        kind: text, verbatim text, a tag without text (point), a start or end tag (open, close), or a run of delimiters
        markup: the text, or the markup of the tag
        name: of the tag, or the character of the delimiters
        can_open, can_close: whether emphasis can begin or end at a run of delimiters
        closing: end tags before the text, such as those that a run of delimiters was divided into
        opening: start tags after it; of verbatim text, the one before it
    """

    kind: str
    markup: str
    name: str = ""
    can_open: bool = False
    can_close: bool = False
    closing: list[str] = field(default_factory=list)
    opening: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MarkdownText:
    """A text with the tags of its inline markup, and how its special characters were written."""

    block: MarkedText
    escapes: Mapping[str, str] = field(default_factory=dict)  # character → \\character or &entity;
    begins_block: bool = True  # whether a list or heading could begin with the text: not inside a heading or cell

    def render(self, translated: MarkedText) -> str:
        """Return a translation as Markdown; what would begin a heading, list or quotation is escaped by a backslash.

        Special characters of the translation are written as the source writes them (`escapes`).
        """
        text, tags = translated.text, _valid_tags(translated.text, translated.tags)
        marker = _BLOCK_MARKER.match(text)
        # a tag at the beginning, such as **, precedes the marker, which then begins no list
        if marker is not None and self.begins_block and not (tags and tags[0].start == 0):
            position = marker.end("number") if marker["number"] else 0  # of the backslash: 1\. or \-
            if text[position] not in self.escapes:  # it is escaped in any case
                tags.insert(0, Tag(position, position, "\\"))
        escapes = str.maketrans(dict(self.escapes))
        return MarkedText(text, tuple(tags)).render(lambda part: part.translate(escapes), escape_verbatim=str)


def restore_breaks(text: str, breaks: Sequence[str]) -> str:
    """Return a text with the markup of hard line breaks (`breaks`) in place of their marks (`HARD_BREAK`).

    A mark has the index of its break; one without a break is of the document itself, and stays.
    """
    return _HARD_BREAK_MARK.sub(
        lambda mark: breaks[int(mark[1])] if int(mark[1]) < len(breaks) else mark[0],  # a character of the document
        text,
    )


def parse_inline(text: str, references: Collection[str] = (), breaks: Sequence[str] = ()) -> MarkdownText:
    """Parse the inline markup (emphasis, links, code, …) of a paragraph of Markdown.

    Args:
        text: its lines, with `HARD_BREAK` (private characters with a number) for each hard line break
        references: labels of links that the document defines, in lower case
        breaks: markup of the hard line breaks, by these numbers
    """
    pieces, escapes = _pieces(text, references, breaks)
    _match_elements(pieces)
    _match_delimiters(pieces)
    builder = MarkedTextBuilder(is_collapsed=True)
    for piece in pieces:
        match piece.kind:
            case "text" | "delimiter":
                for markup in piece.closing:
                    builder.close(markup)
                builder.add_text(piece.markup)
                for markup in piece.opening:
                    builder.open(markup, markup)
            case "verbatim":
                builder.open(piece.opening[0], "code", verbatim=True)
                builder.add_text(piece.markup, collapse=False)
                builder.close(piece.closing[0])
            case "point":
                builder.add_point(piece.markup, name=piece.name, separates=piece.name in ("br", "img"))
            case "open":
                builder.open(piece.markup, piece.name)
            case "close":
                builder.close(piece.markup)
    return MarkdownText(builder.build().stripped(), escapes)


def _pieces(text: str, references: Collection[str], breaks: Sequence[str]) -> tuple[list[_Piece], dict[str, str]]:
    """Split a text into pieces: texts, tags (a link is two), code and runs of delimiters such as **.

    Returns:
        The pieces, and for each special character that the text writes as an escape or entity, the latter.

    `references` are the labels of links that the document defines, `breaks` the markup of hard line breaks, to which
    marks in the text refer by number.
    """
    pieces, escapes, position = list[_Piece](), dict[str, str](), 0  # escapes: character → escape or entity
    brackets: list[tuple[int, int]] = []  # pieces that may begin a link, and where their text begins
    code_breaks = [markup[0].strip() + " " for markup in breaks]  # line breaks inside code, where a backslash is kept
    unclosed = set[str]()  # elements whose end tag does not follow
    while match := _TOKEN.search(text, position):
        if match.start() > position:
            pieces.append(_Piece("text", text[position : match.start()]))
        position = match.end()
        markup = restore_breaks(match[0], breaks)
        if match["break"]:
            is_break = markup != match[0]  # else the characters are of the document
            pieces.append(_Piece("point", markup, "br") if is_break else _Piece("text", markup))
        elif match["ticks"]:
            end = re.compile(rf"(?<!`){match['ticks']}(?!`)").search(text, position)
            if end is None:
                pieces.append(_Piece("text", match[0]))
            else:
                content = restore_breaks(text[position : end.start()], code_breaks)
                pieces.append(_verbatim(match["ticks"], content, match["ticks"]))
                position = end.end()
        elif match["autolink"]:
            pieces.append(_verbatim("<", match[0][1:-1], ">"))
        elif match["element"]:
            name = match["element"].lower()
            is_empty = markup.endswith("/>") or name in _EMPTY_ELEMENTS
            end = None
            if name in VERBATIM - unclosed and not (is_empty or match["slash"]):
                end = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(text, position)
                unclosed |= set() if end else {name}
            if end is not None:
                content = restore_breaks(text[position : end.start()], code_breaks)
                pieces.append(_verbatim(markup, content, end[0]))
                position = end.end()
            else:
                pieces.append(_Piece("point" if is_empty else "close" if match["slash"] else "open", markup, name))
        elif match["point"]:
            pieces.append(_Piece("point", markup, "img" if markup.startswith("!") else ""))
        elif match["bracket"]:
            brackets.append((len(pieces), position))
            pieces.append(_Piece("text", "["))
        elif match["target"]:
            # the last "[": its piece, and where the text of the link begins; None: there is none
            number, start = brackets.pop() if brackets else (0, None)
            closing = _link_end(match, text, start, references)
            if closing is None:  # not a link: what follows the bracket is read again
                pieces.append(_Piece("text", "]"))
                position = match.start() + 1
            else:
                brackets.clear()  # links are not nested
                pieces[number] = _Piece("open", "[", "a")
                pieces.append(_Piece("close", restore_breaks(closing, breaks), "a"))
        elif match["delimiter"]:
            pieces.append(_delimiter(text, match))
        else:
            character = match["escaped"] or html.unescape(match["entity"])
            pieces.append(_Piece("text", character))
            if len(character) == 1 and not character.isalnum():
                escapes[character] = match[0]
    if position < len(text):
        pieces.append(_Piece("text", text[position:]))
    return pieces, escapes


def _verbatim(opening: str, content: str, closing: str) -> _Piece:
    """Return a piece of text that is not translated, such as code, with the marks before and after it."""
    return _Piece("verbatim", content.replace("\n", " "), opening=[opening], closing=[closing])


def _link_end(match: re.Match[str], text: str, start: int | None, references: Collection[str]) -> str | None:
    """Return the markup at the end of a link, such as ](address), whose text begins at `start`; None if it is no link.

    It is no link without a bracket at its beginning (`start` None), or if its label is not defined. `match` is the
    possible end in `text`: "]" alone, with an address or with the label of a reference. `references` are the labels
    that the document defines, in lower case. A link whose own text is its label, such as [text], gets the label as a
    reference, as its text is translated.
    """
    if start is None:
        return None
    if match["reference"] is None and match[0] != "]":
        return match[0]  # ](address)
    label = " ".join(text[start : match.start()].split())
    reference = " ".join((match["reference"] or label).split())  # [text][reference], [label][] or [label]
    if reference.lower() not in references:
        return None
    return match[0] if match["reference"] else f"][{label}]"  # the text is translated, but the label must not change


def _delimiter(text: str, match: re.Match[str]) -> _Piece:
    """Return a run of delimiters, such as **, as a piece; its neighbors decide whether it can begin or end emphasis.

    `match` is the run in `text`.
    """
    before, after = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
    # the ends of the text, and the first and last character of `HARD_BREAK`, are white space
    before, after = (" " if character in ("", *"\ue000\ue001") else character for character in (before, after))
    # whether they are punctuation marks (P) or symbols (S)
    mark_before, mark_after = (unicodedata.category(character)[0] in "PS" for character in (before, after))
    # CommonMark: “left-flanking” and “right-flanking” runs of delimiters
    left = not after.isspace() and (not mark_after or before.isspace() or mark_before)
    right = not before.isspace() and (not mark_before or after.isspace() or mark_after)
    if match[0][0] == "_":  # which is a letter inside a word
        left, right = left and (not right or mark_before), right and (not left or mark_after)
    return _Piece("delimiter", match[0], match[0][0], can_open=left, can_close=right)


def _match_elements(pieces: Sequence[_Piece]) -> None:
    """Turn HTML tags without a partner, or that cross a link, into tags without text (kind "point"), in place.

    A Markdown link is a start tag with the markup "[" and an end tag with the markup "](address)". Both are named "a",
    like HTML's <a>, but a link and an HTML tag are no partners.
    """

    def are_partners(start: _Piece, end: _Piece) -> bool:
        """Whether a start tag and an end tag have the same name, and both are of Markdown or both of HTML."""
        return start.name == end.name and start.markup.startswith("[") == end.markup.startswith("]")

    pending = list[_Piece]()  # start tags whose end tag has not been found
    for piece in pieces:
        if piece.kind == "open":
            pending.append(piece)
        elif piece.kind == "close":
            # start tags inside the element that the end tag closes have no partner, unless this would cross a link
            while pending and not are_partners(pending[-1], piece):
                is_in_link = pending[-1].markup == "["
                if is_in_link or not any(start.name == piece.name for start in pending):
                    break
                pending.pop().kind = "point"
            if pending and are_partners(pending[-1], piece):
                pending.pop()
            else:
                piece.kind = "point"
    for piece in pending:
        piece.kind = "point"


def _match_delimiters(pieces: Sequence[_Piece]) -> None:
    """Divide runs of delimiters, such as **, into start and end tags, in place; none crosses an element.

    This is the procedure “process emphasis” of CommonMark. The tags are appended to `opening` of the run that begins
    the emphasis and to `closing` of the one that ends it; what remains of a run is its text.
    """
    levels: list[list[_Piece]] = [[]]  # runs that can begin emphasis, in each element that is open
    for piece in pieces:
        if piece.kind == "open":
            levels.append([])
        elif piece.kind == "close":
            levels.pop()
        elif piece.kind == "delimiter":
            openers = levels[-1]
            while piece.can_close and piece.markup:
                # the nearest run of the same character
                index = next((n for n in reversed(range(len(openers))) if openers[n].name == piece.name), None)
                if index is None:
                    break
                del openers[index + 1 :]  # runs in between begin nothing, since emphasis is nested
                opener = openers[index]
                is_double = len(opener.markup) >= 2 and len(piece.markup) >= 2  # strong emphasis, with two characters
                markup = piece.name * (2 if is_double else 1)
                opener.markup, piece.markup = opener.markup[len(markup) :], piece.markup[len(markup) :]
                opener.opening.insert(0, markup)
                piece.closing.append(markup)
                if not opener.markup:  # all of the run has been used
                    openers.pop()
            if piece.can_open and piece.markup:
                openers.append(piece)


def _valid_tags(text: str, tags: Sequence[Tag], outer: frozenset[str] = frozenset()) -> list[Tag]:
    """Return the tags of a translation as Markdown can write them.

    `text` is the text of the translation. Emphasis without text is dropped, and so is emphasis inside an equal one:
    `outer` are the asterisks ("*", "**") of the emphasis around the tags. Next to a letter, emphasis is written with
    asterisks, as underscores would be part of the word.
    """
    result = list[Tag]()
    for tag in tags:
        is_emphasis = tag.opening in _EMPHASIS and tag.opening == tag.closing
        asterisks = tag.opening.replace("_", "*")
        children = _valid_tags(text, tag.children, outer | {asterisks} if is_emphasis else outer)
        if is_emphasis and (tag.is_point or asterisks in outer):
            result += children
            continue
        neighbours = text[max(0, tag.start - 1) : tag.start] + text[tag.end : tag.end + 1]
        if is_emphasis and any(character.isalnum() for character in neighbours):
            tag = replace(tag, opening=asterisks, closing=asterisks)
        result.append(replace(tag, children=tuple(children)))
    return result
