"""Text with inline tags, such as bold words, links and images."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

NOT_NESTED = frozenset({"a", "button"})  # elements that must not contain themselves
WHITE_SPACE = " \t\n\r\f"  # characters that HTML collapses; a no-break space is a character like others
_WHITE_SPACE_RUN = re.compile(f"[{WHITE_SPACE}]+")


@dataclass(frozen=True)
class Tag:
    """An inline element: it encloses the characters from `start` to `end` of a text, or stands at a point of it."""

    start: int
    end: int
    opening: str  # markup before the characters, such as `<b>`, or the whole of an empty element
    closing: str = ""  # markup after them
    children: tuple[Tag, ...] = ()  # the tags inside, in order
    name: str = ""  # of the element, such as `b`
    verbatim: bool = False  # whether the characters must not be translated
    separates: bool = False  # whether the tag stands for the space after it, as a line break between words does

    @property
    def is_point(self) -> bool:
        """Whether the tag encloses no text."""
        return self.start == self.end

    def next_position(self, text: str, end: int) -> int:
        """Return where `text` goes on after the tag; `end` is the end (exclusive) of the part that encloses the tag.

        That is `self.end`, or one character later if the tag stands for the space there (`separates`), as <br> does.
        """
        replaces_space = self.separates and text[self.end : min(self.end + 1, end)] == " "
        return self.end + 1 if replaces_space else self.end

    def moved(self, offset: int) -> Tag:
        """Return the tag and those inside it, shifted by a number of characters."""
        children = tuple(child.moved(offset) for child in self.children)
        return replace(self, start=self.start + offset, end=self.end + offset, children=children)

    def clamped(self, start: int, end: int) -> Tag:
        """Return the tag and those inside it, restricted to the characters from `start` to `end` (exclusive) of a text.

        A tag that lies outside encloses no text then: it stands at `start` or at `end`.
        """
        first, last = (min(max(position, start), end) for position in (self.start, self.end))
        children = tuple(child.clamped(first, last) for child in self.children)
        return replace(self, start=first, end=last, children=children)


@dataclass(frozen=True)
class MarkedText:
    """A text and its tags, in order; those inside another one are its children."""

    text: str
    tags: tuple[Tag, ...] = ()

    def all_tags(self) -> Iterator[Tag]:
        """Yield all tags, outer ones first."""
        pending = list(reversed(self.tags))
        while pending:
            tag = pending.pop()
            yield tag
            pending.extend(reversed(tag.children))

    def stripped(self) -> MarkedText:
        """Return the text without white space at its end.

        If a tag without text (a point) follows that white space, a space becomes a part of its markup.
        """
        text, tags = self.text.rstrip(WHITE_SPACE), list(self.tags)
        # the first such point
        index = next((index for index, tag in enumerate(tags) if tag.is_point and tag.start > len(text)), None)
        if index is not None:
            tags[index] = replace(tags[index], opening=f" {tags[index].opening}")
        return MarkedText(text, tuple(tag.clamped(0, len(text)) for tag in tags))

    def render(self, escape: Callable[[str], str] = str, escape_verbatim: Callable[[str], str] | None = None) -> str:
        """Return the text with the markup of all tags.

        `escape` turns text into markup, as html.escape does. `escape_verbatim` does so in tags that are not translated,
        such as code; None: as in all other text.
        """
        return _render(self.text, (0, len(self.text)), self.tags, escape, escape_verbatim or escape)


def _render(
    text: str,
    span: tuple[int, int],
    tags: Sequence[Tag],
    escape: Callable[[str], str],
    escape_verbatim: Callable[[str], str],
) -> str:
    """Return the markup of a range of characters (`span`) and of the tags in it, with escaped texts.

    `span` is (start, end), `tags` are the outermost tags in it, in order. `escape` turns text into markup,
    `escape_verbatim` does so in tags that are not translated. A tag that `separates` words replaces the space after it.
    """
    parts, (position, end) = [], span
    for tag in tags:
        inner_escape = escape_verbatim if tag.verbatim else escape
        inner = _render(text, (tag.start, tag.end), tag.children, inner_escape, escape_verbatim)
        parts += [escape(text[position : tag.start]), tag.opening, inner, tag.closing]
        position = tag.next_position(text, end)
    return "".join([*parts, escape(text[position:end])])


@dataclass
class MarkedTextBuilder:
    """Collects characters and tags in the order of a document.

    `is_collapsed`: white space is collapsed as in HTML.
    """

    is_collapsed: bool = False
    text: str = ""
    _parts: list[str] = field(default_factory=list)
    _length: int = 0
    _ends_with_space: bool = True  # at the beginning, white space is dropped
    _separator: list[Tag] | None = None  # list whose last tag is one after which the text needs a space; None: no tag
    #: open tags, each with its children so far; the first entry collects the outermost tags
    _open: list[tuple[Tag, list[Tag]]] = field(default_factory=lambda: [(Tag(0, 0, ""), [])])

    @property
    def depth(self) -> int:
        """Number of open tags, which have been begun but not ended."""
        return len(self._open) - 1  # the first entry is no tag: it collects the outermost ones

    @property
    def length(self) -> int:
        """Number of characters so far."""
        return self._length

    def add_text(self, text: str, collapse: bool = True) -> None:
        """Append characters; white space is collapsed to one space if `is_collapsed`, unless `collapse` is False.

        Collapsed white space at the beginning, or after other white space, is dropped.
        """
        if text:
            self._separate(is_needed=not text[0].isspace())  # the space after a tag such as <br>, if there is none
        if self.is_collapsed and collapse:
            if self._ends_with_space:
                words = text.lstrip(WHITE_SPACE)
                self._add_space_to_point(text[: len(text) - len(words)])
                text = words
            text = _WHITE_SPACE_RUN.sub(" ", text)
        if text:
            self._parts.append(text)
            self._length += len(text)
            self._ends_with_space = text[-1] in WHITE_SPACE

    def _separate(self, is_needed: bool = True) -> None:
        """Append a space if the last tag separates words, as a line break does, and `is_needed` before what follows.

        In the translation, that tag then takes the place of a space (`separates`).
        """
        siblings, self._separator = self._separator, None  # the list that ends with that tag; None: there is none
        if siblings is not None and is_needed:
            siblings[-1] = replace(siblings[-1], separates=True)
            self.add_text(" ")

    def _add_space_to_point(self, space: str) -> None:
        """Make `space` a part of the tag without text (a point) at the end of the text so far, if there is one.

        Collapsing drops white space that follows other white space, even if such a tag stands between the two.
        """
        children = self._open[-1][1]  # of the innermost open tag
        if children and children[-1].is_point and children[-1].start == self._length:
            children[-1] = replace(children[-1], closing=children[-1].closing + space)

    def add_point(self, markup: str, closing: str = "", name: str = "", separates: bool = False) -> None:
        """Append a tag without text; after one that `separates` words, such as <br>, the text gets a space.

        The space is added when text follows, unless the text before the tag ends with one. `markup` is its start tag,
        `closing` its end tag ("": it has none), `name` that of the element.
        """
        siblings = self._open[-1][1]  # tags in the innermost open one
        siblings.append(Tag(self._length, self._length, markup, closing, name=name))
        if separates and not self._ends_with_space:
            self._separator = siblings  # the space is added when text follows

    def open(self, markup: str, name: str = "", verbatim: bool = False) -> None:
        """Begin a tag with its `markup`, such as <b>; `verbatim`: its text must not be translated.

        After a tag that separates words, such as <br>, the text gets a space first.
        """
        self._separate()
        self._open.append((Tag(self._length, self._length, markup, name=name, verbatim=verbatim), []))

    def close(self, markup: str) -> None:
        """End the tag that was begun last and is still open, with the `markup` of its end, such as </b>."""
        tag, children = self._open.pop()
        closed = replace(tag, end=self._length, closing=markup, children=tuple(children))
        self._open[-1][1].append(closed)  # to the children of the tag around it

    def build(self) -> MarkedText:
        """Return the text and its tags; all tags must be closed."""
        text = "".join(self._parts)
        return MarkedText(text, tuple(self._open[0][1]))


def resolve_overlaps(tags: Sequence[Tag]) -> tuple[Tag, ...]:
    """Return sibling tags nested validly: one inside another becomes its child, one that overlaps another is cut.

    Of two that overlap, the later one loses the common part. Two links (NOT_NESTED) cannot be nested, at any depth: the
    inner one becomes empty, and stands after the outer one.
    """
    points = [tag for tag in tags if tag.is_point]  # tags without text
    resolved: list[Tag] = []
    # by their beginnings; of tags that begin together, the longest first
    for tag in sorted((tag for tag in tags if not tag.is_point), key=lambda tag: (tag.start, -tag.end)):
        last = resolved[-1] if resolved else None
        if last is None or tag.start >= last.end:
            resolved.append(tag)
        elif tag.end > last.end:
            resolved.append(tag.clamped(last.end, tag.end))
        elif tag.name in NOT_NESTED and tag.name == last.name:
            points.append(tag.clamped(last.end, last.end))
        else:
            if last.name in NOT_NESTED:
                tag, links = _split_off(tag, last.name)
                points += [link.clamped(last.end, last.end) for link in links]
            resolved[-1] = replace(last, children=resolve_overlaps([*last.children, tag]))
    for point in points:
        resolved = _with_point(resolved, point)
    return tuple(resolved)


def _split_off(tag: Tag, name: str) -> tuple[Tag, list[Tag]]:
    """Return a tag without those of a name inside it, at any depth, and these tags in their order."""
    children: list[Tag] = []
    removed: list[Tag] = []
    for child in tag.children:
        if child.name == name:
            removed.append(child)
        else:
            kept, removed_inside = _split_off(child, name)
            children.append(kept)
            removed += removed_inside
    return replace(tag, children=tuple(children)), removed


def _with_point(tags: Sequence[Tag], point: Tag) -> list[Tag]:
    """Return sibling tags with a tag without text (`point`), which is put inside the one that encloses it.

    If that is `verbatim` (not translated), the point is put before it. Outside of all tags, it follows those that end
    at or before it, and points at the same place.
    """
    for index, tag in enumerate(tags):
        if tag.start < point.start < tag.end:
            if tag.verbatim:  # its content must not change: the point is put before it
                point = point.clamped(tag.start, tag.start)
                break
            children = tuple(_with_point(tag.children, point))
            return [*tags[:index], replace(tag, children=children), *tags[index + 1 :]]
    num_before = sum(tag.end <= point.start and (tag.start < point.start or tag.is_point) for tag in tags)
    return [*tags[:num_before], point, *tags[num_before:]]


def is_punctuation(character: str) -> bool:
    """Whether a character is a punctuation mark, such as a quotation mark or a bracket."""
    return unicodedata.category(character)[0] == "P"


def core_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Return where a word (text[start:end]) begins and ends (exclusive) without the punctuation at its two ends.

    If it consists of punctuation only, `start` and `end` are returned.
    """
    core_start, core_end = start, end
    while core_start < core_end and is_punctuation(text[core_start]):
        core_start += 1
    while core_end > core_start and is_punctuation(text[core_end - 1]):
        core_end -= 1
    return (core_start, core_end) if core_start < core_end else (start, end)
