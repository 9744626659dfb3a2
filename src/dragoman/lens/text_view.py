"""What the lens sees, as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from dragoman.lens.gradients import GradientReach
from dragoman.lens.inspection_types import AttentionMap, BeamNode, BeamTree, Inspection
from dragoman.lens.position_encodings import MECHANISM_LABELS, PositionEncoding
from dragoman.lens.text_heatmap import LEGEND, heatmap_lines, one_line, shorten_cell, wrap_columns

WIDTH = 100
BAR = 24  # cells of the longest bar
MARKS = {"kept": "", "finished": "finished", "pruned": "pruned", "truncated": "cut off"}


def entropy_lines(found: Sequence[AttentionMap]) -> list[str]:
    """How widely each head looks: a row for each layer, a column for each head."""
    heads = max(len(looks.entropy) for looks in found)
    lines = [
        "bits a head spreads its look over (0: one piece alone)",
        " " * 18 + "".join(f"{n:>7}" for n in range(1, heads + 1)),
    ]
    for looks in found:
        lines.append(f"{looks.kind + ' ' + str(looks.layer):18}" + "".join(f"{bits:7.2f}" for bits in looks.entropy))
    return lines


def attention_lines(found: Sequence[AttentionMap], width: int = WIDTH) -> list[str]:
    """Each attention as blocks, the mean of its heads: a row for each query, a column for each key."""
    lines: list[str] = []
    for looks in found:
        heads = f", mean of {len(looks.weights)} heads" if len(looks.weights) > 1 else ""
        lines += [f"{looks.kind} {looks.layer}{heads}"]
        lines += heatmap_lines(looks.weights.mean(0), looks.queries, looks.keys, width)
    return [*lines, LEGEND]


def alternative_lines(seen: Inspection) -> list[str]:
    """A line for each piece: how likely it was, its rank where it was not the likeliest, and what else was likely."""
    wide = max([cell_len(shorten_cell(step.token)) for step in seen.steps], default=0) + 2
    lines = []
    for step in seen.steps:
        others = [
            f"{shorten_cell(one.token)} {_percent(one.probability)}"
            for one in step.alternatives
            if one.token_id != step.token_id
        ]
        rank = f"  rank {step.rank}" if step.rank > 1 else ""
        bar = set_cell_size("█" * round(BAR / 2 * step.probability), BAR // 2)
        lines.append(
            f"{set_cell_size(shorten_cell(step.token), wide)}{_percent(step.probability):>6}  {bar}  "
            f"{', '.join(others)}{rank}".rstrip()
        )
    return [*lines, "", f"log p {seen.score:.3f}" + ("" if seen.finished else ", cut off at the length limit")]


def layer_lines(seen: Inspection, width: int = WIDTH) -> list[str]:
    """A column for each layer: the likeliest piece if the stack ended there, and how likely; ✓ where it was written."""
    rows = [["written", *(layer.name for layer in seen.layers)]]
    for t, step in enumerate(seen.steps):
        row = [step.token]
        for layer in seen.layers:
            best = layer.steps[t].alternatives[0]
            row.append(
                f"{shorten_cell(best.token, 14)} {_percent(best.probability)}{' ✓' if best.token_id == step.token_id else ''}"
            )
        rows.append(row)
    names = rows[0][0], *(row[0] for row in rows[1:])
    margin = max(cell_len(shorten_cell(name)) for name in names) + 2
    lines: list[str] = []
    for block in wrap_columns([row[1:] for row in rows], width - margin):
        lines += [(set_cell_size(shorten_cell(name), margin) + line).rstrip() for name, line in zip(names, block)]
        lines.append("")
    return lines[:-1]


def beam_tree_lines(tree: BeamTree, pruned: bool = False) -> list[str]:
    """The beam as a tree that grows to the right and down; what never forks is written on one line.

    log p before and after length normalisation stand behind every hypothesis that ended; the best has a star.
    """
    children = tree.children()

    def going(node: BeamNode) -> list[BeamNode]:
        return [one for one in children.get(node.index, []) if pruned or one.status != "pruned"]

    def lines(node: BeamNode, before: str, branch: str) -> Iterator[str]:
        words = [node.token] if node.parent is not None else []
        while len(following := going(node)) == 1:
            node = following[0]
            words.append(node.token)
        text = one_line(" ".join(words))
        score = "" if following else f"   {node.score:.3f} → {node.normalized_score:.3f}  {_mark(node)}"
        yield f"{before}{branch}{text}{score}".rstrip()
        inner = before + {"├ ": "│ ", "└ ": "  ", "": ""}[branch]
        for n, one in enumerate(following):
            yield from lines(one, inner, "└ " if n == len(following) - 1 else "├ ")

    root = tree.nodes[0]
    first = going(root)
    found = [line for n, one in enumerate(first) for line in lines(one, "", "└ " if n == len(first) - 1 else "├ ")]
    dropped = sum(node.status == "pruned" for node in tree.nodes)
    note = f"{len(tree.nodes) - 1} hypotheses, {dropped} of them pruned at once" + (
        "" if pruned else " and not shown (--pruned)"
    )
    return [*found, "", "log p of all words → after length normalisation; ★ is the translation", note]


def _mark(node: BeamNode) -> str:
    best = "★ " if node.rank == 1 else f"{node.rank}. " if node.rank else ""
    return best + (MARKS[node.status] or "given up")


def position_lines(found: Sequence[PositionEncoding]) -> list[str]:
    """What each position part does, and how alike places are at some distances."""
    if not found:
        return ["no part of this system is told places: it knows order by recurrence or convolution"]
    lines = []
    for one in found:
        more = f" and {len(one.paths) - 1} alike" if len(one.paths) > 1 else ""
        lines += [f"{one.name}: {MECHANISM_LABELS[one.mechanism]}  ({one.paths[0]}{more})"]
        middle = len(one.labels) // 2
        if one.similarity is not None:
            row = one.similarity[middle].tolist()
            lines += [
                "  how alike, by distance",
                *_bars({str(d): row[middle + d] for d in _distances(middle, len(row))}),
            ]
        elif one.bias is not None:
            for head, bias in enumerate(one.bias, 1):
                row = bias[middle].tolist()
                shown = ", ".join(
                    f"{d:+d}: {row[middle + d]:.2f}"
                    for d in (-16, -8, -4, -2, -1, 0, 1, 2, 4, 8)
                    if 0 <= middle + d < len(row)
                )
                lines.append(f"  head {head}  {shown}")
        lines.append("")
    return lines[:-1]


def _distances(middle: int, count: int) -> list[int]:
    return [d for d in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if middle + d < count]


def gradient_lines(measured: GradientReach) -> list[str]:
    """How large a gradient still is at some distances, where the nearest counts as 1."""
    lines = []
    for name, curve in measured.curves.items():
        some = [point for n, point in enumerate(curve) if n < 8 or n % 4 == 0 or n == len(curve) - 1]
        lines += [f"{name}: by distance in pieces", *_bars({str(point.distance): point.relative for point in some}), ""]
    return lines[:-1]


def _bars(values: dict[str, float]) -> list[str]:
    most = max((abs(value) for value in values.values()), default=1.0) or 1.0
    return [
        f"  {name:>4}  {value:8.4f}  {'█' * round(BAR * max(0.0, value) / most)}".rstrip()
        for name, value in values.items()
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
