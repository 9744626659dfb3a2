"""What a training has written into its run folder so far, read without torch and without disturbing it."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman import evaluation
from dragoman.run_files import MESSAGES_FILE, METRICS_FILE, STATUS_FILE, is_run_folder
from dragoman.watch.training_warnings import training_warnings

MAX_CURVE_POINTS = 400  # of a curve
MAX_MESSAGES = 60
MAX_WATCHED_SENTENCES = 12  # validation sentences that are followed
MAX_BYTES_PER_READ = 20_000_000
#: fields of the records of metrics.jsonl, by their name as a curve
TRAINING_FIELDS = {
    "learning rate": "learning_rate",
    "gradient norm": "gradient_norm",
    "tokens per second": "tokens_per_second",
}

Record = dict[str, Any]
Points = list[tuple[float, float]]


class GrowingFile:
    """A file of JSON lines that another process appends to; only what is new is read."""

    def __init__(self, path: Path) -> None:
        """Start at the beginning of a file, which need not exist yet."""
        self.path, self.records = path, list[Record]()
        self._offset = self._inode = 0

    def read(self) -> list[Record]:
        """Return all records so far; all are read anew if the file was replaced or truncated."""
        try:
            status = self.path.stat()
        except OSError:
            return self.records
        if status.st_ino != self._inode or status.st_size < self._offset:
            self.records, self._offset, self._inode = [], 0, status.st_ino
        if status.st_size > self._offset:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                content = file.read(MAX_BYTES_PER_READ)
            complete = content.rfind(b"\n") + 1  # the rest is still being written
            self._offset += complete
            self.records += [record for line in content[:complete].split(b"\n") if (record := _parse(line))]
        return self.records


def _parse(line: bytes) -> Record | None:
    """Return a JSON object; None for anything else, such as a damaged line."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class TrainingLog:
    """The progress of a training, as its run folder shows it; the folder need not exist yet."""

    def __init__(self, folder: Path) -> None:
        """Watch the training that writes the run folder `folder`."""
        self.folder = folder
        self._metrics, self._messages = GrowingFile(folder / METRICS_FILE), GrowingFile(folder / MESSAGES_FILE)
        self._samples: dict[int, list[Record]] = {}  # step → sentences with their translations

    def read(self) -> Record:
        """Return what is known now as JSON values: state, step, curves, messages, warnings, validation sentences."""
        status, records, messages = self._status(), self._metrics.read(), self._messages.read()
        trained = [record for record in records if record.get("kind") == "train"]
        validated = [record for record in records if record.get("kind") == "valid"]
        last = trained[-1] if trained else {}
        names = ("loss", "learning_rate", "gradient_norm", "tokens_per_second", "padding", "seconds")
        return {
            **status,
            "step": max([int(status.get("step") or 0), *(int(record.get("step", 0)) for record in records[-1:])]),
            "latest": {name: _finite(last.get(name)) for name in names if name in last},
            "validation": _named_metrics(validated[-1]) if validated else {},
            "curves": [
                {"name": name, "points": thin_out(points, MAX_CURVE_POINTS)}
                for name, points in curves(trained, validated).items()
                if points
            ],
            "messages": messages[-MAX_MESSAGES:],
            "warnings": training_warnings(status, trained, validated),
            "sentences": self._sentences(),
        }

    def _status(self) -> Record:
        """Return the status that the training has written, without private fields, and with the state it is in now.

        States: preparing, training, finished, interrupted, failed, stopped (its process has ended without reporting
        why), unknown (a run folder without a status).
        """
        try:
            status = _parse((self.folder / STATUS_FILE).read_bytes()) or {}
        except OSError:
            status = {}
        if not status:
            prepared = is_run_folder(self.folder)
            return {"state": "unknown" if prepared and self._metrics.read() else "preparing"}
        seconds = time.time() - float(status.get("updated") or 0)
        alive = _is_alive(status)
        state = "stopped" if status.get("state") == "training" and alive is False else status.get("state")
        public = {name: value for name, value in status.items() if name not in ("pid", "host", "updated")}  # for a page
        return public | {"state": state, "seconds_since_update": round(max(0.0, seconds), 1)}

    def _sentences(self) -> list[Record]:
        """Return validation sentences with the steps at which their translation changed."""
        paths = sorted((self.folder / "samples").glob("*.jsonl"))
        present = {int(path.stem): path for path in paths if path.stem.isdecimal()}
        self._samples = {step: rows for step, rows in self._samples.items() if step in present}  # after a rollback
        for step, path in present.items():
            if step not in self._samples:
                lines = path.read_bytes().split(b"\n")[:MAX_WATCHED_SENTENCES]
                self._samples[step] = [row for line in lines if (row := _parse(line))]
        steps = sorted(self._samples)
        rows = self._samples[steps[-1]] if steps else []
        return [
            {"source": row.get("source"), "reference": row.get("reference"), "changes": self._changes(steps, index)}
            for index, row in enumerate(rows)
        ]

    def _changes(self, steps: Sequence[int], index: int) -> list[Record]:
        """Return each new translation of validation sentence `index`, with the step of `steps` where it appeared."""
        changes: list[Record] = []
        for step in steps:
            rows = self._samples[step]
            text = rows[index].get("translation") if index < len(rows) else None
            if text is not None and (not changes or changes[-1]["translation"] != text):
                changes.append({"step": step, "translation": text})
        return changes


