"""What a person sees while training: a live line on a terminal, plain lines elsewhere, all on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from dragoman import console as progress
from dragoman.console import LOG_INTERVAL_SECONDS, format_duration, progress_bar
from dragoman.training.validation import ValidationResult


class Display:
    """Plain lines, for logs and pipes."""

    EVERY = LOG_INTERVAL_SECONDS

    def __init__(self) -> None:
        self.last = 0.0
        self.total: int | None = None
        self.began = time.monotonic()
        self.before = 0.0
        self.last_measures = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def start(self, done: float | None, total: int | None) -> None:
        """`done` is the share of the training that is behind it; `total` the number of steps, where one was set."""
        self.before, self.total, self.began = done or 0.0, total, time.monotonic()

    def message(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def log_step(self, record: dict[str, Any], done: float | None) -> None:
        if not 0 <= time.monotonic() - self.last < self.EVERY:
            self.last = time.monotonic()
            self.message(self.line(record, done))

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        self.last_measures = format_metrics(result.to_record())
        self.message(
            f"step {step:,}  validation loss {result.loss:.3f}  perplexity {result.perplexity:.2f}  "
            f"{self.last_measures}{'  best so far' if best else ''}"
        )

    def line(self, record: dict[str, Any], done: float | None) -> str:
        parts = [
            f"step {record['step']:,}" + (f" of {self.total:,}" if self.total else ""),
            f"epoch {record['epoch'] + 1}",
            f"loss {record['loss']:.3f}",
            f"{record['tokens_per_second']:,.0f} tokens/s",
            f"padding {100 * record['padding']:.0f} %",
        ]
        if self.last_measures:
            parts.append(f"last {self.last_measures}")
        if done is not None and done > self.before:
            parts.append(self.time_left(done))
        return "  ".join(parts)

    def time_left(self, done: float) -> str:
        rate = max(0.0, time.monotonic() - self.began) / (done - self.before)
        return f"{format_duration(rate * max(0.0, 1 - done))} left"


class SilentDisplay(Display):
    """Says nothing, for steps that are no training, and for processes that another one speaks for."""

    def message(self, text: str) -> None:
        pass


class LiveDisplay(Display):
    """A bar with the last figures, on a terminal."""

    def __enter__(self) -> Self:
        self.bar = progress_bar()
        self.task = self.bar.add_task("starting", total=None)
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def start(self, done: float | None, total: int | None) -> None:
        super().start(done, total)
        self.bar.update(self.task, total=None if done is None else 1.0, completed=done or 0.0)

    def message(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)

    def log_step(self, record: dict[str, Any], done: float | None) -> None:
        self.bar.update(self.task, completed=done or 0.0, description=self.line(record, done))


def make_display() -> Display:
    if progress.quiet:
        return SilentDisplay()
    return LiveDisplay() if sys.stderr.isatty() else Display()


def format_metrics(record: Mapping[str, Any]) -> str:
    """The metrics of a validation in a few words: of decoded sentences where there are some, else the accuracy."""
    if "bleu" not in record:
        return f"accuracy {record['accuracy']:.1f} %"
    chrf = f"  chrF {record['chrf']:.1f}" if "chrf" in record else ""
    search = f" ({record['search']})" if "search" in record else ""
    return f"BLEU {record['bleu']:.1f}{chrf}  exact match {record['exact_match']:.1f} %{search}"
