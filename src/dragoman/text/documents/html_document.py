"""HTML: inline elements are tags, all other elements separate blocks."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from dragoman.text.documents.marked_text import WHITE_SPACE, MarkedText, MarkedTextBuilder

#: elements inside a sentence
INLINE = frozenset(
    {
        *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "br", "cite", "code", "data", "del", "dfn", "em", "font"),
        *("i", "img", "ins", "kbd", "mark", "q", "rp", "rt", "ruby", "s", "samp", "script", "small", "span", "strike"),
        *("strong", "style", "sub", "sup", "svg", "math", "time", "tt", "u", "var", "wbr"),
    }
)
VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})
#: elements whose content is not text and is kept as it is
OPAQUE = frozenset({"script", "style", "svg", "math", "template"})
#: elements whose text is kept: inside a sentence, or as a block
VERBATIM = frozenset({"code", "kbd", "samp", "var", "tt", "pre", "textarea"})
TRANSLATED_ATTRIBUTES = ("alt", "title", "placeholder", "aria-label")
MAX_DEPTH = 40  # nested inline tags; in deeper ones each text is a block
MAX_TOKENS = 1000  # tags and texts of a block, with the same consequence

#: comments, CDATA, declarations and instructions, and tags; only after = do quotation marks enclose a value
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<[!?][^>]*(?:>|\Z)"
    r"|<(?P<closing>/?)(?P<name>[a-zA-Z][^\s/<>\"']*)(?P<attributes>(?:=\s*(?:\"[^\"]*\"|'[^']*')|[^<>])*+)>",
    re.DOTALL,
)
#: a superscript without letters, such as [1], with tags around the mark; it belongs to no sentence
_FOOTNOTE_MARK = re.compile(r"<sup\b[^<>]*>(?:<[^<>]{0,500}>|[^\w<>&]|\d){0,100}?</sup\s*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([^\s\"'<>/=]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'<>=]+))")
_BARE_VALUE_AT_END = re.compile(r"=\s*[^\s\"']+\Z")  # of the last attribute, such as x/ in <a href=x/>
_LETTER = re.compile(r"[^\W\d_]")
#: stands for the value of an attribute to translate, by its number, in markup
_VALUE_REFERENCE = "\ue000{}\ue001"  # private characters
_VALUE_REFERENCES = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True)
class Token:
    """A tag of HTML (`name`, lower case), other markup, or a text (`is_text`)."""

    markup: str
    name: str = ""
    is_closing: bool = False
    is_text: bool = False
    attributes: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the element has no content: br, img and others (VOID), and those that end with />."""
        return self.name in VOID or (bool(self.name) and _is_self_closing(self.attributes))

    @property
    def is_blank(self) -> bool:
        """Whether it is a text of white space only, such as &nbsp;."""
        return self.is_text and not html.unescape(self.markup).strip()

    @property
    def is_untranslated(self) -> bool:
        """Whether the author excludes the element from translation: translate="no" or class="notranslate"."""
        values = {name.lower(): double or single or bare for name, double, single, bare in self.all_attributes}
        return values.get("translate", "").lower() == "no" or "notranslate" in values.get("class", "").lower().split()

    @property
    def all_attributes(self) -> list[tuple[str, str, str, str]]:
        """(Name, value in double quotes, value in single quotes, bare value) of each attribute.

        Only one of the three values is not empty: that in which the attribute is written.
        """
        return _ATTRIBUTE.findall(self.attributes)


