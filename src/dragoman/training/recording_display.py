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
        """Pass everything on to the display `inner`, and record it in the run folder `folder`."""
        super().__init__()
        self.inner, self.folder = inner, folder
        self.status: dict[str, Any] = {"state": "training", "pid": os.getpid(), "host": socket.gethostname(), "step": 0}
        self.written_at = 0.0  # when status.json was written last, by the monotonic clock

    def __enter__(self) -> Self:
        """Start the inner display."""
        self.inner.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the inner display; record an exception (type, value, traceback) as the reason of a failed training."""
        self.inner.__exit__(*exception)
        if exception and exception[1] is not None:
            self.finish("failed", reason=str(exception[1]) or type(exception[1]).__name__)

    def start(self, fraction: float | None, total_steps: int | None) -> None:
        """Record that training starts, or is resumed.

        `fraction` of the training budget was used before, None if unknown; `total_steps` is the planned number of
        steps, None without a limit.
        """
        self.inner.start(fraction, total_steps)
        self._update(fraction_done=fraction, total_steps=total_steps, started=time.time())

    def message(self, text: str) -> None:
        """Show a message, and append it to messages.jsonl with the time and the training step."""
        self.inner.message(text)
        with suppress(OSError), (self.folder / MESSAGES_FILE).open("a", encoding="utf-8") as file:
            line = {"time": round(time.time(), 1), "step": self.status["step"], "text": text}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        """Show a record of metrics.jsonl, and write step, epoch and progress to status.json at most once a second.

        `fraction`: used fraction of the training budget, None if unknown.
        """
        self.inner.log_step(record, fraction)
        self.status |= {"step": record["step"], "epoch": record["epoch"] + 1, "fraction_done": fraction}
        self.status["seconds_left"] = self.inner.seconds_left(fraction)
        if time.monotonic() - self.written_at >= STATUS_INTERVAL:
            self._update()

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Show the result of a validation, and write its step to status.json, also as that of the best if it is."""
        self.inner.log_validation(step, result, best)
        self._update(step=step, **({"best_step": step} if best else {}))

    def finish(self, state: str, reason: str, step: int | None = None) -> None:
        """Record how and why the training ended.

        `state` is finished, interrupted or failed, `reason` a text for the user; `step` None keeps the last one.
        """
        self._update(state=state, reason=reason, seconds_left=None, **({} if step is None else {"step": step}))

    def _update(self, **changes: Any) -> None:
        """Change fields of the status, and write it to status.json; errors of the file system are ignored."""
        self.status |= changes | {"updated": time.time()}
        self.written_at = time.monotonic()
        partial = self.folder / f".{STATUS_FILE}.partial"
        with suppress(OSError):  # not flushed to disk: it is outdated in a second
            partial.write_text(json.dumps(self.status), encoding="utf-8")
            partial.replace(self.folder / STATUS_FILE)
