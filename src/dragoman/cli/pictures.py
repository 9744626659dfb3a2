"""What commands share that show something: where pictures go, and how lines are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.options import log

Svg = Annotated[Path | None, typer.Option(help="Write a picture.")]
Png = Annotated[Path | None, typer.Option(help="Write a picture as PNG.")]
Dark = Annotated[bool, typer.Option("--dark", help="A PNG on dark paper.")]


def draw(pictures: Callable[[], Iterable[str]], svg: Path | None, png: Path | None, dark: bool) -> None:
    """Write pictures where they are asked for; several of them are numbered from the second on."""
    from dragoman.lens.png import svg_to_png
    from dragoman.storage import write_file

    drawn = list(pictures()) if svg or png else []
    for number, picture in enumerate(drawn, 1):
        forms: list[tuple[Path | None, Any]] = [(svg, picture), (png, png and svg_to_png(picture, dark))]
        for path, content in forms:
            if path is not None:
                place = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
                write_file(place, content)
                log(f"wrote {place}")


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
