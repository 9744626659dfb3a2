"""Printing of results: JSON, lines and figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dragoman.console import log


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
    for line in lines:
        print(line)


def one_line(text: str) -> str:
    """Replace line breaks, which byte-level models can generate, by spaces."""
    return text.replace("\n", " ").replace("\r", " ")


@dataclass(frozen=True)
class FigureOptions:
    """Files for figures."""

    svg: Annotated[Path | None, "Write the figure as SVG.", "FILE"] = None
    png: Annotated[Path | None, "Write the figure as PNG.", "FILE"] = None
    dark: Annotated[bool, "Use a dark background in the PNG."] = False

    def __bool__(self) -> bool:
        return self.svg is not None or self.png is not None

    def write(self, figures: Callable[[], Iterable[str]]) -> None:
        """Draw and write SVG figures if a file was named. File names are numbered from the second figure on."""
        from dragoman.lens.svg import svg_to_png
        from dragoman.storage import write_file

        for number, figure in enumerate(figures() if self else [], 1):
            contents: list[tuple[Path | None, Any]] = [
                (self.svg, figure),
                (self.png, self.png and svg_to_png(figure, self.dark)),
            ]
            for path, content in contents:
                if path is not None:
                    numbered = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
                    write_file(numbered, content)
                    log(f"wrote {numbered}")
