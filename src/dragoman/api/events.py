"""Events that a training reports to a callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


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
