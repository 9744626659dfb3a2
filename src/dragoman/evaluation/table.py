"""Results as tables: text for terminals, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from dragoman.evaluation.metric_score import MetricScore

LATEX_SPECIAL = {character: f"\\{character}" for character in "#$%&_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
}


@dataclass(frozen=True)
class MeanStd:
    """The mean of several measurements and their standard deviation; None where there is only one."""

    mean: float
    std: float | None = None
    decimals: int = 2

    @staticmethod
    def of(values: Sequence[float], decimals: int = 2) -> MeanStd:
        """Mean and sample standard deviation, with n − 1 in the denominator."""
        mean = sum(values) / len(values)
        if len(values) < 2:
            return MeanStd(mean, None, decimals)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        return MeanStd(mean, math.sqrt(variance), decimals)

    @property
    def formatted(self) -> str:
        """As it is quoted: "38.10 ± 0.25"."""
        mean = f"{self.mean:,.{self.decimals}f}"
        return mean if self.std is None else f"{mean} ± {self.std:,.{self.decimals}f}"


TableRows = Sequence[Mapping[str, object]]


def format_table(rows: TableRows, *, markdown: bool = False) -> str:
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
    numeric = [all(isinstance(value, Real | MetricScore | MeanStd | None) for value in column) for column in columns]
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


def format_csv(rows: TableRows) -> str:
    """Rows as CSV with all digits. An estimate with a deviation takes two columns: NAME and "NAME, std"."""
    columns: dict[str, None] = {}
    plain: list[dict[str, object]] = []
    for row in rows:
        cells: dict[str, object] = {}
        for name, value in row.items():
            cells[name] = value
            if isinstance(value, MetricScore):
                cells[name] = value.value
            elif isinstance(value, MeanStd):
                cells[name] = value.mean
                if value.std is not None:
                    cells[f"{name}, std"] = value.std
        columns |= dict.fromkeys(cells)
        plain.append(cells)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return file.getvalue()


def format_latex(rows: TableRows) -> str:
    """Rows as a LaTeX tabular with the rules of the booktabs package."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [[row.get(name) for row in rows] for name in names]
    cells = [[_latex(name), *map(_latex, _cells(column, False))] for name, column in zip(names, columns)]
    numeric = [all(isinstance(value, Real | MetricScore | MeanStd | None) for value in column) for column in columns]
    heading, *body = (f"{' & '.join(line)} \\\\" for line in zip(*cells))
    layout = "".join("r" if right else "l" for right in numeric)
    lines = ["\\toprule", heading, "\\midrule", *body, "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{layout}}}", *lines, "\\end{tabular}", ""])


def _latex(text: str) -> str:
    if number := re.fullmatch(r"(-?[\d.]+)e([+-])0*(\d+)", text):
        mantissa, sign, exponent = number.groups()
        return f"${mantissa} \\times 10^{{{sign.replace('+', '')}{exponent}}}$"
    return "".join(LATEX_SPECIAL.get(character, character) for character in _plain(text, False))


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
        if isinstance(value, MetricScore | MeanStd):
            return value.formatted
        if isinstance(value, Integral):
            return f"{int(value):,}"
        return f"{float(value):{style}}" if isinstance(value, Real) else _plain(str(value), markdown)

    return [show(value) for value in column]


def _plain(text: str, markdown: bool) -> str:
    """The text on one line, with what Markdown would take for a column's end made harmless."""
    text = " ".join(text.splitlines())
    return text.replace("|", "\\|") if markdown else text
