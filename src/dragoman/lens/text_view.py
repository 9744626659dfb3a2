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
MAX_WALK_NUMBERS = 8  # numbers that are shown of each step of a walk
SHADES = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.05, "░"), (0.0, "·"))  # smallest attention weight and character
LEGEND = "attention weight:  · below 5 %  ░ from 5 %  ▒ from 25 %  ▓ from 50 %  █ from 75 %"
#: distances in positions at which similarities and biases are shown
SIMILARITY_DISTANCES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
BIAS_DISTANCES = (-16, -8, -4, -2, -1, 0, 1, 2, 4, 8)


# ---- alignments and attention of a sentence pair


def alignment_lines(source: str, target: str, links: Iterable[Link], width: int = LINE_WIDTH) -> list[str]:
    """Return lines with the source, then columns: each target word, its aligned source words and their numbers.

    `links` are pairs (index of a source word, index of a target word), from 0; the numbers that are shown begin at 1.
    Columns that exceed `width` terminal cells are wrapped. Without links, only source and target are shown.

    source     I have seen the dog.
    target     Ich  habe  den  Hund  gesehen.
    from       I    have  the  dog.  seen
    word       1    2     4    5     3
    """
    source_words, target_words = alignment_words(source), alignment_words(target)
    sorted_links = [(i, j) for i, j in sorted(set(links)) if i < len(source_words)]
    # for each target word j, the indices of its source words
    aligned = [[i for i, target_index in sorted_links if target_index == j] for j in range(len(target_words))]
    lines = [f"source     {one_line(source)}"]
    if not any(aligned):
        return [*lines, f"target     {one_line(target)}"]
    names = [" ".join(source_words[i] for i in indices) or "–" for indices in aligned]
    numbers = [" ".join(str(i + 1) for i in indices) or "–" for indices in aligned]
    table = column_lines(["target", "from", "word"], [target_words, names, numbers], width, min_label_width=11)
    return lines + table


def attention_heatmap_lines(attention: SentenceAttention, width: int = LINE_WIDTH) -> list[str]:
    """Return lines that draw the cross-attention of a sentence pair, and a legend.

    `attention.cross` (T, S) is the mean over heads and layers. A row for each target token has a block of characters
    for each source token, whose shade shows the weight. Rows longer than `width` terminal cells are wrapped.
    """
    if attention.cross is None:
        return ["this system has no cross-attention"]
    return [*heatmap_lines(attention.cross, attention.target, attention.source, width), LEGEND]


def heatmap_lines(
    weights: Tensor, row_labels: Sequence[str], column_labels: Sequence[str], width: int = LINE_WIDTH
) -> list[str]:
    """Return lines that draw attention weights (T, S) as blocks of shaded characters, wrapped at `width` cells.

    There is a row for each of the T labels of queries, and a column for each of the S labels of keys.
    """
    columns = []  # each with its label and T cells
    for name, column_weights in zip(column_labels, weights.T.tolist()):
        block_width = max(2, cell_len(shorten(name, MAX_WORD_CELLS)))
        columns.append([name, *(_shade(weight) * block_width for weight in column_weights)])
    return [*column_lines(["", *row_labels], list(zip(*columns)), width), ""]


def column_lines(
    labels: Sequence[str], rows: Sequence[Sequence[str]], width: int, min_label_width: int = 0
) -> list[str]:
    """Return the lines of a table of texts: for each row its label and its cells, padded to aligned columns.

    Columns that do not fit into `width` terminal cells follow below, after an empty line and with the labels again.
    The column of labels has at least `min_label_width` terminal cells. Texts are cut to MAX_WORD_CELLS cells. A column
    that is wider than `width` has lines of its own.
    """
    labels = [shorten(label, MAX_WORD_CELLS) for label in labels]
    label_width = max(min_label_width, *(cell_len(label) + 2 for label in labels))
    cells = [[shorten(cell, MAX_WORD_CELLS) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) + 2 for column in zip(*cells)]  # with two spaces between columns
    lines: list[str] = []
    begin = 0
    while begin < len(widths):  # columns begin … end − 1 fit side by side
        end = begin + 1
        # − 2: the last column needs no spaces after it
        while end < len(widths) and label_width + sum(widths[begin : end + 1]) - 2 <= width:
            end += 1
        if begin > 0:
            lines.append("")
        for label, row in zip(labels, cells):
            padded = map(set_cell_size, [label, *row[begin:end]], [label_width, *widths[begin:end]])
            lines.append("".join(padded).rstrip())
        begin = end
    return lines


def _shade(weight: float) -> str:
    """Return the character that shows an attention weight from 0 to 1: █ for large weights, · for those near 0.

    SHADES has pairs of a minimum weight and a character, largest first.
    """
    return next((shade for minimum, shade in SHADES if weight >= minimum), SHADES[-1][1])


# ---- inspections


