"""Rows of input and output files: lines of plain text, or one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NamedTuple

from dragoman.bulk.blocks import MAX_BULK_LINE_BYTES, Line

COPY_BYTES = 1 << 20  # at a time, when blocks are joined
MAX_EXCERPT = 200  # characters of a row in the file of errors

#: for each role of a text, the names of keys or columns that are tried in this order, unless the user names one
DEFAULT_COLUMNS = {
    "source": ("source", "src", "text", "sentence", "input"),
    "target": ("target", "tgt", "translation", "reference", "output"),
}


class RowResult(NamedTuple):
    """The result of a row: the values of the result columns, and the number of tokens that were generated or read."""

    values: tuple[str | float, ...]
    num_tokens: int = 0


Outcome = RowResult | str  # or an error message


class ParsedRow(NamedTuple):
    """The texts of a row and the rest of it (`record`), or the reason why it cannot be processed."""

    texts: tuple[str, ...] = ()
    record: Any = None
    error: str = ""


@dataclass(frozen=True)
class TextLines:
    """Every line is a text, or several separated by tabs; the first value of its result replaces it.

    Attributes:
        columns: the role of each text (source or target), and the name of its column, if one is given.
        results: names and types of the result columns.
    """

    name: ClassVar[str] = "text"

    columns: Mapping[str, str | None]
    results: Mapping[str, type]

    def parse(self, rows: Any) -> list[ParsedRow]:
        """Return the parsed lines (bytes; None: too long) of a block."""
        return [self._parse_line(line) for line in rows]

    def _parse_line(self, row: Line) -> ParsedRow:
        """Return a line, parsed; one that is too long (None) or not UTF-8 has an error."""
        if row is None:
            return ParsedRow(error=f"the line has more than {MAX_BULK_LINE_BYTES:,} bytes")
        try:
            line = row.decode()
        except UnicodeDecodeError as error:
            return ParsedRow(error=f"the line is not UTF-8 at byte {error.start}")
        return self._parse_text(line)

    def _parse_text(self, line: str) -> ParsedRow:
        """Return the texts of a line, separated by tabs: one per role (`self.columns`: source, or source and target).

        Another number of texts is an error. A line for a single role is one text, whatever tabs it has.
        """
        texts = tuple(line.split("\t")) if len(self.columns) > 1 else (line,)
        if len(texts) == len(self.columns):
            return ParsedRow(texts)
        roles = " and ".join(self.columns)
        return ParsedRow(error=f"the line has {len(texts)} columns: expected {roles}, separated by a tab")

    def excerpt(self, rows: Any, index: int) -> str:
        """Return the beginning of row `index` of a block for the file of errors; "" if it was too long to be kept."""
        return (rows[index] or b"")[:MAX_EXCERPT].decode(errors="replace")

    def encode(self, rows: Any, parsed: Sequence[ParsedRow], outcomes: Sequence[Outcome]) -> bytes:
        """Return the output of a block: a line for each row, with its result.

        Args:
            rows: the rows as read, which only other formats need.
            parsed: the rows, parsed.
            outcomes: the result of each row, or an error message.
        """
        lines = (self._output_line(row.record, outcome) for row, outcome in zip(parsed, outcomes))
        return "".join(f"{line}\n" for line in lines).encode(errors="replace")

    def _output_line(self, record: Any, outcome: Outcome) -> str:
        """Return the output line of a row: the first value of its result, or "" if it failed, which keeps line numbers.

        A text becomes one line. Only other formats use `record`, the rest of the row.
        """
        if isinstance(outcome, str):
            return ""
        value = outcome.values[0]
        return f"{value:.4f}" if isinstance(value, float) else " ".join(value.splitlines())

    def join(self, blocks: Iterable[BinaryIO], output: BinaryIO) -> None:
        """Write the output file from the contents of its blocks."""
        for block in blocks:
            while chunk := block.read(COPY_BYTES):
                output.write(chunk)


@dataclass(frozen=True)
class JsonLines(TextLines):
    """Every line is a JSON object; the result columns are added to it."""

    name: ClassVar[str] = "jsonl"

    def _parse_text(self, line: str) -> ParsedRow:
        """Return the texts of a line that is a JSON object, and the object itself as `record`, or an error.

        `columns` has the key of each text by its role (source, target), or None: one of its default names.
        """
        try:
            record = json.loads(line)
        except ValueError:
            return ParsedRow(error="the line is not valid JSON")
        if not isinstance(record, dict):
            return ParsedRow(error="the line is not a JSON object")
        keys = [find_key(role, key, list(record)) for role, key in self.columns.items()]
        for role, key in zip(self.columns, keys):
            if not isinstance(record.get(key), str):
                error = f"the object has no text {key!r}: name its key with --{role}-column"
                return ParsedRow(record=record, error=error)
        return ParsedRow(tuple(record[key] for key in keys), record)

    def _output_line(self, record: Any, outcome: Outcome) -> str:
        """Return the JSON object of a row (`record`) with its result, or with an error message.

        `record` is None if the line is no JSON object.
        """
        if isinstance(outcome, str):
            values = dict.fromkeys(self.results) | {"error": outcome}  # null for each result
        else:
            values = dict(zip(self.results, outcome.values))
        return json.dumps((record or {}) | values, ensure_ascii=False)  # results replace keys of the same name


def find_key(role: str, key: str | None, names: Sequence[str]) -> str:
    """Return the key of a role (source or target): `key`, or (None) the first of its default names that is in `names`.

    If `names` has none of these, it is the first default name, which an error can then report as missing.
    """
    return key or next((name for name in DEFAULT_COLUMNS[role] if name in names), DEFAULT_COLUMNS[role][0])
