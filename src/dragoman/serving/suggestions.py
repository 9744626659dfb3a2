"""Suggested translations, collected in a file of JSON lines."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path

from dragoman.errors import UserError
from dragoman.serving.request_parsing import RequestError
from dragoman.storage import os_errors_as_user_errors

MAX_FILE_BYTES = 100_000_000


class SuggestionFile:
    """Appends suggestions to a file, until it has `max_bytes`."""

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Append to the file `path` up to `max_bytes`; a UserError if it cannot be written.

        It is opened once here, so that this is reported at the start.
        """
        self.path, self.max_bytes, self._lock = path, max_bytes, threading.Lock()
        if not path.parent.is_dir():
            raise UserError(f"{path} cannot be written: the folder {path.parent} does not exist, create it first")
        with os_errors_as_user_errors(path), path.open("a", encoding="utf-8"):
            pass

    def add(self, text: str, suggestion: str, source: str, target: str) -> None:
        """Append a suggested translation of a text, with the codes of its languages, as a line of JSON.

        A file that would exceed `max_bytes` is a RequestError (503).
        """
        entry = {
            "q": text,  # the names of LibreTranslate's API
            "s": suggestion,
            "source": source,
            "target": target,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            if self.path.exists() and self.path.stat().st_size + len(line) > self.max_bytes:
                raise RequestError(503, "the file of suggestions is full: tell the operator")
            with self.path.open("ab") as file:
                file.write(line)
