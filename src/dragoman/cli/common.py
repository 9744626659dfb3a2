"""What several commands share."""

from __future__ import annotations

import codecs
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from dragoman.errors import UserError
from dragoman.progress import BETWEEN_LINES, bar, clock

if TYPE_CHECKING:
    from dragoman.parts.quick import Weights
    from dragoman.run import Run, Source
    from dragoman.search import Beam

Item = TypeVar("Item")
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Checkpoint = Annotated[str, typer.Option(help="best, last, averaged or a step such as 000500.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def say(text: str) -> None:
    """Progress and remarks, on standard error."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Lines that are done, their speed and the time left: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.done: int | None = None
        self.before = 0
        self.began = self.last = time.monotonic()

    def __enter__(self) -> Self:
        self.bar = bar(sys.stderr.isatty())
        self.task = self.bar.add_task("starting", total=self.total)
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def show(self, done: int) -> None:
        """So many lines are done; the first call says from where it goes on."""
        now = time.monotonic()
        if self.done is None:
            self.before, self.began, self.last = done, now, now
        self.done = done
        self.bar.update(self.task, completed=done, description=self.line())
        if self.bar.disable and now - self.last >= BETWEEN_LINES:
            self.last = now
            say(self.line())

    @property
    def speed(self) -> float:
        """Lines a second."""
        return ((self.done or 0) - self.before) / max(1e-3, time.monotonic() - self.began)

    def line(self) -> str:
        done, speed = self.done or 0, self.speed
        text = f"{done:,} lines" if self.total is None else f"{done:,} of {self.total:,} lines"
        if speed > 0:
            text += f"  {speed:,.{speed < 10:d}f} lines/s"
            text += "" if self.total is None else f"  {clock((self.total - done) / speed)} left"
        return text

    def summary(self) -> str:
        """What is said at the end."""
        done, speed, seconds = self.done or 0, self.speed, max(0.0, time.monotonic() - self.began)
        lines = f"{done:,} line{'' if done == 1 else 's'}"
        lines += f", {done - self.before:,} of them now," if self.before else ""
        return f"{lines} in {clock(seconds)} ({speed:,.{speed < 10:d}f} lines/s)"


def program() -> str:
    """What to type to run this program again: its name where the shell finds it, else its path."""
    if shutil.which("dragoman"):
        return "dragoman"
    path = Path(sys.argv[0])
    return os.path.relpath(path) if path.name == "dragoman" else "python -m dragoman"


def weights_of(int8: bool, bfloat16: bool) -> Weights:
    """What searches multiply by."""
    if int8 and bfloat16:
        raise UserError("--int8 is for a CPU and --bfloat16 for a GPU: give one of them")
    return "int8" if int8 else "bfloat16" if bfloat16 else "float32"


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, ensure_ascii=False, indent=1)
    print()


def print_json_list(values: Iterable[Any]) -> None:
    """One JSON document, written as its parts become ready."""
    separator = "["
    for value in values:
        print(f"{separator}\n{json.dumps(value, ensure_ascii=False)}", end="", flush=True)
        separator = ","
    print("[]" if separator == "[" else "\n]")


def sources_of(file: Path | None) -> Iterator[Source]:
    """The lines of a text, or the examples of a file of numpy's, for runs that read images or speech."""
    from dragoman.data.corpus import SIGNALS
    from dragoman.data.signals import Signals

    if file is not None and file.suffix.lower() in SIGNALS:
        yield from Signals(file)
    else:
        yield from lines_of(file)


def lines_of(file: Path | None) -> Iterator[str]:
    """The lines of a file, plain or gzipped, or of standard input; only a line feed ends a line."""
    from dragoman.data.corpus import sentences

    if file is not None:
        yield from (text for _, text in sentences(file))
        return
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file, or pipe text in")
    for number, raw in enumerate(sys.stdin.buffer, 1):
        raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        try:
            yield raw.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input, line {number:,} is not UTF-8 (byte {error.start + 1} of the line)"
            ) from None


def in_windows(lines: Iterable[str], do: Callable[[list[str]], list[Item]], size: int = 4096) -> Iterator[Item]:
    """What `do` makes of the lines, some at a time, in order."""
    lines = iter(lines)
    while window := list(islice(lines, size)):
        yield from do(window)


def parallel(source: Path, target: Path) -> tuple[list[Any], list[str]]:
    """Two files of the same number of lines, or of examples and lines."""
    sources, targets = list(sources_of(source)), list(lines_of(target))
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines but {target} has {len(targets):,}: line counts must match"
        )
    return sources, targets


def beam_settings(run: Run, beam: int | None, penalty: float | None, best: int = 1) -> Beam:
    """The run's own beam with the command line's changes; it is as wide as the n-best list that is asked for."""
    own = run.beam(beam)
    size = own.size if beam is not None else max(own.size, best)
    return replace(own, size=size, best=best, length_penalty=own.length_penalty if penalty is None else penalty)
