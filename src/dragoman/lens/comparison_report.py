"""The page of a comparison: tables, tests, findings and two figures; and the same as Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from dragoman.evaluation import MeanStd
from dragoman.evaluation import format_table as text_table
from dragoman.evaluation.system_comparison import SystemComparison
from dragoman.lens.charts import line_chart, scatter_plot
from dragoman.lens.html_page import bullet_list, document, figure, paragraph, section, table, text
from dragoman.lens.markup import Markup, tag
from dragoman.storage import write_file

NAME = "comparison.html"
SERIES = 4  # curves that can be told apart in one figure


def write_comparison(folder: Path, comparison: SystemComparison, command: Sequence[str]) -> Path:
    """Write the page, and its tables as Markdown beside it."""
    path = folder / NAME
    write_file(path, comparison_page(comparison, command))
    write_file(folder / "comparison.md", comparison_markdown(comparison, command))
    return path


def comparison_markdown(comparison: SystemComparison, command: Sequence[str]) -> str:
    tables = [
        text_table([one.quality() for one in comparison.systems], markdown=True),
        text_table([one.cost() for one in comparison.systems], markdown=True),
    ]
    if comparison.differences:
        tables += [
            f"Differences: {comparison.method}.",
            text_table([one.row() for one in comparison.differences], markdown=True),
        ]
    findings = "\n".join(f"- {line}" for line in comparison.findings())
    return "\n\n".join([f"    {shlex.join(command)}", _budget(comparison), *tables, findings]) + "\n"


def comparison_page(comparison: SystemComparison, command: Sequence[str]) -> str:
    systems = comparison.systems
    scores = {one.name: MeanStd.of(one.bleu).mean for one in systems}
    flops = {one.name: sum(run.flops for run in one.runs) / len(one.runs) for one in systems}
    groups = [systems[i : i + SERIES] for i in range(0, len(systems), SERIES)]
    by_length = [
        line_chart(
            {
                one.name: [(number, value) for number, (_, value) in enumerate(one.exact_by_length(), 1)]
                for one in group
            },
            "Exact match by length, %",
            "band of source lengths",
        )
        for group in groups
    ]
    bands = ", ".join(f"{number}: {words}" for number, (words, _) in enumerate(systems[0].exact_by_length(), 1))
    points = {one.name: (flops[one.name], scores[one.name]) for one in systems}
    tests = [paragraph("No two systems have learned to translate.")]
    if comparison.differences:
        tests = [paragraph(f"{comparison.method}."), _table([one.row() for one in comparison.differences])]
    return document(
        "Systems compared",
        tag("header", tag("h1", "Systems compared"), paragraph(_budget(comparison))),
        section("findings", "Findings", bullet_list(text(line) for line in comparison.findings())),
        section("quality", "Quality", _table([one.quality() for one in systems])),
        section("cost", "Training cost", _table([one.cost() for one in systems])),
        section("tests", "Differences", *tests),
        section(
            "scatter", "Quality and cost", figure(scatter_plot(points, "Quality and cost", "training FLOPs", "BLEU"))
        ),
        section("length", "Long sentences", paragraph(f"Words in the source: {bands}."), *map(figure, by_length)),
        section("again", "Repeat this comparison", tag("pre", shlex.join(command))),
    )


def _budget(comparison: SystemComparison) -> str:
    seeds = ", ".join(map(str, comparison.seeds))
    depends = " Time as a budget makes results depend on the machine and its load." * comparison.machine_dependent
    return (
        f"{len(comparison.systems)} systems, the same data and the same budget: {comparison.budget}. Seeds: {seeds}. "
        f"{comparison.sentences:,} test sentences; BLEU signature {comparison.signature}.{depends}"
    )


def _table(rows: Sequence[Mapping[str, object]]) -> Markup:
    cells = [
        [cell.strip().replace("\\|", "|") for cell in line.split(" | ")]
        for line in (row.strip("|") for row in text_table(rows, markdown=True).splitlines()[2:])
    ]
    return table(list(rows[0]), cells)
