"""Measurements during training and the files that record them; detection of divergence."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dragoman.run_files import METRICS_FILE, SAMPLES_DIR, read_metrics, sample_files
from dragoman.storage import os_errors_as_user_errors, write_file
from dragoman.training.parallel import ProcessGroup
from dragoman.training.train_step import StepBatches, TrainStep
from dragoman.training.validation import ValidationResult

TRAIN_STEP_SUMS = ("loss", "nll_loss", "nonfinite_tokens")  # names of the elements of TrainStep.loss_sums


class TrainingMeter:
    """Reads the sums of the training step every few steps, so that no step waits for its own loss.

    Every process accumulates its own sums; all of them read the totals at the same step.
    """

    def __init__(self, train_step: TrainStep, unlogged: dict[str, float], processes: ProcessGroup) -> None:
        """Continue the sums of a resumed training.

        Args:
            train_step: the training step, which adds losses and skipped steps up on the device.
            unlogged: sums of a checkpoint, by name, that no record of metrics.jsonl includes yet; empty for a new
                training.
            processes: the processes of a distributed training.
        """
        self.train_step, self.processes = train_step, processes
        self._reset(unlogged)

    def _reset(self, unlogged: dict[str, float]) -> None:
        """Set all sums since the last record to those of a checkpoint (`unlogged`, by name), or to 0 if it is empty."""
        # these sums are added up over processes later: only the first process starts with those of the checkpoint;
        # tokens and skipped steps are counted alike on every process
        initial = unlogged if self.processes.rank == 0 else {}
        loss_sums = [initial.get(name, 0.0) for name in TRAIN_STEP_SUMS]
        self.train_step.loss_sums.copy_(torch.tensor(loss_sums, dtype=self.train_step.loss_sums.dtype))
        self.train_step.skipped_steps.fill_(unlogged.get("skipped", 0.0))
        self.padding, self.batches = initial.get("padding", 0.0), initial.get("batches", 0.0)
        self.tokens, self.learning_rate = unlogged.get("tokens", 0.0), 0.0  # tokens of all processes
        self.start, self.measured_tokens = time.perf_counter(), 0  # their ratio is the speed in tokens per second

    def unlogged(self) -> dict[str, float]:
        """Return the sums over all processes since the last record in metrics.jsonl, by name.

        These are losses, padding ratios, and the numbers of tokens, batches and skipped steps.
        """
        names = (*TRAIN_STEP_SUMS, "padding", "batches")
        values = [*self.train_step.loss_sums.tolist(), self.padding, self.batches]
        sums = dict(zip(names, self.processes.all_reduce_sum(values)))
        return sums | {"tokens": self.tokens, "skipped": float(self.train_step.skipped_steps)}

    def record_step(self, batches: StepBatches, learning_rate: float) -> None:
        """Add a training step to the sums of the next record.

        `batches` are the batches of this process in the step; only `batches.target_tokens` counts all processes. The
        record has the last `learning_rate`.
        """
        self.tokens += batches.target_tokens
        self.measured_tokens += batches.target_tokens
        self.padding += sum(batch.padding_ratio for _, batch in batches.batches)
        self.batches += len(batches.batches)
        self.learning_rate = learning_rate

    def make_record(self, step: int) -> dict[str, float]:
        """Return the record of metrics.jsonl for the steps since the last record up to `step`, and reset the sums.

        Loss and perplexity are means per target token, without the batches whose loss was not finite. Learning rate and
        norm of the gradient are those of the last step; "skipped" steps had a non-finite gradient.
        """
        sums = self.unlogged()  # of losses, tokens …, by name
        tokens = max(1.0, sums["tokens"] - sums["nonfinite_tokens"])
        record = {
            "step": step,
            "loss": sums["loss"] / tokens,
            "perplexity": math.exp(min(sums["nll_loss"] / tokens, 700.0)),  # e^710 would overflow
            "learning_rate": self.learning_rate,
            "gradient_norm": float(self.train_step.gradient_norm),
            "tokens_per_second": round(self.measured_tokens / max(1e-6, time.perf_counter() - self.start), 1),
            "padding": round(sums["padding"] / max(1.0, sums["batches"]), 4),
        }
        if skipped := int(sums["skipped"]):
            record["skipped"] = skipped
        self._reset({})
        return record


WINDOW_READINGS = 20  # recent readings that define the normal loss
HIGH_READINGS = 3  # consecutive high readings that mean divergence
MIN_READINGS = 3  # before any reading is judged


@dataclass
class LossHistory:
    """Recent readings of the training loss, each the mean of several steps. Part of the saved training state.

    A reading above `limit()` is high. Consecutive high readings mean divergence; if a normal one follows, they count
    as normal.
    """

    first: float | None = None
    recent: list[float] = field(default_factory=list)  # normal readings
    high_losses: list[float] = field(default_factory=list)  # the latest readings, if they are high

    def limit(self) -> float:
        """Return the loss above which a reading counts as high; infinity before there are enough readings.

            median + max(¼ · max(|median|, first − median), 1½ · largest change between adjacent readings)

        of the recent readings, which are means of the training loss over several steps. Above it, the loss has risen by
        more than a quarter of its usual value, and of the progress since the first reading. The rise also exceeds the
        noise: if corpora are of different difficulty, a reading depends on its batches.
        """
        if self.first is None or len(self.recent) < MIN_READINGS:
            return float("inf")
        usual_loss = median(self.recent)
        largest_change = max(abs(after - before) for before, after in pairwise(self.recent))
        return usual_loss + max(0.25 * max(abs(usual_loss), self.first - usual_loss), 1.5 * largest_change)

    def diverged(self, loss: float) -> bool:
        """Add a reading of the training loss (its mean over several steps), and return whether training has diverged.

        It has after three readings (`HIGH_READINGS`) in a row above `limit()`. Fewer count as normal if a normal one
        follows.
        """
        if self.first is None:
            self.first = loss
        if loss > self.limit():
            self.high_losses.append(loss)
            return len(self.high_losses) >= HIGH_READINGS
        self.recent = [*self.recent, *self.high_losses, loss][-WINDOW_READINGS:]
        self.high_losses = []
        return False


class MetricsLog:
    """Metrics of a run as JSON lines and TensorBoard curves, and the samples of its validations.

    Of several processes only the first one writes: the others have `enabled` false.
    """

    def __init__(self, folder: Path, step: int, enabled: bool = True) -> None:
        """Open the log of the run `folder`, and remove records after `step`, from which training is resumed.

        Nothing is written if `enabled` is false.
        """
        self.folder, self.enabled = folder, enabled
        self.truncate_after(step)
        self.tensorboard = _tensorboard_writer(folder, step) if enabled else None

    def write(self, record: dict[str, Any]) -> None:
        """Append a record to metrics.jsonl, and its numbers to the TensorBoard curves.

        A record has a "kind" (train, valid, averaged or search; start: a validation before training), a "step", and
        measurements by name.
        """
        if not self.enabled:
            return
        path = self.folder / METRICS_FILE
        with os_errors_as_user_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            if record["kind"] != "train":  # a checkpoint follows, which must not be newer than the log on disk
                file.flush()
                os.fsync(file.fileno())
        if self.tensorboard is not None:
            for name, value in record.items():
                if name not in ("kind", "step") and isinstance(value, (int, float)):
                    self.tensorboard.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def write_samples(self, result: ValidationResult, step: int) -> None:
        """Write the decoded sample sentences of a validation at `step` to samples/STEP.jsonl of the run folder."""
        if self.enabled:
            folder = self.folder / SAMPLES_DIR
            with os_errors_as_user_errors(folder):
                folder.mkdir(exist_ok=True)
            lines = (json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in result.samples)
            write_file(folder / f"{step:06d}.jsonl", "".join(lines))

    def truncate_after(self, step: int) -> None:
        """Remove records of metrics.jsonl, and samples, after `step`, from which training is resumed.

        The records "averaged" and "search" of the end of training, which will be repeated, are removed, too.
        """
        if not self.enabled:
            return
        records = read_metrics(self.folder)
        remaining = [r for r in records if r["step"] <= step and r["kind"] not in ("averaged", "search")]
        text = "".join(json.dumps(record) + "\n" for record in remaining)
        if records and text != (self.folder / METRICS_FILE).read_text(encoding="utf-8"):
            write_file(self.folder / METRICS_FILE, text)
        for sampled_step, path in sample_files(self.folder).items():
            if sampled_step > step:
                with os_errors_as_user_errors(path):
                    path.unlink()

    def last_record(self, kind: str, step: int) -> dict[str, Any]:
        """Return the last record of a kind (train, valid, averaged) at a step in metrics.jsonl; empty without one."""
        records = read_metrics(self.folder) if self.enabled else []
        return next((record for record in reversed(records) if (record["kind"], record["step"]) == (kind, step)), {})

    def count(self, kind: str) -> int:
        """Return the number of records of a kind (train, valid, averaged, search) in metrics.jsonl."""
        return sum(record["kind"] == kind for record in read_metrics(self.folder))

    def close(self) -> None:
        """Close the TensorBoard files."""
        if self.tensorboard is not None:
            self.tensorboard.close()


def _tensorboard_writer(folder: Path, step: int) -> Any:
    """Return TensorBoard's writer, which discards events after `step`; None if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
