"""Markdown keeps its structure: an independent parser finds the same elements in the translation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_document_markup import translate, translate_file

from dragoman.text.documents.markdown_file import MarkdownFile
from dragoman.text.documents.marked_text import MarkedText

ROOT = Path(__file__).parents[2]


def translated(text: str) -> str:
    return translate_file(text.encode(), "a.md").decode()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        # emphasis and links follow the aligned words
        ("**Anna** opened the red door today.", "**Anna** hat heute die rote Tür geöffnet."),
        ("Anna opened [the red door](a_b 'c') today.", "Anna hat heute [die rote Tür](a_b 'c') geöffnet."),
        ("Anna opened **the _red_ door** ~~today~~.", "Anna hat ~~heute~~ **die _rote_ Tür** geöffnet."),
        ("Anna opened the red door ***today***.", "Anna hat ***heute*** die rote Tür geöffnet."),
        ("We see the **garden** *house*.", "Wir sehen das ***Gartenhaus***."),
        ("We see the **garden** __house__.", "Wir sehen das **Gartenhaus**."),
        ("Anna opened the <b>red</b> door today.", "Anna hat heute die <b>rote</b> Tür geöffnet."),
        # code, addresses and images stay
        ("Use `print(x)` here.", "Benutze hier `print(x)`."),
        ("x `a  *b*` y <http://a_b_c> z", "X `a  *b*` Y <http://a_b_c> Z"),
        ("x ``a ` b`` y [![a](b)](c) z", "X ``a ` b`` Y [![a](b)](c) Z"),
        ("x ![a *b*](c) y[^1]", "X ![a *b*](c) Y[^1]"),
        ("```\nThe man laughs.\n```\nThe man laughs.", "```\nThe man laughs.\n```\nDer Mann lacht."),
        ("~~~ py\n```\na\n~~~~\n\n    a\n\n\tb\n", "~~~ py\n```\na\n~~~~\n\n    a\n\n\tb\n"),
        ("---\ntitle: a\n---\na", "---\ntitle: a\n---\nA"),
        ("<!-- a\n\nb -->\n<pre>\na\n\nb</pre>\nb", "<!-- a\n\nb -->\n<pre>\na\n\nb</pre>\nB"),
        # blocks
        ("# The man laughs. #\n\na\n===\nb\n---\n", "# Der Mann lacht. #\n\nA\n===\nB\n---\n"),
        ("- a\n- [x] b\n  c\n  1. d\n\n     e\n\n         f\n", "- A\n- [x] B C\n  1. D\n\n     E\n\n         f\n"),
        ("> a\n> b\n>\n> - c\n> > d\n\ne", "> A B\n>\n> - C\n> > D\n\nE"),
        ("a  \nb\\\nc\nd\r\n\r\ne", "A  \nB\\\nC D\r\n\r\nE"),
        ("| a | `b` |\n|---|:-:|\n| c \\| d | |\n\ne", "| A | `b` |\n|---|:-:|\n| C \\| D | |\n\nE"),
        ("<div>\n<p>The man laughs.</p>\n</div>\n\na", "<div>\n<p>Der Mann lacht.</p>\n</div>\n\nA"),
        ("[a][b] [b] [c]\n\n[b]: http://x 'y'\n[^1]: d", "[A][b] [B][b] [C]\n\n[b]: http://x 'y'\n[^1]: D"),
        ("***\n* * *\n$$\na\n$$\n", "***\n* * *\n$$\na\n$$\n"),
        ("* * *\na\n> * * *\n> b", "* * *\nA\n> * * *\n> B"),
        ("## 1. a\n\n|2. b|\n|-|\n|- c|", "## 1. A\n\n|2. B|\n|-|\n|- C|"),
        ("> a | b\n> -|-\n> c | d\ne\nf", "> A | B\n> -|-\n> C | D\nE\nF"),
        ("> ```\n> a\n\nb\n```\n> ```\n```\nc", "> ```\n> a\n\nB\n```\n> ```\n```\nC"),
        ("[^1]: a\n    b\n\n    c\n[^2]:\n    d", "[^1]: A B\n\n    C\n[^2]:\n    D"),
        ("a\n<details>\n<summary>b</summary>", "A\n<details>\n<summary>B</summary>"),
        ("<img src=x>\na *b*\nc\n\nd\n<b>\ne", "<img src=x>\nA *B* C\n\nD <b>\nE"),
        ("*\na\n\n1.\nb", "*\nA\n\n1.\nB"),
        # addresses with brackets and titles
        ("[x](a_(b)) ![y](c_(d)) ![y](<e f>)", "[X](a_(b)) ![y](c_(d)) ![y](<e f>)"),
        (r"[x](a\)b) ![y [z]](c) [x](a (b)) ![y](c (d))", r"[X](a\)b) ![y [z]](c) [X](a (b)) ![y](c (d))"),
        # a hard line break next to emphasis, in code, a link and a tag; one that is none
        ('a  \n_b_ c\\\n**"d"** e', 'A  \n_B_ C\\\n**"D"** E'),
        ("a `b  \nc` `d\\\ne`", r"A `b c` `d\ e`"),
        ("[x](a  \n'b') <b  \nid=c>d</b>", "[X](a  \n'b') <b  \nid=c>D</b>"),
        ("\ue0000\ue001 a", "\ue0000\ue001 A"),
        ("<code>a &lt; *b*</code> <kbd>c</kbd> d", "<code>a &lt; *b*</code> <kbd>c</kbd> D"),
        ("a ~~~~ b ~~c~~", "A ~~~~ B ~~C~~"),
        # special characters
        ("\\# a\n\n1986\\. b\n\n&#43; c", "\\# A\n\n1986\\. B\n\n&#43; C"),
        ("a&nbsp;b", "A&nbsp;B"),
        (r"a \* b \_c\_ &lt;d&gt; snake_case 2*3", r"A \* B \_C\_ &lt;D&gt; SNAKE\_CASE 2\*3"),
        ("2 * 3 ** 4 a* `b", "2 * 3 ** 4 A* `B"),
        ("", ""),
        ("\n\n", "\n\n"),
    ],
)
def test_markup_of_markdown(source: str, target: str) -> None:
    assert translated(source) == target


def test_a_translation_begins_no_list_or_heading() -> None:
    file = MarkdownFile.parse(b"x\n\ny\n\nz")
    texts = ["1. a", "# b", "- c"]
    blocks = [type(block)(text) for block, text in zip(file.blocks, texts, strict=True)]
    assert file.render(blocks) == b"1\\. a\n\n\\# b\n\n\\- c"


def test_a_translation_does_not_divide_a_cell() -> None:
    file = MarkdownFile.parse(b"|x|\n|-|\n")
    assert file.render([MarkedText("a | b")]) == b"|a \\| b|\n|-|\n"


def html_of(text: str) -> str:
    """The HTML of a document, by another parser; line breaks are spaces."""
    markdown_it = pytest.importorskip("markdown_it")
    parser = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return re.sub(r"\s+", " ", parser.render(text))


def skeleton(text: str) -> list[str]:
    """The tags, code and addresses of a document, in order; what is translated is left out."""
    return re.findall(r"<pre>.*?</pre>|<code>.*?</code>|<[^>]*>", html_of(text))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/serving.md", "docs/tasks.md", "CHANGELOG.md"])
def test_real_documents_keep_their_structure(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    file = MarkdownFile.parse(text.encode())
    assert html_of(file.render(file.blocks).decode()) == html_of(text)
    assert sorted(skeleton(file.render(translate(file.blocks)).decode())) == sorted(skeleton(text))


PIECES = ["a", "b", " ", " ", "\n", "\n\n", "*", "**", "_", "`", "[", "](c)", "# ", "- ", "> ", "1. ", "    ", "<b>"]
PIECES += ["</b>", "|", "\\", "~~~\n", "&amp;", "![d](e)", "<br>", "---\n", "é", ".", "~~"]


@given(st.lists(st.sampled_from(PIECES), max_size=24))
def test_any_text_is_read_and_untranslated_text_looks_the_same(pieces: list[str]) -> None:
    text = "".join(pieces)
    translated(text)  # nothing fails
    file = MarkdownFile.parse(text.encode())
    again = MarkdownFile.parse(file.render(file.blocks))
    assert [block.text for block in again.blocks] == [block.text for block in file.blocks]


def test_hostile_markdown_takes_no_quadratic_time() -> None:
    pieces = ["*a ", "[", "`", "<a ", "**", "_a_", "![", "> ", "](", "|a\n|-\n", "- ", "&amp", "<!--", "a  \n"]
    for piece in (*pieces, "<code>", "![a]("):
        text = piece * (60_000 // len(piece))
        file = MarkdownFile.parse(text.encode())
        assert file.render(file.blocks)