def entropy_lines(selected: Sequence[AttentionMap]) -> list[str]:
    """Return the lines of a table of attention entropies in bits: a row for each layer, a column for each head.

    `attention.kind` is encoder, decoder or cross; `attention.layer` counts from 1; `attention.entropy` has a number of
    bits for each head.
    """
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
    """Return lines that draw each attention map (H T S), averaged over its heads, as blocks of shaded characters.

    `queries` (T) and `keys` (S) are the tokens of rows and columns; `width` is in terminal cells.
    """
    lines: list[str] = []
    for attention in selected:
        heads = f", mean of {len(attention.weights)} heads" if len(attention.weights) > 1 else ""
        lines += [f"{attention.kind} {attention.layer}{heads}"]
        lines += heatmap_lines(attention.weights.mean(0), attention.queries, attention.keys, width)
    return [*lines, LEGEND]


def expert_lines(experts: Sequence[ExpertMap]) -> list[str]:
    """Return lines that list, for each mixture-of-experts layer, every token with its experts and their gate weights.

    `gates` (T, number of experts) is 0 for experts that were not selected. Experts are counted from 1, and those of a
    token are sorted by gate, largest first.
    """
    lines: list[str] = []
    for expert_map in experts:
        width = max(cell_len(_shortened(token)) for token in expert_map.tokens) + 2
        lines.append(f"{expert_map.layer}, {expert_map.gates.shape[-1]} experts")
        for token, gates in zip(expert_map.tokens, expert_map.gates.tolist()):
            selected = [(number, gate) for number, gate in enumerate(gates, 1) if gate > 0]
            selected.sort(key=lambda number_and_gate: -number_and_gate[1])
            shown = "  ".join(f"{number} ({_percent(gate)})" for number, gate in selected)
            lines.append(f"  {set_cell_size(_shortened(token), width)}{shown}")
        lines.append("")
    return lines[:-1]


