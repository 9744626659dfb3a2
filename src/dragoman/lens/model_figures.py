"""Figures of a model that do not depend on a sentence: position encodings and the reach of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.charts import line_chart
from dragoman.lens.gradients import GradientReach
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.position_encodings import MECHANISM_LABELS, PositionEncoding
from dragoman.lens.svg import heading, matrix, px, svg

MAP_SIZE = 320  # pixels
MAPS_PER_ROW = 4
MAX_HEADS = 8
MAX_MAP_CELLS = 96  # rows and columns of a map that are drawn
REACH_TITLES = {
    "encoder": "Gradient of encoder states by source tokens",
    "source": "Gradient of target tokens by source tokens",
    "target": "Gradient of target tokens by earlier target tokens",
}


def positions_figure(positions: PositionEncoding) -> str:
    """Draw the vectors of positions and their similarity, or the bias of each head."""
    maps: list[tuple[str, Tensor]] = []
    if positions.encoding is not None and positions.similarity is not None:
        unit = "distance" if positions.mechanism == "relative_keys" else "position"
        maps = [(f"rows: {unit}s, columns: dimensions", positions.encoding)]
        maps += [(f"cosine similarity of {unit}s", positions.similarity)]
    elif positions.bias is not None:
        maps = [(f"head {n}: query by key", bias) for n, bias in enumerate(positions.bias[:MAX_HEADS], 1)]
    title, mechanism = f"Positions: {positions.name}", MECHANISM_LABELS[positions.mechanism]
    parts: list[str] = [heading(title, f"{mechanism}; {modules_label(positions.paths)}")]
    for n, (label, values) in enumerate(maps):
        x, y = 4 + (n % MAPS_PER_ROW) * (MAP_SIZE + 28), 78 + n // MAPS_PER_ROW * (MAP_SIZE + 60)
        parts.append(_map(x, y, label, values, positions.labels))
    height = 78 + -(-len(maps) // MAPS_PER_ROW) * (MAP_SIZE + 60)
    note = "blue: positive, orange: negative; the strongest color is the largest absolute value of the map"
    parts.append(tag("text", note, x=4, y=height - 8, class_="note"))
    width = max(680, min(MAPS_PER_ROW, len(maps)) * (MAP_SIZE + 28))
    return svg(width, height, title, f"{positions.name}, {mechanism}, {len(positions.labels)} positions", parts)


def modules_label(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} with equal values"


def _map(x: float, y: float, label: str, values: Tensor, labels: Sequence[int]) -> Markup:
    """Draw a matrix; large ones are subsampled."""
    step = [max(1, -(-size // MAX_MAP_CELLS)) for size in values.shape]
    shown = values[:: step[0], :: step[1]]
    relative = (shown / (float(shown.abs().max()) or 1.0)).tolist()
    size = MAP_SIZE / shown.shape[1], MAP_SIZE / shown.shape[0]
    ends = f"from {labels[0]} at the top to {labels[-1]}"
    return join(
        tag("text", label, x=px(x), y=px(y - 6), class_="note"),
        matrix(x, y, relative, size),
        tag("text", ends, x=px(x), y=px(y + MAP_SIZE + 15), class_="number"),
    )


def gradients_figure(measured: Sequence[GradientReach], of: str) -> str:
    """Draw gradient norms by distance, relative to the nearest token, for one or several systems."""
    names = [reach.system for reach in measured]
    series = {
        f"{name} {names[:n].count(name) + 1}" if name in names[:n] else name: [
            (point.distance, point.relative) for point in measured[n].curves[of]
        ]
        for n, name in enumerate(names)
        if of in measured[n].curves
    }
    if not series:
        raise UserError(f"there is no gradient of the {of} to draw: {names[0]} has no such part")
    return line_chart(series, REACH_TITLES[of], "distance in tokens", "relative to the nearest token", log=True)
