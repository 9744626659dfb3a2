"""Building blocks of all SVG figures: colors for light and dark pages, shapes, labels, matrices; conversion to PNG."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby

from markupsafe import Markup, escape
from rich.cells import cell_len, set_cell_size

from dragoman.errors import UserError

CHARACTER_WIDTH = 7.6  # upper bound for the width of a character in pixels
MAX_LABEL_CELLS = 18  # width of a label in terminal cells
NUM_SHADES = 25  # intensities of a color; equal neighbors are merged into one rectangle
DASHES = (None, "7 4", "2 3", "9 3 2 3", "4 2")  # curves differ in more than their color
PNG_SCALE = 2  # PNG pixels per SVG pixel
PNG_FONTS = "'DejaVu Sans', 'Noto Sans', sans-serif"  # the first two have the character ▁ of many tokenizers

# Characters that XML cannot represent: control characters, lone surrogates, two non-characters.
_INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Colors on light and on dark backgrounds; many SVG renderers do not support CSS variables.
PAPER, INK = ("#ffffff", "#101318"), ("#1b1f27", "#e6e9ee")
BLUE, ORANGE, GREEN = ("#1d4fc4", "#8db4ff"), ("#c2410c", "#ffa066"), ("#15803d", "#6ddc8f")
SERIES_COLORS = (BLUE, ORANGE, GREEN, ("#9333ea", "#d0a5ff"), ("#a16207", "#e8c547"))
#: CSS class → property and color
CLASS_COLORS = {
    "heat": ("fill", BLUE),
    "cold": ("fill", ORANGE),
    "strong": ("fill", PAPER),
    "finished": ("fill", GREEN),
    "best": ("stroke", BLUE),
} | {f"{name}{n}": (name, color) for name in ("stroke", "fill") for n, color in enumerate(SERIES_COLORS)}


def _color_rules(dark: bool, root: str = ".lens") -> str:
    """Return the CSS rules that color the classes inside the element `root`, for a dark or a light background.

    A color is a pair: for light backgrounds, for dark ones.
    """
    return " ".join(f"{root} .{name} {{ {css}: {color[dark]} }}" for name, (css, color) in CLASS_COLORS.items())


STYLE = f"""
.lens {{ color-scheme: light dark; font: 13px system-ui, sans-serif; fill: currentColor; max-width: 100% }}
.lens .title {{ font-weight: 600; font-size: 15px }}
.lens .bold {{ font-weight: 600 }}
.lens .note {{ opacity: .85; font-size: 12px }}
.lens .number {{ font-size: 11px; pointer-events: none }}
.lens .grid {{ stroke: currentColor; stroke-opacity: .16 }}
.lens .axis {{ stroke: currentColor; stroke-opacity: .55 }}
.lens .frame {{ fill: none; stroke: currentColor; stroke-opacity: .2 }}
.lens .box {{ fill: none; stroke: currentColor; stroke-opacity: .6 }}
.lens .pruned {{ fill: none; stroke: currentColor; stroke-opacity: .35; stroke-dasharray: 3 3 }}
.lens .edge {{ fill: none; stroke: currentColor; stroke-opacity: .25 }}
.lens .best {{ fill: none; stroke-width: 3 }}
.lens .curve {{ fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }}
{_color_rules(dark=False)}
@media (prefers-color-scheme: dark) {{ {_color_rules(dark=True)} }}
"""


class Figure(Markup):
    """An SVG figure: a string that is inserted unescaped into HTML, and that Jupyter displays."""

    def _repr_svg_(self) -> str:
        """The SVG, which Jupyter displays."""
        return str(self)

    def __repr__(self) -> str:
        """Describe the figure in a few words instead of its source."""
        return f"<SVG figure of {len(self):,} characters>"


def figure(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> Figure:
    """Build a standalone SVG of `parts`, with a title and a description for screen readers."""
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    content = (tag("desc", description), tag("style", Markup(STYLE)), *parts)
    namespace = "http://www.w3.org/2000/svg"
    return Figure(tag("svg", *content, xmlns=namespace, **size, class_="lens", role="img", aria_label=title))


def svg_to_png(figure_svg: str, dark: bool = False) -> bytes:
    """Convert an SVG figure of `figure`, whose root has the CSS class `lens`, to PNG, with light or dark colors."""
    try:
        import resvg_py
    except ImportError:
        raise UserError(
            "PNG figures need the package resvg_py: install it with pip install 'dragoman[plots]', or write an SVG"
        ) from None
    # the selector svg.lens takes precedence over the rules in the figure
    style = f"svg.lens {{ color: {INK[dark]}; font-family: {PNG_FONTS} }} {_color_rules(dark, 'svg.lens')}"
    return bytes(resvg_py.svg_to_bytes(figure_svg, background=PAPER[dark], zoom=PNG_SCALE, style_sheet=style))


# ---- elements; all text is escaped, so that content never becomes markup


def tag(name: str, /, *content: str, **attributes: object) -> Markup:
    """Build `<name attributes>content</name>`, without the attributes that are None.

    Underscores in attribute names become hyphens; a trailing underscore is dropped (`class_`). Numbers of type float,
    which are pixels, get one decimal place.
    """
    opening = f"<{name}"
    for key, value in attributes.items():
        if value is not None:
            formatted = f"{value:.1f}" if isinstance(value, float) else join(str(value))
            opening += f' {key.removesuffix("_").replace("_", "-")}="{formatted}"'
    return Markup(f"{opening}>{join(*content)}</{name}>")


def join(*content: str) -> Markup:
    """Concatenate markup and text; text is escaped, with U+FFFD for characters that XML cannot represent."""
    parts = (part if isinstance(part, Markup) else escape(replace_control_characters(part)) for part in content)
    return Markup("".join(parts))


def replace_control_characters(text: str) -> str:
    """Replace control characters, which a terminal would execute, by U+FFFD."""
    return _INVALID_CHARACTERS.sub("\ufffd", text)


# ---- shapes and labels


def rect(x: float, y: float, width: float, height: float, *content: str, **attributes: object) -> Markup:
    """Draw a rectangle; its content is a tooltip (`title`)."""
    return tag("rect", *content, x=x, y=y, width=width, height=height, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """Draw a line from (x1, y1) to (x2, y2); `attributes` are those of the SVG element."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def text(x: float, y: float, content: str, css_class: str | None = None, anchor: str | None = None) -> Markup:
    """Draw a text whose baseline begins at (x, y), or with `anchor` "middle" or "end" has its middle or end there."""
    return tag("text", content, x=x, y=y, class_=css_class, text_anchor=anchor)


