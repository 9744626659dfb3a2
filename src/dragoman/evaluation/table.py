"""Tables of results as text for terminals, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from statistics import fmean, stdev

from dragoman.evaluation.metric_score import MetricScore

LATEX_SPECIAL = {character: f"\\{character}" for character in "#$%&_{}"} | {"±": r"$\pm$", "−": r"$-$"}
LATEX_SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation of several measurements; `std` is None for a single one."""

    mean: float
    std: float | None = None
    decimals: int = 2

    @staticmethod
    def of(values: Sequence[float], decimals: int = 2) -> MeanStd:
        """Return the mean and the sample standard deviation (denominator n − 1) of `values`."""
        return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None, decimals)

    @property
    def formatted(self) -> str:
        """The usual form: "38.10 ± 0.25"."""
        mean = f"{self.mean:,.{self.decimals}f}"
        return mean if self.std is None else f"{mean} ± {self.std:,.{self.decimals}f}"


TableRows = Sequence[Mapping[str, object]]  # values by column name


def format_table(rows: TableRows, *, markdown: bool = False) -> str:
    """Format rows as aligned columns, with numbers to the right and a dash for missing values and None.

    A row maps column names to values. Columns appear in the order in which the rows first name them. The largest number
    of a column determines how its numbers are formatted.
    """
    from rich.cells import cell_len  # not at the top: it takes long to import

    columns = _columns(rows)
    if not columns:
        return ""
    cells = [[_one_line(name, markdown), *_format_column(values, markdown)] for name, values in columns.items()]
    align_right = [_is_numeric(values) for values in columns.values()]
    min_width = 3 if markdown else 0  # the rule of a Markdown table needs three characters
    widths = [max(min_width, *map(cell_len, column)) for column in cells]

    def format_line(texts: Sequence[str]) -> str:
        """Pad the cells of a row to the widths of their columns and join them."""
        padded = []
        for text, width, right in zip(texts, widths, align_right):
            spaces = " " * (width - cell_len(text))
            padded.append(spaces + text if right else text + spaces)
        return f"| {' | '.join(padded)} |" if markdown else "  ".join(padded).rstrip()

    rule = ["-" * (width - 1) + (":" if right and markdown else "-") for width, right in zip(widths, align_right)]
    heading, *body = zip(*cells)
    return "\n".join(map(format_line, [heading, rule, *body]))


def format_csv(rows: TableRows) -> str:
    """Format rows (values by column name) as CSV with all digits.

    A mean with a standard deviation takes two columns: NAME and "NAME, std".
    """
    lines = []  # one dictionary of cells by CSV column for each row
    for row in rows:
        lines.append({name: cell for column, value in row.items() for name, cell in _csv_cells(column, value)})
    columns = dict.fromkeys(name for line in lines for name in line)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _csv_cells(column: str, value: object) -> list[tuple[str, object]]:
    """Return (column name, value) of the CSV cells of a value: one, or two for a mean with a standard deviation."""
    if isinstance(value, MeanStd):
        mean_cell, std_cell = (column, value.mean), (f"{column}, std", value.std)
        return [mean_cell] if value.std is None else [mean_cell, std_cell]
    return [(column, value.value if isinstance(value, MetricScore) else value)]


def format_latex(rows: TableRows) -> str:
    """Format rows as a LaTeX tabular with the rules of the booktabs package."""
    columns = _columns(rows)
    cells = [[_latex(name), *map(_latex, _format_column(values, markdown=False))] for name, values in columns.items()]
    heading, *body = (f"{' & '.join(line)} \\\\" for line in zip(*cells))
    alignment = "".join("r" if _is_numeric(values) else "l" for values in columns.values())
    lines = ["\\toprule", heading, "\\midrule", *body, "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{alignment}}}", *lines, "\\end{tabular}", ""])


def _columns(rows: TableRows) -> dict[str, list[object]]:
    """Return the values of each column by its name, with None where a row lacks the column."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _is_numeric(column: Sequence[object]) -> bool:
    """Whether a column has only numbers (or None), and is therefore aligned to the right."""
    return all(isinstance(value, Real | MetricScore | MeanStd | None) for value in column)


def _latex(text: str) -> str:
    """Escape the text of a table cell for LaTeX; a number such as 1.2e+09 becomes 1.2 × 10⁹."""
    if number := re.fullmatch(r"(-?[\d.]+)e([+-])0*(\d+)", text):
        mantissa, sign, exponent = number.groups()
        return f"${mantissa} \\times 10^{{{sign.replace('+', '')}{exponent}}}$"
    return "".join(LATEX_SPECIAL.get(character, character) for character in _one_line(text, markdown=False))


def _format_column(column: Sequence[object], markdown: bool) -> list[str]:
    """Format the values of a table column, all numbers in one format, which depends on the largest of them.

    None is a dash, True and False are yes and no, and scores have their own number of decimals. With `markdown`, texts
    are escaped for a Markdown table.
    """
    magnitudes = [abs(float(value)) for value in column if isinstance(value, Real) and math.isfinite(value)]
    largest = max(magnitudes, default=0.0)
    number_format = ".4f" if 0 < largest <= 1 else ".2f"  # fractions and p-values; scores
    if largest >= 1e7 or 0 < largest < 5e-4:  # such as FLOPs and learning rates
        number_format = ".2e"

    def format_value(value: object) -> str:
        """Format one value; integers have all digits, other numbers the format of the column."""
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, MetricScore | MeanStd):
            return value.formatted
        if isinstance(value, Integral):
            return f"{int(value):,}"
        return f"{float(value):{number_format}}" if isinstance(value, Real) else _one_line(str(value), markdown)

    return [format_value(value) for value in column]


def _one_line(text: str, markdown: bool) -> str:
    """Write a text in one line; with `markdown`, escape the character |, which separates columns."""
    text = " ".join(text.splitlines())
    return text.replace("|", "\\|") if markdown else text
