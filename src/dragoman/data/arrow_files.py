"""Parquet files and folders that Hugging Face `datasets` saved with `save_to_disk`; both need the package pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dragoman.data.corpus import ColumnChoice
from dragoman.data.file_formats import (
    ColumnFormat,
    ColumnsByOrder,
    by_order,
    find_columns,
    missing_column,
    pairs_or_text,
    parse_turns,
)
from dragoman.data.text_files import open_file
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.data.corpus import Corpus

BATCH_ROWS = 1024
TURN_COLUMNS = ("turns", "messages")  # of dialogues
STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"


class ParquetFormat(ColumnFormat):
    """A Parquet file; columns of texts are chosen by name, those in a structure with a dot: `translation.en`."""

    name = "parquet"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    kind: ClassVar[str] = "Parquet file"
    can_be_streamed = False

    def check_file(self, path: Path) -> None:
        """Raise a UserError if the file cannot be opened, is broken, or pyarrow is missing."""
        with self._open(path):  # which raises these errors
            pass

    def data_format(self, corpus: Corpus) -> str:
        """Return the name of the data format: "turns" (dialogues), "text" (sources without targets) or "pairs".

        A column "turns" or "messages" holds dialogues, unless the user has chosen another column as the source.
        Otherwise a file with a source column but no target column is "text".
        """
        with self._open(corpus.source) as table:
            names = column_names(table.schema)
        if corpus.source_column is None and any(name in names for name in TURN_COLUMNS):
            return "turns"
        return pairs_or_text(corpus, names)

    def columns_by_order(self, corpus: Corpus) -> ColumnsByOrder | None:
        """Return which of two columns are source and target only because of their order; None if none are."""
        with self._open(corpus.source) as table:
            return by_order(corpus.columns, column_names(table.schema), "by the order of the two columns")

    def read_columns(
        self, corpus: Corpus, columns: Sequence[ColumnChoice], allow_empty: bool = False
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield (row number from 1, texts of the chosen columns) for every row; null is an empty text.

        A missing column is a UserError, and so is a table without rows unless `allow_empty`.
        """
        path = corpus.source
        with self._open(path) as table:
            names = column_names(table.schema)
            chosen_names = []
            for choice, name in zip(columns, find_columns(columns, names)):
                if name is None:
                    raise missing_column(choice, names, path)
                chosen_names.append(name)
            yield from enumerate(_text_rows(table, chosen_names, path), 1)
            if not table.rows_read and not allow_empty:
                raise UserError(
                    f"{path} has no rows, but at least one row with a sentence pair is needed: use another file"
                )

    def read_turns(self, corpus: Corpus) -> Iterator[tuple[int, list[str] | None]]:
        """Yield (row number from 1, turns of its dialogue) for every row; the turns are None if it has no dialogue.

        The dialogue is in the column "turns" (a list of texts) or "messages" (a list of objects with role and content).
        """
        with self._open(corpus.source) as table:
            # "turns" and "messages"; without them, no row has a dialogue
            columns = [name for name in TURN_COLUMNS if name in table.schema.names]
            records = (record for batch in table.batches(columns) for record in batch.to_pylist())
            for row, record in enumerate(records, 1):
                yield row, parse_turns(record, location=f"{corpus.source}, row {row:,}")

    def read_inputs(self, corpus: Corpus, allow_empty: bool = False) -> Iterator[str | list[str]]:
        """Yield the turns of every row if there is a column of dialogues, otherwise the source of every row.

        A row whose dialogue is null has no turns. Without sources there is a UserError unless `allow_empty`.
        """
        if self.data_format(corpus) == "turns":
            yield from (turns or [] for _, turns in self.read_turns(corpus))
        else:
            yield from super().read_inputs(corpus, allow_empty)

    @contextmanager
    def _open(self, path: Path) -> Iterator[_Table]:
        """Open a Parquet file; raise a UserError if it is missing or broken, or pyarrow is missing."""
        with open_file(path):  # raises UserErrors about missing files and permissions
            pass
        with arrow_errors(path, kind=self.kind):
            from pyarrow import parquet

            with parquet.ParquetFile(path) as file:
                yield _ParquetTable(file)


