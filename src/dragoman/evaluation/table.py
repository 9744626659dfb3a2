"""Results as a table of text, for terminals and for Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from dragoman.evaluation.score import Score


def table(rows: Sequence[Mapping[str, object]], *, markdown: bool = False) -> str:
    """Rows of named values as aligned columns, numbers to the right; a value that a row lacks, or None, is a dash.

    Columns come in the order in which the rows first name them. Scores are shown as they are quoted, whole numbers with
    commas, and the largest number of a column decides how its other numbers are shown.
    """
    from rich.cells import cell_len  # here, not above: a table is not worth its import time to those who draw none

    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return ""
    columns = [[row.get(name) for row in rows] for name in names]
    cells = [[_plain(name, markdown), *_cells(column, markdown)] for name, column in zip(names, columns)]
    numeric = [all(isinstance(value, Real | Score | None) for value in column) for column in columns]
    widths = [max(3, *map(cell_len, column)) if markdown else max(map(cell_len, column)) for column in cells]

    def line(texts: Sequence[str]) -> str:
        padded = [
            " " * (width - cell_len(text)) + text if right else text + " " * (width - cell_len(text))
            for text, width, right in zip(texts, widths, numeric)
        ]
        return f"| {' | '.join(padded)} |" if markdown else "  ".join(padded).rstrip()

    rule = ["-" * (width - 1) + (":" if right and markdown else "-") for width, right in zip(widths, numeric)]
    heading, *body = zip(*cells)
    return "\n".join(map(line, [heading, rule, *body]))


def _cells(column: Sequence[object], markdown: bool) -> list[str]:
    sizes = [abs(float(value)) for value in column if isinstance(value, Real) and math.isfinite(value)]
    largest = max(sizes, default=0.0)
    scientific = largest >= 1e7 or 0 < largest < 5e-4  # operations, learning rates
    style = ".2e" if scientific else ".4f" if 0 < largest <= 1 else ".2f"  # fractions and p-values; scores

    def show(value: object) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, Score):
            return value.figure
        if isinstance(value, Integral):
            return f"{int(value):,}"
        return f"{float(value):{style}}" if isinstance(value, Real) else _plain(str(value), markdown)

    return [show(value) for value in column]


def _plain(text: str, markdown: bool) -> str:
    """The text on one line, with what Markdown would take for a column's end made harmless."""
    text = " ".join(text.splitlines())
    return text.replace("|", "\\|") if markdown else text