def label(name: str, max_cells: int = MAX_LABEL_CELLS, **attributes: object) -> Markup:
    """Draw a shortened text with the full text as its tooltip; `attributes` hold its position."""
    return tag("text", tag("title", name), shorten(name, max_cells), **attributes)


def heading(title: str, note: str = "") -> Markup:
    """Draw the title of a figure, and a smaller note below it."""
    subtitle = text(4, 40, note, "note") if note else Markup()
    return join(text(4, 20, title, "title"), subtitle)


def one_line(content: str) -> str:
    """Replace line breaks and runs of spaces by one space, and control characters by U+FFFD."""
    return replace_control_characters(" ".join(content.split()))


def shorten(content: str, max_cells: int = MAX_LABEL_CELLS) -> str:
    """Cut a text to `max_cells` terminal cells; wide characters take two cells, combining marks none."""
    content = one_line(content)
    return content if cell_len(content) <= max_cells else set_cell_size(content, max_cells - 1).rstrip() + "…"


def label_width(labels: Sequence[str], max_cells: int = MAX_LABEL_CELLS) -> float:
    """Return the width in pixels of the longest shortened label."""
    return CHARACTER_WIDTH * max([cell_len(shorten(name, max_cells)) for name in labels], default=0)


def heat_cell(x: float, y: float, width: float, height: float, weight: float, tooltip: str, radius: int = 3) -> Markup:
    """Draw a rectangle whose opacity is a weight from 0 to 1; a weight of 0 is still faintly visible."""
    opacity = f"{0.04 + 0.96 * weight:.3f}"
    return rect(x, y, width, height, tag("title", tooltip), class_="heat", fill_opacity=opacity, rx=radius)


def number_class(weight: float) -> str:
    """Return the CSS class of a number on a cell whose opacity is a weight from 0 to 1: light on strong colors."""
    return "number strong" if weight > 0.68 else "number"


def matrix(
    x: float,
    y: float,
    values: Sequence[Sequence[float]],
    cell_size: tuple[float, float],
    tooltip: Callable[[int, int], str] | None = None,
) -> Markup:
    """Draw a framed matrix of values from −1 to 1, blue above zero and orange below, with cells of (width, height).

    `tooltip(i, j)` describes the cell in row i and column j. Without it, neighbors of equal intensity in a row are
    merged into one rectangle.
    """
    width, height = cell_size
    cells = []
    for i, row in enumerate(values):
        shades = [round(value * NUM_SHADES) for value in row]
        j = 0  # the column at which a group of equal neighbors begins
        for (shade, _), group in groupby(enumerate(shades), key=lambda item: (item[1], tooltip and item[0])):
            count = len(list(group))
            if shade:
                tip = [] if tooltip is None else [tag("title", tooltip(i, j))]
                opacity = f"{min(NUM_SHADES, abs(shade)) / NUM_SHADES:.2f}"
                color = {"class_": "heat" if shade > 0 else "cold", "fill_opacity": opacity}
                cells.append(rect(x + width * j, y + height * i, width * count, height, *tip, **color))
            j += count
    return join(*cells, rect(x, y, width * len(values[0]), height * len(values), class_="frame"))
