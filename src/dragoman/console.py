"""Progress and messages on standard error, results on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

quiet = False  # set by --quiet: hides progress and messages
LOG_INTERVAL_SECONDS = 30.0  # between two lines of progress where standard error is not a terminal


def log(text: str) -> None:
    """Print a message on standard error unless --quiet is set."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def progress_bar(visible: bool = True) -> Progress:
    """Return a progress bar on standard error that is erased when it stops; hidden if not `visible` or with --quiet."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet or not visible)


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    total = int(seconds)
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def print_json(value: Any) -> None:
    """Print a value as one JSON document."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=1)
    print()


def print_json_list(values: Iterable[Any]) -> None:
    """Print a JSON list item by item, as soon as each is available."""
    separator = "["
    for value in values:
        print(f"{separator}\n{json.dumps(value, ensure_ascii=False)}", end="", flush=True)
        separator = ","
    print("[]" if separator == "[" else "\n]")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; nothing if there are none."""
    for line in lines:
        print(line)


def one_line(text: str) -> str:
    """Return a text with spaces instead of line breaks, which byte-level models can generate."""
    return text.replace("\n", " ").replace("\r", " ")
