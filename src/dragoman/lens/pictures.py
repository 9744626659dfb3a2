"""Pictures as SVG, written by hand: attention, curves, bars.

They follow the reader's light or dark scheme, stand alone or inside a page, and say in words what they show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.axes import Points, log_ticks, plain_number, thin, tick_label, ticks
from dragoman.lens.markup import Markup, join, tag
from dragoman.run import Attention

LETTER = 7.6  # pixels that a letter takes at most, about
LONGEST = 18  # letters of a label
CELL = 34
COLOURS = 5
DASHES = (None, "7 4", "2 3", "9 3 2 3", "4 2")  # curves differ in more than their colour

STYLE = """
.lens { color-scheme: light dark; font: 13px system-ui, sans-serif; fill: currentColor; max-width: 100%;
  --paper: #fff; --heat: #1d4fc4; --c0: #1d4fc4; --c1: #c2410c; --c2: #15803d; --c3: #9333ea; --c4: #a16207 }
@media (prefers-color-scheme: dark) { .lens {
  --paper: #101318; --heat: #8db4ff; --c0: #8db4ff; --c1: #ffa066; --c2: #6ddc8f; --c3: #d0a5ff; --c4: #e8c547 } }
.lens .title { font-weight: 600; font-size: 15px }
.lens .faint { opacity: .85; font-size: 12px }
.lens .grid { stroke: currentColor; stroke-opacity: .16 }
.lens .axis { stroke: currentColor; stroke-opacity: .55 }
.lens .heat { fill: var(--heat) }
.lens .frame { fill: none; stroke: currentColor; stroke-opacity: .2 }
.lens .strong { fill: var(--paper) }
.lens .figure { font-size: 11px; pointer-events: none }
.lens .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
""" + "".join(
    f".lens .stroke{n} {{ stroke: var(--c{n}) }} .lens .fill{n} {{ fill: var(--c{n}) }}\n" for n in range(COLOURS)
)


def attention_picture(attention: Attention, title: str = "What it looked at") -> str:
    """The looks at the source, mean over heads and layers."""
    if attention.cross is None:
        raise UserError("there is no attention to draw: this system has none")
    return heatmap(attention.cross, attention.target, attention.source, title)


def heatmap(
    weights: Sequence[Sequence[float]] | Tensor, rows: Sequence[str], columns: Sequence[str], title: str
) -> str:
    """T S weights from 0 to 1 as squares: a row for each target word, a column for each source word."""
    table = [[min(1.0, max(0.0, float(weight))) for weight in row] for row in weights]
    left = 20 + LETTER * max([cell_len(_short(row)) for row in rows], default=0)
    slant = LETTER * max([cell_len(_short(column)) for column in columns], default=0) * math.sqrt(0.5)
    top = 52 + slant
    width = max(left + CELL * len(columns) + slant + 8, 380, LETTER * 1.15 * cell_len(title))
    bottom = top + CELL * len(rows)
    parts = [tag("text", title, x=4, y=20, class_="title")]
    for j, name in enumerate(columns):
        x, y = left + CELL * (j + 0.5), top - 8
        parts.append(tag("text", tag("title", name), _short(name), transform=f"translate({x:.1f} {y:.1f}) rotate(-45)"))
    for i, (name, row) in enumerate(zip(rows, table, strict=True)):
        y = top + CELL * i
        label = {"x": f"{left - 8:.1f}", "y": f"{y + CELL / 2 + 4.5:.1f}", "text_anchor": "end"}
        parts.append(tag("text", tag("title", name), _short(name), **label))
        for j, (column, weight) in enumerate(zip(columns, row, strict=True)):
            parts.append(
                _square(left + CELL * j, y, weight, f"“{name}” ← “{column}”: {100 * weight:.1f} % of its attention")
            )
    frame = {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": CELL * len(columns), "height": CELL * len(rows)}
    parts += [tag("rect", class_="frame", **frame), _heat_legend(4, bottom + 14)]
    seen = [f"{name}: mostly {columns[row.index(max(row))]} ({max(row):.0%})" for name, row in zip(rows, table) if row]
    return _svg(width, bottom + 56, title, "Each row is a target word. " + "; ".join(seen), parts)


def curves(
    series: Mapping[str, Points], title: str, x_label: str = "step", y_label: str = "", *, log: bool = False
) -> str:
    """Lines of (x, y) points over one pair of axes, y logarithmic if so asked for.

    Points that are not finite, or not positive on a logarithmic axis, are left out.
    """
    drawn = {name: thin([p for p in points if _drawable(p, log)]) for name, points in series.items()}
    drawn = {name: points for name, points in drawn.items() if points}
    width, height, left, right, top, bottom = 480, 300, 58, 450, 58, 252
    parts = [tag("text", title, x=4, y=20, class_="title")]
    if not drawn:
        nothing = tag("text", "nothing has been measured yet", x=width / 2, y=height / 2, text_anchor="middle")
        return _svg(width, height, title, "nothing has been measured yet", [*parts, nothing])
    xs, ys = ([point[axis] for points in drawn.values() for point in points] for axis in (0, 1))
    x_ticks, y_ticks = ticks(min(xs), max(xs)), log_ticks(min(ys), max(ys)) if log else ticks(min(ys), max(ys))

    def across(x: float) -> float:
        return left + (right - left) * (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def up(y: float) -> float:
        low, high, at = (math.log(v) if log else v for v in (y_ticks[0], y_ticks[-1], y))
        return bottom - (bottom - top) * (at - low) / (high - low)

    for x, name in zip(x_ticks, map(tick_label, x_ticks)):
        parts.append(tag("line", x1=_px(across(x)), x2=_px(across(x)), y1=top, y2=bottom, class_="grid"))
        parts.append(tag("text", name, x=_px(across(x)), y=bottom + 18, text_anchor="middle", class_="faint"))
    for y, name in zip(y_ticks, map(tick_label, y_ticks)):
        parts.append(tag("line", x1=left, x2=right, y1=_px(up(y)), y2=_px(up(y)), class_="grid"))
        parts.append(tag("text", name, x=left - 8, y=_px(up(y) + 4), text_anchor="end", class_="faint"))
    parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(tag("text", x_label, x=right, y=bottom + 38, text_anchor="end", class_="faint"))
    parts.append(tag("text", y_label + (", logarithmic" if log else ""), x=4, y=42, class_="faint"))
    after = float(right)
    for n, name in reversed(list(enumerate(drawn))) if len(drawn) > 1 else ():
        after -= LETTER * cell_len(name) + 40
        parts.append(tag("line", x1=_px(after), x2=_px(after + 24), y1=38, y2=38, **_stroke(n)))
        parts.append(tag("text", name, x=_px(after + 30), y=42, class_="faint"))
    for n, (name, points) in enumerate(drawn.items()):
        path = " ".join(f"{_px(across(x))},{_px(up(y))}" for x, y in points)
        parts.append(tag("polyline", points=path, **_stroke(n)))
        for x, y in points if len(points) <= 25 else points[-1:]:
            tip = tag("title", f"{name}: {plain_number(y)} at {x_label} {plain_number(x)}")
            parts.append(tag("circle", tip, cx=_px(across(x)), cy=_px(up(y)), r=3, class_=f"fill{n % COLOURS}"))
    told = [f"{name} from {plain_number(p[0][1])} to {plain_number(p[-1][1])}" for name, p in drawn.items()]
    return _svg(width, height, title, f"{y_label or 'value'} by {x_label}: {'; '.join(told)}", parts)


def scatter(points: Mapping[str, tuple[float, float]], title: str, x_label: str, y_label: str) -> str:
    """A named dot for each (x, y), x logarithmic; what is not finite or not positive is left out."""
    drawn = {name: p for name, p in points.items() if p[0] > 0 and all(map(math.isfinite, p))}
    width, height, left, right, top, bottom = 640, 420, 58, 560, 58, 372
    parts = [tag("text", title, x=4, y=20, class_="title"), tag("text", y_label, x=4, y=42, class_="faint")]
    if not drawn:
        return _svg(width, height, title, "nothing has been measured yet", parts)
    xs, ys = zip(*drawn.values())
    x_ticks, y_ticks = log_ticks(min(xs), max(xs)), ticks(min(ys), max(ys))

    def across(x: float) -> float:
        low, high = math.log(x_ticks[0]), math.log(x_ticks[-1])
        return left + (right - left) * (math.log(x) - low) / (high - low)

    def up(y: float) -> float:
        return bottom - (bottom - top) * (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    for x in x_ticks:
        parts.append(tag("line", x1=_px(across(x)), x2=_px(across(x)), y1=top, y2=bottom, class_="grid"))
        place = {"x": _px(across(x)), "y": bottom + 18}
        parts.append(tag("text", f"{x:.0e}".replace("e+", "e"), **place, text_anchor="middle", class_="faint"))
    for y, name in zip(y_ticks, map(tick_label, y_ticks)):
        parts.append(tag("line", x1=left, x2=right, y1=_px(up(y)), y2=_px(up(y)), class_="grid"))
        parts.append(tag("text", name, x=left - 8, y=_px(up(y) + 4), text_anchor="end", class_="faint"))
    parts.append(tag("text", f"{x_label}, logarithmic", x=right, y=bottom + 38, text_anchor="end", class_="faint"))
    last = math.inf
    for n, (name, (x, y)) in enumerate(sorted(drawn.items(), key=lambda item: item[1][1])):
        last = min(up(y) + 4, last - 13)  # names one above the other, never on top of each other
        tip = tag("title", f"{name}: {plain_number(y)} for {x:.2e}")
        parts.append(tag("circle", tip, cx=_px(across(x)), cy=_px(up(y)), r=5, class_=f"fill{n % COLOURS}"))
        line = {"x1": _px(across(x) + 6), "y1": _px(up(y)), "x2": _px(across(x) + 16), "y2": _px(last - 4)}
        parts.append(tag("line", **line, class_="grid"))
        parts.append(tag("text", name, x=_px(across(x) + 18), y=_px(last), class_="faint"))
    told = "; ".join(f"{name}: {plain_number(y)} for {x:.2e}" for name, (x, y) in drawn.items())
    return _svg(width, height, title, f"{y_label} by {x_label}: {told}", parts)


def bars(values: Mapping[str, float], title: str, unit: str = "") -> str:
    """A bar for each value, none of them negative, the largest as long as there is room."""
    most = max(values.values(), default=0.0) or 1.0
    left = 16 + LETTER * max([cell_len(_short(name, 30)) for name in values], default=0)
    room = 220
    told = {name: f"{plain_number(value)} {unit}".rstrip() for name, value in values.items()}
    parts = [tag("text", title, x=4, y=20, class_="title")]
    for n, (name, value) in enumerate(values.items()):
        y, length = 36 + 28 * n, max(1.0, room * value / most)
        box = {"x": _px(left), "y": y, "width": _px(length), "height": 20, "rx": 3}
        parts += [
            tag("text", tag("title", name), _short(name, 30), x=_px(left - 8), y=y + 15, text_anchor="end"),
            tag("rect", tag("title", f"{name}: {told[name]}"), class_="heat", **box),
            tag("text", told[name], x=_px(left + length + 8), y=y + 15),
        ]
    description = "; ".join(f"{name}: {value}" for name, value in told.items())
    return _svg(left + room + 110, 44 + 28 * len(values), title, description or "nothing", parts)


# ---- pieces of pictures


def _svg(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    told = (tag("desc", description), tag("style", Markup(STYLE)))
    return tag(
        "svg", *told, *parts, xmlns="http://www.w3.org/2000/svg", **size, class_="lens", role="img", aria_label=title
    )


def _square(x: float, y: float, weight: float, tip: str, least: float = 0.095) -> Markup:
    """A square as strong as its weight, with the figure in it if that is not too small to matter."""
    place = {"x": f"{x + 1:.1f}", "y": f"{y + 1:.1f}", "width": CELL - 2, "height": CELL - 2, "rx": 3}
    square = tag("rect", tag("title", tip), class_="heat", fill_opacity=f"{0.04 + 0.96 * weight:.3f}", **place)
    if weight < least:
        return square
    middle = {"x": f"{x + CELL / 2:.1f}", "y": f"{y + CELL / 2 + 4:.1f}", "text_anchor": "middle"}
    kind = "figure strong" if weight > 0.68 else "figure"  # where light letters become easier to read than dark ones
    return join(square, tag("text", f"{100 * weight:.0f}", class_=kind, **middle))


def _heat_legend(x: float, y: float) -> Markup:
    squares = [_square(x + CELL * n, y, n / 4, f"{n / 4:.0%}", least=0) for n in range(5)]
    return join(*squares, tag("text", "% of its attention", x=x + 5 * CELL + 8, y=y + CELL / 2 + 4.5))


def _stroke(n: int) -> dict[str, object]:
    return {"class_": f"curve stroke{n % COLOURS}", "stroke_dasharray": DASHES[n % len(DASHES)]}


def _drawable(point: tuple[float, float], log: bool) -> bool:
    return all(map(math.isfinite, point)) and (point[1] > 0 or not log)


def _short(label: str, longest: int = LONGEST) -> str:
    label = " ".join(label.split())
    return label if cell_len(label) <= longest else set_cell_size(label, longest - 1).rstrip() + "…"


def _px(value: float) -> str:
    return f"{value:.1f}"
