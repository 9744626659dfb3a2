"""Alignments, inspections, position encodings and gradients as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from rich.cells import cell_len, set_cell_size
from torch import Tensor

from dragoman.evaluation import Link
from dragoman.lens.gradients import GradientReach
from dragoman.lens.inspection_types import AttentionMap, BeamNode, BeamTree, ExpertMap, Inspection
from dragoman.lens.position_encodings import MECHANISM_LABELS, PositionEncoding
from dragoman.lens.svg import one_line, shorten
from dragoman.lens.walk import Walk
from dragoman.run import SentenceAttention
from dragoman.text import alignment_words

LINE_WIDTH = 100  # terminal cells
MAX_WORD_CELLS = 20
MAX_BAR_CELLS = 24
MAX_NUMBERS = 8  # of a vector in a walk
SHADES = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.05, "░"), (0.0, "·"))  # minimum weight and character
LEGEND = "attention weight:  · below 5 %  ░ from 5 %  ▒ from 25 %  ▓ from 50 %  █ from 75 %"
SIMILARITY_DISTANCES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
BIAS_DISTANCES = (-16, -8, -4, -2, -1, 0, 1, 2, 4, 8)


# ---- alignments and attention of a sentence pair


def alignment_lines(source: str, target: str, links: Iterable[Link], width: int = LINE_WIDTH) -> list[str]:
    """Return the source, and each target word above its aligned source words and their positions in the source.

    source     I have seen the dog.
    target     Ich  habe  den  Hund  gesehen.
    from       I    have  the  dog.  seen
    word       1    2     4    5     3
    """
    source_words, target_words = alignment_words(source), alignment_words(target)
    sorted_links = [(i, j) for i, j in sorted(set(links)) if i < len(source_words)]
    aligned = [[i for i, link_target in sorted_links if link_target == j] for j in range(len(target_words))]
    lines = [f"source     {one_line(source)}"]
    if not any(aligned):
        return [*lines, f"target     {one_line(target)}"]
    names = [" ".join(source_words[i] for i in indices) or "–" for indices in aligned]
    positions = [" ".join(str(i + 1) for i in indices) or "–" for indices in aligned]
    return lines + column_lines(["target", "from", "word"], [target_words, names, positions], width, margin=11)


def attention_heatmap_lines(attention: SentenceAttention, width: int = LINE_WIDTH) -> list[str]:
    """Return the cross-attention as shaded blocks: a row for each target token, a column for each source token."""
    if attention.cross is None:
        return ["this system has no attention"]
    return [*heatmap_lines(attention.cross, attention.target, attention.source, width), LEGEND]


def heatmap_lines(weights: Tensor, rows: Sequence[str], columns: Sequence[str], width: int = LINE_WIDTH) -> list[str]:
    """Return attention weights (T, S) as shaded blocks, wrapped at `width` terminal cells.

    `rows` (T) are the labels of the target, `columns` (S) those of the source.
    """
    cells = [
        [name, *(_shade(weight) * max(2, cell_len(shorten(name, MAX_WORD_CELLS))) for weight in column)]
        for name, column in zip(columns, weights.T.tolist())
    ]
    return [*column_lines(["", *rows], list(zip(*cells)), width), ""]


def column_lines(labels: Sequence[str], rows: Sequence[Sequence[str]], width: int, margin: int = 0) -> list[str]:
    """Align rows of cells in columns, after their labels, which take at least `margin` terminal cells.

    Columns that do not fit `width` follow below, after an empty line.
    """
    labels = [shorten(label, MAX_WORD_CELLS) for label in labels]
    margin = max(margin, *(cell_len(label) + 2 for label in labels))
    cells = [[shorten(cell, MAX_WORD_CELLS) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) + 2 for column in zip(*cells)]
    lines: list[str] = []
    begin = 0
    while begin < len(widths):
        end = begin + 1
        while end < len(widths) and margin + sum(widths[begin : end + 1]) - 2 <= width:
            end += 1
        lines += [""] * (begin > 0)
        for label, row in zip(labels, cells):
            padded = map(set_cell_size, [label, *row[begin:end]], [margin, *widths[begin:end]])
            lines.append("".join(padded).rstrip())
        begin = end
    return lines


def _shade(weight: float) -> str:
    """Return the character that shows an attention weight."""
    return next((shade for minimum, shade in SHADES if weight >= minimum), SHADES[-1][1])


# ---- inspections


def entropy_lines(selected: Sequence[AttentionMap]) -> list[str]:
    """Return the entropy of attention: a row for each layer, a column for each head."""
    heads = range(1, max(len(attention.entropy) for attention in selected) + 1)
    return [
        "entropy of each head in bits (0: one token has all attention)",
        " " * 18 + "".join(f"{head:>7}" for head in heads),
        *(
            f"{f'{attention.kind} {attention.layer}':18}" + "".join(f"{bits:7.2f}" for bits in attention.entropy)
            for attention in selected
        ),
    ]


def attention_lines(selected: Sequence[AttentionMap], width: int = LINE_WIDTH) -> list[str]:
    """Return each attention map, averaged over heads, as shaded blocks."""
    lines: list[str] = []
    for attention in selected:
        heads = f", mean of {len(attention.weights)} heads" if len(attention.weights) > 1 else ""
        lines += [f"{attention.kind} {attention.layer}{heads}"]
        lines += heatmap_lines(attention.weights.mean(0), attention.queries, attention.keys, width)
    return [*lines, LEGEND]


def expert_lines(experts: Sequence[ExpertMap]) -> list[str]:
    """Return for each mixture of experts the tokens with their experts, counted from 1, and gates, largest first."""
    lines: list[str] = []
    for layer in experts:
        width = max(cell_len(_shortened(token)) for token in layer.tokens) + 2
        lines.append(f"{layer.layer}, {layer.gates.shape[-1]} experts")
        for token, gates in zip(layer.tokens, layer.gates.tolist()):
            selected = sorted((-gate, number) for number, gate in enumerate(gates, 1) if gate > 0)
            shown = "  ".join(f"{number} ({_percent(-gate)})" for gate, number in selected)
            lines.append(f"  {set_cell_size(_shortened(token), width)}{shown}")
        lines.append("")
    return lines[:-1]


def alternative_lines(inspection: Inspection) -> list[str]:
    """Return a line for each token: its probability, the most probable alternatives, and its rank if not first.

    Models that can copy also show p_gen, the probability that the next token was generated and not copied.
    """
    width = max([cell_len(_shortened(step.token)) for step in inspection.steps], default=0) + 2
    shown_probs = [f"  p_gen {_percent(p_gen):>6}" for p_gen in inspection.generation_probs]
    lines = []
    for step, p_gen in zip(inspection.steps, shown_probs or repeat("")):
        others = ", ".join(
            f"{_shortened(other.token)} {_percent(other.probability)}"
            for other in step.alternatives
            if other.token_id != step.token_id
        )
        rank = f"  rank {step.rank}" if step.rank > 1 else ""
        bar = set_cell_size("█" * round(MAX_BAR_CELLS / 2 * step.probability), MAX_BAR_CELLS // 2)
        probability = f"{_percent(step.probability):>6}{p_gen}"
        lines.append(f"{set_cell_size(_shortened(step.token), width)}{probability}  {bar}  {others}{rank}".rstrip())
    limit = "" if inspection.finished else ", truncated at the length limit"
    return [*lines, "", f"log p {inspection.score:.3f}{limit}"]


def layer_lines(inspection: Inspection, width: int = LINE_WIDTH) -> list[str]:
    """Return a table of the most probable token after each layer with its probability; ✓: it is the target's token."""
    rows = [[layer.name for layer in inspection.layers]]
    for t, step in enumerate(inspection.steps):
        best = [layer.steps[t].alternatives[0] for layer in inspection.layers]
        marks = [" ✓" * (token.token_id == step.token_id) for token in best]
        rows.append([f"{shorten(token.token, 14)} {_percent(token.probability)}{ok}" for token, ok in zip(best, marks)])
    return column_lines(["target", *(step.token for step in inspection.steps)], rows, width)


