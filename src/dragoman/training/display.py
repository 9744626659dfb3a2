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
        """Create rich's progress bar, which is hidden unless `live`."""
        self.bar = progress_bar(live)
        self.task: TaskID | None = None  # of the bar, added by the first `show`
        self.last_line = -math.inf  # time of the last plain line
        self.total_steps: int | None = None  # None: no limit
        self.started = time.monotonic()  # when training was started or resumed
        self.fraction_at_start = 0.0  # of the training budget, used before this process by a run that is resumed
        self.last_metrics = ""  # of the last validation, formatted

    def __enter__(self) -> Self:
        """Start to draw the bar."""
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the bar."""
        self.bar.stop()

    def start(self, fraction: float | None, total_steps: int | None) -> None:
        """Show that training starts, or is resumed.

        `fraction` of the training budget (steps, epochs or minutes) was used before, None if unknown; `total_steps` is
        the planned number of steps, None without a limit.
        """
        self.fraction_at_start, self.total_steps = fraction or 0.0, total_steps
        self.started = time.monotonic()
        self.show(fraction, "starting")

    def show(self, fraction: float | None, text: str) -> None:
        """Show the used fraction of the training budget as a bar (None: unknown), and a text beside it."""
        if self.task is None:
            self.task = self.bar.add_task(text)
        self.bar.update(self.task, description=text, total=None if fraction is None else 1.0, completed=fraction or 0.0)

    def message(self, text: str) -> None:
        """Print a line, above the bar if there is one; nothing with --quiet."""
        if self.bar.disable:  # no terminal, or --quiet, with which `log` prints nothing
            log(text)
        else:
            self.bar.console.print(text, highlight=False, markup=False)

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        """Show a record of metrics.jsonl in the bar, or as a plain line every few seconds.

        `fraction`: used fraction of the training budget, None if unknown.
        """
        text = self.line(record, fraction)
        self.show(fraction, text)
        if self.bar.disable and time.monotonic() - self.last_line >= self.line_interval:
            self.last_line = time.monotonic()
            self.message(text)

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Print loss and metrics of a validation at `step`, in total and by corpus; `best`: it is the best so far."""
        record = {"step": step, **result.to_record()}
        self.last_metrics = format_metrics(record)
        self.message(f"{format_validation(record, loss_name='validation loss')}{'  best so far' if best else ''}")
        metric_names = displayed_metrics(record)
        for corpus_name, metrics in result.corpora.items():
            formatted = [format_metric(name, metrics[name]) for name in metric_names if name in metrics]
            self.message(f"  {corpus_name}: {'  '.join(formatted)}")

    def line(self, record: dict[str, Any], fraction: float | None) -> str:
        """Format a record of metrics.jsonl in one line, with an estimate of the time left.

        `fraction`: used fraction of the training budget, None if unknown.
        """
        parts = [
            f"step {record['step']:,}" + (f" of {self.total_steps:,}" if self.total_steps else ""),
            f"epoch {record['epoch'] + 1}",
            f"loss {record['loss']:.3f}",
            f"{record['tokens_per_second']:,.0f} tokens/s",
            f"padding {100 * record['padding']:.0f} %",
        ]
        if self.last_metrics:  # of the last validation
            parts.append(f"last {self.last_metrics}")
        if (seconds := self.seconds_left(fraction)) is not None:
            parts.append(f"{format_duration(seconds)} left")
        return "  ".join(parts)

    def seconds_left(self, fraction: float | None) -> float | None:
        """Estimate the seconds until the end of training, of whose budget `fraction` is used.

        None if they cannot be estimated, because `fraction` is None or nothing was trained yet.
        """
        if fraction is None or fraction <= self.fraction_at_start:
            return None
        return (time.monotonic() - self.started) / (fraction - self.fraction_at_start) * max(0.0, 1 - fraction)


class SilentDisplay(Display):
    """Shows nothing: for trial steps, and for all processes but the first."""

    def message(self, text: str) -> None:
        """Print nothing."""


def format_validation(record: Mapping[str, Any], loss_name: str = "loss") -> str:
    """Format a validation record of metrics.jsonl in one line: step, loss (called `loss_name`), perplexity, metrics."""
    loss = f"{loss_name} {record['loss']:.3f}  perplexity {record['perplexity']:.2f}"
    return f"step {record['step']:,}  {loss}  {format_metrics(record)}"


def format_metrics(record: Mapping[str, Any]) -> str:
    """Format the metrics of a validation record, the one that selects the best checkpoint first.

    These are the metrics of decoded sentences if there are any, else the token accuracy. Expected reward and the beam
    search are added if the record has them, and for mixtures of experts the coefficient of variation of their load,
    which is 0 if they are balanced.
    """
    expert_load = f"  expert load CV {record['expert_load_cv']:.2f}" if "expert_load_cv" in record else ""
    names = displayed_metrics(record)
    if names == ["accuracy"]:
        return format_metric("accuracy", record["accuracy"]) + expert_load
    reward = f"  reward {record['reward']:.1f}" if "reward" in record else ""
    search = f" ({record['search']})" if "search" in record else ""
    return "  ".join(format_metric(name, record[name]) for name in names) + reward + search + expert_load
