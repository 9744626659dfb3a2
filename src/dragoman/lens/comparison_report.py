"""The report of a comparison of systems, as an HTML page and as Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from dragoman.evaluation import MeanStd, format_table
from dragoman.evaluation.system_comparison import SystemComparison
from dragoman.lens.charts import line_chart, scatter_plot
from dragoman.lens.html_page import render
from dragoman.storage import write_file
from dragoman.systems.published_results import published_rows

COMPARISON_FILE = "comparison.html"
MAX_CURVES = 4  # in one chart


def write_comparison(folder: Path, comparison: SystemComparison, command: Sequence[str]) -> Path:
    """Write the report of a comparison as comparison.html and comparison.md into `folder`; return the path of the page.

    `command` is the command line, as a list of arguments, that ran the comparison; the report quotes it.
    """
    path = folder / COMPARISON_FILE
    write_file(path, comparison_page(comparison, command))
    write_file(folder / "comparison.md", comparison_markdown(comparison, command))
    return path


def comparison_markdown(comparison: SystemComparison, command: Sequence[str]) -> str:
    """Return the report of a comparison as Markdown: command line, setup, tables of quality and cost, and findings.

    `command` is the command line that ran the comparison, as a list of arguments.
    """
    parts = [
        f"    {shlex.join(command)}",
        _setup(comparison),
        format_table([system.quality() for system in comparison.systems], markdown=True),
        format_table([system.cost() for system in comparison.systems], markdown=True),
    ]
    if published := published_rows(_system_names(comparison)):
        parts += ["As published, on other data:", format_table(published, markdown=True)]
    if comparison.differences:
        rows = [difference.row() for difference in comparison.differences]
        parts += [f"Differences: {comparison.method}.", format_table(rows, markdown=True)]
    parts.append("\n".join(f"- {line}" for line in comparison.findings()))
    return "\n\n".join(parts) + "\n"


def comparison_page(comparison: SystemComparison, command: Sequence[str]) -> str:
    """Return the findings, tables and charts of a comparison as an HTML page.

    `command` is the command line that ran the comparison, as a list of arguments. The keyword arguments of `render` are
    the variables of the template.
    """
    systems = comparison.systems
    flops_and_score = {
        system.name: (fmean(run.flops for run in system.runs), MeanStd.of(system.scores).mean) for system in systems
    }
    # `exact_match_by_length` has pairs of a range of source lengths ("5 to 8" words) and the exact match there in
    # percent; the ranges are numbered on the x axis
    curves = [
        (system.name, [(number, percent) for number, (_, percent) in enumerate(system.exact_match_by_length(), 1)])
        for system in systems
    ]
    length_charts = [
        line_chart(dict(curves[first : first + MAX_CURVES]), "Exact match by length, %", "length group")
        for first in range(0, len(curves), MAX_CURVES)
    ]
    length_groups = (f"{number}: {words}" for number, (words, _) in enumerate(systems[0].exact_match_by_length(), 1))
    return render(
        "comparison.html",
        comparison=comparison,
        setup=_setup(comparison),
        quality=_table([system.quality() for system in systems]),
        cost=_table([system.cost() for system in systems]),
        published=_table(published_rows(_system_names(comparison))),
        differences=_table([difference.row() for difference in comparison.differences]),
        cost_chart=scatter_plot(flops_and_score, "Quality and cost", "training FLOPs", comparison.metric_name),
        length_groups=", ".join(length_groups),
        length_charts=length_charts,
        command=shlex.join(command),
    )


def _system_names(comparison: SystemComparison) -> list[str]:
    """Return the names of the systems, without settings ("transformer@size=big") or an objective ("gnmt+reward")."""
    return [re.split("[@+]", system.name)[0] for system in comparison.systems]


def _setup(comparison: SystemComparison) -> str:
    """Describe the setup of a comparison in a few sentences: number of systems, training budget, seeds and test set.

    `signature` says how the first metric was computed, "" if there is only one way; `machine_dependent`: the budget is
    a time.
    """
    seeds = ", ".join(map(str, comparison.seeds))
    caveat = ""
    if comparison.machine_dependent:
        caveat = " With a time budget, results depend on the machine and its load."
    signature = f"; {comparison.metric_name} signature {comparison.signature}" if comparison.signature else ""
    return (
        f"{len(comparison.systems)} systems with the same data and budget: {comparison.budget}. Seeds: {seeds}. "
        f"{comparison.sentences:,} test sentences{signature}.{caveat}"
    )


def _table(rows: Sequence[Mapping[str, object]]) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows of formatted cells of a table, for an HTML template.

    `rows` are dicts from column name to value, with the same columns each. The values are formatted by `format_table`,
    whose Markdown is split into cells again; its first two lines are heading and rule.
    """
    lines = [line.strip("|") for line in format_table(rows, markdown=True).splitlines()[2:]]
    cells = [[cell.strip().replace("\\|", "|") for cell in line.split(" | ")] for line in lines]
    return list(rows[0]) if rows else [], cells
