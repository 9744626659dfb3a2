"""The report of a comparison of systems, as an HTML page and as Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from dragoman.evaluation import MeanStd, format_table
from dragoman.evaluation.system_comparison import SystemComparison
from dragoman.lens.charts import line_chart, scatter_plot
from dragoman.lens.html_page import bullet_list, document, figure, paragraph, section, table, text
from dragoman.lens.markup import Markup, tag
from dragoman.storage import write_file

REPORT_FILE = "comparison.html"
MAX_CURVES = 4  # in one chart


def write_comparison(folder: Path, comparison: SystemComparison, command: Sequence[str]) -> Path:
    """Write the page and a Markdown file with its tables; return the path of the page."""
    path = folder / REPORT_FILE
    write_file(path, comparison_page(comparison, command))
    write_file(folder / "comparison.md", comparison_markdown(comparison, command))
    return path


def comparison_markdown(comparison: SystemComparison, command: Sequence[str]) -> str:
    parts = [
        f"    {shlex.join(command)}",
        _setup(comparison),
        format_table([system.quality() for system in comparison.systems], markdown=True),
        format_table([system.cost() for system in comparison.systems], markdown=True),
    ]
    if comparison.differences:
        rows = [difference.row() for difference in comparison.differences]
        parts += [f"Differences: {comparison.method}.", format_table(rows, markdown=True)]
    parts.append("\n".join(f"- {line}" for line in comparison.findings()))
    return "\n\n".join(parts) + "\n"


def comparison_page(comparison: SystemComparison, command: Sequence[str]) -> str:
    systems = comparison.systems
    quality_and_cost = {
        system.name: (sum(run.flops for run in system.runs) / len(system.runs), MeanStd.of(system.bleu).mean)
        for system in systems
    }
    by_length = [
        line_chart(
            {
                system.name: [(number, value) for number, (_, value) in enumerate(system.exact_by_length(), 1)]
                for system in systems[first : first + MAX_CURVES]
            },
            "Exact match by length, %",
            "band of source lengths",
        )
        for first in range(0, len(systems), MAX_CURVES)
    ]
    bands = ", ".join(f"{number}: {words}" for number, (words, _) in enumerate(systems[0].exact_by_length(), 1))
    tests = [paragraph("No two systems have learned to translate.")]
    if comparison.differences:
        tests = [
            paragraph(f"{comparison.method}."),
            _table([difference.row() for difference in comparison.differences]),
        ]
    cost_chart = scatter_plot(quality_and_cost, "Quality and cost", "training FLOPs", "BLEU")
    return document(
        "Comparison of systems",
        tag("header", tag("h1", "Comparison of systems"), paragraph(_setup(comparison))),
        section("findings", "Findings", bullet_list(text(line) for line in comparison.findings())),
        section("quality", "Quality", _table([system.quality() for system in systems])),
        section("cost", "Training cost", _table([system.cost() for system in systems])),
        section("tests", "Differences", *tests),
        section("scatter", "Quality and cost", figure(cost_chart)),
        section("length", "Long sentences", paragraph(f"Words in the source: {bands}."), *map(figure, by_length)),
        section("again", "Repeat this comparison", tag("pre", shlex.join(command))),
    )


def _setup(comparison: SystemComparison) -> str:
    seeds = ", ".join(map(str, comparison.seeds))
    caveat = " With a time budget, results depend on the machine and its load." * comparison.machine_dependent
    return (
        f"{len(comparison.systems)} systems with the same data and budget: {comparison.budget}. Seeds: {seeds}. "
        f"{comparison.sentences:,} test sentences; BLEU signature {comparison.signature}.{caveat}"
    )


def _table(rows: Sequence[Mapping[str, object]]) -> Markup:
    """Build an HTML table with the cell formats of `format_table`."""
    lines = [line.strip("|") for line in format_table(rows, markdown=True).splitlines()[2:]]
    cells = [[cell.strip().replace("\\|", "|") for cell in line.split(" | ")] for line in lines]
    return table(list(rows[0]), cells)
