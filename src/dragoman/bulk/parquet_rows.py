"""Parquet files: a block is a row group, and results are further columns; needs the package pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

from dragoman.bulk.blocks import BulkInput
from dragoman.bulk.file_storage import file_size, open_binary
from dragoman.bulk.row_formats import Outcome, ParsedRow, TextLines, find_key
from dragoman.data.arrow_files import arrow_errors, column_names, table_column
from dragoman.errors import UserError

ERROR_COLUMN = "error"


@contextmanager
def _open_parquet(location: str) -> Iterator[Any]:
    """Open a Parquet file at a path or URL; raise a UserError if it is broken or pyarrow is missing."""
    with arrow_errors(location, "Parquet file"), open_binary(location) as stream:
        from pyarrow import parquet

        with parquet.ParquetFile(stream) as file:
            yield file


@dataclass(frozen=True)
class ParquetInput(BulkInput):
    """A Parquet file; `group_rows` are the numbers of rows of its row groups."""

    group_rows: tuple[int, ...] = ()

    @classmethod
    def describe(cls, location: str, name: str, block_bytes: int) -> ParquetInput:
        """Describe a file, whose blocks are its row groups, of any size; a UserError if it cannot be opened.

        `name` is that of its output file. `block_bytes` is the size of blocks in other formats, and is only stored.
        """
        with _open_parquet(location) as file:
            groups = range(file.metadata.num_row_groups)
            rows = tuple(file.metadata.row_group(group).num_rows for group in groups)
        return cls(
            location,
            name,
            size=file_size(location),
            num_blocks=len(rows),
            block_bytes=block_bytes,
            group_rows=rows,
        )

    def first_index(self, block: int) -> int:
        """Return the index in the file of the first row of a block, which is a row group."""
        return sum(self.group_rows[:block])

    def block_size(self, block: int) -> float:
        """Estimate the bytes of a block, which is a row group, by its share of the rows of the file."""
        return self.size * self.group_rows[block] / max(1, sum(self.group_rows))

    def read_block(self, block: int) -> Any:
        """Return the rows of a block, which is a row group, as an Arrow table."""
        with _open_parquet(self.location) as file:
            return file.read_row_group(block)


@dataclass(frozen=True)
class ParquetRows(TextLines):
    """Every row has texts in some columns; the result columns are added to it, and the column `error`."""

    name: ClassVar[str] = "parquet"

    location: str = ""  # of the input file, which has the types of the other columns

    def check_columns(self) -> None:
        """Raise a UserError if the file lacks a column with texts, or already has one that is to be added.

        Columns are added for the results and for errors.
        """
        with _open_parquet(self.location) as file:
            names, schema = column_names(file.schema_arrow), file.schema_arrow
        for role, column in self.columns.items():
            if (key := find_key(role, column, names)) not in names:
                raise UserError(
                    f"the Parquet file {self.location} has no column {key!r}, only {', '.join(names)}: name the {role} "
                    f"column with --{role}-column"
                )
        if taken := [name for name in (*self.results, ERROR_COLUMN) if name in schema.names]:
            if taken[0] == ERROR_COLUMN:
                raise UserError(
                    f"the Parquet file {self.location} already has a column 'error', which the bulk job would add "
                    "for error messages: rename that column"
                )
            raise UserError(
                f"the Parquet file {self.location} already has a column {taken[0]!r}, which the bulk job would add for "
                "its results: choose another name with --result-column"
            )

    def parse(self, rows: Any) -> list[ParsedRow]:
        """Return the texts of the rows of a block, an Arrow table."""
        names = column_names(rows.schema)
        keys = [find_key(role, column, names) for role, column in self.columns.items()]
        texts = zip(*(table_column(rows, key).to_pylist() for key in keys))
        return [self._parse_row(keys, row) for row in texts]

    def _parse_row(self, keys: list[str], texts: tuple[Any, ...]) -> ParsedRow:
        """Return a row with its texts, or with an error if one is no string; `keys` name their columns."""
        for key, value in zip(keys, texts):
            if not isinstance(value, str):
                found = "null" if value is None else type(value).__name__
                return ParsedRow(error=f"the column {key!r} must hold a string, not {found}")
        return ParsedRow(texts)

    def excerpt(self, rows: Any, index: int) -> str:
        """Return "" as the beginning of a row for the file of errors: its number there is enough to find it."""
        return ""

    def encode(self, rows: Any, parsed: Sequence[ParsedRow], outcomes: Sequence[Outcome]) -> bytes:
        """Return the table `rows` of a block with the columns of its results and of errors, as an Arrow stream.

        `outcomes` are the results or error messages of the rows; `parsed` is for other formats.
        """
        import pyarrow

        new_columns: list[list[Any]] = [  # an outcome that is a string is an error message
            [None if isinstance(outcome, str) else outcome.values[column] for outcome in outcomes]
            for column in range(len(self.results))
        ]
        new_columns.append([outcome if isinstance(outcome, str) else None for outcome in outcomes])  # errors
        schema = self._output_schema(rows.schema)
        new_fields = list(schema)[-len(new_columns) :]  # they are the last ones
        arrays = [pyarrow.array(values, field.type) for values, field in zip(new_columns, new_fields)]
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pyarrow.table([*rows.columns, *arrays], schema=schema))
        return bytes(sink.getvalue())

    def join(self, blocks: Iterable[BinaryIO], output: BinaryIO) -> None:
        """Write the output file from its blocks (Arrow streams); each is a row group, as in the input."""
        import pyarrow
        from pyarrow import parquet

        with _open_parquet(self.location) as file:
            schema = self._output_schema(file.schema_arrow)
        with parquet.ParquetWriter(output, schema) as writer:
            for block in blocks:
                table = pyarrow.ipc.open_stream(block.read()).read_all()
                writer.write_table(table, row_group_size=max(1, table.num_rows))

    def _output_schema(self, schema: Any) -> Any:
        """Return the Arrow schema of the input with the result columns and the column of errors added to it."""
        import pyarrow

        arrow_types = {str: pyarrow.string(), float: pyarrow.float64()}
        for name, python_type in {**self.results, ERROR_COLUMN: str}.items():
            schema = schema.append(pyarrow.field(name, arrow_types[python_type]))
        return schema