def walk_lines(walk: Walk) -> list[str]:
    """Return the steps of a walk through a model: name, formula, explanation and the first numbers of each."""
    lines, place = [f"{' '.join(walk.inputs)} → ?   (head {walk.head} of {walk.num_heads})"], ""
    for step in walk.steps:
        if step.place != place:
            place = step.place
            lines += ["", place]
        size = " × ".join(map(str, step.values.shape))
        lines += [f"  {step.name}: {step.formula}  ({size})", f"    {step.explanation}"]
        if step.values.dim() == 1 and step.keys:
            numbers = (f"{one_line(label)} {value:.3f}" for label, value in zip(step.key_labels, step.values.tolist()))
            lines.append(f"    {'  '.join(numbers)}")
        else:
            first = step.values.flatten(0, -1)[:MAX_NUMBERS].tolist()
            more = " …" if step.values.numel() > MAX_NUMBERS else ""
            lines.append(f"    {' '.join(f'{value:.3f}' for value in first)}{more}")
    best = (f"{one_line(token.token)} {_percent(token.probability)}" for token in walk.candidates[:MAX_NUMBERS])
    return [*lines, "", "probabilities of the next token", f"  {'  '.join(best)}"]


def beam_tree_lines(tree: BeamTree, pruned: bool = False) -> list[str]:
    """Return the beam as a tree; tokens up to the next branch share a line.

    Leaves show log p before and after length normalization, and a star marks the best. `pruned` includes hypotheses
    that were pruned immediately.
    """
    children = tree.children()

    def visible_children(node: BeamNode) -> list[BeamNode]:
        """Return the continuations of a hypothesis that are shown."""
        return [child for child in children.get(node.index, []) if pruned or child.status != "pruned"]

    def branches(node: BeamNode, indent: str) -> Iterator[str]:
        """Yield the lines of all hypotheses that continue a node."""
        following = visible_children(node)
        for n, child in enumerate(following):
            is_last = n == len(following) - 1
            tokens = [child.token]
            while len(next_nodes := visible_children(child)) == 1:
                child = next_nodes[0]
                tokens.append(child.token)
            score = "" if next_nodes else f"   {child.score:.3f} → {child.normalized_score:.3f}  {_outcome(child)}"
            yield f"{indent}{'└ ' if is_last else '├ '}{one_line(' '.join(tokens))}{score}".rstrip()
            yield from branches(child, indent + ("  " if is_last else "│ "))

    num_pruned = sum(node.status == "pruned" for node in tree.nodes)
    hidden = "" if pruned else " and not shown (--pruned)"
    return [
        *branches(tree.nodes[0], ""),
        "",
        "log p of the hypothesis → after length normalization; ★ is the translation",
        f"{len(tree.nodes) - 1} hypotheses, {num_pruned} of them pruned at once{hidden}",
    ]