def _is_alive(status: Record) -> bool | None:
    """Whether the process of a training is running; None if that is not known, as on another machine."""
    if status.get("host") != socket.gethostname() or not isinstance(status.get("pid"), int) or os.name == "nt":
        return None
    try:
        os.kill(status["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to another user
    return True


def _finite(value: Any) -> float | None:
    """Return a value if it is a finite number, otherwise None: JSON cannot express other numbers."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _named_metrics(record: Record) -> dict[str, float]:
    """Return the finite metrics of a validation by their titles: loss, perplexity, BLEU, exact match …"""
    named = {"loss": record.get("loss"), "perplexity": record.get("perplexity")}
    named |= {_title(name): record[name] for name in _metric_names(record)}
    return {name: value for name, number in named.items() if (value := _finite(number)) is not None}


def _metric_names(record: Record) -> list[str]:
    """Return the names of the metrics of a validation besides its loss; first the one that selects checkpoints."""
    names = [name for name in record if name == "accuracy" or (name != "loss" and evaluation.is_text_metric(name))]
    return sorted(names, key=lambda name: name != record.get("selection_metric"))


def _title(name: str) -> str:
    """Return the title of a metric, such as BLEU for bleu."""
    return name if name == "accuracy" else evaluation.text_metric(name).title


def curves(trained: Sequence[Record], validated: Sequence[Record]) -> dict[str, Points]:
    """Return curves, which are lists of (step, value), by name; losses are −log p per token.

    `trained` and `validated` are the records of metrics.jsonl from training and from validation.
    """

    def points(records: Sequence[Record], name: str) -> Points:
        """Return (step, value) of the field `name` of records, where it is a finite number."""
        pairs = ((record.get("step"), _finite(record.get(name))) for record in records)
        return [(float(step), value) for step, value in pairs if step is not None and value is not None]

    perplexity = points(trained, "perplexity")
    names = _metric_names(validated[-1]) if validated else []
    return {
        "training loss": [(step, math.log(value)) for step, value in perplexity if value > 0],
        "validation loss": points(validated, "loss"),
        **{_title(name): points(validated, name) for name in names},
        **{name: points(trained, field) for name, field in TRAINING_FIELDS.items()},
    }


def thin_out(points: Points, max_points: int) -> Points:
    """Return at most about `max_points` points, evenly spaced; the last one stays."""
    stride = math.ceil(len(points) / max_points) or 1
    return points[::-1][::stride][::-1]