@dataclass
class HtmlDocument:
    """HTML, split into markup and blocks."""

    parts: list[str | MarkedText] = field(default_factory=list)  # verbatim markup, and blocks
    #: values of attributes to translate, which markup refers to by their number
    attributes: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, source: str, translate_attributes: bool = False) -> HtmlDocument:
        """Split HTML into verbatim markup and blocks, which are texts with inline tags between block elements.

        Elements that the author excludes from translation, pre and textarea are markup, if they are block elements.
        With `translate_attributes`, the values of alt, title, … are blocks as well.
        """
        document, block = cls(), list[Token]()
        tokens = list(_tokens(source))
        ends = _element_ends(tokens)  # index of each start tag → index of its end tag
        position = 0
        while position < len(tokens):
            token = tokens[position]
            if translate_attributes and token.name and not token.is_closing and not token.is_untranslated:
                token = document._with_references(token)
            if token.is_text or token.name in INLINE or not token.name:  # no name: a comment, for example
                block.append(token)
                position += 1
                continue
            document._add_block(block)  # which the tag of a block element ends
            block, end = [], position + 1
            is_skipped = token.is_untranslated or token.name in ("pre", "textarea")  # the whole element is kept
            if is_skipped and not token.is_closing and not token.is_empty:
                end = ends.get(position, position) + 1
            document.parts.append(token.markup + "".join(skipped.markup for skipped in tokens[position + 1 : end]))
            position = end
        document._add_block(block)
        return document

    @property
    def blocks(self) -> list[MarkedText]:
        """What is to be translated: the texts between block elements, then the values of attributes."""
        return [part for part in self.parts if isinstance(part, MarkedText)] + [*map(MarkedText, self.attributes)]

    def render(self, translated: Sequence[MarkedText], language: str = "") -> str:
        """Return the HTML with translated blocks, which are texts and then the values of `attributes`.

        `language` is that of the translations ("": unknown). A code such as "de" replaces the language that the root
        element (<html>) names, and the root element says whether the text runs from right to left.
        """
        num_blocks = len(translated) - len(self.attributes)  # texts
        blocks = iter(translated[:num_blocks])
        values = [html.escape(value.text) for value in translated[num_blocks:]]
        escape = partial(html.escape, quote=False)
        texts = [part if isinstance(part, str) else next(blocks).render(escape) for part in self.parts]
        # the start tag of the root element; one in a comment is no part by itself
        roots = (index for index, part in enumerate(self.parts) if isinstance(part, str) and _ROOT_TAG.match(part))
        if re.fullmatch(r"[\w-]+", language) and (root := next(roots, None)) is not None:
            translation = "".join(block.text for block in translated)
            texts[root] = _with_language(texts[root], language, translation)
        text = "".join(texts)
        if values:  # put them where the markup refers to them; other such characters are of the document itself
            text = _VALUE_REFERENCES.sub(
                lambda mark: values[int(mark[1])] if int(mark[1]) < len(values) else mark[0], text
            )
        return text

    def _with_references(self, token: Token) -> Token:
        """Return a start tag in which references (numbers) stand for the values of attributes to translate.

        The values are appended to `attributes` of this document; a reference is their index there.
        """

        def replace(match: re.Match[str]) -> str:
            """Return an attribute, with a reference as its value if it is to be translated, else unchanged."""
            # the value is in double quotes, in single quotes or bare
            name, value = match[1], html.unescape(match[2] or match[3] or match[4] or "")
            if name.lower() not in TRANSLATED_ATTRIBUTES or not _LETTER.search(value):
                return match[0]
            self.attributes.append(value)
            return f'{name}="{_VALUE_REFERENCE.format(len(self.attributes) - 1)}"'

        attributes = _ATTRIBUTE.sub(replace, token.attributes)
        markup = token.markup.replace(token.attributes, attributes) if token.attributes else token.markup
        return Token(markup, name=token.name, attributes=attributes)

    def _add_block(self, tokens: Sequence[Token]) -> None:
        """Append the tokens between two block elements as blocks.

        Inline tags without a partner (end or start tag) and repeated <br>, both outside of other elements, separate
        blocks and are markup.
        """
        matches = _match_tags(tokens)  # index of the partner of each start and end tag
        depth, group = 0, list[tuple[Token, int]]()  # open elements; tokens with the distance to their partner, or 0
        for number, token in enumerate(tokens):
            partner = matches.get(number)
            if partner is not None:
                depth += 1 if partner > number else -1
            is_unmatched = token.name and partner is None and not token.is_empty and token.name not in OPAQUE
            if depth == 0 and (is_unmatched or _is_paragraph_break(tokens, number)):
                self._add_group(group)
                self.parts.append(token.markup)
                group = []
            else:
                group.append((token, 0 if partner is None else partner - number))
        self._add_group(group)

    def _add_group(self, group: Sequence[tuple[Token, int]]) -> None:
        """Append tokens as a block to translate; without letters, as verbatim markup.

        A start tag comes with the (positive) distance to its end tag in the group, an end tag with the negative one,
        others with 0. If tags are nested more than MAX_DEPTH deep, or the group has more than MAX_TOKENS tokens, every
        text becomes a block of its own. White space at both ends of the group is markup.
        """
        tokens = [token for token, _ in group]
        first, last = (tokens[0], tokens[-1]) if tokens else (Token(""), Token(""))
        if not any(token.is_text and _LETTER.search(html.unescape(token.markup)) for token in tokens):
            self.parts.append("".join(token.markup for token in tokens))
            return
        builder, deepest, depth = MarkedTextBuilder(is_collapsed=True), 0, 0
        for _, distance in group:
            depth += (distance > 0) - (distance < 0)
            deepest = max(deepest, depth)
        if deepest > MAX_DEPTH or len(group) > MAX_TOKENS:
            for token in tokens:
                self._add_group([(token, 0)]) if token.is_text else self.parts.append(token.markup)
            return
        # whether the last token is a text of white space only, which is put after the block (`trailing`)
        is_space_last = last.is_text and not last.markup.strip(WHITE_SPACE)
        for token, distance in group[: len(group) - is_space_last]:
            if token.is_text:
                builder.add_text(html.unescape(token.markup))
            elif distance > 0:
                is_verbatim = token.name in VERBATIM or token.is_untranslated  # code and others, or translate="no"
                builder.open(token.markup, name=token.name, verbatim=is_verbatim)
            elif distance < 0:
                builder.close(token.markup)
            else:
                builder.add_point(token.markup, name=token.name, separates=token.name in ("br", "img"))
        leading = first.markup[: len(first.markup) - len(first.markup.lstrip(WHITE_SPACE))] if first.is_text else ""
        trailing = last.markup[len(last.markup.rstrip(WHITE_SPACE)) :] if last.is_text else ""
        self.parts += [leading, builder.build().stripped(), trailing]


