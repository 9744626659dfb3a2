"""Progress of a comparison on standard error: one bar per system on a terminal, plain lines elsewhere."""

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
    """Shows the progress of each system, and an estimate of the time left for all of them."""

    def __init__(self, systems: Sequence[str], seeds: int) -> None:
        self.systems, self.seeds = list(systems), seeds
        self.bar = progress_bar(sys.stderr.isatty())
        self.tasks = {name: self.bar.add_task(f"{name}  waiting", total=float(seeds)) for name in systems}
        self.pending_runs = len(self.systems) * seeds
        self.durations: list[float] = []  # seconds of the runs that this process trained

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
        """Return the display for a training of a system; `number` counts its seeds from 0."""
        self.pending_runs -= 1
        self.show(name, number, "preparing")
        return RunDisplay(self, name, number, label)

    def show(self, name: str, fraction: float, text: str) -> None:
        self.bar.update(self.tasks[name], completed=fraction, description=f"{name}  {text}")

    def skip(self, name: str, number: int, text: str) -> None:
        """Show a run that was finished before."""
        self.pending_runs -= 1
        self.show(name, number + 1.0, "finished before")
        self.message(text)

    def time_left(self, seconds: float) -> str:
        """Estimate the time left for all runs, from the seconds left for the current one."""
        if not self.durations:
            return ""
        mean = sum(self.durations) / len(self.durations)
        return f"{format_duration(seconds + self.pending_runs * mean)} left for all"


class RunDisplay(Display):
    """Shows the training of one system with one seed."""

    def __init__(self, parent: ComparisonDisplay, name: str, number: int, label: str) -> None:
        super().__init__()
        self.parent, self.name, self.number, self.label = parent, name, number, label
        self.opened = time.monotonic()

    def message(self, text: str) -> None:
        self.parent.message(f"{self.label}: {text}")

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        text = self.line(record, fraction)
        self.parent.show(self.name, self.number + min(1.0, fraction or 0.0), text)
        if self.parent.bar.disable:
            super().log_step(record, fraction)

    def line(self, record: dict[str, Any], fraction: float | None) -> str:
        step = f"step {record['step']:,}" + (f" of {self.total_steps:,}" if self.total_steps else "")
        parts = [step, f"loss {record['loss']:.3f}", f"{record['tokens_per_second']:,.0f} tokens/s"]
        if (seconds := self.seconds_left(fraction)) is not None:
            parts.append(f"{format_duration(seconds)} left")
            if total := self.parent.time_left(seconds):
                parts.append(total)
        return "  ".join(parts)

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Show nothing: systems are compared on the test set."""

    def measuring(self) -> None:
        self.parent.show(self.name, self.number + 1.0, "translating the test set")

    def finish(self, text: str) -> None:
        """Show the result of a run that is trained and evaluated."""
        self.parent.durations.append(time.monotonic() - self.opened)
        self.parent.show(self.name, self.number + 1.0, text)
        self.parent.message(f"{self.label}: {text}")
