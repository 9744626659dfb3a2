"""Pictures as SVG, written by hand: attention, curves, bars.

They follow the reader's light or dark scheme, stand alone or inside a page, and say in words what they show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.axes import Points, downsample, format_number, linear_ticks, log_ticks, tick_label
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.svg import CHARACTER_WIDTH, DASHES, NUM_SERIES_COLORS, label_width, px, shorten, svg
from dragoman.run import SentenceAttention

CELL, SMALLEST = 34, 6  # pixels of a square, and of one where there are many
WIDEST = 1200  # pixels that squares are made smaller for
MANY = 4000  # squares from which on those are left out that hardly show
MIN_VISIBLE_WEIGHT = 0.02


def attention_heatmap(attention: SentenceAttention, title: str = "What it looked at") -> str:
    """The looks at the source, mean over heads and layers."""
    if attention.cross is None:
        raise UserError("there is no attention to draw: this system has none")
    return heatmap(attention.cross, attention.target, attention.source, title)


def heatmap(
    weights: Sequence[Sequence[float]] | Tensor, rows: Sequence[str], columns: Sequence[str], title: str
) -> str:
    """T S weights from 0 to 1 as squares: a row for each target word, a column for each source word."""
    table = [[min(1.0, max(0.0, float(weight))) for weight in row] for row in weights]
    cell = min(CELL, max(SMALLEST, WIDEST // max(len(rows), len(columns), 1)))
    every = -(-11 // cell)  # labels that stand too close together are left out
    size = {"font_size": max(8, cell - 2)} if cell < 15 else {}
    left, slant = 20 + label_width(rows), label_width(columns) * math.sqrt(0.5)
    top = 52 + slant
    width = max(left + cell * len(columns) + slant + 8, 380, CHARACTER_WIDTH * 1.15 * cell_len(title))
    bottom = top + cell * len(rows)
    parts = [tag("text", title, x=4, y=20, class_="title")]
    for j, name in list(enumerate(columns))[::every]:
        place = f"translate({left + cell * (j + 0.5):.1f} {top - 8:.1f}) rotate(-45)"
        parts.append(tag("text", tag("title", name), shorten(name), transform=place, **size))
    for i, (name, row) in enumerate(zip(rows, table, strict=True)):
        y = top + cell * i
        label = {"x": px(left - 8), "y": px(y + cell / 2 + 4.5), "text_anchor": "end", **size}
        parts += [] if i % every else [tag("text", tag("title", name), shorten(name), **label)]
        for j, (column, weight) in enumerate(zip(columns, row, strict=True)):
            if weight >= MIN_VISIBLE_WEIGHT or len(rows) * len(columns) <= MANY:
                tip = f"“{name}” ← “{column}”: {100 * weight:.1f} % of its attention"
                parts.append(square(left + cell * j, y, weight, tip, cell=cell))
    frame = {"x": px(left), "y": px(top), "width": cell * len(columns), "height": cell * len(rows)}
    parts += [tag("rect", class_="frame", **frame), heat_legend(4, bottom + 14)]
    seen = [f"{name}: mostly {columns[row.index(max(row))]} ({max(row):.0%})" for name, row in zip(rows, table) if row]
    return svg(width, bottom + 56, title, "Each row is a target word. " + "; ".join(seen), parts)


def line_chart(
    series: Mapping[str, Points], title: str, x_label: str = "step", y_label: str = "", *, log: bool = False
) -> str:
    """Lines of (x, y) points over one pair of axes, y logarithmic if so asked for.

    Points that are not finite, or not positive on a logarithmic axis, are left out.
    """
    drawn = {name: downsample([p for p in points if _drawable(p, log)]) for name, points in series.items()}
    drawn = {name: points for name, points in drawn.items() if points}
    width, height, left, right, top, bottom = 480, 300, 58, 450, 58, 252
    parts = [tag("text", title, x=4, y=20, class_="title")]
    if not drawn:
        nothing = tag("text", "nothing has been measured yet", x=width / 2, y=height / 2, text_anchor="middle")
        return svg(width, height, title, "nothing has been measured yet", [*parts, nothing])
    xs, ys = ([point[axis] for points in drawn.values() for point in points] for axis in (0, 1))
    x_ticks, y_ticks = (
        linear_ticks(min(xs), max(xs)),
        log_ticks(min(ys), max(ys)) if log else linear_ticks(min(ys), max(ys)),
    )

    def across(x: float) -> float:
        return left + (right - left) * (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def up(y: float) -> float:
        low, high, at = (math.log(v) if log else v for v in (y_ticks[0], y_ticks[-1], y))
        return bottom - (bottom - top) * (at - low) / (high - low)

    for x, name in zip(x_ticks, map(tick_label, x_ticks)):
        parts.append(tag("line", x1=px(across(x)), x2=px(across(x)), y1=top, y2=bottom, class_="grid"))
        parts.append(tag("text", name, x=px(across(x)), y=bottom + 18, text_anchor="middle", class_="faint"))
    for y, name in zip(y_ticks, map(tick_label, y_ticks)):
        parts.append(tag("line", x1=left, x2=right, y1=px(up(y)), y2=px(up(y)), class_="grid"))
        parts.append(tag("text", name, x=left - 8, y=px(up(y) + 4), text_anchor="end", class_="faint"))
    parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(tag("text", x_label, x=right, y=bottom + 38, text_anchor="end", class_="faint"))
    parts.append(tag("text", y_label + (", logarithmic" if log else ""), x=4, y=42, class_="faint"))
    after = float(right)
    for n, name in reversed(list(enumerate(drawn))) if len(drawn) > 1 else ():
        after -= CHARACTER_WIDTH * cell_len(name) + 40
        parts.append(tag("line", x1=px(after), x2=px(after + 24), y1=38, y2=38, **_stroke(n)))
        parts.append(tag("text", name, x=px(after + 30), y=42, class_="faint"))
    for n, (name, points) in enumerate(drawn.items()):
        path = " ".join(f"{px(across(x))},{px(up(y))}" for x, y in points)
        parts.append(tag("polyline", points=path, **_stroke(n)))
        for x, y in points if len(points) <= 25 else points[-1:]:
            tip = tag("title", f"{name}: {format_number(y)} at {x_label} {format_number(x)}")
            parts.append(tag("circle", tip, cx=px(across(x)), cy=px(up(y)), r=3, class_=f"fill{n % NUM_SERIES_COLORS}"))
    told = [f"{name} from {format_number(p[0][1])} to {format_number(p[-1][1])}" for name, p in drawn.items()]
    return svg(width, height, title, f"{y_label or 'value'} by {x_label}: {'; '.join(told)}", parts)


def scatter_plot(points: Mapping[str, tuple[float, float]], title: str, x_label: str, y_label: str) -> str:
    """A named dot for each (x, y), x logarithmic; what is not finite or not positive is left out."""
    drawn = {name: p for name, p in points.items() if p[0] > 0 and all(map(math.isfinite, p))}
    width, height, left, right, top, bottom = 640, 420, 58, 560, 58, 372
    parts = [tag("text", title, x=4, y=20, class_="title"), tag("text", y_label, x=4, y=42, class_="faint")]
    if not drawn:
        return svg(width, height, title, "nothing has been measured yet", parts)
    xs, ys = zip(*drawn.values())
    x_ticks, y_ticks = log_ticks(min(xs), max(xs)), linear_ticks(min(ys), max(ys))

    def across(x: float) -> float:
        low, high = math.log(x_ticks[0]), math.log(x_ticks[-1])
        return left + (right - left) * (math.log(x) - low) / (high - low)

    def up(y: float) -> float:
        return bottom - (bottom - top) * (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    for x in x_ticks:
        parts.append(tag("line", x1=px(across(x)), x2=px(across(x)), y1=top, y2=bottom, class_="grid"))
        place = {"x": px(across(x)), "y": bottom + 18}
        parts.append(tag("text", f"{x:.0e}".replace("e+", "e"), **place, text_anchor="middle", class_="faint"))
    for y, name in zip(y_ticks, map(tick_label, y_ticks)):
        parts.append(tag("line", x1=left, x2=right, y1=px(up(y)), y2=px(up(y)), class_="grid"))
        parts.append(tag("text", name, x=left - 8, y=px(up(y) + 4), text_anchor="end", class_="faint"))
    parts.append(tag("text", f"{x_label}, logarithmic", x=right, y=bottom + 38, text_anchor="end", class_="faint"))
    last = math.inf
    for n, (name, (x, y)) in enumerate(sorted(drawn.items(), key=lambda item: item[1][1])):
        last = min(up(y) + 4, last - 13)  # names one above the other, never on top of each other
        tip = tag("title", f"{name}: {format_number(y)} for {x:.2e}")
        parts.append(tag("circle", tip, cx=px(across(x)), cy=px(up(y)), r=5, class_=f"fill{n % NUM_SERIES_COLORS}"))
        line = {"x1": px(across(x) + 6), "y1": px(up(y)), "x2": px(across(x) + 16), "y2": px(last - 4)}
        parts.append(tag("line", **line, class_="grid"))
        parts.append(tag("text", name, x=px(across(x) + 18), y=px(last), class_="faint"))
    told = "; ".join(f"{name}: {format_number(y)} for {x:.2e}" for name, (x, y) in drawn.items())
    return svg(width, height, title, f"{y_label} by {x_label}: {told}", parts)


def bar_chart(values: Mapping[str, float], title: str, unit: str = "") -> str:
    """A bar for each value, none of them negative, the largest as long as there is room."""
    most = max(values.values(), default=0.0) or 1.0
    left = 16 + CHARACTER_WIDTH * max([cell_len(shorten(name, 30)) for name in values], default=0)
    room = 220
    told = {name: f"{format_number(value)} {unit}".rstrip() for name, value in values.items()}
    parts = [tag("text", title, x=4, y=20, class_="title")]
    for n, (name, value) in enumerate(values.items()):
        y, length = 36 + 28 * n, max(1.0, room * value / most)
        box = {"x": px(left), "y": y, "width": px(length), "height": 20, "rx": 3}
        parts += [
            tag("text", tag("title", name), shorten(name, 30), x=px(left - 8), y=y + 15, text_anchor="end"),
            tag("rect", tag("title", f"{name}: {told[name]}"), class_="heat", **box),
            tag("text", told[name], x=px(left + length + 8), y=y + 15),
        ]
    description = "; ".join(f"{name}: {value}" for name, value in told.items())
    return svg(left + room + 110, 44 + 28 * len(values), title, description or "nothing", parts)


# ---- pieces of pictures


def square(x: float, y: float, weight: float, tip: str, least: float = 0.095, cell: int = CELL) -> Markup:
    """A square as strong as its weight, with the figure in it if that is not too small to matter."""
    edge, round_ = (1, 3) if cell > 20 else (0, 0)
    place = {"x": px(x + edge), "y": px(y + edge), "width": cell - 2 * edge, "height": cell - 2 * edge, "rx": round_}
    drawn = tag("rect", tag("title", tip), class_="heat", fill_opacity=f"{0.04 + 0.96 * weight:.3f}", **place)
    if weight < least or cell < 22:
        return drawn
    middle = {"x": px(x + cell / 2), "y": px(y + cell / 2 + 4), "text_anchor": "middle"}
    kind = "figure strong" if weight > 0.68 else "figure"  # where light letters become easier to read than dark ones
    return join(drawn, tag("text", f"{100 * weight:.0f}", class_=kind, **middle))


def heat_legend(x: float, y: float) -> Markup:
    squares = [square(x + CELL * n, y, n / 4, f"{n / 4:.0%}", least=0) for n in range(5)]
    return join(*squares, tag("text", "% of its attention", x=x + 5 * CELL + 8, y=y + CELL / 2 + 4.5))


def _stroke(n: int) -> dict[str, object]:
    return {"class_": f"curve stroke{n % NUM_SERIES_COLORS}", "stroke_dasharray": DASHES[n % len(DASHES)]}


def _drawable(point: tuple[float, float], log: bool) -> bool:
    return all(map(math.isfinite, point)) and (point[1] > 0 or not log)
