"""Progress of a comparison: one bar for each system on a terminal, plain lines elsewhere, all on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from dragoman import console as progress
from dragoman.console import format_duration, progress_bar
from dragoman.training.display import Display
from dragoman.training.validation import ValidationResult


class ComparisonDisplay:
    """Shows how far each system is, and an estimate of the time left for all of them."""

    def __init__(self, systems: Sequence[str], seeds: int) -> None:
        self.systems, self.seeds = list(systems), seeds
        self.bar = progress_bar(sys.stderr.isatty())
        self.tasks = {name: self.bar.add_task(f"{name}  waiting", total=float(seeds)) for name in systems}
        self.waiting = len(self.systems) * seeds  # runs that have not begun
        self.durations: list[float] = []  # seconds of the runs that were trained now

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def message(self, text: str) -> None:
        if progress.quiet:
            return
        if self.bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self.bar.console.print(text, highlight=False, markup=False)

    def run(self, name: str, number: int, label: str) -> RunDisplay:
        """The display of the training of one seed of a system, `number` counted from 0."""
        self.waiting -= 1
        self.show(name, number, "preparing")
        return RunDisplay(self, name, number, label)

    def show(self, name: str, done: float, text: str) -> None:
        self.bar.update(self.tasks[name], completed=done, description=f"{name}  {text}")

    def skip(self, name: str, number: int, text: str) -> None:
        """A run was finished before."""
        self.waiting -= 1
        self.show(name, number + 1.0, "finished before")
        self.message(text)

    def time_left(self, current: float) -> str:
        """An estimate for all runs; `current`: seconds left of the current one."""
        known = self.durations
        return f"{format_duration(current + self.waiting * sum(known) / len(known))} left for all" if known else ""


class RunDisplay(Display):
    """What the training of one system with one seed shows."""

    def __init__(self, parent: ComparisonDisplay, name: str, number: int, label: str) -> None:
        super().__init__()
        self.parent, self.name, self.number, self.label = parent, name, number, label
        self.opened = time.monotonic()

    def message(self, text: str) -> None:
        self.parent.message(f"{self.label}: {text}")

    def log_step(self, record: dict[str, Any], done: float | None) -> None:
        text = self.line(record, done)
        self.parent.show(self.name, self.number + min(1.0, done or 0.0), text)
        if self.parent.bar.disable:
            super().log_step(record, done)

    def line(self, record: dict[str, Any], done: float | None) -> str:
        step = f"step {record['step']:,}" + (f" of {self.total:,}" if self.total else "")
        parts = [step, f"loss {record['loss']:.3f}", f"{record['tokens_per_second']:,.0f} tokens/s"]
        if done is not None and done > self.before:
            rate = max(0.0, time.monotonic() - self.began) / (done - self.before)
            left = rate * max(0.0, 1 - done)
            parts.append(f"{format_duration(left)} left")
            if in_all := self.parent.time_left(left):
                parts.append(in_all)
        return "  ".join(parts)

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Nothing: systems are compared on the test set."""

    def measuring(self) -> None:
        self.parent.show(self.name, self.number + 1.0, "translating the test set")

    def finish(self, text: str) -> None:
        """The run is trained and measured."""
        self.parent.durations.append(time.monotonic() - self.opened)
        self.parent.show(self.name, self.number + 1.0, text)
        self.parent.message(f"{self.label}: {text}")
