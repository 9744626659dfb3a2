"""Divergence: a training loss that has risen for good, told apart from a noisy one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

WINDOW = 20  # readings that say what is normal
SUSTAINED = 3  # high readings in a row that are divergence
LEAST = 3  # readings before any is judged


@dataclass
class LossHistory:
    """Recent readings of the training loss, each the mean of some steps. Part of the saved training state.

    A reading is high above

        median + max(¼ · max(median, first − median), 1½ · largest change from one reading to the next)

    over a window of recent readings: a quarter of the loss, or of all that was learned since the first reading, is
    lost again, and the rise is more than the noise. The largest change covers corpora of different difficulty, where a
    reading depends on the batches it happens to contain. High readings in a row are divergence; where a normal one
    follows, they become part of what is normal.
    """

    first: float | None = None
    recent: list[float] = field(default_factory=list)
    high_losses: list[float] = field(default_factory=list)  # the last ones, if they were high

    def limit(self) -> float:
        """Readings above it are high."""
        if self.first is None or len(self.recent) < LEAST:
            return float("inf")
        usual = median(self.recent)
        noise = max(abs(after - before) for before, after in pairwise(self.recent))
        return usual + max(0.25 * max(abs(usual), self.first - usual), 1.5 * noise)

    def diverged(self, loss: float) -> bool:
        """Add a reading; whether it and those before it are divergence."""
        if self.first is None:
            self.first = loss
        if loss > self.limit():
            self.high_losses.append(loss)
            return len(self.high_losses) >= SUSTAINED
        self.recent = [*self.recent, *self.high_losses, loss][-WINDOW:]
        self.high_losses = []
        return False
