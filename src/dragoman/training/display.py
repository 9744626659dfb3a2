"""Progress of a training on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, Self

from dragoman import console
from dragoman.console import LOG_INTERVAL_SECONDS, format_duration, progress_bar
from dragoman.training.validation import ValidationResult


class Display:
    """Plain lines, for logs and pipes."""

    EVERY = LOG_INTERVAL_SECONDS

    def __init__(self) -> None:
        self.last_line = -math.inf  # time of the last line
        self.total_steps: int | None = None
        self.started = time.monotonic()
        self.fraction_at_start = 0.0
        self.last_metrics = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop showing progress."""

    def start(self, fraction: float | None, total_steps: int | None) -> None:
        """Start at a fraction of the training budget; `total_steps` is the number of steps, if one is set."""
        self.fraction_at_start, self.total_steps = fraction or 0.0, total_steps
        self.started = time.monotonic()

    def message(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        """Show a record of the training log, at a fraction of the budget; not more often than every few seconds."""
        if time.monotonic() - self.last_line >= self.EVERY:
            self.last_line = time.monotonic()
            self.message(self.line(record, fraction))

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        self.last_metrics = format_metrics(result.to_record())
        self.message(
            f"step {step:,}  validation loss {result.loss:.3f}  perplexity {result.perplexity:.2f}  "
            f"{self.last_metrics}{'  best so far' if best else ''}"
        )

    def line(self, record: dict[str, Any], fraction: float | None) -> str:
        parts = [
            f"step {record['step']:,}" + (f" of {self.total_steps:,}" if self.total_steps else ""),
            f"epoch {record['epoch'] + 1}",
            f"loss {record['loss']:.3f}",
            f"{record['tokens_per_second']:,.0f} tokens/s",
            f"padding {100 * record['padding']:.0f} %",
        ]
        if self.last_metrics:
            parts.append(f"last {self.last_metrics}")
        if (seconds := self.seconds_left(fraction)) is not None:
            parts.append(f"{format_duration(seconds)} left")
        return "  ".join(parts)

    def seconds_left(self, fraction: float | None) -> float | None:
        """Estimate the remaining seconds at a fraction of the budget; None if it is unknown."""
        if fraction is None or fraction <= self.fraction_at_start:
            return None
        return (time.monotonic() - self.started) / (fraction - self.fraction_at_start) * max(0.0, 1 - fraction)


class SilentDisplay(Display):
    """Shows nothing: for trial steps, and for all processes but the first."""

    def message(self, text: str) -> None:
        pass


class LiveDisplay(Display):
    """A progress bar with the latest measurements, on a terminal."""

    def __enter__(self) -> Self:
        self.bar = progress_bar()
        self.task = self.bar.add_task("starting", total=None)
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def start(self, fraction: float | None, total_steps: int | None) -> None:
        super().start(fraction, total_steps)
        self.bar.update(self.task, total=None if fraction is None else 1.0, completed=fraction or 0.0)

    def message(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        self.bar.update(self.task, completed=fraction or 0.0, description=self.line(record, fraction))


def make_display() -> Display:
    """Build the display for standard error: silent with --quiet, live on a terminal."""
    if console.quiet:
        return SilentDisplay()
    return LiveDisplay() if sys.stderr.isatty() else Display()


def format_metrics(record: Mapping[str, Any]) -> str:
    """Format the metrics of a validation: those of decoded sentences if there are any, else the accuracy."""
    if "bleu" not in record:
        return f"accuracy {record['accuracy']:.1f} %"
    chrf = f"  chrF {record['chrf']:.1f}" if "chrf" in record else ""
    search = f" ({record['search']})" if "search" in record else ""
    return f"BLEU {record['bleu']:.1f}{chrf}  exact match {record['exact_match']:.1f} %{search}"
