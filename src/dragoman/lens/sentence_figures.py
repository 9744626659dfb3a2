"""Pictures of a sentence: all heads at a glance, one head, the likeliest words at every place and after every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.charts import MIN_VISIBLE_WEIGHT, heatmap
from dragoman.lens.inspection_types import AttentionKind, AttentionMap, Inspection, TokenPrediction
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.svg import CHARACTER_WIDTH, heading, label_width, px, shorten, svg

SMALL = 150  # pixels of a head among others
ACROSS = 8  # heads side by side
KINDS: dict[AttentionKind, str] = {
    "cross": "from the target to the source",
    "encoder": "within the source",
    "decoder": "within the target",
}
LETTERS = 12  # of a word in a table


def select_attention(
    seen: Inspection, kind: AttentionKind | None = None, layer: int | None = None, head: int | None = None
) -> list[AttentionMap]:
    """The attentions that are asked for; a head that is chosen stands alone in its weights."""
    found = [
        looks
        for looks in seen.attention
        if (kind is None or looks.kind == kind) and (layer is None or looks.layer == layer)
    ]
    if not seen.attention:
        raise UserError(f"there is no attention to show: {seen.system} has none")
    if not found:
        known = ", ".join(f"{looks.kind} {looks.layer}" for looks in seen.attention)
        raise UserError(f"there is no such attention in {seen.system}: it has {known}")
    if head is None:
        return found
    heads = min(len(looks.weights) for looks in found)
    if not 1 <= head <= heads:
        raise UserError(f"there is no head {head}: they are numbered from 1 to {heads}")
    one = slice(head - 1, head)
    return [
        AttentionMap(look.path, look.kind, look.layer, look.queries, look.keys, look.weights[one], look.entropy[one])
        for look in found
    ]


def attention_figure(seen: Inspection, found: Sequence[AttentionMap], head: int | None = None) -> str:
    """One attention large, with its words; several small, all heads side by side."""
    if len(found) == 1 and len(found[0].weights) == 1:
        looks = found[0]
        which = "" if head is None else f", head {head}"
        title = f"Attention {KINDS[looks.kind]}, layer {looks.layer}{which}"
        return heatmap(looks.weights[0], looks.queries, looks.keys, title)
    parts: list[str] = [heading(f"What {seen.system} looked at", _sentence(seen))]
    top, widest = 62.0, 480.0
    for kind in KINDS:
        layers = [looks for looks in found if looks.kind == kind]
        if not layers:
            continue
        parts.append(tag("text", f"attention {KINDS[kind]}", x=4, y=px(top), class_="bold"))
        top += 12
        for looks in layers:
            for first in range(0, len(looks.weights), ACROSS):
                some = range(first, min(first + ACROSS, len(looks.weights)))
                for n, number in enumerate(some):
                    named = number + 1 if head is None else head
                    label = f"layer {looks.layer}, head {named}: {looks.entropy[number]:.1f} bits"
                    parts.append(_small(4 + n * (SMALL + 18), top + 16, looks, looks.weights[number], label))
                widest = max(widest, 4 + len(some) * (SMALL + 18))
                top += SMALL + 34
        top += 22
    told = [f"{KINDS[looks.kind]}, layer {looks.layer}: {len(looks.weights)} heads" for looks in found]
    note = "a row is a word, a column what it looked at; bits: over how much it spread its look, 2 to that many words"
    parts.append(tag("text", note, x=4, y=px(top), class_="faint"))
    return svg(max(widest, CHARACTER_WIDTH * len(note)), top + 14, "Attention of every head", "; ".join(told), parts)


def _small(x: float, y: float, looks: AttentionMap, weights: Tensor, label: str) -> Markup:
    """One head, without words: those are said where the pointer is."""
    rows, columns = weights.shape
    cell = SMALL / max(rows, columns)
    squares = []
    for i, row in enumerate(weights.tolist()):
        for j, weight in enumerate(row):
            if weight >= MIN_VISIBLE_WEIGHT:
                tip = tag("title", f"“{looks.queries[i]}” ← “{looks.keys[j]}”: {100 * weight:.0f} %")
                place = {"x": px(x + cell * j), "y": px(y + cell * i), "width": px(cell), "height": px(cell)}
                squares.append(tag("rect", tip, class_="heat", fill_opacity=f"{weight:.2f}", **place))
    frame = {"x": px(x), "y": px(y), "width": px(cell * columns), "height": px(cell * rows)}
    return join(
        tag("text", label, x=px(x), y=px(y - 5), class_="figure"), *squares, tag("rect", class_="frame", **frame)
    )


# ---- words in tables


@dataclass(frozen=True)
class Cell:
    """A word in a table, as strong as it is likely; the one that was chosen is framed."""

    text: str
    strength: float
    chosen: bool


def alternatives_figure(seen: Inspection) -> str:
    """A row for each piece: the likeliest ones at its place, with their probabilities in per cent."""
    count = max((len(step.alternatives) for step in seen.steps), default=0)
    columns = ["likeliest", *(f"{n}." for n in range(2, count + 1))]
    rows = [
        [Cell(one.token, one.probability, one.token_id == step.token_id) for one in step.alternatives]
        for step in seen.steps
    ]
    return _table("The likeliest words at every place", _sentence(seen), _written(seen.steps), columns, rows)


def layers_figure(seen: Inspection) -> str:
    """A row for each piece, a column for each layer: the likeliest piece if the stack ended there."""
    rows = []
    for t, _ in enumerate(seen.steps):
        likeliest = [(layer.steps[t].alternatives[0], layer.steps[t].token_id) for layer in seen.layers]
        rows.append([Cell(best.token, best.probability, best.token_id == token) for best, token in likeliest])
    names = [layer.name for layer in seen.layers]
    return _table("What each layer would say", _sentence(seen), _written(seen.steps), names, rows)


def _written(steps: Sequence[TokenPrediction]) -> list[str]:
    return [f"{step.token}  {100 * step.probability:.0f} %" for step in steps]


def _table(title: str, note: str, names: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    left, across, down = 22 + label_width(names, 24), CHARACTER_WIDTH * LETTERS + 52, 28
    parts: list[str] = [heading(title, note)]
    for n, name in enumerate(columns):
        parts.append(tag("text", name, x=px(left + across * n + 6), y=66, class_="faint"))
    for i, (name, row) in enumerate(zip(names, rows)):
        y = 74 + down * i
        parts.append(tag("text", tag("title", name), shorten(name, 24), x=px(left - 10), y=y + 18, text_anchor="end"))
        for j, cell in enumerate(row):
            parts.append(_cell(left + across * j, y, across - 4, down - 4, cell))
    height = 74 + down * len(rows) + 26
    parts.append(tag("text", "framed: the word that was written", x=4, y=height - 8, class_="faint"))
    told = "; ".join(f"{name}: {', '.join(cell.text for cell in row)}" for name, row in zip(names, rows))
    width = max(left + across * len(columns) + 8, CHARACTER_WIDTH * len(note), 380)
    return svg(width, height, title, told, parts)


def _cell(x: float, y: float, width: float, height: float, cell: Cell) -> Markup:
    place = {"x": px(x), "y": px(y), "width": px(width), "height": px(height), "rx": 3}
    kind = "figure strong" if cell.strength > 0.68 else "figure"
    tip = tag("title", f"{cell.text}: {100 * cell.strength:.2f} %")
    drawn = [
        tag("rect", tip, class_="heat", fill_opacity=f"{0.04 + 0.96 * cell.strength:.3f}", **place),
        tag("text", shorten(cell.text, LETTERS), x=px(x + 6), y=px(y + height / 2 + 4), class_=kind),
        tag(
            "text",
            _percent(cell.strength),
            x=px(x + width - 6),
            y=px(y + height / 2 + 4),
            text_anchor="end",
            class_=kind,
        ),
    ]
    return join(*drawn, *([tag("rect", class_="box", **place)] if cell.chosen else []))


def _percent(share: float) -> str:
    return "<1" if 0 < share < 0.01 else f"{100 * share:.0f}"


def _sentence(seen: Inspection) -> str:
    """What the picture is of, on one line."""
    sides = [side.text for side in (seen.source, seen.target) if side is not None and side.text]
    return " → ".join(shorten(text, 70) for text in sides)
