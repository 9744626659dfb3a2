"""A display that also records the state of a training in its run folder, for those who watch it."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from dragoman.run_files import MESSAGES_FILE, STATUS_FILE
from dragoman.training.display import Display
from dragoman.training.validation import ValidationResult

STATUS_INTERVAL = 1.0  # seconds between two writes of the status


class RecordingDisplay(Display):
    """Passes everything on to another display, and writes `status.json` and `messages.jsonl` into the run folder.

    A file that cannot be written is left out: nothing here may stop a training.
    """

    def __init__(self, inner: Display, folder: Path) -> None:
        """Record the training of a run folder that `inner` shows."""
        super().__init__()
        self.inner, self.folder = inner, folder
        self.status: dict[str, Any] = {"state": "training", "pid": os.getpid(), "host": socket.gethostname(), "step": 0}
        self.written_at = 0.0  # by the monotonic clock

    def __enter__(self) -> Self:
        """Start the other display."""
        self.inner.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the other display, and record the exception (type, value, traceback) that ends the training, if any."""
        self.inner.__exit__(*exception)
        if exception and exception[1] is not None:
            self.finish("failed", str(exception[1]) or type(exception[1]).__name__)

    def start(self, fraction: float | None, total_steps: int | None) -> None:
        """Record that training starts; `fraction` of the training budget was used before, by a run that is resumed."""
        self.inner.start(fraction, total_steps)
        self._update(fraction_done=fraction, total_steps=total_steps, started=time.time())

    def message(self, text: str) -> None:
        """Record a message with its time."""
        self.inner.message(text)
        with suppress(OSError), (self.folder / MESSAGES_FILE).open("a", encoding="utf-8") as file:
            line = {"time": round(time.time(), 1), "step": self.status["step"], "text": text}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        """Record the progress, at most once a second."""
        self.inner.log_step(record, fraction)
        self.status |= {"step": record["step"], "epoch": record["epoch"] + 1, "fraction_done": fraction}
        self.status["seconds_left"] = self.inner.seconds_left(fraction)
        if time.monotonic() - self.written_at >= STATUS_INTERVAL:
            self._update()

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Record the step of a validation, and of the best one."""
        self.inner.log_validation(step, result, best)
        self._update(step=step, **({"best_step": step} if best else {}))

    def finish(self, state: str, reason: str, step: int | None = None) -> None:
        """Record how the training ended: `finished`, `interrupted` or `failed`, why, and at which step."""
        self._update(state=state, reason=reason, seconds_left=None, **({} if step is None else {"step": step}))

    def _update(self, **changes: Any) -> None:
        """Write the status with some changes, in place of the previous one."""
        self.status |= changes | {"updated": time.time()}
        self.written_at = time.monotonic()
        partial = self.folder / f".{STATUS_FILE}.partial"
        with suppress(OSError):  # not flushed to disk: it is outdated in a second
            partial.write_text(json.dumps(self.status), encoding="utf-8")
            partial.replace(self.folder / STATUS_FILE)
