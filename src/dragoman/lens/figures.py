"""Figures as SVG: attention heads, token alternatives, predictions by layer, the beam tree, positions, gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens import svg
from dragoman.lens.charts import heatmap, line_chart
from dragoman.lens.gradients import GradientReach
from dragoman.lens.inspection_types import (
    AttentionKind,
    AttentionMap,
    BeamNode,
    BeamTree,
    Inspection,
    NodeStatus,
    TokenAlternative,
)
from dragoman.lens.position_encodings import MECHANISM_LABELS, PositionEncoding
from dragoman.lens.svg import join, tag

HEAD_SIZE, HEADS_PER_ROW = 150, 8  # pixels of one attention head among several
TABLE_CELLS = 12  # width of a token in a table, in terminal cells
SCORE_CHARACTER_WIDTH = 6.6  # pixels of a character of the scores in a node, which have a smaller font
NODE_CELLS = 14  # width of a token in a node of the beam tree, in terminal cells
ROW_STEP, NODE_HEIGHT, COLUMN_GAP, TREE_TOP = 44, 36, 34, 92  # pixels of the beam tree
MAP_SIZE, MAPS_PER_ROW = 320, 4  # pixels of one map of position encodings
MAX_BIAS_HEADS = 8  # whose position biases are drawn
MAX_MAP_CELLS = 96  # rows and columns of a map that are drawn
ATTENTION_LABELS: dict[AttentionKind, str] = {
    "cross": "Cross-attention from target to source",
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
}
#: CSS class, opacity of its fill and legend of each status
STATUS_STYLES: dict[NodeStatus, tuple[str, str | None, str]] = {
    "kept": ("box", None, "kept: continued"),
    "finished": ("finished", "0.28", "finished: ends in EOS"),
    "pruned": ("pruned", None, "pruned"),
    "truncated": ("cold", "0.28", "truncated at the length limit"),
}
#: titles of the curves of `GradientReach`
REACH_TITLES = {
    "encoder": "Gradient of encoder states by source tokens",
    "source": "Gradient of target tokens by source tokens",
    "target": "Gradient of target tokens by earlier target tokens",
}


# ---- attention


def select_attention(
    inspection: Inspection, kind: AttentionKind | None = None, layer: int | None = None, head: int | None = None
) -> list[AttentionMap]:
    """Return the attention maps of an inspection with this kind (encoder, decoder, cross) and layer number, from 1.

    None selects all kinds or layers. With `head`, from 1, the maps are reduced to that head; None keeps all heads. A
    selection without maps, or a head that one of the selected layers lacks, is a UserError.
    """
    if not inspection.attention:
        raise UserError(
            f"there is no attention to show, because the system {inspection.system} has no attention layers: use a run "
            "of a system with attention, such as transformer"
        )
    selected = [
        attention
        for attention in inspection.attention
        if kind in (None, attention.kind) and layer in (None, attention.layer)
    ]
    if not selected:
        kinds_and_layers = ", ".join(f"{attention.kind} {attention.layer}" for attention in inspection.attention)
        raise UserError(
            f"the system {inspection.system} has no attention of the requested kind and layer: choose one of "
            f"{kinds_and_layers}"
        )
    if head is None:
        return selected
    num_heads = min(len(attention.weights) for attention in selected)  # that all selected layers have
    if not 1 <= head <= num_heads:
        raise UserError(f"there is no attention head {head}: choose one from 1 to {num_heads}")
    return [
        replace(attention, weights=attention.weights[head - 1 : head], entropy=attention.entropy[head - 1 : head])
        for attention in selected
    ]


def attention_figure(inspection: Inspection, selected: Sequence[AttentionMap], head: int | None = None) -> str:
    """Return attention maps of an inspection as SVG: one head as a labeled heatmap, several as small maps side by side.

    `selected` are maps (H T S) from `select_attention`, one per layer. If they were reduced to one head, `head` is its
    number, from 1. Small maps are grouped by kind of attention; `top` is where the next row begins, in pixels.
    """
    if len(selected) == 1 and len(selected[0].weights) == 1:
        attention = selected[0]
        suffix = "" if head is None else f", head {head}"
        title = f"{ATTENTION_LABELS[attention.kind]}, layer {attention.layer}{suffix}"
        return heatmap(attention.weights[0], attention.queries, attention.keys, title)
    parts: list[str] = [svg.heading(f"Attention of {inspection.system}", _sentence(inspection))]
    top, columns = 62.0, 1
    for kind, kind_label in ATTENTION_LABELS.items():
        layers = [attention for attention in selected if attention.kind == kind]
        if not layers:
            continue
        parts.append(svg.text(4, top, kind_label, css_class="bold"))
        top += 12
        for attention in layers:
            for index in range(len(attention.weights)):
                row, column = divmod(index, HEADS_PER_ROW)
                x, y = 4 + column * (HEAD_SIZE + 18), top + row * (HEAD_SIZE + 34) + 16
                parts.append(_head(x, y, attention, index=index, number=index + 1 if head is None else head))
            columns = max(columns, min(HEADS_PER_ROW, len(attention.weights)))
            top += math.ceil(len(attention.weights) / HEADS_PER_ROW) * (HEAD_SIZE + 34)  # rows of heads
        top += 22
    note = "rows are queries, columns are keys; bits: entropy of the weights, averaged over rows"
    parts.append(svg.text(4, top, note, css_class="note"))
    width = max(480, 4 + columns * (HEAD_SIZE + 18), svg.CHARACTER_WIDTH * len(note))
    description = [
        f"{ATTENTION_LABELS[attention.kind]}, layer {attention.layer}: {len(attention.weights)} heads"
        for attention in selected
    ]
    return svg.figure(width, top + 14, "Attention of every head", "; ".join(description), parts)


def _head(x: float, y: float, attention: AttentionMap, index: int, number: int) -> Markup:
    """Return the weights (T S) of one head as a small SVG map at (x, y), in pixels; tooltips name the tokens.

    `index` is the index of the head in `attention.weights`, `number` its number in the title.
    """
    weights = attention.weights[index].tolist()
    size = HEAD_SIZE / max(len(weights), len(weights[0]))

    def tooltip(i: int, j: int) -> str:
        """Describe the weight of query i and key j."""
        return f"“{attention.queries[i]}” ← “{attention.keys[j]}”: {100 * weights[i][j]:.0f} %"

    title = f"layer {attention.layer}, head {number}: {attention.entropy[index]:.1f} bits"
    return join(svg.text(x, y - 5, title, css_class="number"), svg.matrix(x, y, weights, (size, size), tooltip))


# ---- tables of tokens


def alternatives_figure(inspection: Inspection) -> str:
    """Return an SVG table with a row for each target position: the most probable tokens with their probabilities."""
    rows = [step.alternatives for step in inspection.steps]  # most probable first
    column_titles = ["most probable", *(f"{n}." for n in range(2, max(map(len, rows), default=0) + 1))]
    return _token_table("Most probable tokens at every position", inspection, column_titles, rows)


def layers_figure(inspection: Inspection) -> str:
    """Return an SVG table (the logit lens): a row for each target position, a column for each layer.

    A cell has the most probable token if the output layer is applied to the states after that layer.
    """
    # the first of the alternatives is the most probable token
    rows = [[layer.steps[t].alternatives[0] for layer in inspection.layers] for t in range(len(inspection.steps))]
    return _token_table("Predictions by layer", inspection, [layer.name for layer in inspection.layers], rows)


def _token_table(
    title: str, inspection: Inspection, column_titles: Sequence[str], rows: Sequence[Sequence[TokenAlternative]]
) -> str:
    """Return an SVG table of tokens with their probabilities: a row for each target position of an inspection.

    A cell with the token that the translation has at this position is framed; labels are cut to 24 characters. All
    sizes and coordinates are in pixels.
    """
    note = _sentence(inspection)
    labels = [f"{step.token}  {100 * step.probability:.0f} %" for step in inspection.steps]
    left, column_width, row_height = 22 + svg.label_width(labels, 24), svg.CHARACTER_WIDTH * TABLE_CELLS + 52, 28
    parts: list[str] = [svg.heading(title, note)]
    parts += [svg.text(left + column_width * n + 6, 66, name, css_class="note") for n, name in enumerate(column_titles)]
    for i, (step, row) in enumerate(zip(inspection.steps, rows)):
        y = 74 + row_height * i
        parts.append(svg.label(labels[i], 24, x=left - 10, y=y + 18, text_anchor="end"))
        for j, token in enumerate(row):
            box = (left + column_width * j, y, column_width - 4, row_height - 4)
            parts.append(_token_cell(*box, token))
            if token.token_id == step.token_id:
                parts.append(svg.rect(*box, class_="box", rx=3))
    height = 74 + row_height * len(rows) + 26
    parts.append(svg.text(4, height - 8, "framed: the token of the translation", css_class="note"))
    description = "; ".join(f"{name}: {', '.join(token.token for token in row)}" for name, row in zip(labels, rows))
    width = max(left + column_width * len(column_titles) + 8, svg.CHARACTER_WIDTH * len(note), 380)
    return svg.figure(width, height, title, description, parts)


def _token_cell(x: float, y: float, width: float, height: float, token: TokenAlternative) -> Markup:
    """Return an SVG table cell at (x, y), in pixels: a token and its probability in percent.

    The opacity of the background is the probability.
    """
    css_class, baseline = svg.number_class(token.probability), y + height / 2 + 4
    percent = "<1" if 0 < token.probability < 0.01 else f"{100 * token.probability:.0f}"
    return join(
        svg.heat_cell(x, y, width, height, token.probability, f"{token.token}: {100 * token.probability:.2f} %"),
        svg.text(x + 6, baseline, svg.shorten(token.token, TABLE_CELLS), css_class),
        svg.text(x + width - 6, baseline, percent, css_class, "end"),
    )


def _sentence(inspection: Inspection) -> str:
    """Return the shortened texts of an inspection in one line: “source → target”, or the one that it has."""
    texts = [side.text for side in (inspection.source, inspection.target) if side is not None and side.text]
    return " → ".join(svg.shorten(text, 70) for text in texts)


# ---- the beam tree


def beam_tree_figure(tree: BeamTree, title: str = "Beam search, step by step", note: str = "") -> str:
    """Return a beam search as an SVG tree: a column of hypotheses for each step, best on top, and edges from parents.

    A node is a hypothesis, which adds one token to its parent; the path to the best one is highlighted. `note` is a
    line below the title. All sizes and coordinates are in pixels.
    """
    nodes = tree.nodes[1:]  # without the root, which has no token
    scores_width = SCORE_CHARACTER_WIDTH * max((len(_node_scores(node)) for node in nodes), default=0)
    node_width = max(svg.label_width([node.token for node in nodes], NODE_CELLS), scores_width) + 16
    columns: dict[int, list[BeamNode]] = {}
    for node in sorted(nodes, key=lambda node: -node.score):
        columns.setdefault(node.step, []).append(node)
    parts: list[str] = [svg.heading(title, note)]
    # (x, y) of each node, by its index; the root, 0, is not drawn: its edges begin at the left margin
    position: dict[int, tuple[float, float]] = {0: (34 - node_width, TREE_TOP)}
    for step, column in columns.items():
        x = 44 + (step - 1) * (node_width + COLUMN_GAP)
        position |= {node.index: (x, TREE_TOP + ROW_STEP * n) for n, node in enumerate(column)}
        parts.append(svg.text(x, TREE_TOP - 12, str(step), css_class="note"))
    best = {node.index for node in tree.path(tree.best)}
    for node in sorted(nodes, key=lambda node: node.index in best):  # the best path lies on top
        (x, y), (to_x, to_y) = position[node.parent or 0], position[node.index]
        css_class, middle = "best" if node.index in best else "edge", NODE_HEIGHT / 2
        parts.append(svg.line(x + node_width, y + middle, to_x, to_y + middle, class_=css_class))
    parts += [_node(node, *position[node.index], width=node_width, best=node.index in best) for node in nodes]
    bottom = TREE_TOP + ROW_STEP * max(map(len, columns.values()), default=1) + 10
    parts.append(_tree_legend(bottom))
    tokens = " ".join(node.token for node in tree.path(tree.best))
    description = f"{len(nodes)} hypotheses in {len(columns)} steps; the best: {tokens}, log p {tree.best.score:.3f}"
    width = max(44 + len(columns) * (node_width + COLUMN_GAP), 760, svg.CHARACTER_WIDTH * len(note))
    return svg.figure(width, bottom + 50, title, description, parts)


def _node(node: BeamNode, x: float, y: float, width: float, best: bool) -> Markup:
    """Return a node of the beam tree as an SVG box at (x, y), in pixels: last token, and log p → normalized by length.

    `best`: highlight it, because it lies on the path to the best hypothesis. The CSS class shows its status, such as
    "pruned"; `rank` is set for results of the search only.
    """
    css_class, opacity, _ = STATUS_STYLES[node.status]
    tooltip = (
        f"{node.status}: p {100 * math.exp(node.log_probability):.1f} % of this token, log p {node.score:.4f}, "
        f"normalized {node.normalized_score:.4f}"
    )
    rank = f"{node.rank}. " if node.rank else ""
    box = (x, y, width, NODE_HEIGHT)
    return join(
        svg.rect(*box, class_="strong", rx=5),  # hides the edges behind the text
        svg.rect(*box, tag("title", tooltip), class_=css_class, fill_opacity=opacity, rx=5),
        *([svg.rect(*box, class_="best", rx=5)] if best else []),
        svg.text(x + 7, y + 15, rank + svg.shorten(node.token, NODE_CELLS), "bold" if best else None),
        svg.text(x + 7, y + 29, _node_scores(node), css_class="number"),
    )


def _node_scores(node: BeamNode) -> str:
    """Return what a node shows below its token: log p of the hypothesis, and its normalized score."""
    return f"{node.score:.2f} → {node.normalized_score:.2f}"


def _tree_legend(y: float) -> Markup:
    """Return the SVG legend of a beam tree, `y` pixels from the top: the style of each status, and the two scores."""
    parts, x = [], 4.0
    for css_class, opacity, description in STATUS_STYLES.values():
        parts.append(svg.rect(x, y, 22, 16, class_=css_class, fill_opacity=opacity, rx=4))
        parts.append(svg.text(x + 28, y + 13, description, css_class="note"))
        x += 28 + svg.CHARACTER_WIDTH * len(description) * 0.9 + 16
    note = "below a token: log p of the hypothesis → after length normalization"
    return join(*parts, svg.text(4, y + 36, note, css_class="note"))


# ---- properties of a model: position encodings and the reach of gradients


def positions_figure(positions: PositionEncoding) -> str:
    """Return a position encoding as SVG color maps: vectors and their cosine similarity, or the bias of each head.

    `encoding` (P × width), `similarity` (P × P) and `bias` (heads × P × P) are those of P positions, or of P distances
    if there is a vector for each distance ("relative_keys"). Of maps with more than MAX_MAP_CELLS rows or columns, only
    every n-th is drawn, and only the biases of the first MAX_BIAS_HEADS heads. All sizes and coordinates are in pixels.
    """
    maps: list[tuple[str, Tensor]] = []
    if positions.encoding is not None and positions.similarity is not None:
        unit = "distance" if positions.mechanism == "relative_keys" else "position"
        maps = [(f"rows: {unit}s, columns: dimensions", positions.encoding)]
        maps += [(f"cosine similarity of {unit}s", positions.similarity)]
    elif positions.bias is not None:
        maps = [(f"head {n}: query by key", bias) for n, bias in enumerate(positions.bias[:MAX_BIAS_HEADS], 1)]
    title, mechanism = f"Positions: {positions.name}", MECHANISM_LABELS[positions.mechanism]
    parts: list[str] = [svg.heading(title, f"{mechanism}; {positions.modules_label}")]
    first, last = positions.labels[0], positions.labels[-1]  # numbers of positions, or distances
    ends = f"from {first} at the top to {last}"
    for n, (name, values) in enumerate(maps):
        x, y = 4 + (n % MAPS_PER_ROW) * (MAP_SIZE + 28), 78 + n // MAPS_PER_ROW * (MAP_SIZE + 60)
        row_step, column_step = (math.ceil(size / MAX_MAP_CELLS) for size in values.shape)
        shown = values[::row_step, ::column_step]
        relative = (shown / (float(shown.abs().max()) or 1.0)).tolist()  # from −1 to 1; all 0 stay 0
        cell_size = MAP_SIZE / shown.shape[1], MAP_SIZE / shown.shape[0]
        parts += [svg.text(x, y - 6, name, css_class="note"), svg.matrix(x, y, relative, cell_size)]
        parts.append(svg.text(x, y + MAP_SIZE + 15, ends, css_class="number"))
    height = 78 + math.ceil(len(maps) / MAPS_PER_ROW) * (MAP_SIZE + 60)
    note = "blue: positive, orange: negative; the strongest color is the largest absolute value of the map"
    parts.append(svg.text(4, height - 8, note, css_class="note"))
    width = max(680, min(MAPS_PER_ROW, len(maps)) * (MAP_SIZE + 28))
    return svg.figure(width, height, title, f"{positions.name}, {mechanism}, {len(positions.labels)} positions", parts)


def gradients_figure(measured: Sequence[GradientReach], component: str) -> str:
    """Return an SVG line chart of gradient norms by the distance of two tokens, with a curve for each measured system.

    Norms are relative to that at the smallest distance. `component` selects the curves: "encoder", "source" or
    "target". Systems without this component have no curve; if none has it, that is a UserError.
    """
    series: dict[str, list[tuple[float, float]]] = {}
    systems = [reach.system for reach in measured]
    for n, reach in enumerate(measured):
        if component in reach.curves:
            num_earlier = systems[:n].count(reach.system)  # a number distinguishes runs of one system
            name = f"{reach.system} {num_earlier + 1}" if num_earlier else reach.system
            series[name] = [(point.distance, point.relative) for point in reach.curves[component]]
    if not series:
        raise UserError(
            f"gradients of the {component} cannot be drawn, because the system {systems[0]} has no {component}: choose "
            "another --component"
        )
    title = REACH_TITLES[component]
    return line_chart(series, title, "distance in tokens", "relative to the nearest token", log=True)
