"""What a training writes down as it goes: metrics, samples, TensorBoard's curves."""

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
    """The metrics of a run, one JSON line each, and the translations of its validations."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder = folder
        self.truncate_after(step)
        self.board = _board(folder, step)

    def write(self, record: dict[str, Any]) -> None:
        with (
            os_errors_as_user_errors(self.folder / METRICS_FILE),
            (self.folder / METRICS_FILE).open("a", encoding="utf-8") as file,
        ):
            file.write(json.dumps(record) + "\n")
            if record["kind"] != "train":  # a checkpoint follows, and must not know of more than is on the disk
                file.flush()
                os.fsync(file.fileno())
        if self.board is not None:
            for name, value in record.items():
                if name not in ("kind", "step") and isinstance(value, (int, float)):
                    self.board.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def write_samples(self, result: ValidationResult, step: int) -> None:
        with os_errors_as_user_errors(self.folder / "samples"):
            (self.folder / "samples").mkdir(exist_ok=True)
        lines = (json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in result.samples)
        write_file(self.folder / "samples" / f"{step:06d}.jsonl", "".join(lines))

    def truncate_after(self, step: int) -> None:
        """What was measured after the last checkpoint will be measured again."""
        known = read_metrics(self.folder)
        kept = [record for record in known if record["step"] <= step and record["kind"] != "averaged"]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        if known and text != (self.folder / METRICS_FILE).read_text(encoding="utf-8"):
            write_file(self.folder / METRICS_FILE, text)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


class NullMetricsLog(MetricsLog):
    """Nothing is written: of several processes one is enough."""

    def __init__(self) -> None:
        pass

    def write(self, record: dict[str, Any]) -> None:
        pass

    def write_samples(self, result: ValidationResult, step: int) -> None:
        pass

    def truncate_after(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass


def _board(folder: Path, step: int) -> Any:
    """TensorBoard's writer, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
