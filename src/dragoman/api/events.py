"""Events that a training reports to a callback."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any


@dataclass(frozen=True)
class StepEvent:
    """Training progress, reported every ten optimizer steps.

    Attributes:
        step: number of optimizer steps so far.
        epoch: index of the present pass over the data, from 0.
        loss: mean loss per target token since the last event, label smoothing included.
        learning_rate: learning rate of the last step.
        tokens_per_second: target tokens trained on per second.
        fraction_done: share of the training that is done, from 0 to 1; None if its end is not known.
    """

    step: int
    epoch: int
    loss: float
    learning_rate: float
    tokens_per_second: float
    fraction_done: float | None = None


@dataclass(frozen=True)
class ValidationEvent:
    """Result of a validation.

    Attributes:
        step: number of optimizer steps so far.
        loss: mean cross-entropy per target token.
        perplexity: exp(loss).
        metrics: further metrics by name, such as "accuracy", "bleu" or "chrf".
        is_best: whether this is the best checkpoint so far.
    """

    step: int
    loss: float
    perplexity: float
    metrics: dict[str, float] = field(default_factory=dict)
    is_best: bool = False


@dataclass(frozen=True)
class MessageEvent:
    """A line for the user: automatic settings, warnings."""

    text: str


TrainingEvent = StepEvent | ValidationEvent | MessageEvent
TrainingCallback = Callable[[TrainingEvent], None]


class NotebookProgress:
    """Training callback that draws a progress bar and loss curves in a notebook, and prints lines elsewhere.

    Examples:
        >>> progress = dragoman.NotebookProgress()
        >>> progress(dragoman.StepEvent(10, 0, 5.2, 1e-3, 1000.0))
        step 10, loss 5.200
    """

    def __init__(self) -> None:
        """Start without any events, and find out whether the code runs in a notebook."""
        self.training: list[tuple[float, float]] = []  # (step, loss)
        self.validation: list[tuple[float, float]] = []  # (step, loss)
        self.fraction_done: float | None = None  # of the training; None if its end is not known
        self.status = self.result = ""  # the last event, and the last validation, each as a line of text
        self.start = time.monotonic()  # of the training, to estimate the time left
        self.handle: Any = None  # IPython's handle of the displayed HTML, which is updated in place
        try:
            from IPython import get_ipython  # type: ignore[import-not-found, unused-ignore]

            self.in_notebook = get_ipython() is not None
        except ImportError:
            self.in_notebook = False

    def __call__(self, event: TrainingEvent) -> None:
        """Record an event of the training; redraw bar and curves in a notebook, or print a line elsewhere."""
        match event:
            case StepEvent():
                self.training.append((event.step, event.loss))
                self.fraction_done = event.fraction_done
                self.status = f"step {event.step:,}, loss {event.loss:.3f}"
                if event.fraction_done:  # neither unknown (None) nor 0: the time left can be extrapolated
                    elapsed = time.monotonic() - self.start
                    seconds_left = elapsed / event.fraction_done - elapsed
                    duration = f"{seconds_left:.0f} s" if seconds_left < 90 else f"{seconds_left / 60:.0f} min"
                    self.status += f", {event.tokens_per_second:,.0f} target tokens/s, {duration} left"
            case ValidationEvent():
                self.validation.append((event.step, event.loss))
                metrics = "".join(f", {name} {value:.2f}" for name, value in event.metrics.items())
                self.status = self.result = f"step {event.step:,}, validation loss {event.loss:.3f}{metrics}"
            case MessageEvent():
                self.status = event.text
        if not self.in_notebook:
            print(self.status)
            return
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        if self.handle is None:
            self.handle = display(HTML(self.html()), display_id=True)
        else:
            self.handle.update(HTML(self.html()))

    def html(self) -> str:
        """Return HTML with a progress bar, the last event and the last validation as text, and the loss curves."""
        from dragoman.lens.charts import line_chart

        # HTML shows a bar without `value` as one of unknown progress
        value = "" if self.fraction_done is None else f'value="{self.fraction_done:.3f}"'
        # after a validation both texts are the same, and shown only once
        texts = dict.fromkeys((self.status, self.result))
        lines = "".join(f"<div>{escape(text)}</div>" for text in texts)
        chart = line_chart({"training": self.training, "validation": self.validation}, "Loss per target token")
        return f'<progress {value} max="1" style="width:480px"></progress>{lines}{chart}'
