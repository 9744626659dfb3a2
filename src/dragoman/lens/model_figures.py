"""Pictures of a model that are of no sentence: how it tells places apart, and how far its gradients reach."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.charts import line_chart
from dragoman.lens.gradients import GradientReach
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.position_encodings import MECHANISM_LABELS, PositionEncoding
from dragoman.lens.svg import heading, px, svg

SIDE = 320  # pixels of a map
HEADS = 8  # maps of heads that are shown
MOST = 96  # rows and columns of a map that are drawn
SHADES = 25  # of a colour, so that like neighbours are one square
#: what is derived of what, by its distance
REACHES = {
    "encoder": "Gradient of an encoder's state by the words",
    "source": "Gradient of target words by source words",
    "target": "Gradient of target words by earlier ones",
}


def positions_figure(one: PositionEncoding) -> str:
    """The vectors of places and how alike they are, or what each head adds to its scores."""
    maps: list[tuple[str, Tensor]] = []
    if one.encoding is not None and one.similarity is not None:
        of = "distance" if one.mechanism == "relative_keys" else "place"
        maps = [(f"a row for each {of}, a column for each dimension", one.encoding)]
        maps += [(f"how alike they are: the cosine of {of} and {of}", one.similarity)]
    elif one.bias is not None:
        maps = [(f"head {n}: query by key", bias) for n, bias in enumerate(one.bias[:HEADS], 1)]
    title = f"Positions: {one.name}"
    parts: list[str] = [heading(title, f"{MECHANISM_LABELS[one.mechanism]}; {_where(one.paths)}")]
    for n, (label, values) in enumerate(maps):
        x, y = 4 + (n % 4) * (SIDE + 28), 78 + n // 4 * (SIDE + 60)
        parts.append(_map(x, y, label, values, one.labels))
    rows, across = -(-len(maps) // 4), min(4, len(maps))
    height = 78 + rows * (SIDE + 60)
    parts.append(
        tag(
            "text",
            "blue above zero, orange below; the strongest colour is the largest value of its map",
            x=4,
            y=height - 8,
            class_="faint",
        )
    )
    told = f"{one.name} positions, {MECHANISM_LABELS[one.mechanism]}, {len(one.labels)} of them"
    return svg(max(680, across * (SIDE + 28)), height, title, told, parts)


def _where(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} alike"


def _map(x: float, y: float, label: str, values: Tensor, labels: Sequence[int]) -> Markup:
    """A matrix as squares, blue above zero and orange below; every so many of rows and columns where it is large."""
    step = [max(1, -(-size // MOST)) for size in values.shape]
    shown = values[:: step[0], :: step[1]]
    most = float(shown.abs().max()) or 1.0
    wide, tall = SIDE / shown.shape[1], SIDE / shown.shape[0]
    squares = []
    for i, row in enumerate((shown / most).tolist()):
        j = 0
        for strength, some in groupby(round(value * SHADES) for value in row):
            count = len(list(some))
            place = {"x": px(x + wide * j), "y": px(y + tall * i), "width": px(wide * count), "height": f"{tall:.2f}"}
            kind, opacity = "heat" if strength > 0 else "cold", f"{abs(strength) / SHADES:.2f}"
            squares += [tag("rect", class_=kind, fill_opacity=opacity, **place)] if strength else []
            j += count
    frame = tag("rect", class_="frame", x=px(x), y=px(y), width=SIDE, height=SIDE)
    ends = tag("text", f"from {labels[0]} at the top to {labels[-1]}", x=px(x), y=px(y + SIDE + 15), class_="figure")
    return join(tag("text", label, x=px(x), y=px(y - 6), class_="faint"), *squares, frame, ends)


def gradients_figure(measured: Sequence[GradientReach], of: str) -> str:
    """Systems side by side: how large a gradient still is at a distance, where the nearest counts as 1."""
    series = {
        _named(measured, n): [(point.distance, point.relative) for point in one.curves[of]]
        for n, one in enumerate(measured)
        if of in one.curves
    }
    if not series:
        raise UserError(f"there is no gradient to draw of the {of}: {measured[0].system} has no such part")
    return line_chart(series, REACHES[of], "distance in pieces", "the nearest is 1", log=True)


def _named(measured: Sequence[GradientReach], n: int) -> str:
    """A system's name, numbered where it stands there twice."""
    name, before = measured[n].system, sum(one.system == measured[n].system for one in measured[:n])
    return f"{name} {before + 1}" if before else name
