"""How far something has come: a bar on a terminal, and times as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

quiet = False  # set by --quiet: no progress and no remarks are shown
LOG_INTERVAL_SECONDS = 30.0  # seconds, where there is no terminal


def progress_bar(shown: bool = True) -> Progress:
    """A bar with words beside it on standard error, which leaves nothing behind."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet or not shown)


def format_duration(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
