"""Figures of an inspected sentence as SVG: attention heads, token alternatives, predictions by layer, the beam tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.errors import UserError
from dragoman.lens.charts import heatmap
from dragoman.lens.inspection_types import (
    AttentionKind,
    AttentionMap,
    BeamNode,
    BeamTree,
    Inspection,
    NodeStatus,
    TokenPrediction,
)
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.svg import CHARACTER_WIDTH, heading, label_width, matrix, px, shorten, svg

HEAD_SIZE = 150  # pixels of one head among several
HEADS_PER_ROW = 8
TABLE_CELLS = 12  # width of a token in a table, in terminal cells
NODE_CELLS = 14  # width of a token in a node of the beam tree
ROW_STEP, NODE_HEIGHT, COLUMN_GAP, TREE_TOP = 44, 36, 34, 92  # pixels
ATTENTION_LABELS: dict[AttentionKind, str] = {
    "cross": "cross-attention from target to source",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
}
#: CSS class, opacity of its fill and legend of each status
STATUS_STYLES: dict[NodeStatus, tuple[str, float | None, str]] = {
    "kept": ("box", None, "kept: continued"),
    "finished": ("finished", 0.28, "finished: ends in EOS"),
    "pruned": ("pruned", None, "pruned"),
    "truncated": ("cold", 0.28, "truncated at the length limit"),
}


def select_attention(
    inspection: Inspection, kind: AttentionKind | None = None, layer: int | None = None, head: int | None = None
) -> list[AttentionMap]:
    """Return the attention maps of a kind and layer, reduced to one head if `head` (from 1) is given."""
    if not inspection.attention:
        raise UserError(f"there is no attention to show: {inspection.system} has none")
    selected = [
        attention
        for attention in inspection.attention
        if kind in (None, attention.kind) and layer in (None, attention.layer)
    ]
    if not selected:
        available = ", ".join(f"{attention.kind} {attention.layer}" for attention in inspection.attention)
        raise UserError(f"there is no such attention in {inspection.system}: it has {available}")
    if head is None:
        return selected
    heads = min(len(attention.weights) for attention in selected)
    if not 1 <= head <= heads:
        raise UserError(f"there is no head {head}: they are numbered from 1 to {heads}")
    one = slice(head - 1, head)
    return [
        replace(attention, weights=attention.weights[one], entropy=attention.entropy[one]) for attention in selected
    ]


def attention_figure(inspection: Inspection, selected: Sequence[AttentionMap], head: int | None = None) -> str:
    """Draw a single head as a labeled heatmap, or several heads as small maps side by side."""
    if len(selected) == 1 and len(selected[0].weights) == 1:
        attention = selected[0]
        suffix = "" if head is None else f", head {head}"
        title = f"{_label(attention.kind)}, layer {attention.layer}{suffix}"
        return heatmap(attention.weights[0], attention.queries, attention.keys, title)
    parts: list[str] = [heading(f"Attention of {inspection.system}", _sentence(inspection))]
    top, width = 62.0, 480.0
    for kind in ATTENTION_LABELS:
        layers = [attention for attention in selected if attention.kind == kind]
        if not layers:
            continue
        parts.append(tag("text", _label(kind), x=4, y=px(top), class_="bold"))
        top += 12
        for attention in layers:
            for first in range(0, len(attention.weights), HEADS_PER_ROW):
                row = range(first, min(first + HEADS_PER_ROW, len(attention.weights)))
                for n, index in enumerate(row):
                    name = index + 1 if head is None else head
                    label = f"layer {attention.layer}, head {name}: {attention.entropy[index]:.1f} bits"
                    parts.append(_head(4 + n * (HEAD_SIZE + 18), top + 16, attention, index, label))
                width = max(width, 4 + len(row) * (HEAD_SIZE + 18))
                top += HEAD_SIZE + 34
        top += 22
    description = [f"{_label(layer.kind)}, layer {layer.layer}: {len(layer.weights)} heads" for layer in selected]
    note = "rows are queries, columns are keys; bits: entropy of the weights, averaged over rows"
    parts.append(tag("text", note, x=4, y=px(top), class_="note"))
    return svg(
        max(width, CHARACTER_WIDTH * len(note)), top + 14, "Attention of every head", "; ".join(description), parts
    )


def _label(kind: AttentionKind) -> str:
    return ATTENTION_LABELS[kind][0].upper() + ATTENTION_LABELS[kind][1:]


def _head(x: float, y: float, attention: AttentionMap, head: int, label: str) -> Markup:
    """Draw one head without labels; tooltips name the tokens."""
    weights = attention.weights[head].tolist()
    size = HEAD_SIZE / max(len(weights), len(weights[0]))

    def tooltip(i: int, j: int) -> str:
        return f"“{attention.queries[i]}” ← “{attention.keys[j]}”: {100 * weights[i][j]:.0f} %"

    return join(tag("text", label, x=px(x), y=px(y - 5), class_="number"), matrix(x, y, weights, (size, size), tooltip))


# ---- tables of tokens


@dataclass(frozen=True)
class _TokenCell:
    token: str
    probability: float
    chosen: bool  # whether it is the token of the translation, which is framed


def alternatives_figure(inspection: Inspection) -> str:
    """Draw the most probable tokens at every position, with their probabilities in percent."""
    count = max((len(step.alternatives) for step in inspection.steps), default=0)
    columns = ["most probable", *(f"{n}." for n in range(2, count + 1))]
    rows = [
        [_TokenCell(other.token, other.probability, other.token_id == step.token_id) for other in step.alternatives]
        for step in inspection.steps
    ]
    return _token_table("Most probable tokens at every position", inspection, columns, rows)


def layers_figure(inspection: Inspection) -> str:
    """Draw the most probable token after every layer, for every position."""
    rows = [
        [
            _TokenCell(best.token, best.probability, best.token_id == inspection.steps[t].token_id)
            for best in (layer.steps[t].alternatives[0] for layer in inspection.layers)
        ]
        for t in range(len(inspection.steps))
    ]
    return _token_table("Predictions by layer", inspection, [layer.name for layer in inspection.layers], rows)


def _token_table(
    title: str, inspection: Inspection, columns: Sequence[str], rows: Sequence[Sequence[_TokenCell]]
) -> str:
    note, labels = _sentence(inspection), [_step_label(step) for step in inspection.steps]
    left, column_width, row_height = 22 + label_width(labels, 24), CHARACTER_WIDTH * TABLE_CELLS + 52, 28
    parts: list[str] = [heading(title, note)]
    for n, name in enumerate(columns):
        parts.append(tag("text", name, x=px(left + column_width * n + 6), y=66, class_="note"))
    for i, (label, row) in enumerate(zip(labels, rows)):
        y = 74 + row_height * i
        parts.append(tag("text", tag("title", label), shorten(label, 24), x=px(left - 10), y=y + 18, text_anchor="end"))
        for j, cell in enumerate(row):
            parts.append(_token_cell(left + column_width * j, y, column_width - 4, row_height - 4, cell))
    height = 74 + row_height * len(rows) + 26
    parts.append(tag("text", "framed: the token of the translation", x=4, y=height - 8, class_="note"))
    description = "; ".join(f"{label}: {', '.join(cell.token for cell in row)}" for label, row in zip(labels, rows))
    width = max(left + column_width * len(columns) + 8, CHARACTER_WIDTH * len(note), 380)
    return svg(width, height, title, description, parts)


def _step_label(step: TokenPrediction) -> str:
    return f"{step.token}  {100 * step.probability:.0f} %"


def _token_cell(x: float, y: float, width: float, height: float, cell: _TokenCell) -> Markup:
    box = {"x": px(x), "y": px(y), "width": px(width), "height": px(height), "rx": 3}
    kind, baseline = "number strong" if cell.probability > 0.68 else "number", px(y + height / 2 + 4)
    percent = "<1" if 0 < cell.probability < 0.01 else f"{100 * cell.probability:.0f}"
    tooltip = tag("title", f"{cell.token}: {100 * cell.probability:.2f} %")
    return join(
        tag("rect", tooltip, class_="heat", fill_opacity=f"{0.04 + 0.96 * cell.probability:.3f}", **box),
        tag("text", shorten(cell.token, TABLE_CELLS), x=px(x + 6), y=baseline, class_=kind),
        tag("text", percent, x=px(x + width - 6), y=baseline, text_anchor="end", class_=kind),
        *([tag("rect", class_="box", **box)] if cell.chosen else []),
    )


def _sentence(inspection: Inspection) -> str:
    texts = [side.text for side in (inspection.source, inspection.target) if side is not None and side.text]
    return " → ".join(shorten(text, 70) for text in texts)


# ---- the beam tree


def beam_tree_figure(tree: BeamTree, title: str = "Beam search, step by step", note: str = "") -> str:
    """Draw a column of hypotheses for each step, best on top, with edges to their continuations."""
    nodes = tree.nodes[1:]
    node_width = max(96.0, label_width([node.token for node in nodes], NODE_CELLS) + 16)
    columns: dict[int, list[BeamNode]] = {}
    for node in sorted(nodes, key=lambda node: -node.score):
        columns.setdefault(node.step, []).append(node)
    column_x = {step: 44 + (step - 1) * (node_width + COLUMN_GAP) for step in columns}
    position: dict[int, tuple[float, float]] = {0: (34 - node_width, TREE_TOP)}
    for step, column in columns.items():
        position |= {node.index: (column_x[step], TREE_TOP + ROW_STEP * n) for n, node in enumerate(column)}
    best = {node.index for node in tree.path(tree.best)}
    parts: list[str] = [heading(title, note)]
    parts += [tag("text", str(step), x=px(x), y=TREE_TOP - 12, class_="note") for step, x in column_x.items()]
    for node in sorted(nodes, key=lambda node: node.index in best):  # the best path lies on top
        (x, y), (to_x, to_y) = position[node.parent or 0], position[node.index]
        line = {
            "x1": px(x + node_width),
            "y1": px(y + NODE_HEIGHT / 2),
            "x2": px(to_x),
            "y2": px(to_y + NODE_HEIGHT / 2),
        }
        parts.append(tag("line", class_="best" if node.index in best else "edge", **line))
    parts += [_node(node, *position[node.index], node_width, node.index in best) for node in nodes]
    bottom = TREE_TOP + ROW_STEP * max(map(len, columns.values()), default=1) + 10
    parts.append(_tree_legend(bottom))
    tokens = " ".join(node.token for node in tree.path(tree.best))
    description = f"{len(nodes)} hypotheses in {len(columns)} steps; the best: {tokens}, log p {tree.best.score:.3f}"
    width = max(44 + len(columns) * (node_width + COLUMN_GAP), 760, CHARACTER_WIDTH * len(note))
    return svg(width, bottom + 50, title, description, parts)


def _node(node: BeamNode, x: float, y: float, width: float, best: bool) -> Markup:
    kind, opacity, _ = STATUS_STYLES[node.status]
    box = {"x": px(x), "y": px(y), "width": px(width), "height": NODE_HEIGHT, "rx": 5}
    tooltip = (
        f"{node.status}: p {100 * math.exp(node.log_probability):.1f} % of this token, log p {node.score:.4f}, "
        f"normalized {node.normalized_score:.4f}"
    )
    rank = f"{node.rank}. " if node.rank else ""
    label = rank + shorten(node.token, NODE_CELLS)
    return join(
        tag("rect", class_="strong", **box),  # hides the edges behind the text
        tag("rect", tag("title", tooltip), class_=kind, fill_opacity=opacity, **box),
        *([tag("rect", class_="best", **box)] if best else []),
        tag("text", label, x=px(x + 7), y=px(y + 15), class_="bold" if best else None),
        tag("text", f"{node.score:.2f} → {node.normalized_score:.2f}", x=px(x + 7), y=px(y + 29), class_="number"),
    )


def _tree_legend(y: float) -> Markup:
    parts, x = [], 4.0
    for kind, opacity, label in STATUS_STYLES.values():
        parts.append(tag("rect", x=px(x), y=px(y), width=22, height=16, rx=4, class_=kind, fill_opacity=opacity))
        parts.append(tag("text", label, x=px(x + 28), y=px(y + 13), class_="note"))
        x += 28 + CHARACTER_WIDTH * len(label) * 0.9 + 16
    note = "below a token: log p of the hypothesis → after length normalization"
    return join(*parts, tag("text", note, x=4, y=px(y + 36), class_="note"))
