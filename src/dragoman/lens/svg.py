"""Building blocks of all SVG figures: colors for light and dark pages, shapes, labels, matrices; conversion to PNG."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby

from markupsafe import Markup, escape
from rich.cells import cell_len, set_cell_size

from dragoman.errors import UserError

CHARACTER_WIDTH = 7.6  # upper bound for the width of a character (of one terminal cell) in pixels
MAX_LABEL_CELLS = 18  # width of a label in terminal cells
NUM_SHADES = 25  # intensities of a color; equal neighbors are merged into one rectangle
DASHES = (None, "7 4", "2 3", "9 3 2 3", "4 2")  # SVG dash patterns: curves differ in more than their color
PNG_SCALE = 2  # PNG pixels per SVG pixel
PNG_FONTS = "'DejaVu Sans', 'Noto Sans', sans-serif"  # the first two have the character ▁ of many tokenizers

# Characters that XML cannot represent: control characters, lone surrogates, two non-characters.
_INVALID_XML_CHARACTERS = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

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
    """Return CSS rules such as “.lens .heat { fill: #1d4fc4 }” for all classes of CLASS_COLORS.

    CLASS_COLORS maps a class to a CSS property and a pair of colors, for light and for dark backgrounds. `root` is the
    selector of the element that contains the classes.
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
        """Return the SVG source, by which Jupyter displays the figure (IPython's rich display protocol)."""
        return str(self)

    def __repr__(self) -> str:
        """Return a short text for consoles and error messages, in place of the whole SVG source (`Figure` is a str)."""
        return f"<SVG figure of {len(self):,} characters>"


def figure(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> Figure:
    """Build a standalone SVG document of `width` × `height` pixels that contains the SVG elements `parts`.

    `title` and `description` are for screen readers; they are not drawn. STYLE has the CSS rules of all figures.
    """
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    content = (tag("desc", description), tag("style", Markup(STYLE)), *parts)
    namespace = "http://www.w3.org/2000/svg"
    return Figure(tag("svg", *content, xmlns=namespace, **size, class_="lens", role="img", aria_label=title))


def svg_to_png(figure_svg: str, dark: bool = False) -> bytes:
    """Return a figure (the SVG source that `figure` returns) as a PNG image, with the light or the dark colors.

    INK and PAPER are the colors of text and background, each a pair: light, dark. PNG_SCALE: PNG pixels per SVG pixel.
    The optional package resvg_py is needed; without it, a UserError is raised.
    """
    try:
        import resvg_py
    except ImportError:
        raise UserError(
            "PNG figures need the package resvg_py: install it with pip install 'dragoman[plots]', or write an SVG "
            "figure instead"
        ) from None
    # the root element has the class `lens`; the selector svg.lens takes precedence over the rules in the figure
    style = f"svg.lens {{ color: {INK[dark]}; font-family: {PNG_FONTS} }} {_color_rules(dark, 'svg.lens')}"
    return bytes(resvg_py.svg_to_bytes(figure_svg, background=PAPER[dark], zoom=PNG_SCALE, style_sheet=style))


# ---- elements; all text is escaped, so that content never becomes markup


def tag(name: str, /, *content: str, **attributes: object) -> Markup:
    """Build the element `<name attributes>content</name>`, without the attributes that are None.

    Content is escaped unless it is Markup. Underscores in attribute names become hyphens; a trailing underscore is
    dropped (`class_`). Numbers of type float, which are pixels, get one decimal place.
    """
    opening = f"<{name}"
    for key, value in attributes.items():
        if value is not None:
            formatted = f"{value:.1f}" if isinstance(value, float) else join(str(value))
            opening += f' {key.removesuffix("_").replace("_", "-")}="{formatted}"'
    return Markup(f"{opening}>{join(*content)}</{name}>")


def join(*content: str) -> Markup:
    """Concatenate strings to markup; those that are not Markup are escaped, with U+FFFD for invalid XML characters."""
    parts = (part if isinstance(part, Markup) else escape(replace_control_characters(part)) for part in content)
    return Markup("".join(parts))


def replace_control_characters(text: str) -> str:
    """Replace each character that XML cannot represent, such as terminal control characters, by U+FFFD (�)."""
    return _INVALID_XML_CHARACTERS.sub("\ufffd", text)


# ---- shapes and labels


def rect(x: float, y: float, width: float, height: float, *content: str, **attributes: object) -> Markup:
    """Return an SVG rectangle with its upper left corner at (x, y), in pixels.

    `content` are child elements, such as a `title`, which browsers show as a tooltip; `attributes` are SVG attributes.
    """
    return tag("rect", *content, x=x, y=y, width=width, height=height, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """Return an SVG line from (x1, y1) to (x2, y2), in pixels; `attributes` are SVG attributes."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def text(x: float, y: float, content: str, css_class: str | None = None, anchor: str | None = None) -> Markup:
    """Return an SVG text whose baseline begins at (x, y), in pixels.

    With `anchor` "middle" or "end", the middle or the end of the baseline is at that point.
    """
    return tag("text", content, x=x, y=y, class_=css_class, text_anchor=anchor)


def label(name: str, max_cells: int = MAX_LABEL_CELLS, **attributes: object) -> Markup:
    """Return an SVG text that is cut to the width of `max_cells` characters and has the full text as its tooltip.

    `attributes` are SVG attributes, at least the position: x and y, or transform.
    """
    return tag("text", tag("title", name), shorten(name, max_cells), **attributes)


def heading(title: str, note: str = "") -> Markup:
    """Return SVG texts at the top of a figure: its title, and a smaller note below it unless that is empty."""
    subtitle = text(4, 40, note, css_class="note") if note else Markup()
    return join(text(4, 20, title, css_class="title"), subtitle)


def one_line(content: str) -> str:
    """Replace each run of white space, line breaks included, by one space, and control characters by U+FFFD (�)."""
    return replace_control_characters(" ".join(content.split()))


def shorten(content: str, max_cells: int = MAX_LABEL_CELLS) -> str:
    """Write a text in one line, cut with an ellipsis to at most `max_cells` terminal cells.

    A wide character, such as a Chinese one, takes two cells, a combining mark none.
    """
    content = one_line(content)
    return content if cell_len(content) <= max_cells else set_cell_size(content, max_cells - 1).rstrip() + "…"


def label_width(labels: Sequence[str], max_cells: int = MAX_LABEL_CELLS) -> float:
    """Return the width in pixels of the longest label, each cut to `max_cells` terminal cells; 0 without labels.

    CHARACTER_WIDTH is an upper bound for the pixels per cell.
    """
    return CHARACTER_WIDTH * max([cell_len(shorten(name, max_cells)) for name in labels], default=0)


def heat_cell(x: float, y: float, width: float, height: float, weight: float, tooltip: str, radius: int = 3) -> Markup:
    """Return a rectangle at (x, y), in pixels, whose opacity shows a weight from 0 (faintly visible) to 1.

    `radius` is that of its rounded corners.
    """
    opacity = f"{0.04 + 0.96 * weight:.3f}"
    return rect(x, y, width, height, tag("title", tooltip), class_="heat", fill_opacity=opacity, rx=radius)


def number_class(weight: float) -> str:
    """Return the CSS classes of a number that is drawn on a `heat_cell` with this weight (0 to 1).

    The class `strong` has the background color of the page, to be legible on cells of high opacity.
    """
    return "number strong" if weight > 0.68 else "number"


def matrix(
    x: float,
    y: float,
    values: Sequence[Sequence[float]],
    cell_size: tuple[float, float],
    tooltip: Callable[[int, int], str] | None = None,
) -> Markup:
    """Return an SVG matrix of values from −1 to 1 as colored cells, blue above zero and orange below, with a frame.

    Args:
        x, y: the upper left corner, in pixels.
        values: rows of numbers; opacity shows the absolute value, in NUM_SHADES steps.
        cell_size: width and height of a cell in pixels.
        tooltip: function of a row and a column that describes the cell. With None, neighbors of the same shade in a row
            are merged into one rectangle, which makes large matrices smaller.
    """
    width, height = cell_size
    cells = []
    for i, row in enumerate(values):
        shades = [round(value * NUM_SHADES) for value in row]
        # with tooltips, the column is part of the key, so that every cell is a group
        keys = [(shade, None if tooltip is None else column) for column, shade in enumerate(shades)]
        j = 0  # first column of the group
        for (shade, _), group in groupby(keys):
            count = len(list(group))
            if shade:  # cells of shade 0 are not drawn
                title = [] if tooltip is None else [tag("title", tooltip(i, j))]
                opacity = f"{min(NUM_SHADES, abs(shade)) / NUM_SHADES:.2f}"
                color = {"class_": "heat" if shade > 0 else "cold", "fill_opacity": opacity}
                cells.append(rect(x + width * j, y + height * i, width * count, height, *title, **color))
            j += count
    return join(*cells, rect(x, y, width * len(values[0]), height * len(values), class_="frame"))