def alternative_lines(inspection: Inspection) -> list[str]:
    """Return a line for each target token: its probability, a bar, the other most probable tokens, and its rank if > 1.

    A line with log p of the whole target is the last. Models that can copy source tokens also show p_gen, the
    probability that the next token is generated and not copied; for other models `generation_probs` is empty.
    """
    width = max([cell_len(_shortened(step.token)) for step in inspection.steps], default=0) + 2
    generation_probs = [f"  p_gen {_percent(p_gen):>6}" for p_gen in inspection.generation_probs]
    lines = []
    for step, p_gen in zip(inspection.steps, generation_probs or repeat("")):
        others = ", ".join(
            f"{_shortened(other.token)} {_percent(other.probability)}"
            for other in step.alternatives
            if other.token_id != step.token_id
        )
        rank = f"  rank {step.rank}" if step.rank > 1 else ""
        bar = set_cell_size("█" * round(MAX_BAR_CELLS / 2 * step.probability), MAX_BAR_CELLS // 2)  # padded
        probability = f"{_percent(step.probability):>6}{p_gen}"
        lines.append(f"{set_cell_size(_shortened(step.token), width)}{probability}  {bar}  {others}{rank}".rstrip())
    limit = "" if inspection.finished else ", truncated at the length limit"
    return [*lines, "", f"log p {inspection.score:.3f}{limit}"]


def layer_lines(inspection: Inspection, width: int = LINE_WIDTH) -> list[str]:
    """Return the lines of a table (the logit lens): a row for each target token, a column for each layer.

    A cell has the token that is most probable if the output layer is applied to the states after that layer, its
    probability, and ✓ if it is the target token. Columns that exceed `width` terminal cells are wrapped.
    """
    rows = [[layer.name for layer in inspection.layers]]
    for t, step in enumerate(inspection.steps):
        row = []
        for layer in inspection.layers:
            best = layer.steps[t].alternatives[0]  # the most probable token
            mark = " ✓" if best.token_id == step.token_id else ""
            row.append(f"{shorten(best.token, 14)} {_percent(best.probability)}{mark}")
        rows.append(row)
    return column_lines(["target", *(step.token for step in inspection.steps)], rows, width)


def walk_lines(walk: Walk) -> list[str]:
    """Return lines that show the intermediate results of one prediction, in the order of the forward pass.

    Each step has its name, formula, explanation and first numbers, below the name of its layer (`place`). The values
    of a step are a vector, a number for each attended token (then `key_labels` are these tokens), or a matrix; at most
    MAX_WALK_NUMBERS of a vector or matrix are shown. The last lines are the most probable next tokens (`candidates`).
    """
    lines = [f"{' '.join(walk.inputs)} → ?   (head {walk.head} of {walk.num_heads})"]  # tokens that the decoder read
    place = ""
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
            first = step.values.flatten(0, -1)[:MAX_WALK_NUMBERS].tolist()
            more = " …" if step.values.numel() > MAX_WALK_NUMBERS else ""
            lines.append(f"    {' '.join(f'{value:.3f}' for value in first)}{more}")
    best = (f"{one_line(token.token)} {_percent(token.probability)}" for token in walk.candidates[:MAX_WALK_NUMBERS])
    return [*lines, "", "probabilities of the next token", f"  {'  '.join(best)}"]


def beam_tree_lines(tree: BeamTree, pruned: bool = False) -> list[str]:
    """Return lines that draw the hypotheses of a beam search as a tree; tokens without a branch share a line.

    A node is a hypothesis: its parent and one more token. Leaves show log p before and after length normalization, and
    a star marks the best. `pruned` includes continuations that were pruned in the step in which they were considered.
    """
    children = tree.children()  # index of a node → its children, best first

    def visible_children(node: BeamNode) -> list[BeamNode]:
        """Return the children of a node that are shown."""
        return [child for child in children.get(node.index, []) if pruned or child.status != "pruned"]

    def branches(node: BeamNode, indent: str) -> Iterator[str]:
        """Yield the lines of all descendants of a node."""
        branch_nodes = visible_children(node)
        for n, last_node in enumerate(branch_nodes):
            is_last_branch = n == len(branch_nodes) - 1
            tokens = [last_node.token]
            while len(next_nodes := visible_children(last_node)) == 1:  # follow the tokens up to the next branch
                last_node = next_nodes[0]
                tokens.append(last_node.token)
            score = ""
            if not next_nodes:  # a leaf
                score = f"   {last_node.score:.3f} → {last_node.normalized_score:.3f}  {_outcome(last_node)}"
            yield f"{indent}{'└ ' if is_last_branch else '├ '}{one_line(' '.join(tokens))}{score}".rstrip()
            yield from branches(last_node, indent + ("  " if is_last_branch else "│ "))

    num_pruned = sum(node.status == "pruned" for node in tree.nodes)
    hidden = "" if pruned else " and not shown (--pruned)"
    return [
        *branches(tree.nodes[0], ""),
        "",
        "log p of the hypothesis → after length normalization; ★ is the translation",
        f"{len(tree.nodes) - 1} hypotheses, {num_pruned} of them pruned at once{hidden}",
    ]


def _outcome(node: BeamNode) -> str:
    """Describe how the search ended for the hypothesis with this last node: “★ finished”, “2. truncated”, “pruned”.

    `rank` is the rank among the results of the search, None for other hypotheses; ★ marks rank 1. A leaf with the
    status “kept” was selected, but never continued: the search stopped earlier.
    """
    rank = "★ " if node.rank == 1 else f"{node.rank}. " if node.rank else ""
    return rank + ("given up" if node.status == "kept" else node.status)


# ---- models


def position_lines(encodings: Sequence[PositionEncoding]) -> list[str]:
    """Return lines that describe position encodings: the mechanism, and cosine similarities or biases by distance.

    Of each encoding, `labels` has P labels: positions, or distances if there is a vector for each distance ("relative
    keys"). `similarity` (P × P) is the cosine of two vectors, and `bias` (heads × P × P) is added to attention scores.
    Both are shown by distance from the label in the middle.
    """
    if not encodings:
        return ["this system has no position encodings: recurrence or convolution encode the order, if anything does"]
    lines = []
    for encoding in encodings:
        # `modules_label`: the layers that use it, such as “encoder, and 5 more with equal values”
        lines.append(f"{encoding.name}: {MECHANISM_LABELS[encoding.mechanism]}  ({encoding.modules_label})")
        count = len(encoding.labels)  # P
        middle = count // 2
        if encoding.similarity is not None:
            row = encoding.similarity[middle].tolist()
            similarities = {str(d): row[middle + d] for d in SIMILARITY_DISTANCES if middle + d < count}
            lines += ["  cosine similarity by distance", *_bars(similarities)]
        elif encoding.bias is not None:
            for head, bias in enumerate(encoding.bias, 1):
                row = bias[middle].tolist()
                values = [f"{d:+d}: {row[middle + d]:.2f}" for d in BIAS_DISTANCES if 0 <= middle + d < count]
                lines.append(f"  head {head}  {', '.join(values)}")
        lines.append("")
    return lines[:-1]


def gradient_lines(reach: GradientReach) -> list[str]:
    """Return lines with bars: mean gradient norms by the distance of two tokens, relative to the smallest distance.

    `reach.curves` has a curve for each of "encoder", "source" and "target" that the model has; `point.relative` is the
    norm at `point.distance` divided by that at the smallest distance. Of long curves only some points are shown.
    """
    lines = []
    for name, curve in reach.curves.items():
        # the first eight distances, then every fourth, and the last
        points = [point for n, point in enumerate(curve) if n < 8 or n % 4 == 0 or n == len(curve) - 1]
        bars = _bars({str(point.distance): point.relative for point in points})
        lines += [f"{name}: by distance in tokens", *bars, ""]
    return lines[:-1]


def _bars(values: dict[str, float]) -> list[str]:
    """Return a line for each entry of `values`: its name, its value, and a bar proportional to it (none below zero)."""
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
