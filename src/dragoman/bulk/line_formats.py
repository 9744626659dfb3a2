"""Lines of input and output files: plain text, or one JSON object per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from dragoman.bulk.blocks import MAX_BULK_LINE_BYTES, Line
from dragoman.data.compression import without_compression_suffix
from dragoman.errors import UserError
from dragoman.text.documents.document import document_suffixes

SOURCE_KEYS = ("source", "src", "text", "sentence", "input")  # of JSON lines, in this order, unless one is named


class LineError(Exception):
    """Why a line cannot be processed; `record` is its JSON object, if it is one."""

    def __init__(self, message: str, record: dict[str, Any] | None = None) -> None:
        """Keep the message and the record."""
        super().__init__(message)
        self.record = record


@dataclass(frozen=True)
class TextLines:
    """Every line is a source; its result replaces it."""

    name: ClassVar[str] = "text"

    def parse(self, line: Line) -> tuple[str, Any]:
        """Return the source of a line and its record (None); raise a LineError if it is not valid."""
        if line is None:
            raise LineError(f"the line has more than {MAX_BULK_LINE_BYTES:,} bytes")
        try:
            return line.decode(), None
        except UnicodeDecodeError as error:
            raise LineError(f"the line is not UTF-8 at byte {error.start}") from None

    def format(self, record: Any, result: dict[str, Any]) -> str:
        """Return the output line of a result: its text, on one line."""
        return " ".join(str(result["text"]).splitlines())

    def format_error(self, record: Any, message: str) -> str:
        """Return the output line of a line that failed: an empty one, so that line numbers stay the same."""
        return ""


@dataclass(frozen=True)
class JsonLines(TextLines):
    """Every line is a JSON object; the fields of the result are added to it.

    `source_key` is the key of the source; None: the first of SOURCE_KEYS that the object has.
    """

    name: ClassVar[str] = "jsonl"

    source_key: str | None = None
    result_key: str = "translation"

    def parse(self, line: Line) -> tuple[str, Any]:
        """Return the source of a line and the whole object; raise a LineError if it is not valid."""
        text, _ = super().parse(line)
        try:
            record = json.loads(text)
        except ValueError:
            raise LineError("the line is not valid JSON") from None
        if not isinstance(record, dict):
            raise LineError("the line is not a JSON object")
        key = self.source_key or next((name for name in SOURCE_KEYS if name in record), SOURCE_KEYS[0])
        if not isinstance(record.get(key), str):
            raise LineError(f"the object has no text {key!r}: name its key with --source-column", record)
        return record[key], record

    def format(self, record: Any, result: dict[str, Any]) -> str:
        """Return the object with the result: its text under `result_key`, and its other fields."""
        others = {key: value for key, value in result.items() if key != "text"}
        return json.dumps(record | {self.result_key: result["text"]} | others, ensure_ascii=False)

    def format_error(self, record: Any, message: str) -> str:
        """Return the object with the error, or the error alone if the line is no object."""
        return json.dumps((record or {}) | {self.result_key: None, "error": message}, ensure_ascii=False)


def line_format(location: str, format: str = "", source_key: str | None = None) -> TextLines:
    """Return the format of a file: the given one ("text" or "jsonl"), or by the suffix of its name."""
    suffix = without_compression_suffix(location).rpartition(".")[2].lower()
    name = format or ("jsonl" if suffix in ("jsonl", "ndjson", "json") else "text")
    if name == "jsonl":
        return JsonLines(source_key)
    is_document = f".{suffix}" in set(document_suffixes()) - {".txt"} and not format
    if name != "text" or is_document or suffix in ("parquet", "tsv", "csv", "tmx", "pdf"):
        raise UserError(
            f"{location} is not text or JSON lines, which are what --input reads: convert it, or translate it as a "
            "single file without --input"
        )
    return TextLines()
