"""Inline markup of Markdown (CommonMark): emphasis, links, code, HTML tags and line breaks become tags of a text."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dragoman.text.documents.marked_text import MarkedText, MarkedTextBuilder, Tag

#: stands for hard line break number N of a paragraph, with private characters
HARD_BREAK = "\ue000{}\ue001"
_PUNCTUATION = r"!-/:-@\[-`{-~"
_TOKEN = re.compile(
    r"(?P<break>\ue000(?P<number>\d+)\ue001)"
    rf"|\\(?P<escaped>[{_PUNCTUATION}])"
    r"|(?P<ticks>`+)"
    r"|(?P<autolink><(?:[a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\s<>]*|[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)>)"
    r"|<(?P<slash>/?)(?P<element>[a-zA-Z][\w-]*)(?:\"[^\"]*\"|'[^']*'|[^\"'<>])*>"
    r"|(?P<point><!--.*?-->|\[\^[^\]\s]+\]"  # comments and footnotes
    r"|!\[[^\[\]]*\](?:\([^()\s]*(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)|\[[^\[\]]*\])?)"
    r"|(?P<bracket>\[)"
    r"|(?P<target>\](?:\(\s*(?:<[^<>\n]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)"
    r"|\[(?P<reference>[^\[\]]*)\])?)"
    r"|(?P<delimiter>\*+|_+|~~)"
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

    def render(self, translated: MarkedText) -> str:
        """Return a translation as Markdown; what would begin a heading, list or quotation is escaped by a backslash."""
        text, tags = translated.text, _valid_tags(translated.text, translated.tags)
        marker = _BLOCK_MARKER.match(text)
        if marker is not None and not (tags and tags[0].start == 0):
            position = marker.end("number") if marker["number"] else 0
            tags.insert(0, Tag(position, position, "\\"))
        escapes = str.maketrans(dict(self.escapes))
        return MarkedText(text, tuple(tags)).render(lambda part: part.translate(escapes), escape_verbatim=str)


def parse_inline(text: str, references: Collection[str] = (), breaks: Sequence[str] = ()) -> MarkdownText:
    """Parse the inline markup (emphasis, links, code, …) of a paragraph of Markdown.

    Args:
        text: its lines, with `HARD_BREAK` for hard line breaks
        references: labels of links that the document defines, in lower case
        breaks: markup of the hard line breaks
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
    """Split a text into pieces (a link is two tags); return also how the text writes special characters.

    `references` are the labels of links that the document defines, `breaks` the markup of hard line breaks, to which
    marks in the text refer by number.
    """
    pieces, escapes, position = list[_Piece](), dict[str, str](), 0
    brackets: list[tuple[int, int]] = []  # pieces that may begin a link, and where their text begins
    while match := _TOKEN.search(text, position):
        if match.start() > position:
            pieces.append(_Piece("text", text[position : match.start()]))
        position = match.end()
        if match["break"]:
            pieces.append(_Piece("point", breaks[int(match["number"])], "br"))
        elif match["ticks"]:
            end = re.compile(rf"(?<!`){match['ticks']}(?!`)").search(text, position)
            if end is None:
                pieces.append(_Piece("text", match[0]))
            else:
                pieces.append(_verbatim(match["ticks"], text[position : end.start()], match["ticks"]))
                position = end.end()
        elif match["autolink"]:
            pieces.append(_verbatim("<", match[0][1:-1], ">"))
        elif match["element"]:
            name = match["element"].lower()
            is_empty = match[0].endswith("/>") or name in _EMPTY_ELEMENTS
            pieces.append(_Piece("point" if is_empty else "close" if match["slash"] else "open", match[0], name))
        elif match["point"]:
            pieces.append(_Piece("point", match[0], "img" if match[0].startswith("!") else ""))
        elif match["bracket"]:
            brackets.append((len(pieces), position))
            pieces.append(_Piece("text", "["))
        elif match["target"]:
            number, start = brackets.pop() if brackets else (0, None)
            closing = _link_end(match, text, start, references)
            if closing is None:
                pieces.append(_Piece("text", "]"))
                position = match.start() + 1
            else:
                brackets.clear()  # links are not nested
                pieces[number] = _Piece("open", "[", "a")
                pieces.append(_Piece("close", closing, "a"))
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
    """Return the markup at the end of a link whose text begins at `start`; None if it is not a link.

    `match` is the possible end in `text`: "]" with an address or the label of a reference. `references` are the labels
    that the document defines.
    """
    if start is None:
        return None
    if match["reference"] is None and match[0] != "]":
        return match[0]  # ](address)
    label = " ".join(text[start : match.start()].split())
    reference = " ".join((match["reference"] or label).split())
    if reference.lower() not in references:
        return None
    return match[0] if match["reference"] else f"][{label}]"  # the text is translated, the label is not


