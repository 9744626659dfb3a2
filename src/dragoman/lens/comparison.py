"""The page of a comparison: the table, what it shows, and two pictures."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from dragoman.evaluation import table as text_table
from dragoman.lens.markup import tag
from dragoman.lens.page import bullets, document, figure, paragraph, section, table, text
from dragoman.lens.pictures import curves, scatter
from dragoman.storage import write_file
from dragoman.training.comparison import Trained, findings

NAME = "comparison.html"
SERIES = 4  # curves that can be told apart in one picture


def write_comparison(folder: Path, trained: Sequence[Trained], command: Sequence[str]) -> Path:
    """Write the page, and the table as Markdown beside it."""
    path = folder / NAME
    write_file(path, page(trained, command))
    told = "\n".join(f"- {line}" for line in findings(trained))
    lines = text_table([one.row() for one in trained], markdown=True)
    write_file(folder / "comparison.md", f"{lines}\n\n{told}\n\n    {shlex.join(command)}\n")
    return path


def page(trained: Sequence[Trained], command: Sequence[str]) -> str:
    rows = [one.row() for one in trained]
    heading = list(rows[0])
    cells = [line.split("|")[1:-1] for line in text_table(rows, markdown=True).splitlines()[2:]]
    quality = {one.system: (one.flops, one.bleu.value) for one in trained}
    groups = [trained[i : i + SERIES] for i in range(0, len(trained), SERIES)]
    longer = [
        curves(
            {one.system: [(n, band.exact_match) for n, band in enumerate(one.bands, 1)] for one in group},
            "Exactly right by length, %",
            "band of source lengths",
        )
        for group in groups
    ]
    names = ", ".join(f"{n}: {band.words}" for n, band in enumerate(trained[0].bands, 1))
    return document(
        "Systems compared",
        tag("header", tag("h1", "Systems compared"), paragraph(f"{len(trained)} systems, the same data and budget.")),
        section("table", "The table", table(heading, cells), bullets(text(line) for line in findings(trained))),
        section("cost", "Quality and cost", figure(scatter(quality, "Quality and cost", "training FLOPs", "BLEU"))),
        section("length", "Long sentences", paragraph(f"Words in the source: {names}."), *map(figure, longer)),
        section("again", "To do it again", tag("pre", shlex.join(command))),
    )
