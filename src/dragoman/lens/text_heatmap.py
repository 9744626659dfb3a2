"""Alignment and attention as text, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from torch import Tensor

from dragoman.evaluation import Link
from dragoman.lens.markup import replace_control_characters
from dragoman.run import SentenceAttention
from dragoman.text import alignment_words

WIDTH = 100  # cells of a line
LONGEST = 20  # cells of a word
SHADES = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.05, "░"), (0.0, "·"))
LEGEND = "share of its attention:  · under 5 %  ░ from 5 %  ▒ from 25 %  ▓ from 50 %  █ from 75 %"


def alignment_lines(source: str, target: str, links: Iterable[Link], width: int = WIDTH) -> list[str]:
    """The source, and below it each target word over the source words it comes from and their places in the source.

    source     I have seen the dog.
    target     Ich  habe  den  Hund  gesehen.
    from       I    have  the  dog.  seen
    word       1    2     4    5     3
    """
    source_words, target_words = alignment_words(source), alignment_words(target)
    origins: list[list[int]] = [[] for _ in target_words]
    for i, j in sorted(set(links)):
        if i < len(source_words) and j < len(target_words):
            origins[j].append(i)
    lines = [f"source     {one_line(source)}"]
    if not any(origins):
        return [*lines, f"target     {one_line(target)}"]
    names = [" ".join(source_words[i] for i in origin) or "–" for origin in origins]
    places = [" ".join(str(i + 1) for i in origin) or "–" for origin in origins]
    for number, block in enumerate(wrap_columns([target_words, names, places], width - 11)):
        lines += [""] * (number > 0)
        lines += [f"{heading:11}{line}" for heading, line in zip(("target", "from", "word"), block)]
    return lines


def attention_heatmap_lines(attention: SentenceAttention, width: int = WIDTH) -> list[str]:
    """Who looked at what as a picture of blocks: a row for each target piece, a column for each source piece."""
    if attention.cross is None:
        return ["this system has no attention"]
    return [*heatmap_lines(attention.cross, attention.target, attention.source, width), LEGEND]


def heatmap_lines(weights: Tensor, rows: Sequence[str], columns: Sequence[str], width: int = WIDTH) -> list[str]:
    """T S weights as blocks, folded where they are wider than the terminal."""
    names = [shorten_cell(name) for name in rows]
    margin = max(map(cell_len, names), default=0) + 2
    blocks = [
        [name, *(shade(weight) * max(2, cell_len(shorten_cell(name))) for weight in column)]
        for name, column in zip(columns, weights.T.tolist())
    ]
    lines: list[str] = []
    for block in wrap_columns([list(row) for row in zip(*blocks)], width - margin):
        lines += [(set_cell_size(name, margin) + line).rstrip() for name, line in zip(["", *names], block)]
        lines.append("")
    return lines


def wrap_columns(rows: Sequence[Sequence[str]], width: int) -> Iterator[list[str]]:
    """Rows of cells as lines in aligned columns, in as many blocks as the width makes necessary."""
    cells = [[shorten_cell(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) + 2 for column in zip(*cells)]
    begin = 0
    while begin < len(widths):
        end, used = begin + 1, widths[begin]
        while end < len(widths) and used + widths[end] - 2 <= width:
            used += widths[end]
            end += 1
        yield ["".join(map(set_cell_size, row[begin:end], widths[begin:end])).rstrip() for row in cells]
        begin = end


def shade(weight: float) -> str:
    return next((shade for least, shade in SHADES if weight >= least), SHADES[-1][1])


def shorten_cell(text: str, max_cells: int = LONGEST) -> str:
    """A text that takes no more than so many cells, wide characters counted as two, combining marks as none."""
    text = one_line(text)
    return text if cell_len(text) <= max_cells else set_cell_size(text, max_cells - 1).rstrip() + "…"


def one_line(text: str) -> str:
    return replace_control_characters(" ".join(text.split()))
