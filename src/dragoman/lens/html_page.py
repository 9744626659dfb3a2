"""HTML pages of reports, from the Jinja templates in `templates`: one file each, no scripts, no external resources."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dragoman.lens.axes import evenly_spaced, format_number
from dragoman.lens.svg import join, replace_control_characters, tag
from dragoman.text import split_words, word_spans

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MAX_TEXT_CHARACTERS = 2000  # of a text that is shown; longer ones are cut


def render(template: str, **values: object) -> str:
    """Return an HTML page: the Jinja template of this file name in `lens/templates`, with the variables `values`.

    Text is escaped, except for `Markup` such as SVG.
    """
    return _environment().get_template(template).render(values, content_security_policy=CONTENT_SECURITY_POLICY)


def format_perplexity(perplexity: float) -> str:
    """Format a perplexity with two decimals, and from 1000 on as a rounded number: 12.34, 1,235, 123,457."""
    return f"{perplexity:.2f}" if perplexity < 1000 else format_number(perplexity)


def format_duration(seconds: float) -> str:
    """Format a duration in the unit that suits it: 45 seconds, 12 minutes, 2.5 hours."""
    minutes, hours = round(seconds / 60), round(seconds / 3600, 1)
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{minutes} minutes" if minutes < 100 else f"{hours:g} hours"


@cache
def _environment() -> Environment:
    """Return the Jinja environment of the templates in `lens/templates`, with the filters that they use.

    It is built once. Values are HTML-escaped, an undefined variable is an error, and control characters are replaced.
    """

    def finalize(value: object) -> object:
        """Replace control characters in text that is inserted into a page."""
        is_text = isinstance(value, str) and not isinstance(value, Markup)
        return replace_control_characters(str(value)) if is_text else value

    loader = PackageLoader("dragoman.lens")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=finalize, trim_blocks=True
    )
    environment.filters |= {"clip": clip, "mark_differences": mark_differences, "evenly_spaced": evenly_spaced}
    environment.filters |= {"thousands": "{:,}".format, "duration": format_duration, "perplexity": format_perplexity}
    return environment


def clip(content: str) -> str:
    """Cut a text to at most MAX_TEXT_CHARACTERS (2000) characters, and add an ellipsis if anything is cut."""
    return content if len(content) <= MAX_TEXT_CHARACTERS else content[:MAX_TEXT_CHARACTERS] + " …"


def mark_differences(content: str, other: str, css_class: str | None = None) -> Markup:
    """Return `content` as an HTML span with `<mark>` around the words that are not in `other`, by a word-level diff.

    `css_class` is the class of the marks. Texts are clipped to MAX_TEXT_CHARACTERS characters.
    """
    content, other = clip(content), clip(other)
    spans = word_spans(content)  # (begin, end) of each word, in characters
    parts, copied = [], 0  # `copied`: number of characters that are in `parts`
    matcher = SequenceMatcher(None, split_words(content), split_words(other), autojunk=False)
    for change, first, last, _, _ in matcher.get_opcodes():
        if change in ("replace", "delete"):  # words first … last − 1 of `content` are not in `other`
            begin, end = spans[first][0], spans[last - 1][1]
            parts += [content[copied:begin], tag("mark", content[begin:end], class_=css_class)]
            copied = end
    return tag("span", join(*parts, content[copied:]), dir="auto")
