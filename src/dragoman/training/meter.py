"""What is measured while training: losses, speed and time."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from dragoman.data import Batch
from dragoman.objectives import Loss


class Meter:
    """Adds up on the device, and is read now and then, so that no step waits for its own loss."""

    def __init__(self, device: torch.device, unread: dict[str, float]) -> None:
        self.device = device
        self._reset(**unread)

    def _reset(
        self, total: float = 0.0, likelihood: float = 0.0, tokens: float = 0, padding: float = 0.0, batches: float = 0
    ) -> None:
        self.total = torch.tensor(total, device=self.device)
        self.likelihood = torch.tensor(likelihood, device=self.device)
        self.norm = torch.zeros((), device=self.device)
        self.rate, self.tokens, self.padding, self.batches = 0.0, tokens, padding, batches
        self.since, self.fresh = time.perf_counter(), 0

    def unread(self) -> dict[str, float]:
        """What was added since it was last read."""
        sums = {"total": float(self.total), "likelihood": float(self.likelihood)}
        return sums | {"tokens": self.tokens, "padding": self.padding, "batches": self.batches}

    def add(self, loss: Loss, batch: Batch) -> None:
        self.total += loss.total.detach()
        self.likelihood += loss.parts["likelihood"]
        self.tokens += batch.target_tokens
        self.fresh += batch.target_tokens
        self.padding += batch.padding
        self.batches += 1

    def stepped(self, norm: Tensor, rate: float) -> None:
        self.norm, self.rate = norm, rate

    def read(self, step: int) -> dict[str, float]:
        loss, likelihood, norm = (
            float(x) for x in (self.total / self.tokens, self.likelihood / self.tokens, self.norm)
        )
        record = {
            "step": step,
            "loss": loss,
            "perplexity": math.exp(min(likelihood, 700.0)),
            "learning_rate": self.rate,
            "gradient_norm": norm,
            "tokens_per_second": round(self.fresh / (time.perf_counter() - self.since), 1),
            "padding": round(self.padding / self.batches, 4),
        }
        self._reset()
        return record


class Stopwatch:
    """Seconds of training, those before a resumption counted in."""

    def __init__(self, before: float) -> None:
        self.before, self.start = before, time.monotonic()

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.start
