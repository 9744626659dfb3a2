"""Printing of results: JSON, lines and figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any


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
