"""What a training has written into its run folder so far, read without torch and without disturbing it."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman import evaluation
from dragoman.run_files import MESSAGES_FILE, METRICS_FILE, STATUS_FILE, is_run_folder, sample_files
from dragoman.watch.training_warnings import training_warnings

MAX_CURVE_POINTS = 400  # of a curve
MAX_MESSAGES = 60  # the latest ones
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
        self._offset = self._inode = 0  # bytes that were read; number of the file, by which a new one is recognized

    def read(self) -> list[Record]:
        """Read what was appended since the last call, and return all records so far.

        A call reads at most MAX_BYTES_PER_READ. All are read anew if the file was replaced or truncated.
        """
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
            complete_bytes = content.rfind(b"\n") + 1  # the line after the last newline is still being written
            self._offset += complete_bytes
            self.records += [record for line in content[:complete_bytes].split(b"\n") if (record := _parse(line))]
        return self.records


def _parse(line: bytes) -> Record | None:
    """Return the JSON object in a line; None for anything else, such as a damaged line."""
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
        # (step, time at which its file was written) → sentences with their translations
        self._samples: dict[tuple[int, int], list[Record]] = {}

    def read(self) -> Record:
        """Return what is known now as JSON values: state, step, curves, messages, warnings, validation sentences."""
        status, records, messages = self._status(), self._metrics.read(), self._messages.read()
        trained = [record for record in records if record.get("kind") == "train"]
        validated = [record for record in records if record.get("kind") == "valid"]
        last = trained[-1] if trained else {}
        # the status or the last record may be newer: the trainer writes each at its own times
        step = max([int(status.get("step") or 0), *(int(record.get("step", 0)) for record in records[-1:])])
        names = ("loss", "learning_rate", "gradient_norm", "tokens_per_second", "padding", "seconds")
        return {
            **status,
            "step": step,
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
        """Return the status that the training has written, for a page: without private fields, and with its state now.

        States: preparing, training, finished, interrupted, failed, stopped (its process has ended without reporting
        why), unknown (a run folder without a status). `seconds_since_update` is the age of the status.
        """
        try:
            status = _parse((self.folder / STATUS_FILE).read_bytes()) or {}
        except OSError:
            status = {}
        if not status:
            has_trained = is_run_folder(self.folder) and bool(self._metrics.read())  # without writing a status
            return {"state": "unknown" if has_trained else "preparing"}
        seconds = time.time() - float(status.get("updated") or 0)
        has_ended = _is_alive(status) is False  # None: not known
        state = "stopped" if status.get("state") == "training" and has_ended else status.get("state")
        public = {name: value for name, value in status.items() if name not in ("pid", "host", "updated")}
        return public | {"state": state, "seconds_since_update": round(max(0.0, seconds), 1)}

    def _sentences(self) -> list[Record]:
        """Return validation sentences with the steps at which their translation changed.

        Each validation writes the translations to samples/STEP.jsonl, one JSON object per line. A training that is
        resumed from an earlier step removes later files, and writes them again. Files that have not changed since the
        last call are not read again.
        """
        samples: dict[tuple[int, int], list[Record]] = {}
        for step, path in sample_files(self.folder).items():
            with suppress(FileNotFoundError):  # it has just been removed
                key = (step, path.stat().st_mtime_ns)
                samples[key] = self._samples[key] if key in self._samples else _read_sentences(path)
        self._samples = samples
        by_step = {step: rows for (step, _), rows in samples.items()}
        last_rows = list(by_step.values())[-1] if by_step else []
        return [
            {"source": row.get("source"), "reference": row.get("reference"), "changes": _changes(by_step, index)}
            for index, row in enumerate(last_rows)
        ]


def _read_sentences(path: Path) -> list[Record]:
    """Read the first MAX_WATCHED_SENTENCES sentences of a validation, with their references and translations."""
    lines = path.read_bytes().split(b"\n")[:MAX_WATCHED_SENTENCES]
    return [row for line in lines if (row := _parse(line))]


def _changes(samples: Mapping[int, Sequence[Record]], index: int) -> list[Record]:
    """Return each new translation of validation sentence `index`, with the step where it appeared.

    `samples` are the sentences of each validation by step, in order.
    """
    changes: list[Record] = []
    for step, rows in samples.items():
        text = rows[index].get("translation") if index < len(rows) else None
        if text is not None and (not changes or changes[-1]["translation"] != text):
            changes.append({"step": step, "translation": text})
    return changes


def _is_alive(status: Record) -> bool | None:
    """Whether the process of a training is running; None if that is not known.

    It is not known if the process is on another machine, or on Windows. `status` has its host name and process id.
    """
    if status.get("host") != socket.gethostname() or not isinstance(status.get("pid"), int) or os.name == "nt":
        return None
    try:
        os.kill(status["pid"], 0)  # signal 0 only checks whether the process exists
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
    """Return the names of the quality metrics in a validation record, without loss and perplexity.

    The first one is that which selects the best checkpoint (`selection_metric` of the record), if it is among them.
    """
    names = [name for name in record if name == "accuracy" or (name != "loss" and evaluation.is_text_metric(name))]
    return sorted(names, key=lambda name: name != record.get("selection_metric"))  # False sorts first


def _title(name: str) -> str:
    """Return the title of a metric, such as BLEU for bleu; accuracy, which is not one of texts, keeps its name."""
    return name if name == "accuracy" else evaluation.text_metric(name).title


def curves(trained: Sequence[Record], validated: Sequence[Record]) -> dict[str, Points]:
    """Return curves, which are lists of (step, value), by name; losses are −log p per token.

    `trained` and `validated` are the records of metrics.jsonl from training and from validation.
    """

    def points(records: Sequence[Record], name: str) -> Points:
        """Return (step, value) of the field `name` of records, where it is a finite number."""
        pairs = ((record.get("step"), _finite(record.get(name))) for record in records)
        return [(float(step), value) for step, value in pairs if step is not None and value is not None]

    perplexity = points(trained, "perplexity")  # exp(−log p per token)
    names = _metric_names(validated[-1]) if validated else []
    return {
        "training loss": [(step, math.log(value)) for step, value in perplexity if value > 0],
        "validation loss": points(validated, "loss"),
        **{_title(name): points(validated, name) for name in names},
        **{name: points(trained, field) for name, field in TRAINING_FIELDS.items()},
    }


def thin_out(points: Points, max_points: int) -> Points:
    """Return at most `max_points` points, evenly spaced; the last one, which shows the present, stays."""
    stride = math.ceil(len(points) / max_points) or 1  # 1 for no points
    return points[::-1][::stride][::-1]  # counted from the end