def _outcome(node: BeamNode) -> str:
    """Return what became of a hypothesis, given by its last node: its rank (★ for the best) and its status."""
    rank = "★ " if node.rank == 1 else f"{node.rank}. " if node.rank else ""
    return rank + ("given up" if node.status == "kept" else node.status)


# ---- models


def position_lines(encodings: Sequence[PositionEncoding]) -> list[str]:
    """Return lines with the mechanism of each position encoding, and cosine similarities or biases by distance.

    `labels` has one label per position; `similarity` and the bias of each head are matrices, position × position.
    """
    if not encodings:
        return ["this system has no position encodings: recurrence or convolution encode the order, if anything does"]
    lines = []
    for positions in encodings:
        lines.append(f"{positions.name}: {MECHANISM_LABELS[positions.mechanism]}  ({positions.modules_label})")
        middle, last = len(positions.labels) // 2, len(positions.labels)  # distances are counted from the middle
        if positions.similarity is not None:
            row = positions.similarity[middle].tolist()
            shown = {str(d): row[middle + d] for d in SIMILARITY_DISTANCES if middle + d < last}
            lines += ["  cosine similarity by distance", *_bars(shown)]
        elif positions.bias is not None:
            for head, bias in enumerate(positions.bias, 1):
                row = bias[middle].tolist()
                values = [f"{d:+d}: {row[middle + d]:.2f}" for d in BIAS_DISTANCES if 0 <= middle + d < last]
                lines.append(f"  head {head}  {', '.join(values)}")
        lines.append("")
    return lines[:-1]


def gradient_lines(reach: GradientReach) -> list[str]:
    """Return gradient norms at some distances, relative to the nearest token."""
    lines = []
    for name, curve in reach.curves.items():
        # the first distances, then every fourth, and the last
        points = [point for n, point in enumerate(curve) if n < 8 or n % 4 == 0 or n == len(curve) - 1]
        bars = _bars({str(point.distance): point.relative for point in points})
        lines += [f"{name}: by distance in tokens", *bars, ""]
    return lines[:-1]


def _bars(values: dict[str, float]) -> list[str]:
    """Return a line with a bar for each named value; negative ones have no bar."""
    largest = max((abs(value) for value in values.values()), default=1.0) or 1.0
    return [
        f"  {name:>4}  {value:8.4f}  {'█' * round(MAX_BAR_CELLS * max(0.0, value) / largest)}".rstrip()
        for name, value in values.items()
    ]


def _shortened(token: str) -> str:
    """Shorten a token to MAX_WORD_CELLS terminal cells."""
    return shorten(token, MAX_WORD_CELLS)


def _percent(probability: float) -> str:
    """Format a probability in percent: 12.5%."""
    return f"{100 * probability:.1f}%"
