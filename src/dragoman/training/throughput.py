"""What is measured while training: losses, speed and time."""

from __future__ import annotations

import math
import time

import torch

from dragoman.training.accumulation import StepBatches
from dragoman.training.process_group import ProcessGroup
from dragoman.training.train_step import TrainStep


class TrainingMeter:
    """Reads now and then what the stepper has added up on the device, so that no step waits for its own loss.

    On many processes each adds up its own, and all read at the same step the sums of all.
    """

    def __init__(self, stepper: TrainStep, unread: dict[str, float], world: ProcessGroup | None = None) -> None:
        self.stepper, self.world = stepper, world or ProcessGroup()
        self._begin(unread)

    def _begin(self, unread: dict[str, float]) -> None:
        own = unread if self.world.rank == 0 else {}  # what all had, one of them goes on with
        sums = [own.get(name, 0.0) for name in ("total", "likelihood", "lost")]
        self.stepper.loss_sums.copy_(torch.tensor(sums, dtype=torch.float64))
        self.stepper.skipped_steps.fill_(unread.get("skipped", 0.0))
        self.padding, self.batches = own.get("padding", 0.0), own.get("batches", 0.0)
        self.tokens, self.rate = unread.get("tokens", 0.0), 0.0
        self.since, self.fresh = time.perf_counter(), 0

    def unlogged(self) -> dict[str, float]:
        """What was added since it was last read, by all processes."""
        names = ("total", "likelihood", "lost", "padding", "batches")
        sums = dict(
            zip(names, self.world.all_reduce_sum([*self.stepper.loss_sums.tolist(), self.padding, self.batches]))
        )
        return sums | {"tokens": self.tokens, "skipped": float(self.stepper.skipped_steps)}

    def record_step(self, group: StepBatches, answers: int, rate: float) -> None:
        """`answers` are those of all processes."""
        self.tokens += answers
        self.fresh += answers
        self.padding += sum(batch.padding_ratio for _, batch in group.batches)
        self.batches += len(group.batches)
        self.rate = rate

    def make_record(self, step: int) -> dict[str, float]:
        sums = self.unlogged()
        tokens = max(1.0, sums["tokens"] - sums["lost"])
        record = {
            "step": step,
            "loss": sums["total"] / tokens,
            "perplexity": math.exp(min(sums["likelihood"] / tokens, 700.0)),
            "learning_rate": self.rate,
            "gradient_norm": float(self.stepper.gradient_norm),
            "tokens_per_second": round(self.fresh / max(1e-6, time.perf_counter() - self.since), 1),
            "padding": round(sums["padding"] / max(1.0, sums["batches"]), 4),
        }
        if skipped := int(sums["skipped"]):
            record["skipped"] = skipped
        self._begin({})
        return record


class Stopwatch:
    """Seconds of training, those before a resumption counted in."""

    def __init__(self, before: float) -> None:
        self.before, self.last = before, time.monotonic()

    @property
    def seconds(self) -> float:
        now = time.monotonic()
        self.before += max(0.0, now - self.last)  # a clock that is set back takes nothing away
        self.last = now
        return self.before
