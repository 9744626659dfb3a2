"""HTML pages of reports: one file each, without scripts and external resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from dragoman.lens.markup import Markup, join, tag
from dragoman.text import split_words, word_spans

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MAX_TEXT_CHARACTERS = 2000  # of a text that is shown

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #f5f6f8; --ink: #1b1f27; --faint: #596273; --line: #dcdfe5;
  --link: #1d4fc4; --mark: #ffe3b8; --missed: #b45309; --good: #15703a }
@media (prefers-color-scheme: dark) { :root { --paper: #101318; --card: #1a1f27; --ink: #e6e9ee; --faint: #a0a9b8;
  --line: #323944; --link: #8db4ff; --mark: #5c3d0a; --missed: #f0b26a; --good: #6ddc8f } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 70rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .5rem }
h2 { font-size: 1.4rem; margin: 3rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line) }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .25rem }
p, ul { max-width: 46rem; margin: .6rem 0 } ul { padding-left: 1.2rem }
a { color: var(--link) } nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .5rem 0 1.25rem }
.lead { font-size: 1.1rem } .faint, figcaption, th { color: var(--faint) } .faint, figcaption { font-size: .9rem }
.scroll { overflow-x: auto } .scroll .lens { max-width: none }
.wide { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem;
  margin: 1rem 0 }
figure { margin: 1rem 0 } .wide figure { margin: 0 } .lens { height: auto }
table { border-collapse: collapse; margin: .75rem 0; overflow-wrap: normal }
th, td { padding: .3rem 1.25rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
th { font-weight: 500; font-size: .9rem } .number { text-align: right; font-variant-numeric: tabular-nums }
tbody th { white-space: nowrap } td.text { overflow-wrap: anywhere }
.card { background: var(--card); border-radius: .6rem; padding: .75rem 1rem; margin: .75rem 0; max-width: 60rem }
dl { display: grid; grid-template-columns: 6.5rem minmax(0, 1fr); gap: .15rem .75rem; margin: 0 } dd { margin: 0 }
dt { color: var(--faint); font-size: .9rem }
mark { background: var(--mark); color: inherit; border-radius: .2rem; padding: 0 .15em;
  text-decoration: underline dotted }
.missed { color: inherit; background: none; padding: 0; text-decoration: underline wavy var(--missed) 1px }
.good { color: var(--good) } .warning { border-left: .25rem solid var(--missed) }
.piece { display: inline-block; background: var(--card); border: 1px solid var(--line); border-radius: .3rem;
  padding: 0 .35em; margin: .1rem .15rem .1rem 0; font-size: .9rem }
code, pre { font: .875rem/1.5 ui-monospace, monospace } pre { white-space: pre-wrap; margin: .5rem 0 0 }
details { background: var(--card); max-width: 60rem; border-radius: .6rem; padding: .6rem 1rem; margin: .75rem 0 }
summary { cursor: pointer }
details .card { border-top: 1px solid var(--line); border-radius: 0; padding: .75rem 0 0 }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr } dd { margin-bottom: .4rem }
  th, td { padding-right: .8rem } }
@media print { nav { display: none } .card, figure { break-inside: avoid } }
"""


def document(title: str, *content: str) -> str:
    """Build a complete HTML page."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=CONTENT_SECURITY_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    ]
    page = tag("html", tag("head", *head), "\n", tag("body", tag("main", *content)), lang="en")
    return f"<!doctype html>\n{page}\n"


def section(name: str, title: str, *content: str) -> Markup:
    return join("\n", tag("section", tag("h2", title, id=name), *content))


def paragraph(*content: str, kind: str | None = None) -> Markup:
    return tag("p", *content, class_=kind)


def bullet_list(items: Iterable[str]) -> Markup:
    return tag("ul", *(tag("li", item) for item in items))


def text(content: str, kind: str | None = None) -> Markup:
    """Wrap natural language text, whose direction depends on its script."""
    return tag("span", content, dir="auto", class_=kind)


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = True) -> Markup:
    """Build a table whose first column names the rows; `numeric` aligns the other columns to the right."""
    kind = "number" if numeric else "text"
    top = tag("tr", *(tag("th", name, scope="col", class_=kind if n else None) for n, name in enumerate(heading)))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell, class_=kind) for cell in row[1:])) for row in rows
    ]
    return tag("div", tag("table", tag("thead", top), tag("tbody", *body)), class_="scroll", tabindex="0")


def definition_list(items: Mapping[str, str]) -> Markup:
    """Build a card of terms and definitions."""
    return tag("dl", *(join(tag("dt", name), tag("dd", item)) for name, item in items.items()), class_="card")


def collapsible(summary: str, *content: str) -> Markup:
    return tag("details", tag("summary", summary), *content)


def figure(svg: str, *caption: str, scroll: bool = False) -> Markup:
    drawing = tag("div", Markup(svg), class_="scroll", tabindex="0") if scroll else Markup(svg)
    return tag("figure", drawing, *([tag("figcaption", *caption)] if caption else []))


def mark_differences(content: str, other: str, kind: str | None = None) -> Markup:
    """Mark the words of `content` that `other` does not have in the same order."""
    content, other = truncate(content), truncate(other)
    spans = word_spans(content)
    parts, done = [], 0
    matcher = SequenceMatcher(None, split_words(content), split_words(other), False)
    for change, first, last, _, _ in matcher.get_opcodes():
        if change in ("replace", "delete"):
            begin, end = spans[first][0], spans[last - 1][1]
            parts += [content[done:begin], tag("mark", content[begin:end], class_=kind)]
            done = end
    return text(join(*parts, content[done:]))


def truncate(content: str) -> str:
    return content if len(content) <= MAX_TEXT_CHARACTERS else content[:MAX_TEXT_CHARACTERS] + " …"
