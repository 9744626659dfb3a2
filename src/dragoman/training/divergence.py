"""Detection of divergence: a training loss that has risen for good, as opposed to a noisy one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

WINDOW_READINGS = 20  # recent readings that define the normal loss
HIGH_READINGS = 3  # consecutive high readings that mean divergence
MIN_READINGS = 3  # before any reading is judged


@dataclass
class LossHistory:
    """Recent readings of the training loss, each the mean of several steps. Part of the saved training state.

    A reading is high above

        median + max(¼ · max(median, first − median), 1½ · largest change between adjacent readings)

    over a window of recent readings: a quarter of the loss, or of all progress since the first reading, is lost, and
    the rise exceeds the noise. The largest change covers corpora of different difficulty, where a reading depends on
    its batches. Consecutive high readings mean divergence; if a normal one follows, they count as normal.
    """

    first: float | None = None
    recent: list[float] = field(default_factory=list)
    high_losses: list[float] = field(default_factory=list)  # the latest readings, if they are high

    def limit(self) -> float:
        """Return the value above which a reading is high."""
        if self.first is None or len(self.recent) < MIN_READINGS:
            return float("inf")
        usual = median(self.recent)
        noise = max(abs(after - before) for before, after in pairwise(self.recent))
        return usual + max(0.25 * max(abs(usual), self.first - usual), 1.5 * noise)

    def diverged(self, loss: float) -> bool:
        """Add a reading, and return whether training has diverged."""
        if self.first is None:
            self.first = loss
        if loss > self.limit():
            self.high_losses.append(loss)
            return len(self.high_losses) >= HIGH_READINGS
        self.recent = [*self.recent, *self.high_losses, loss][-WINDOW_READINGS:]
        self.high_losses = []
        return False