_ROOT_TAG = re.compile(r"<html\b", re.IGNORECASE)
_LANG_ATTRIBUTE = re.compile(r"(\s(?:xml:)?lang\s*=\s*[\"']?)[\w-]+", re.IGNORECASE)
_DIR_ATTRIBUTE = re.compile(r"\sdir\s*=\s*[\"']?\w+[\"']?", re.IGNORECASE)


def _with_language(root: str, language: str, translation: str) -> str:
    """Return the start tag of the `root` element with the `language` and the direction of the `translation`.

    A language that the tag states is replaced; if it states none, none is added. The text runs from right to left if
    most of its letters do. A tag without the attribute dir gets none for text that runs from left to right, the
    default.
    """
    root = _LANG_ATTRIBUTE.sub(rf"\g<1>{language}", root)
    directions = Counter(map(unicodedata.bidirectional, translation))  # L; R or AL (Arabic letter): right to left
    is_right_to_left = directions["R"] + directions["AL"] > directions["L"]
    if not (is_right_to_left or _DIR_ATTRIBUTE.search(root)):
        return root
    attributes = _DIR_ATTRIBUTE.sub("", root[len("<html") :])
    return f'<html dir="{"rtl" if is_right_to_left else "ltr"}"{attributes}'


def _tokens(source: str) -> Iterator[Token]:
    """Yield the texts, tags and other markup of HTML.

    An element whose content is not text (OPAQUE, such as script) is one token, and so is a superscript footnote mark.
    """
    position = 0
    while match := _MARKUP.search(source, position):
        if match.start() > position:
            yield Token(source[position : match.start()], is_text=True)
        name, end = (match["name"] or "").lower(), match.end()
        if name in OPAQUE and not match["closing"] and not _is_self_closing(match["attributes"]):
            closing = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(source, end)
            end = closing.end() if closing else len(source)
            # not inline: as markup without a name, it does not end a block either
            yield Token(source[match.start() : end], name=name if name in INLINE else "")
        elif name == "sup" and (mark := _FOOTNOTE_MARK.match(source, match.start())):
            end = mark.end()
            yield Token(mark[0])
        else:
            yield Token(match[0], name=name, is_closing=bool(match["closing"]), attributes=match["attributes"] or "")
        position = end
    if position < len(source):
        yield Token(source[position:], is_text=True)


def _is_self_closing(attributes: str) -> bool:
    """Whether the attributes of a tag end with a slash, as in <br/>; one that ends a value, as in <a href=x/>, is none.

    A value in quotation marks ends before the slash.
    """
    attributes = attributes.rstrip()
    return attributes.endswith("/") and not _BARE_VALUE_AT_END.search(attributes)


def _match_tags(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the end tag of each start tag, and the reverse; tags without a partner are left out.

    An end tag belongs to the innermost open element of its name, if that is among the MAX_DEPTH innermost ones.
    """
    matches, pending = dict[int, int](), list[int]()  # pending: start tags
    for number, token in enumerate(tokens):
        if not token.name or token.is_empty or token.name in OPAQUE:
            continue
        if not token.is_closing:
            pending.append(number)
            continue
        names = [tokens[index].name for index in pending[-MAX_DEPTH:]]  # of the innermost elements
        if token.name in names:
            while tokens[partner := pending.pop()].name != token.name:
                pass  # a start tag without an end tag
            matches |= {partner: number, number: partner}
    return matches


def _element_ends(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the end tag of each element that has one, by the index of its start tag."""
    pending, ends = dict[str, list[int]](), dict[int, int]()  # pending: start tags by name, the innermost last
    for number, token in enumerate(tokens):
        if token.name and not token.is_empty:
            starts = pending.setdefault(token.name, [])
            if not token.is_closing:
                starts.append(number)
            elif starts:
                ends[starts.pop()] = number
    return ends


def _is_paragraph_break(tokens: Sequence[Token], number: int) -> bool:
    """Whether the token with index `number` is one of several <br> in a row, which separate paragraphs."""
    if tokens[number].name != "br":
        return False
    for step in (-1, 1):
        neighbor = number + step
        while 0 <= neighbor < len(tokens) and tokens[neighbor].is_blank:
            neighbor += step  # past white space
        if 0 <= neighbor < len(tokens) and tokens[neighbor].name == "br":
            return True
    return False
