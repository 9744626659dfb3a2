"""The beam as a picture: a column for each step, in it every hypothesis that was looked at, best at the top."""

from __future__ import annotations

from itertools import groupby

from dragoman.lens.inspection_types import BeamNode, BeamTree
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.svg import CHARACTER_WIDTH, heading, label_width, px, shorten, svg

DOWN, TALL, BETWEEN = 44, 36, 34  # pixels from node to node, of a node, and from column to column
LETTERS = 14
LEGEND = "under a word: log p of all words so far → after length normalisation"
FATES = {
    "kept": ("box", "kept: it goes on"),
    "finished": ("done", "finished: it wrote the end"),
    "pruned": ("lost", "pruned"),
    "truncated": ("cold", "cut off by the length limit"),
}


def beam_tree_figure(tree: BeamTree, title: str = "The beam, step by step", note: str = "") -> str:
    """Edges lead from a hypothesis to its continuations; the way to the best one is strong."""
    nodes = tree.nodes[1:]
    wide = max(96.0, label_width([node.token for node in nodes], LETTERS) + 16)
    columns = {
        step: sorted(some, key=lambda node: -node.score) for step, some in groupby(nodes, key=lambda node: node.step)
    }
    place = {0: (4.0, 92.0)}
    for step, some in columns.items():
        for n, node in enumerate(some):
            place[node.index] = (44 + (step - 1) * (wide + BETWEEN), 92 + DOWN * n)
    best = {node.index for node in tree.path(tree.best)}
    parts: list[str] = [heading(title, note)]
    parts += [
        tag("text", str(step), x=px(44 + (step - 1) * (wide + BETWEEN)), y=80, class_="faint") for step in columns
    ]
    edges = sorted(nodes, key=lambda node: node.index in best)  # the best way lies on top of the others
    parts += [_edge(node, place, wide, node.index in best) for node in edges]
    parts += [_node(node, *place[node.index], wide, node.index in best) for node in nodes]
    tallest = max(map(len, columns.values()), default=1)
    bottom = 92 + DOWN * tallest + 10
    width = max(44 + len(columns) * (wide + BETWEEN), 760, CHARACTER_WIDTH * len(note))
    parts.append(_legend(bottom))
    words = " ".join(node.token for node in tree.path(tree.best))
    told = f"{len(nodes)} hypotheses in {len(columns)} steps; the best: {words}, log p {tree.best.score:.3f}"
    return svg(width, bottom + 50, title, told, parts)


def _edge(node: BeamNode, place: dict[int, tuple[float, float]], wide: float, best: bool) -> Markup:
    x, y = place[node.parent or 0]
    x = x + wide if node.parent else 34
    to_x, to_y = place[node.index]
    line = {"x1": px(x), "y1": px(y + TALL / 2), "x2": px(to_x), "y2": px(to_y + TALL / 2)}
    return tag("line", class_="way" if best else "edge", **line)


def _node(node: BeamNode, x: float, y: float, wide: float, best: bool) -> Markup:
    kind = FATES[node.status][0]
    box = {"x": px(x), "y": px(y), "width": px(wide), "height": TALL, "rx": 5}
    filled = kind in ("done", "cold")
    scores = f"{node.score:.2f} → {node.normalized_score:.2f}"
    said = f"{node.status}: p {100 * _p(node):.1f} % for this word, log p {node.score:.4f}, normalised {node.normalized_score:.4f}"
    rank = f"{node.rank}. " if node.rank else ""
    drawn = [
        tag("rect", class_="strong", **box),  # so that no edge runs through the words
        tag("rect", tag("title", said), class_=kind, fill_opacity=0.28 if filled else None, **box),
    ]
    if best:
        drawn.append(tag("rect", class_="way", **box))
    return join(
        *drawn,
        tag("text", rank + shorten(node.token, LETTERS), x=px(x + 7), y=px(y + 15), class_="bold" if best else None),
        tag("text", scores, x=px(x + 7), y=px(y + 29), class_="figure"),
    )


def _p(node: BeamNode) -> float:
    return 2.718281828459045**node.log_probability


def _legend(y: float) -> Markup:
    parts, x = [], 4.0
    for kind, label in FATES.values():
        filled = 0.28 if kind in ("done", "cold") else None
        parts.append(tag("rect", x=px(x), y=px(y), width=22, height=16, rx=4, class_=kind, fill_opacity=filled))
        parts.append(tag("text", label, x=px(x + 28), y=px(y + 13), class_="faint"))
        x += 28 + CHARACTER_WIDTH * len(label) * 0.9 + 16
    return join(*parts, tag("text", LEGEND, x=4, y=px(y + 36), class_="faint"))
