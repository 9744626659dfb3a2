"""What all pictures are drawn with: colours for light and dark, the frame of an SVG, labels that fit."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from dragoman.lens.markup import Markup, join, tag

CHARACTER_WIDTH = 7.6  # pixels that a letter takes at most, about
MAX_LABEL_CELLS = 18  # letters of a label
NUM_SERIES_COLORS = 5
DASHES = (None, "7 4", "2 3", "9 3 2 3", "4 2")  # curves differ in more than their colour

#: by name, on light paper and on dark; written out in every rule, for not all who draw SVG know variables
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

#: what is painted in which colour: the class, the property, the name of the colour
CLASS_COLORS: list[tuple[str, str, str]] = [
    ("heat", "fill", "heat"),
    ("cold", "fill", "cold"),
    ("strong", "fill", "paper"),
    ("done", "fill", "good"),
    ("way", "stroke", "heat"),
    *((f"stroke{n}", "stroke", f"c{n}") for n in range(NUM_SERIES_COLORS)),
    *((f"fill{n}", "fill", f"c{n}") for n in range(NUM_SERIES_COLORS)),
]


def _painted(scheme: int) -> str:
    return " ".join(f".lens .{kind} {{ {what}: {PALETTE[colour][scheme]} }}" for kind, what, colour in CLASS_COLORS)


STYLE = f"""
.lens {{ color-scheme: light dark; font: 13px system-ui, sans-serif; fill: currentColor; max-width: 100% }}
.lens .title {{ font-weight: 600; font-size: 15px }}
.lens .bold {{ font-weight: 600 }}
.lens .faint {{ opacity: .85; font-size: 12px }}
.lens .figure {{ font-size: 11px; pointer-events: none }}
.lens .tiny {{ font-size: 9px }}
.lens .grid {{ stroke: currentColor; stroke-opacity: .16 }}
.lens .axis {{ stroke: currentColor; stroke-opacity: .55 }}
.lens .frame {{ fill: none; stroke: currentColor; stroke-opacity: .2 }}
.lens .box {{ fill: none; stroke: currentColor; stroke-opacity: .6 }}
.lens .lost {{ fill: none; stroke: currentColor; stroke-opacity: .35; stroke-dasharray: 3 3 }}
.lens .edge {{ fill: none; stroke: currentColor; stroke-opacity: .25 }}
.lens .way {{ fill: none; stroke-width: 3 }}
.lens .curve {{ fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }}
{_painted(0)}
@media (prefers-color-scheme: dark) {{ {_painted(1)} }}
"""


def svg(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    told = (tag("desc", description), tag("style", Markup(STYLE)))
    return tag(
        "svg", *told, *parts, xmlns="http://www.w3.org/2000/svg", **size, class_="lens", role="img", aria_label=title
    )


def shorten(label: str, max_cells: int = MAX_LABEL_CELLS) -> str:
    """A label of no more than so many letters, wide ones counted as two."""
    label = " ".join(label.split())
    return label if cell_len(label) <= max_cells else set_cell_size(label, max_cells - 1).rstrip() + "…"


def label_width(names: Sequence[str], max_cells: int = MAX_LABEL_CELLS) -> float:
    """Pixels that the longest of some labels takes."""
    return CHARACTER_WIDTH * max([cell_len(shorten(name, max_cells)) for name in names], default=0)


def px(value: float) -> str:
    return f"{value:.1f}"


def heading(title: str, note: str = "") -> Markup:
    more = tag("text", note, x=4, y=40, class_="faint") if note else Markup()
    return join(tag("text", title, x=4, y=20, class_="title"), more)
