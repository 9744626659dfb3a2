"""Progress of a training on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from dragoman.console import LOG_INTERVAL_SECONDS, format_duration, log, progress_bar
from dragoman.training.validation import ValidationResult, displayed_metrics, format_metric

if TYPE_CHECKING:
    from rich.progress import TaskID


class Display:
    """Shows a training on standard error: a bar with the latest measurements, or plain lines for logs and pipes.

    Args:
        live: show a bar, for a terminal.
    """

    line_interval = LOG_INTERVAL_SECONDS  # seconds between plain lines

    def __init__(self, live: bool = False) -> None:
        """Create the bar, which is hidden unless `live`."""
        self.bar = progress_bar(live)
        self.task: TaskID | None = None
        self.last_line = -math.inf  # time of the last plain line
        self.total_steps: int | None = None
        self.started = time.monotonic()
        self.fraction_at_start = 0.0
        self.last_metrics = ""

    def __enter__(self) -> Self:
        """Start to draw the bar."""
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the bar."""
        self.bar.stop()

    def start(self, fraction: float | None, total_steps: int | None) -> None:
        """Start at a used fraction of the training budget (None: unknown) of `total_steps` steps (None: no limit)."""
        self.fraction_at_start, self.total_steps = fraction or 0.0, total_steps
        self.started = time.monotonic()
        self.show(fraction, "starting")

    def show(self, fraction: float | None, text: str) -> None:
        """Show the used fraction of the budget as a bar, if it is known, and a text beside it."""
        if self.task is None:
            self.task = self.bar.add_task(text)
        self.bar.update(self.task, description=text, total=None if fraction is None else 1.0, completed=fraction or 0.0)

    def message(self, text: str) -> None:
        """Print a line, above the bar if there is one; nothing with --quiet."""
        if self.bar.disable:
            log(text)
        else:
            self.bar.console.print(text, highlight=False, markup=False)

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        """Show a record of the training log at a fraction of the budget; plain lines only every few seconds."""
        text = self.line(record, fraction)
        self.show(fraction, text)
        if self.bar.disable and time.monotonic() - self.last_line >= self.line_interval:
            self.last_line = time.monotonic()
            self.message(text)

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Show the result of a validation."""
        record = {"step": step, **result.to_record()}
        self.last_metrics = format_metrics(record)
        self.message(f"{format_validation(record, 'validation ')}{'  best so far' if best else ''}")
        for name, metrics in result.corpora.items():
            shown = [
                format_metric(key, metrics[key]) for key in displayed_metrics(result.to_record()) if key in metrics
            ]
            self.message(f"  {name}: {'  '.join(shown)}")

    def line(self, record: dict[str, Any], fraction: float | None) -> str:
        """Format a record of the training log, with an estimate of the time left."""
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
        """Estimate the remaining seconds at a used fraction of the budget; None if they cannot be estimated yet."""
        if fraction is None or fraction <= self.fraction_at_start:
            return None
        return (time.monotonic() - self.started) / (fraction - self.fraction_at_start) * max(0.0, 1 - fraction)


class SilentDisplay(Display):
    """Shows nothing: for trial steps, and for all processes but the first."""

    def message(self, text: str) -> None:
        """Ignore the message."""


def format_validation(record: Mapping[str, Any], kind: str = "") -> str:
    """Format a validation record in one line: step, loss (of a `kind`), perplexity and metrics."""
    loss = f"{kind}loss {record['loss']:.3f}  perplexity {record['perplexity']:.2f}"
    return f"step {record['step']:,}  {loss}  {format_metrics(record)}"


def format_metrics(record: Mapping[str, Any]) -> str:
    """Format the metrics of a validation, the one that selects the best checkpoint first.

    These are metrics of decoded sentences if there are any, else the accuracy. BLEU is left out where single words or
    symbols are compared exactly. For mixtures of experts, the coefficient of variation of their load is added, which is
    0 if they are balanced.
    """
    experts = f"  expert load CV {record['expert_load_cv']:.2f}" if "expert_load_cv" in record else ""
    names = displayed_metrics(record)
    if names == ["accuracy"]:
        return format_metric("accuracy", record["accuracy"]) + experts
    reward = f"  reward {record['reward']:.1f}" if "reward" in record else ""
    search = f" ({record['search']})" if "search" in record else ""
    return "  ".join(format_metric(name, record[name]) for name in names) + reward + search + experts
