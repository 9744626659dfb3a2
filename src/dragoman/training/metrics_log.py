"""Files written during training: metrics, validation samples, TensorBoard curves."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dragoman.run import METRICS_FILE, read_metrics
from dragoman.storage import os_errors_as_user_errors, write_file
from dragoman.training.validation import ValidationResult


class MetricsLog:
    """Metrics of a run as JSON lines and TensorBoard curves, and the samples of its validations.

    Of several processes only the first one writes: the others have `enabled` false.
    """

    def __init__(self, folder: Path, step: int, enabled: bool = True) -> None:
        self.folder, self.enabled = folder, enabled
        self.truncate_after(step)
        self.tensorboard = _tensorboard_writer(folder, step) if enabled else None

    def write(self, record: dict[str, Any]) -> None:
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
        if self.enabled:
            with os_errors_as_user_errors(self.folder / "samples"):
                (self.folder / "samples").mkdir(exist_ok=True)
            lines = (json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in result.samples)
            write_file(self.folder / "samples" / f"{step:06d}.jsonl", "".join(lines))

    def truncate_after(self, step: int) -> None:
        """Remove the records after a step, which training repeats from its last checkpoint."""
        records = read_metrics(self.folder) if self.enabled else []
        kept = [record for record in records if record["step"] <= step and record["kind"] != "averaged"]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        if records and text != (self.folder / METRICS_FILE).read_text(encoding="utf-8"):
            write_file(self.folder / METRICS_FILE, text)

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()


def _tensorboard_writer(folder: Path, step: int) -> Any:
    """Return TensorBoard's writer, or None if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
