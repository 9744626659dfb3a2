"""Charts as SVG: attention heatmaps, line charts, scatter plots and bar charts.

They follow the light or dark color scheme of the reader, work standalone or inside a page, and describe their content
for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from rich.cells import cell_len
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens import svg
from dragoman.lens.axes import Points, downsample, format_number, linear_ticks, log_ticks, tick_label
from dragoman.lens.svg import join, tag
from dragoman.run import SentenceAttention

CELL_SIZE, MIN_CELL_SIZE = 34, 6  # pixels of a cell of a heatmap
MAX_HEATMAP_WIDTH = 1200  # pixels; larger heatmaps get smaller cells
MAX_FULL_CELLS = 4000  # larger heatmaps omit cells below MIN_VISIBLE_WEIGHT
MIN_VISIBLE_WEIGHT = 0.02
MIN_LABELED_WEIGHT = 0.095  # cells below this weight have no number
NO_DATA = "nothing has been measured yet"


def attention_heatmap(attention: SentenceAttention, title: str = "Cross-attention") -> str:
    """Return an SVG heatmap of the cross-attention (`cross`, T S: mean over heads and layers) of a sentence pair.

    A system without cross-attention, for which `cross` is None, is a UserError.
    """
    if attention.cross is None:
        raise UserError(
            "there is no attention to draw, because the decoder of this system has no cross-attention: use a run of a "
            "system with attention, such as transformer"
        )
    return heatmap(attention.cross, attention.target, attention.source, title)


def heatmap(
    weights: Sequence[Sequence[float]] | Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    quantity: str = "attention",
) -> str:
    """Return an SVG heatmap of weights from 0 to 1 (T, S), with labels, tooltips and a legend.

    `rows` are the labels of the T target words, `columns` those of the S source words. `quantity` is the noun in “12 %
    of its attention”. Large matrices have smaller cells and omit the weights near 0. Sizes and coordinates are in
    pixels.
    """
    table = [[min(1.0, max(0.0, float(weight))) for weight in row] for row in weights]
    cell = min(CELL_SIZE, max(MIN_CELL_SIZE, MAX_HEATMAP_WIDTH // max(len(rows), len(columns), 1)))
    label_interval = math.ceil(11 / cell)  # labels are 11 pixels high; those that would overlap are omitted
    font_size = max(8, cell - 2) if cell < 15 else None  # None: the default, for which small cells have no room
    # labels of columns are rotated by 45°, so that their height is their length times √½
    left, slant = 20 + svg.label_width(rows), svg.label_width(columns) * math.sqrt(0.5)
    top = 52 + slant
    bottom = top + cell * len(rows)
    parts: list[str] = [svg.heading(title)]
    for j, name in list(enumerate(columns))[::label_interval]:
        transform = f"translate({left + cell * (j + 0.5):.1f} {top - 8:.1f}) rotate(-45)"
        parts.append(svg.label(name, transform=transform, font_size=font_size))
    for i, (name, row) in enumerate(zip(rows, table, strict=True)):
        y = top + cell * i
        if i % label_interval == 0:
            parts.append(svg.label(name, x=left - 8, y=y + cell / 2 + 4.5, text_anchor="end", font_size=font_size))
        for j, (column, weight) in enumerate(zip(columns, row, strict=True)):
            if weight >= MIN_VISIBLE_WEIGHT or len(rows) * len(columns) <= MAX_FULL_CELLS:
                tooltip = f"“{name}” ← “{column}”: {100 * weight:.1f} % of its {quantity}"
                parts.append(_weight_cell(left + cell * j, y, cell, weight, tooltip))
    parts.append(svg.rect(left, top, cell * len(columns), cell * len(rows), class_="frame"))
    for n in range(5):  # the legend: 0, 25, 50, 75 and 100 %
        parts.append(_weight_cell(4 + CELL_SIZE * n, bottom + 14, CELL_SIZE, n / 4, f"{n / 4:.0%}", min_labeled=0))
    parts.append(svg.text(12 + 5 * CELL_SIZE, bottom + 14 + CELL_SIZE / 2 + 4.5, f"% of its {quantity}"))
    width = max(left + cell * len(columns) + slant + 8, 380, svg.CHARACTER_WIDTH * 1.15 * cell_len(title))
    strongest = [
        f"{name}: mostly {columns[row.index(max(row))]} ({max(row):.0%})" for name, row in zip(rows, table) if row
    ]
    return svg.figure(width, bottom + 56, title, "Each row is a target word. " + "; ".join(strongest), parts)


def _weight_cell(
    x: float, y: float, size: int, weight: float, tooltip: str, min_labeled: float = MIN_LABELED_WEIGHT
) -> Markup:
    """Return an SVG square at (x, y) whose opacity is a weight from 0 to 1; coordinates and `size` are in pixels.

    Squares of at least 22 pixels also show the weight in percent, if it is at least `min_labeled`.
    """
    margin, radius = (1, 3) if size > 20 else (0, 0)
    square = svg.heat_cell(x + margin, y + margin, size - 2 * margin, size - 2 * margin, weight, tooltip, radius)
    if weight < min_labeled or size < 22:
        return square
    number = svg.text(x + size / 2, y + size / 2 + 4, f"{100 * weight:.0f}", svg.number_class(weight), "middle")
    return join(square, number)


def line_chart(
    series: Mapping[str, Points], title: str, x_label: str = "step", y_label: str = "", *, log: bool = False
) -> str:
    """Return an SVG line chart of named curves, each a list of points (x, y); `log` makes the y axis logarithmic.

    Points that are not finite, or not positive on a logarithmic axis, are omitted. Coordinates are in pixels.
    """
    drawable = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and (y > 0 or not log)]
        for name, points in series.items()
    }
    curves = {name: downsample(points) for name, points in drawable.items() if points}
    if not curves:
        return svg.figure(480, 300, title, NO_DATA, [svg.heading(title), svg.text(240, 150, NO_DATA, anchor="middle")])
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points]
    y_ticks = log_ticks(min(ys), max(ys)) if log else linear_ticks(min(ys), max(ys))
    note = y_label + ", logarithmic" * log
    legend_width = sum(svg.CHARACTER_WIDTH * cell_len(name) + 40 for name in curves) if len(curves) > 1 else 0.0
    # a legend that does not fit beside the label of the y axis gets a line of its own, which moves the plot down
    shift = 18 if svg.CHARACTER_WIDTH * cell_len(note) + legend_width > 450 else 0
    x_ticks = linear_ticks(min(xs), max(xs))
    plot = _Plot(right=450, bottom=252 + shift, x_ticks=x_ticks, y_ticks=y_ticks, log_y=log, top=58 + shift)
    parts = plot.axes(title, x_label, note)
    parts.append(svg.line(plot.left, plot.bottom, plot.right, plot.bottom, class_="axis"))
    legend_x = float(plot.right)
    for n, name in reversed(list(enumerate(curves))) if len(curves) > 1 else ():  # the legend, from right to left
        legend_x -= svg.CHARACTER_WIDTH * cell_len(name) + 40
        legend_y = 38 + shift
        parts.append(svg.line(legend_x, legend_y, legend_x + 24, legend_y, **_stroke(n)))
        parts.append(svg.text(legend_x + 30, legend_y + 4, name, css_class="note"))
    for n, (name, points) in enumerate(curves.items()):
        path = " ".join(f"{plot.x(x):.1f},{plot.y(y):.1f}" for x, y in points)
        parts.append(tag("polyline", points=path, **_stroke(n)))
        for x, y in points if len(points) <= 25 else points[-1:]:  # dots: of long curves only at the end
            tooltip = f"{name}: {format_number(y)} at {x_label} {format_number(x)}"
            parts.append(plot.dot(x, y, series=n, radius=3, tooltip=tooltip))
    ends = {name: (format_number(points[0][1]), format_number(points[-1][1])) for name, points in curves.items()}
    description = "; ".join(f"{name} from {first} to {last}" for name, (first, last) in ends.items())
    return svg.figure(480, 300 + shift, title, f"{y_label or 'value'} by {x_label}: {description}", parts)


def scatter_plot(points: Mapping[str, tuple[float, float]], title: str, x_label: str, y_label: str) -> str:
    """Return an SVG scatter plot of named points (x, y) with a logarithmic x axis.

    Points that are not finite, or whose x ≤ 0, are omitted. Coordinates are in pixels.
    """
    drawable = {name: (x, y) for name, (x, y) in points.items() if x > 0 and math.isfinite(x) and math.isfinite(y)}
    if not drawable:
        return svg.figure(640, 420, title, NO_DATA, [svg.heading(title, y_label)])
    xs, ys = zip(*drawable.values())
    x_ticks, y_ticks = log_ticks(min(xs), max(xs)), linear_ticks(min(ys), max(ys))
    plot = _Plot(right=560, bottom=372, x_ticks=x_ticks, y_ticks=y_ticks, log_x=True)
    parts = plot.axes(title, f"{x_label}, logarithmic", y_label)
    descriptions = {name: f"{name}: {format_number(y)} for {x:.2e}" for name, (x, y) in drawable.items()}
    label_y = math.inf
    for n, name in enumerate(sorted(drawable, key=lambda name: drawable[name][1])):  # from bottom to top
        x, y = drawable[name]
        label_y = min(plot.y(y) + 4, label_y - 13)  # labels must not overlap
        parts.append(plot.dot(x, y, series=n, radius=5, tooltip=descriptions[name]))
        fits = plot.x(x) + 18 + svg.CHARACTER_WIDTH * cell_len(name) <= 640  # otherwise the label is left of the point
        side = 1 if fits else -1
        parts.append(svg.line(plot.x(x) + 6 * side, plot.y(y), plot.x(x) + 16 * side, label_y - 4, class_="grid"))
        parts.append(svg.text(plot.x(x) + 18 * side, label_y, name, "note", None if fits else "end"))
    return svg.figure(640, 420, title, f"{y_label} by {x_label}: {'; '.join(descriptions.values())}", parts)


def bar_chart(values: Mapping[str, float], title: str, unit: str = "") -> str:
    """Return an SVG chart with a horizontal bar for each of the non-negative `values`, its name and its number.

    The largest value has the longest bar. `unit` follows the numbers, "" for none. Coordinates are in pixels.
    """
    largest = max(values.values(), default=0.0) or 1.0  # 1 if all are 0
    left, max_length = 16 + svg.label_width(list(values), 30), 220
    numbers = {name: f"{format_number(value)} {unit}".rstrip() for name, value in values.items()}
    parts: list[str] = [svg.heading(title)]
    for n, (name, value) in enumerate(values.items()):
        y, length = 36 + 28 * n, max(1.0, max_length * value / largest)
        tooltip = tag("title", f"{name}: {numbers[name]}")
        parts += [
            svg.label(name, 30, x=left - 8, y=y + 15, text_anchor="end"),
            svg.rect(left, y, length, 20, tooltip, class_="heat", rx=3),
            svg.text(left + length + 8, y + 15, numbers[name]),
        ]
    description = "; ".join(f"{name}: {number}" for name, number in numbers.items())
    return svg.figure(left + max_length + 110, 44 + 28 * len(values), title, description or "no values", parts)


@dataclass(frozen=True)
class _Plot:
    """The plotting area of a chart, in pixels, and its axes."""

    right: int
    bottom: int
    x_ticks: list[float]
    y_ticks: list[float]
    log_x: bool = False
    log_y: bool = False
    left: int = 58
    top: int = 58

    def x(self, value: float) -> float:
        """Return the horizontal pixel coordinate of a value on the x axis."""
        return self.left + (self.right - self.left) * _fraction(value, self.x_ticks, self.log_x)

    def y(self, value: float) -> float:
        """Return the vertical pixel coordinate of a value on the y axis; pixels count downwards."""
        return self.bottom - (self.bottom - self.top) * _fraction(value, self.y_ticks, self.log_y)

    def axes(self, title: str, x_label: str, y_label: str) -> list[Markup]:
        """Return SVG elements: the title of the chart, grid lines at the ticks, and the labels of ticks and axes."""
        parts = [svg.heading(title, y_label)]
        for tick in self.x_ticks:
            number = f"{tick:.0e}".replace("e+", "e") if self.log_x else tick_label(tick)  # 1e15, not 1e+15
            parts.append(svg.line(self.x(tick), self.top, self.x(tick), self.bottom, class_="grid"))
            parts.append(svg.text(self.x(tick), self.bottom + 18, number, css_class="note", anchor="middle"))
        for tick in self.y_ticks:
            parts.append(svg.line(self.left, self.y(tick), self.right, self.y(tick), class_="grid"))
            parts.append(svg.text(self.left - 8, self.y(tick) + 4, tick_label(tick), css_class="note", anchor="end"))
        return [*parts, svg.text(self.right, self.bottom + 38, x_label, css_class="note", anchor="end")]

    def dot(self, x: float, y: float, series: int, radius: int, tooltip: str) -> Markup:
        """Return an SVG circle at the data point (x, y) in the color of curve number `series`; `radius`: in pixels."""
        color = f"fill{series % len(svg.SERIES_COLORS)}"
        return tag("circle", tag("title", tooltip), cx=self.x(x), cy=self.y(y), r=radius, class_=color)


def _fraction(value: float, ticks: list[float], log: bool) -> float:
    """Return where a value lies between the first tick (0.0) and the last (1.0); `log`: on a logarithmic axis."""
    low, high, value = (math.log(v) if log else v for v in (ticks[0], ticks[-1], value))
    return (value - low) / (high - low)


def _stroke(series: int) -> dict[str, object]:
    """Return the SVG attributes of curve number `series` (from 0): a CSS class for its color, and its dash pattern."""
    color = f"curve stroke{series % len(svg.SERIES_COLORS)}"
    return {"class_": color, "stroke_dasharray": svg.DASHES[series % len(svg.DASHES)]}
