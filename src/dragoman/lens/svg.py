"""Building blocks of all SVG figures: colors for light and dark pages, the SVG frame, labels and matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size

from dragoman.lens.markup import Markup, join, replace_control_characters, tag

CHARACTER_WIDTH = 7.6  # upper bound for the width of a character in pixels
MAX_LABEL_CELLS = 18  # width of a label in terminal cells
MIN_VISIBLE_WEIGHT = 0.02  # weaker cells of large matrices are not drawn
NUM_SHADES = 25  # intensities of a color; equal neighbors are merged into one rectangle
NUM_SERIES_COLORS = 5
DASHES = (None, "7 4", "2 3", "9 3 2 3", "4 2")  # curves differ in more than their color

#: color names with their values on light and on dark backgrounds; many SVG renderers do not support CSS variables
PALETTE: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#101318"),
    "ink": ("#1b1f27", "#e6e9ee"),
    "heat": ("#1d4fc4", "#8db4ff"),
    "cold": ("#c2410c", "#ffa066"),
    "good": ("#15803d", "#6ddc8f"),
    "c0": ("#1d4fc4", "#8db4ff"),
    "c1": ("#c2410c", "#ffa066"),
    "c2": ("#15803d", "#6ddc8f"),
    "c3": ("#9333ea", "#d0a5ff"),
    "c4": ("#a16207", "#e8c547"),
}

#: CSS class, property and color name
CLASS_COLORS: list[tuple[str, str, str]] = [
    ("heat", "fill", "heat"),
    ("cold", "fill", "cold"),
    ("strong", "fill", "paper"),
    ("finished", "fill", "good"),
    ("best", "stroke", "heat"),
    *((f"stroke{n}", "stroke", f"c{n}") for n in range(NUM_SERIES_COLORS)),
    *((f"fill{n}", "fill", f"c{n}") for n in range(NUM_SERIES_COLORS)),
]


def _color_rules(scheme: int) -> str:
    return " ".join(f".lens .{name} {{ {prop}: {PALETTE[color][scheme]} }}" for name, prop, color in CLASS_COLORS)


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
{_color_rules(0)}
@media (prefers-color-scheme: dark) {{ {_color_rules(1)} }}
"""


def svg(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    """Build a standalone SVG with a description for screen readers."""
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    content = (tag("desc", description), tag("style", Markup(STYLE)), *parts)
    namespace = "http://www.w3.org/2000/svg"
    return tag("svg", *content, xmlns=namespace, **size, class_="lens", role="img", aria_label=title)


def one_line(text: str) -> str:
    """Replace line breaks and runs of spaces by one space, and control characters by U+FFFD."""
    return replace_control_characters(" ".join(text.split()))


def shorten(label: str, max_cells: int = MAX_LABEL_CELLS) -> str:
    """Cut a label to `max_cells` terminal cells; wide characters take two cells, combining marks none."""
    label = one_line(label)
    return label if cell_len(label) <= max_cells else set_cell_size(label, max_cells - 1).rstrip() + "…"


def label_width(labels: Sequence[str], max_cells: int = MAX_LABEL_CELLS) -> float:
    """Return the width in pixels of the longest shortened label."""
    return CHARACTER_WIDTH * max([cell_len(shorten(label, max_cells)) for label in labels], default=0)


def px(value: float) -> str:
    return f"{value:.1f}"


def heading(title: str, note: str = "") -> Markup:
    subtitle = tag("text", note, x=4, y=40, class_="note") if note else Markup()
    return join(tag("text", title, x=4, y=20, class_="title"), subtitle)


def matrix(
    x: float,
    y: float,
    values: Sequence[Sequence[float]],
    size: tuple[float, float],
    tooltip: Callable[[int, int], str] | None = None,
) -> Markup:
    """Draw a framed matrix of values from −1 to 1, blue above zero and orange below, with cells of (width, height).

    Without `tooltip`, neighbors of equal intensity are merged.
    """
    width, height = size
    cells = []
    for i, row in enumerate(values):
        shades = [round(value * NUM_SHADES) for value in row]
        j = 0
        for (shade, _), group in groupby(enumerate(shades), key=lambda item: (item[1], tooltip and item[0])):
            count = len(list(group))
            if shade:
                box = {"x": px(x + width * j), "y": px(y + height * i), "width": px(width * count)}
                color, opacity = "heat" if shade > 0 else "cold", f"{min(NUM_SHADES, abs(shade)) / NUM_SHADES:.2f}"
                tip = [] if tooltip is None else [tag("title", tooltip(i, j))]
                cells.append(tag("rect", *tip, class_=color, fill_opacity=opacity, height=f"{height:.2f}", **box))
            j += count
    frame = {"x": px(x), "y": px(y), "width": px(width * len(values[0])), "height": px(height * len(values))}
    return join(*cells, tag("rect", class_="frame", **frame))
