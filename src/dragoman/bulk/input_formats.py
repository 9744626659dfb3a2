"""Formats of input files: text, JSON lines and Parquet, by name or suffix."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.bulk.blocks import BulkInput
from dragoman.bulk.parquet_rows import ParquetInput, ParquetRows
from dragoman.bulk.row_formats import JsonLines, TextLines
from dragoman.data.compression import without_compression_suffix
from dragoman.errors import UserError
from dragoman.text.documents.document import document_suffixes

FORMAT_BY_SUFFIX = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "jsonl",
    "parquet": "parquet",
}  # of formats other than text
OTHER_SUFFIXES = {".tsv", ".csv", ".tmx", ".pdf"}  # of files that are not processed line by line


def find_format(
    location: str, format: str, columns: Mapping[str, str | None], results: Mapping[str, type]
) -> TextLines:
    """Return the format of the rows of a file; a UserError if its suffix is that of an unsupported format.

    It is also a UserError if a Parquet file lacks a column, or has one of the result columns already.

    Args:
        location: path or URL of the file.
        format: text, jsonl or parquet; "": that of the file's suffix, and text if it has another one.
        columns: the role of each text of a row (source, target), and the name of its column or key if one is given.
        results: names and types of the result columns.
    """
    suffix = without_compression_suffix(location).rpartition(".")[2].lower()
    name = format or FORMAT_BY_SUFFIX.get(suffix, "text")
    if name == "parquet":
        parquet_rows = ParquetRows(columns, results, location)
        parquet_rows.check_columns()
        return parquet_rows
    if name == "jsonl":
        return JsonLines(columns, results)
    # suffixes of documents (such as .html) and of other files that are not lines of text; a format that the user
    # names is believed
    rejected = () if format else ({*document_suffixes()} - {".txt"}) | OTHER_SUFFIXES
    if name != "text" or f".{suffix}" in rejected:
        raise UserError(
            f"--input reads files of plain text, JSON lines or Parquet, but {location} has another format: convert it, "
            "or process it as a single file without --input"
        )
    return TextLines(columns, results)


def describe_input(location: str, name: str, block_bytes: int, row_format: TextLines) -> BulkInput:
    """Describe an input file with its blocks; `name` is that of its output file.

    A block has `block_bytes` of text, but in a Parquet file it is a row group.
    """
    input_class = ParquetInput if isinstance(row_format, ParquetRows) else BulkInput
    return input_class.describe(location, name, block_bytes)
