"""Translations in a terminal as they are written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.run import Run, Source
    from dragoman.search import SearchConfig


def show(
    run: Run, sources: Iterable[Source], settings: SearchConfig, tag: str | None, forbidden: Sequence[str]
) -> None:
    """Each line's translation word by word: on a terminal what is settled as it is, what is only likely dimmed."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    for source in sources:
        pieces = run.stream(source, search=settings, alignment=False, tag=tag, exclude=forbidden)
        with closing(pieces):
            if not sys.stdout.isatty():
                for piece in pieces:
                    print(_one_line(piece.text), end="", flush=True)
                print(flush=True)
                continue
            settled = ""
            with Live(console=Console(highlight=False), auto_refresh=False) as view:
                for piece in pieces:
                    settled += _one_line(piece.text)
                    view.update(Text.assemble(settled, (_one_line(piece.tentative_text), "dim")), refresh=True)


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")
