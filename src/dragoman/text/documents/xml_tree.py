"""XML as a tree of verbatim markup, so that what is not translated stays the same byte for byte."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from dragoman.errors import UserError

MAX_XML_DEPTH = 200
_XML_MARKUP = re.compile(
    r"<!--.*?-->|<!\[CDATA\[(?P<data>.*?)\]\]>|<\?.*?\?>|<(?P<closing>/?)(?P<name>[^\s/>!?]+)(?:\"[^\"]*\"|'[^']*'|[^\"'>])*>",
    re.DOTALL,
)


@dataclass
class Element:
    """An element: its start tag and end tag as in the file, and its content: elements, texts (unescaped) and markup."""

    name: str
    opening: str
    closing: str = ""
    children: list[Element | XmlText | str] = field(default_factory=list)

    def attribute(self, name: str) -> str:
        """Return the unescaped value of an attribute in the start tag, '' if there is none."""
        match = re.search(rf"\s{re.escape(name)}\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", self.opening)
        return html.unescape(match[1] or match[2] or "") if match else ""

    @property
    def elements(self) -> list[Element]:
        """The elements directly in this element."""
        return [child for child in self.children if isinstance(child, Element)]

    @property
    def text(self) -> str:
        """The text directly in this element, without that of elements in it."""
        return "".join(child.text for child in self.children if isinstance(child, XmlText))

    def walk(self) -> Iterator[Element]:
        """Yield the element and all elements in it, at any depth, in the order of the document."""
        yield self
        for child in self.elements:
            yield from child.walk()

    def to_xml(self) -> str:
        """Return the element as markup, as in the file unless its children were changed."""
        inner = "".join(
            child if isinstance(child, str) else child.markup if isinstance(child, XmlText) else child.to_xml()
            for child in self.children
        )
        return self.opening + inner + self.closing


@dataclass(frozen=True)
class XmlText:
    """A text, and how the file writes it."""

    text: str
    markup: str


def escape_xml(text: str) -> str:
    """Return a text as XML writes it; characters that XML does not have are removed."""
    text = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def parse_xml(content: bytes, name: str) -> Element:
    """Parse an XML file into an element without a name that holds the whole file; damaged files are UserErrors.

    Declarations of types and entities, which could make a small file grow without bounds, are rejected.
    """
    try:
        expat.ParserCreate().Parse(content, True)  # True: the whole file; only to see whether it is valid
        text = content.decode("utf-8-sig")
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise UserError(
            f"the office file is damaged: the file {name} in it is not valid XML ({error}); save it again"
        ) from None
    if "<!DOCTYPE" in text:
        raise UserError(
            f"the office file is refused, because the file {name} in it declares a document type (DOCTYPE), which "
            "office programs never write: save it again with an office program"
        )
    root = Element(name="", opening="")
    stack, position = [root], 0  # open elements
    for match in _XML_MARKUP.finditer(text):
        if match.start() > position:
            _add_text(stack[-1], text[position : match.start()])
        position = match.end()
        if match["data"] is not None:  # CDATA
            stack[-1].children.append(XmlText(match["data"], match[0]))
        elif match["name"] is None:  # a comment or processing instruction
            stack[-1].children.append(match[0])
        elif match["closing"]:
            stack.pop().closing = match[0]
        else:
            element = Element(name=match["name"], opening=match[0])
            stack[-1].children.append(element)
            if not match[0].endswith("/>"):
                stack.append(element)
                if len(stack) > MAX_XML_DEPTH:
                    raise UserError(
                        f"the office file is refused, because the file {name} in it nests elements more than "
                        f"{MAX_XML_DEPTH} levels deep: simplify the document"
                    )
    if position < len(text):
        _add_text(root, text[position:])
    return root


def _add_text(element: Element, markup: str) -> None:
    """Append a text to an element; `markup` is how the file writes it, such as "Q&amp;A"."""
    element.children.append(XmlText(html.unescape(markup), markup))