def _delimiter(text: str, match: re.Match[str]) -> _Piece:
    """Return a run of delimiters; whether it can begin or end emphasis depends on the characters around it."""
    before, after = text[match.start() - 1 : match.start()] or " ", text[match.end() : match.end() + 1] or " "
    mark_before, mark_after = (unicodedata.category(character)[0] in "PS" for character in (before, after))
    # CommonMark: “left-flanking” and “right-flanking” runs of delimiters
    left = not after.isspace() and (not mark_after or before.isspace() or mark_before)
    right = not before.isspace() and (not mark_before or after.isspace() or mark_after)
    if match[0][0] == "_":  # which is a letter inside a word
        left, right = left and (not right or mark_before), right and (not left or mark_after)
    return _Piece("delimiter", match[0], match[0][0], can_open=left, can_close=right)


def _match_elements(pieces: Sequence[_Piece]) -> None:
    """Turn HTML tags without a partner, or that cross a link, into tags without text (kind "point"), in place."""
    pending = list[_Piece]()  # start tags whose end tag has not been found; links begin with "["
    for piece in pieces:
        if piece.kind == "open":
            pending.append(piece)
        elif piece.kind == "close":
            is_link = piece.markup.startswith("]")
            while pending and not (pending[-1].name == piece.name and pending[-1].markup.startswith("[") == is_link):
                if pending[-1].markup == "[" or not any(start.name == piece.name for start in pending):
                    break
                pending.pop().kind = "point"
            if pending and pending[-1].name == piece.name and pending[-1].markup.startswith("[") == is_link:
                pending.pop()
            else:
                piece.kind = "point"
    for piece in pending:
        piece.kind = "point"


def _match_delimiters(pieces: Sequence[_Piece]) -> None:
    """Divide runs of delimiters into start and end tags (CommonMark, “process emphasis”); none crosses an element."""
    levels: list[list[_Piece]] = [[]]  # runs that can begin emphasis, in each element that is open
    for piece in pieces:
        if piece.kind == "open":
            levels.append([])
        elif piece.kind == "close":
            levels.pop()
        elif piece.kind == "delimiter":
            openers = levels[-1]
            while piece.can_close and piece.markup:
                index = next((n for n in reversed(range(len(openers))) if openers[n].name == piece.name), None)
                if index is None:
                    break
                del openers[index + 1 :]
                opener = openers[index]
                is_double = len(opener.markup) >= 2 and len(piece.markup) >= 2
                markup = piece.name * (2 if is_double else 1)
                opener.markup, piece.markup = opener.markup[len(markup) :], piece.markup[len(markup) :]
                opener.opening.insert(0, markup)
                piece.closing.append(markup)
                if not opener.markup:
                    openers.pop()
            if piece.can_open and piece.markup:
                openers.append(piece)


def _valid_tags(text: str, tags: Sequence[Tag], outer: frozenset[str] = frozenset()) -> list[Tag]:
    """Return the tags of a translation as Markdown can write them.

    Emphasis without text is dropped, and so is emphasis inside an equal one: `outer` are the asterisks of the emphasis
    around the tags. Next to a letter, emphasis is written with asterisks, as underscores would be part of the word.
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
