"""All file formats of corpora, and which of them a file or folder has."""

from __future__ import annotations

from pathlib import Path

from dragoman.data.arrow_files import DatasetFormat, ParquetFormat, is_dataset_folder
from dragoman.data.compression import without_compression_suffix
from dragoman.data.file_formats import CommaSeparatedFormat, FileFormat, JsonLinesFormat, TabSeparatedFormat
from dragoman.data.translation_memory import TranslationMemoryFormat
from dragoman.errors import UserError

FILE_FORMATS: dict[str, FileFormat] = {
    form.name: form
    for form in (
        FileFormat(),
        TabSeparatedFormat(),
        CommaSeparatedFormat(),
        JsonLinesFormat(),
        TranslationMemoryFormat(),
        ParquetFormat(),
        DatasetFormat(),
    )
}
_FORMAT_OF_SUFFIX = {suffix: form for form in FILE_FORMATS.values() for suffix in form.suffixes}
_UNSUPPORTED_SUFFIXES = (".arrow", ".xml", ".xliff", ".sdlxliff", ".zip", ".7z", ".tar", ".xlsx", ".docx", ".pdf")


def format_by_name(path: Path) -> FileFormat:
    """Return the format that the name of a file implies: text unless it has the suffix of another format.

    The suffix of a compression, such as .gz, is ignored. A folder that Hugging Face `datasets` saved is recognized by
    its files. Suffixes of formats that are known but not supported, such as .docx, are a UserError.
    """
    if is_dataset_folder(path):
        return FILE_FORMATS[DatasetFormat.name]
    suffix = Path(without_compression_suffix(path.name)).suffix.lower()
    if suffix in _UNSUPPORTED_SUFFIXES:
        raise UserError(
            f"{path} has the suffix {suffix}, which is not supported: convert it to text, TSV, CSV, JSON lines, TMX or "
            "Parquet, or, if only the suffix is wrong, name the actual format with --format "
            f"({', '.join(FILE_FORMATS)})"
        )
    return _FORMAT_OF_SUFFIX.get(suffix, FILE_FORMATS["text"])
