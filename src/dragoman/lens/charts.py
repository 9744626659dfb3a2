"""Charts as SVG: attention heatmaps, line charts, scatter plots and bar charts.

They follow the light or dark color scheme of the reader, work standalone or inside a page, and describe their content
for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.axes import Points, downsample, format_number, linear_ticks, log_ticks, tick_label
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.svg import (
    CHARACTER_WIDTH,
    DASHES,
    MIN_VISIBLE_WEIGHT,
    NUM_SERIES_COLORS,
    heading,
    label_width,
    px,
    shorten,
    svg,
)
from dragoman.run import SentenceAttention

CELL_SIZE, MIN_CELL_SIZE = 34, 6  # pixels
MAX_HEATMAP_WIDTH = 1200  # pixels; larger heatmaps get smaller cells
MAX_FULL_CELLS = 4000  # larger heatmaps omit cells that are hardly visible
MIN_NUMBER = 0.095  # cells below this weight have no number
NO_DATA = "nothing has been measured yet"


def attention_heatmap(attention: SentenceAttention, title: str = "Cross-attention") -> str:
    """Draw the cross-attention of a sentence pair, averaged over heads and layers."""
    if attention.cross is None:
        raise UserError("there is no attention to draw: the decoder of this system has no cross-attention")
    return heatmap(attention.cross, attention.target, attention.source, title)


def heatmap(
    weights: Sequence[Sequence[float]] | Tensor, rows: Sequence[str], columns: Sequence[str], title: str
) -> str:
    """Draw weights from 0 to 1, (T, S), as labeled cells: a row for each target, a column for each source label."""
    table = [[min(1.0, max(0.0, float(weight))) for weight in row] for row in weights]
    cell = min(CELL_SIZE, max(MIN_CELL_SIZE, MAX_HEATMAP_WIDTH // max(len(rows), len(columns), 1)))
    every = -(-11 // cell)  # labels that would overlap are omitted
    size = {"font_size": max(8, cell - 2)} if cell < 15 else {}
    left, slant = 20 + label_width(rows), label_width(columns) * math.sqrt(0.5)
    top = 52 + slant
    width = max(left + cell * len(columns) + slant + 8, 380, CHARACTER_WIDTH * 1.15 * cell_len(title))
    bottom = top + cell * len(rows)
    parts: list[str] = [heading(title)]
    for j, name in list(enumerate(columns))[::every]:
        transform = f"translate({left + cell * (j + 0.5):.1f} {top - 8:.1f}) rotate(-45)"
        parts.append(tag("text", tag("title", name), shorten(name), transform=transform, **size))
    for i, (name, row) in enumerate(zip(rows, table, strict=True)):
        y = top + cell * i
        label = {"x": px(left - 8), "y": px(y + cell / 2 + 4.5), "text_anchor": "end", **size}
        parts += [] if i % every else [tag("text", tag("title", name), shorten(name), **label)]
        for j, (column, weight) in enumerate(zip(columns, row, strict=True)):
            if weight >= MIN_VISIBLE_WEIGHT or len(rows) * len(columns) <= MAX_FULL_CELLS:
                tooltip = f"“{name}” ← “{column}”: {100 * weight:.1f} % of its attention"
                parts.append(_cell(left + cell * j, y, weight, tooltip, cell=cell))
    frame = {"x": px(left), "y": px(top), "width": cell * len(columns), "height": cell * len(rows)}
    parts += [tag("rect", class_="frame", **frame), _heat_legend(4, bottom + 14)]
    strongest = [
        f"{name}: mostly {columns[row.index(max(row))]} ({max(row):.0%})" for name, row in zip(rows, table) if row
    ]
    return svg(width, bottom + 56, title, "Each row is a target word. " + "; ".join(strongest), parts)


def line_chart(
    series: Mapping[str, Points], title: str, x_label: str = "step", y_label: str = "", *, log: bool = False
) -> str:
    """Draw named curves of (x, y) points; `log` makes the y axis logarithmic.

    Points that are not finite, or not positive on a logarithmic axis, are omitted.
    """
    curves = {name: downsample([p for p in points if _is_drawable(p, log)]) for name, points in series.items()}
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        message = tag("text", NO_DATA, x=240, y=150, text_anchor="middle")
        return svg(480, 300, title, NO_DATA, [heading(title), message])
    xs, ys = ([point[axis] for points in curves.values() for point in points] for axis in (0, 1))
    y_ticks = log_ticks(min(ys), max(ys)) if log else linear_ticks(min(ys), max(ys))
    plot = _Plot(450, 252, linear_ticks(min(xs), max(xs)), y_ticks, log_y=log)
    parts = [*plot.axes(title, x_label, y_label + (", logarithmic" if log else ""))]
    parts.append(tag("line", x1=plot.left, x2=plot.right, y1=plot.bottom, y2=plot.bottom, class_="axis"))
    x = float(plot.right)
    for n, name in reversed(list(enumerate(curves))) if len(curves) > 1 else ():
        x -= CHARACTER_WIDTH * cell_len(name) + 40
        parts.append(tag("line", x1=px(x), x2=px(x + 24), y1=38, y2=38, **_stroke(n)))
        parts.append(tag("text", name, x=px(x + 30), y=42, class_="note"))
    for n, (name, points) in enumerate(curves.items()):
        path = " ".join(f"{px(plot.x(x))},{px(plot.y(y))}" for x, y in points)
        parts.append(tag("polyline", points=path, **_stroke(n)))
        for x, y in points if len(points) <= 25 else points[-1:]:
            tooltip = tag("title", f"{name}: {format_number(y)} at {x_label} {format_number(x)}")
            parts.append(_dot(plot, (x, y), n, 3, tooltip))
    ends = [f"{name} from {format_number(p[0][1])} to {format_number(p[-1][1])}" for name, p in curves.items()]
    return svg(480, 300, title, f"{y_label or 'value'} by {x_label}: {'; '.join(ends)}", parts)


def scatter_plot(points: Mapping[str, tuple[float, float]], title: str, x_label: str, y_label: str) -> str:
    """Draw named points on a logarithmic x axis; points that are not finite or not positive are omitted."""
    drawable = {name: p for name, p in points.items() if p[0] > 0 and all(map(math.isfinite, p))}
    if not drawable:
        return svg(640, 420, title, NO_DATA, [heading(title, y_label)])
    xs, ys = zip(*drawable.values())
    plot = _Plot(560, 372, log_ticks(min(xs), max(xs)), linear_ticks(min(ys), max(ys)), log_x=True)
    parts = [*plot.axes(title, f"{x_label}, logarithmic", y_label)]
    label_y = math.inf
    for n, (name, (x, y)) in enumerate(sorted(drawable.items(), key=lambda item: item[1][1])):
        label_y = min(plot.y(y) + 4, label_y - 13)  # labels must not overlap
        parts.append(_dot(plot, (x, y), n, 5, tag("title", f"{name}: {format_number(y)} for {x:.2e}")))
        line = {"x1": px(plot.x(x) + 6), "y1": px(plot.y(y)), "x2": px(plot.x(x) + 16), "y2": px(label_y - 4)}
        parts.append(tag("line", **line, class_="grid"))
        parts.append(tag("text", name, x=px(plot.x(x) + 18), y=px(label_y), class_="note"))
    description = "; ".join(f"{name}: {format_number(y)} for {x:.2e}" for name, (x, y) in drawable.items())
    return svg(640, 420, title, f"{y_label} by {x_label}: {description}", parts)


def bar_chart(values: Mapping[str, float], title: str, unit: str = "") -> str:
    """Draw a horizontal bar for each non-negative value."""
    largest = max(values.values(), default=0.0) or 1.0
    left, max_length = 16 + label_width(list(values), 30), 220
    labels = {name: f"{format_number(value)} {unit}".rstrip() for name, value in values.items()}
    parts: list[str] = [heading(title)]
    for n, (name, value) in enumerate(values.items()):
        y, length = 36 + 28 * n, max(1.0, max_length * value / largest)
        box = {"x": px(left), "y": y, "width": px(length), "height": 20, "rx": 3}
        parts += [
            tag("text", tag("title", name), shorten(name, 30), x=px(left - 8), y=y + 15, text_anchor="end"),
            tag("rect", tag("title", f"{name}: {labels[name]}"), class_="heat", **box),
            tag("text", labels[name], x=px(left + length + 8), y=y + 15),
        ]
    description = "; ".join(f"{name}: {label}" for name, label in labels.items())
    return svg(left + max_length + 110, 44 + 28 * len(values), title, description or "no values", parts)


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
        return self.left + (self.right - self.left) * _fraction(value, self.x_ticks, self.log_x)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * _fraction(value, self.y_ticks, self.log_y)

    def axes(self, title: str, x_label: str, y_label: str) -> list[Markup]:
        parts = [heading(title, y_label)]
        for tick in self.x_ticks:
            label = f"{tick:.0e}".replace("e+", "e") if self.log_x else tick_label(tick)
            x = px(self.x(tick))
            parts.append(tag("line", x1=x, x2=x, y1=self.top, y2=self.bottom, class_="grid"))
            parts.append(tag("text", label, x=x, y=self.bottom + 18, text_anchor="middle", class_="note"))
        for tick in self.y_ticks:
            y = self.y(tick)
            parts.append(tag("line", x1=self.left, x2=self.right, y1=px(y), y2=px(y), class_="grid"))
            parts.append(tag("text", tick_label(tick), x=self.left - 8, y=px(y + 4), text_anchor="end", class_="note"))
        parts.append(tag("text", x_label, x=self.right, y=self.bottom + 38, text_anchor="end", class_="note"))
        return parts


def _fraction(value: float, ticks: list[float], log: bool) -> float:
    """Return where a value lies between the first tick (0) and the last (1)."""
    low, high, value = (math.log(v) if log else v for v in (ticks[0], ticks[-1], value))
    return (value - low) / (high - low)


def _dot(plot: _Plot, point: tuple[float, float], series: int, radius: int, tooltip: Markup) -> Markup:
    position = {"cx": px(plot.x(point[0])), "cy": px(plot.y(point[1]))}
    return tag("circle", tooltip, **position, r=radius, class_=f"fill{series % NUM_SERIES_COLORS}")


def _cell(
    x: float, y: float, weight: float, tooltip: str, min_number: float = MIN_NUMBER, cell: int = CELL_SIZE
) -> Markup:
    """Draw a cell whose opacity is its weight; large cells show the weight in percent."""
    margin, radius = (1, 3) if cell > 20 else (0, 0)
    box = {"x": px(x + margin), "y": px(y + margin), "width": cell - 2 * margin, "height": cell - 2 * margin}
    opacity = f"{0.04 + 0.96 * weight:.3f}"
    rect = tag("rect", tag("title", tooltip), class_="heat", fill_opacity=opacity, rx=radius, **box)
    if weight < min_number or cell < 22:
        return rect
    center = {"x": px(x + cell / 2), "y": px(y + cell / 2 + 4), "text_anchor": "middle"}
    kind = "number strong" if weight > 0.68 else "number"  # light text on strong colors
    return join(rect, tag("text", f"{100 * weight:.0f}", class_=kind, **center))


def _heat_legend(x: float, y: float) -> Markup:
    cells = [_cell(x + CELL_SIZE * n, y, n / 4, f"{n / 4:.0%}", min_number=0) for n in range(5)]
    return join(*cells, tag("text", "% of its attention", x=x + 5 * CELL_SIZE + 8, y=y + CELL_SIZE / 2 + 4.5))


def _stroke(series: int) -> dict[str, object]:
    return {
        "class_": f"curve stroke{series % NUM_SERIES_COLORS}",
        "stroke_dasharray": DASHES[series % len(DASHES)],
    }


def _is_drawable(point: tuple[float, float], log: bool) -> bool:
    return all(map(math.isfinite, point)) and (point[1] > 0 or not log)
