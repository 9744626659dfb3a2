"""Measurements during training: losses, speed and time."""

from __future__ import annotations

import math
import time

import torch

from dragoman.training.accumulation import StepBatches
from dragoman.training.process_group import ProcessGroup
from dragoman.training.train_step import TrainStep

SUMS = ("loss", "nll_loss", "nonfinite_tokens")  # of TrainStep.loss_sums


class TrainingMeter:
    """Reads the sums of the training step every few steps, so that no step waits for its own loss.

    Every process accumulates its own sums; all of them read the totals at the same step.
    """

    def __init__(self, train_step: TrainStep, unlogged: dict[str, float], processes: ProcessGroup) -> None:
        self.train_step, self.processes = train_step, processes
        self._reset(unlogged)

    def _reset(self, unlogged: dict[str, float]) -> None:
        """Continue from the sums of a checkpoint, which the first process takes over for all."""
        initial = unlogged if self.processes.rank == 0 else {}
        sums = [initial.get(name, 0.0) for name in SUMS]
        self.train_step.loss_sums.copy_(torch.tensor(sums, dtype=torch.float64))
        self.train_step.skipped_steps.fill_(unlogged.get("skipped", 0.0))
        self.padding, self.batches = initial.get("padding", 0.0), initial.get("batches", 0.0)
        self.tokens, self.learning_rate = unlogged.get("tokens", 0.0), 0.0
        self.start, self.measured_tokens = time.perf_counter(), 0

    def unlogged(self) -> dict[str, float]:
        """Return what all processes have summed since the last record."""
        names = (*SUMS, "padding", "batches")
        values = [*self.train_step.loss_sums.tolist(), self.padding, self.batches]
        sums = dict(zip(names, self.processes.all_reduce_sum(values)))
        return sums | {"tokens": self.tokens, "skipped": float(self.train_step.skipped_steps)}

    def record_step(self, batches: StepBatches, learning_rate: float) -> None:
        """Count a step; `batches.target_tokens` are those of all processes."""
        self.tokens += batches.target_tokens
        self.measured_tokens += batches.target_tokens
        self.padding += sum(batch.padding_ratio for _, batch in batches.batches)
        self.batches += len(batches.batches)
        self.learning_rate = learning_rate

    def make_record(self, step: int) -> dict[str, float]:
        """Return the record of metrics.jsonl for the steps since the last one, and start a new one."""
        sums = self.unlogged()
        tokens = max(1.0, sums["tokens"] - sums["nonfinite_tokens"])
        record = {
            "step": step,
            "loss": sums["loss"] / tokens,
            "perplexity": math.exp(min(sums["nll_loss"] / tokens, 700.0)),
            "learning_rate": self.learning_rate,
            "gradient_norm": float(self.train_step.gradient_norm),
            "tokens_per_second": round(self.measured_tokens / max(1e-6, time.perf_counter() - self.start), 1),
            "padding": round(sums["padding"] / max(1.0, sums["batches"]), 4),
        }
        if skipped := int(sums["skipped"]):
            record["skipped"] = skipped
        self._reset({})
        return record


class Stopwatch:
    """Seconds of training, including those before a resumption."""

    def __init__(self, seconds: float) -> None:
        self.total, self.last = seconds, time.monotonic()

    @property
    def seconds(self) -> float:
        now = time.monotonic()
        self.total += max(0.0, now - self.last)  # a clock that is set back takes nothing away
        self.last = now
        return self.total