class DatasetFormat(ParquetFormat):
    """A folder that `datasets.Dataset.save_to_disk` wrote: Arrow files, listed in state.json."""

    name, kind = "datasets", "saved dataset"
    suffixes = ()

    @contextmanager
    def _open(self, path: Path) -> Iterator[_Table]:
        """Open the folder of a dataset; raise a UserError if it is no such folder or broken, or pyarrow is missing.

        A folder of several splits, and a dataset that is a selection of rows of its files, are UserErrors as well.
        """
        if (path / SPLITS_FILE).is_file():
            splits = _read_json(path / SPLITS_FILE).get("splits") or ["train"]  # an example if none are listed
            raise UserError(
                f"{path} is a dataset with the splits {', '.join(map(str, splits))}: give the folder of one of them, "
                f"such as {path / str(splits[0])}"
            )
        if not (path / STATE_FILE).is_file():
            raise UserError(
                f"{path} is not a folder that datasets.save_to_disk wrote: it has no state.json; save the dataset again"
            )
        state = _read_json(path / STATE_FILE)
        files = [entry.get("filename") for entry in state.get("_data_files") or [] if isinstance(entry, dict)]
        names = [name for name in files if isinstance(name, str) and Path(name).name == name]  # none outside the folder
        if not names or len(names) < len(files):
            raise UserError(
                f"{path / STATE_FILE} must list Arrow files of its own folder, but lists {files or 'none'}: save the "
                "dataset again with save_to_disk"
            )
        if state.get("_indices_data_files"):
            raise UserError(
                f"{path} was saved with an indices mapping (a selection of rows), which is not supported: call "
                "flatten_indices() on the dataset, and save it again"
            )
        for name in names:
            with open_file(path / name):  # raises UserErrors about missing files and permissions
                pass
        with arrow_errors(path, kind=self.kind):
            yield _ArrowTable([path / name for name in names])


def is_dataset_folder(path: Path) -> bool:
    """Whether Hugging Face `datasets` wrote a folder: a dataset (state.json), or its splits (dataset_dict.json)."""
    return path.is_dir() and ((path / STATE_FILE).is_file() or (path / SPLITS_FILE).is_file())


class _Table:
    """A table on disk: its schema, the number of rows read so far, and its record batches."""

    schema: Any  # pyarrow.Schema
    rows_read = 0

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield record batches with (at least) the given columns."""
        raise NotImplementedError


class _ParquetTable(_Table):
    """The table of a Parquet file."""

    def __init__(self, file: Any) -> None:
        """Read from an open pyarrow.parquet.ParquetFile."""
        self.file, self.schema = file, file.schema_arrow

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield record batches of at most BATCH_ROWS rows with the given columns, and count the rows."""
        for batch in self.file.iter_batches(BATCH_ROWS, columns=columns):
            self.rows_read += batch.num_rows
            yield batch


class _ArrowTable(_Table):
    """The table in one or more Arrow stream files, which are memory-mapped."""

    def __init__(self, files: list[Path]) -> None:
        """Read the schema of the first file, which all files of a table share."""
        from pyarrow import ipc

        self.files = files
        with self._map(files[0]) as source, ipc.open_stream(source) as reader:
            self.schema = reader.schema

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield record batches with all columns, whatever `columns` are: a mapped file reads only those that are used.

        The rows of the batches are counted.
        """
        from pyarrow import ipc

        for path in self.files:
            with self._map(path) as source, ipc.open_stream(source) as reader:
                for batch in reader:
                    self.rows_read += batch.num_rows
                    yield batch

    def _map(self, path: Path) -> Any:
        """Memory-map an Arrow file for reading."""
        import pyarrow

        return pyarrow.memory_map(str(path))


def column_names(schema: Any) -> list[str]:
    """Return the names of the columns of a pyarrow schema; those within a structure with a dot: `translation.en`.

    The structure itself is no column then.
    """
    import pyarrow

    names = []
    for field in schema:  # the columns
        is_structure = pyarrow.types.is_struct(field.type)
        names += [f"{field.name}.{inner.name}" for inner in field.type] if is_structure else [field.name]
    return names


def _text_rows(table: _Table, columns: list[str], path: Path) -> Iterator[list[str]]:
    """Yield the texts of the columns, row by row, "" for null; a column with other values is a UserError.

    `path` is that of the table, for error messages.
    """
    for batch in table.batches(columns):
        texts_of_columns = []
        for name in columns:
            values = table_column(batch, name).to_pylist()
            if wrong := [value for value in values if value is not None and not isinstance(value, str)]:
                raise UserError(
                    f"{path}: the column {name!r} must hold strings, not {type(wrong[0]).__name__} such as "
                    f"{wrong[0]!r:.40}: choose another column"
                )
            texts_of_columns.append([value or "" for value in values])
        yield from map(list, zip(*texts_of_columns))


def table_column(batch: Any, name: str) -> Any:
    """Return a column of a pyarrow table or record batch; one within a structure has a dotted name: translation.en."""
    if name in batch.schema.names:
        return batch.column(name)
    from pyarrow import compute

    outer, _, inner = name.partition(".")
    return compute.struct_field(batch.column(outer), inner)


@contextmanager
def arrow_errors(path: Path | str, kind: str) -> Iterator[None]:
    """Turn errors of pyarrow, and its absence, into UserErrors about the file `path`.

    `kind` is what it should be, such as "Parquet file".
    """
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            f"{path} is a {kind}, which needs the package pyarrow: install it with pip install 'dragoman[parquet]'"
        ) from None
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} is not a valid {kind} ({reason:.200}): write or download it again") from None


def _read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object of a file that `datasets` wrote; {} if it is no object.

    A missing or unreadable file, and broken JSON, is a UserError.
    """
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): save the dataset again with save_to_disk") from None
    return values if isinstance(values, dict) else {}
