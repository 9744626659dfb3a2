"""What several commands share."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import wraps
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from dragoman import console as progress
from dragoman.console import LOG_INTERVAL_SECONDS, format_duration, progress_bar
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.parts.inference import InferencePrecision
    from dragoman.run import Run
    from dragoman.search import Beam

Item = TypeVar("Item")


def complete_runs(incomplete: str) -> list[str]:
    """Run folders that begin so, for the shell, and folders that may hold some."""
    from dragoman.cli.checks import is_run

    parent = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        folders = sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []
    return [str(path) if is_run(path) else f"{path}/" for path in folders if str(path).startswith(incomplete)]


def complete_systems(incomplete: str) -> list[str]:
    from dragoman.cli.checks import system_names

    return [name for name in system_names() if name.startswith(incomplete)]


RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The run folder.", show_default=False, autocompletion=complete_runs),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Checkpoint = Annotated[str, typer.Option(help="best, last, averaged or a step such as 000500.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors, but no progress and no remarks.")]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Threads that compute on a CPU; as many as there are cores if not given."),
]


def with_common_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options that all commands have: --quiet and --threads."""

    @wraps(command)
    def called(*arguments: Any, quiet: bool, threads: int | None, **options: Any) -> None:
        progress.quiet = quiet
        if threads is not None:
            set_threads(threads)
        command(*arguments, **options)

    own = inspect.signature(command, eval_str=True)
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, default, kind in (("quiet", False, Quiet), ("threads", None, Threads))
    ]
    parameters = [*own.parameters.values(), *common]
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def set_threads(count: int) -> None:
    """Libraries read these when they are imported; torch may be already, where commands are called from Python."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), str(count))
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def log(text: str) -> None:
    """Progress and remarks, on standard error."""
    if not progress.quiet:
        print(text, file=sys.stderr, flush=True)


class Progress:
    """Lines that are done, their speed and the time left: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.done: int | None = None
        self.before = 0
        self.began = self.last = time.monotonic()

    def __enter__(self) -> Self:
        self.bar = progress_bar(sys.stderr.isatty())
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
        if self.bar.disable and now - self.last >= LOG_INTERVAL_SECONDS:
            self.last = now
            log(self.line())

    @property
    def speed(self) -> float:
        """Lines a second."""
        return ((self.done or 0) - self.before) / max(1e-3, time.monotonic() - self.began)

    def line(self) -> str:
        done, speed = self.done or 0, self.speed
        text = f"{done:,} lines" if self.total is None else f"{done:,} of {self.total:,} lines"
        if speed > 0:
            text += f"  {speed:,.{speed < 10:d}f} lines/s"
            text += "" if self.total is None else f"  {format_duration((self.total - done) / speed)} left"
        return text

    def summary(self) -> str:
        """What is said at the end."""
        done, speed, seconds = self.done or 0, self.speed, max(0.0, time.monotonic() - self.began)
        lines = f"{done:,} line{'' if done == 1 else 's'}"
        lines += f", {done - self.before:,} of them now," if self.before else ""
        return f"{lines} in {format_duration(seconds)} ({speed:,.{speed < 10:d}f} lines/s)"


def program() -> str:
    """What to type to run this program again: its name where the shell finds it, else its path."""
    if shutil.which("dragoman"):
        return "dragoman"
    path = Path(sys.argv[0])
    return os.path.relpath(path) if path.name == "dragoman" else "python -m dragoman"


def weights_of(int8: bool, bfloat16: bool) -> InferencePrecision:
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


def in_windows(lines: Iterable[str], do: Callable[[list[str]], list[Item]], size: int = 4096) -> Iterator[Item]:
    """What `do` makes of the lines, some at a time, in order."""
    lines = iter(lines)
    while window := list(islice(lines, size)):
        yield from do(window)


def beam_config(run: Run, beam: int | None, penalty: float | None, best: int = 1) -> Beam:
    """The run's own beam with the command line's changes; it is as wide as the n-best list that is asked for."""
    own = run.beam_config(beam)
    size = own.size if beam is not None else max(own.size, best)
    return replace(own, size=size, n_best=best, length_penalty=own.length_penalty if penalty is None else penalty)
