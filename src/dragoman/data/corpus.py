"""Corpora on disk, read as a stream: parallel text files, tab-separated columns and JSON lines, plain or gzipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dragoman.data.text_files import decode_line, read_lines, read_raw_lines
from dragoman.errors import UserError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dragoman.config import FeatureConfig
    from dragoman.data.media_files import MediaFile

MEDIA_SAMPLE_LINES = 100  # of a list, of which one must name an existing file
FEATURE_SUFFIXES = (".npy", ".npz")
_UNSUPPORTED_SUFFIXES = (".csv", ".json", ".parquet", ".arrow", ".xml", ".tmx", ".bz2", ".xz", ".zst", ".zip")

Column = int | str


class SentencePair(NamedTuple):
    """A sentence, its translation and where they come from."""

    source: str  # for feature vectors a description, which identifies them
    target: str | None  # None in monolingual data
    corpus: str
    line: int  # from 1
    features: NDArray[Any] | MediaFile | None = None  # in place of source text: vectors, S F, or a file with vectors
    follows_previous: bool = False  # whether the line before belongs to the same document
    holdout_unit: str = ""  # identifies pairs that are held out together, a part of a document; default: the source


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus: one text file per side, or one file with columns (tsv) or records (jsonl) for both.

    Attributes:
        format: text, tsv or jsonl; detected from the file name if empty.
        source_column: column number from 0 (tsv, default 0) or key (jsonl, default "source"); likewise `target_column`.
        features: how vectors are computed if the sources are image or sound files; None: by default settings.
    """

    source: Path
    target: Path | None = None
    format: str = ""
    source_column: Column | None = None
    target_column: Column | None = None
    features: FeatureConfig | None = None

    @property
    def name(self) -> str:
        """Return the path of the source file, which names the corpus in messages and reports."""
        return str(self.source)

    @property
    def files(self) -> list[Path]:
        """Return the paths of all files of the corpus."""
        return [self.source] if self.target is None else [self.source, self.target]

    @property
    def has_features(self) -> bool:
        """Whether the sources are feature vectors, of a file of arrays or of image and sound files."""
        return (self.source.suffix.lower() in FEATURE_SUFFIXES and not self.format) or self.has_media

    @property
    def has_media(self) -> bool:
        """Whether the source is a list or folder of image or sound files."""
        from dragoman.data.media_files import contains_media, lists_media

        if self.source.suffix.lower() in FEATURE_SUFFIXES and not self.format:
            return False
        if not self.source.is_file():  # a pipe can be read only once
            return self.source.is_dir() and contains_media(self.source)
        try:
            lines = islice(read_lines(self.source, allow_empty=True), MEDIA_SAMPLE_LINES)
            texts = [self.file_format.parse_source(text, self, number) for number, text in lines]
        except UserError:  # not a list, or one with an error that is reported where the corpus is read
            return False
        return lists_media(self, texts)

    @property
    def has_target_text(self) -> bool:
        """Whether feature vectors or media files come with their texts."""
        return self.target is not None or self.source.is_dir() or self.file_format.has_both_sides

    @property
    def file_format(self) -> FileFormat:
        """The declared format, or the one that the file names imply; raise a UserError if that is not possible."""
        if self.format and self.format not in FILE_FORMATS:
            raise unknown_name("corpus format", self.format, FILE_FORMATS)
        file_format = FILE_FORMATS[self.format] if self.format else _format_by_suffix(self.source)
        if self.target is not None and file_format.has_both_sides:
            raise UserError(
                f"{self.source} is read as {file_format.name}, which contains both sides, but there is also a target "
                f"file {self.target}: omit the target file, or use --format text"
            )
        if self.target is not None and not self.format and _format_by_suffix(self.target).has_both_sides:
            raise UserError(
                f"{self.target} has a suffix for files with both sides, but it is the target file of {self.source}: "
                "use it as the only file, or use --format text"
            )
        return file_format

    def read_sources(self) -> Iterator[SentencePair]:
        """Read the source sentences only; the target is None."""
        file_format = self.file_format
        for number, text in read_lines(self.source):
            yield SentencePair(file_format.parse_source(text, self, number), None, self.name, number)

    def read_dialogues(self) -> Iterator[SentencePair]:
        """Read dialogues, one per line; the source is the tab-separated turns, the target is None."""
        file_format = self.file_format
        for number, text in read_lines(self.source):
            turns = file_format.parse_turns(text, self.source, number)
            if turns is None or len(turns) < 2:
                found = "neither 'turns' nor 'messages'" if turns is None else "fewer than 2 turns"
                raise UserError(f"{self.source}, line {number:,} has {found}: expected one dialogue per line")
            yield SentencePair("\t".join(turns), None, self.name, number)


class FileFormat:
    """Text files with one sentence per line, one file per side."""

    name: ClassVar[str] = "text"
    has_both_sides: ClassVar[bool] = False

    def data_format(self, corpus: Corpus) -> str:
        """Return the name of the data format: "text" (monolingual) without a target, or "pairs"."""
        return "text" if corpus.target is None else "pairs"

    def read_pairs(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield line n of the source file with line n of the target file."""
        if corpus.target is None:
            raise UserError(f"{corpus.source} is one side of a parallel corpus: name the target file, too")
        sources, targets = read_raw_lines(corpus.source), read_raw_lines(corpus.target)
        for line, (source, target) in enumerate(zip_longest(sources, targets), 1):
            if source is None or target is None:  # one file has ended: count the lines of the other
                longer = line + sum(1 for _ in (targets if source is None else sources))
                counts = [line - 1, longer] if source is None else [longer, line - 1]
                source_count, target_count = [
                    f"{path} has {count:,} line{'s' * (count != 1)}" for path, count in zip(corpus.files, counts)
                ]
                raise UserError(f"{source_count} but {target_count}: line counts of a parallel corpus must match")
            source_text = decode_line(source, corpus.source, line)
            yield SentencePair(source_text, decode_line(target, corpus.target, line), corpus.name, line)

    def parse_source(self, text: str, corpus: Corpus, line: int) -> str:
        """Extract the source sentence from a line."""
        return text

    def parse_turns(self, text: str, path: Path, line: int) -> list[str] | None:
        """Split a dialogue into its turns; None if the line is not a dialogue."""
        return text.split("\t")

    def record_turns(self, text: str, corpus: Corpus, line: int) -> list[str] | None:
        """Return the turns of a line that is marked as a dialogue; None, because lines of plain text are not marked."""
        return None


class ColumnFormat(FileFormat):
    """One file with source and target in each line."""

    has_both_sides = True
    default_columns: ClassVar[tuple[Column, Column]]

    def data_format(self, corpus: Corpus) -> str:
        """Return the name of the data format that suits the corpus: lines of two columns are translation pairs."""
        return "pairs"

    def columns(self, corpus: Corpus) -> list[Any]:
        """Return the names of the source and target columns."""
        declared = (corpus.source_column, corpus.target_column)
        return [default if column is None else column for column, default in zip(declared, self.default_columns)]

    def split(self, text: str, columns: Sequence[Any], path: Path, line: int) -> list[str]:
        """Extract some columns of a line."""
        raise NotImplementedError

    def read_pairs(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield the source and target column of every line."""
        columns = self.columns(corpus)
        for line, text in read_lines(corpus.source):
            source, target = self.split(text, columns, corpus.source, line)
            yield SentencePair(source, target, corpus.name, line)

    def parse_source(self, text: str, corpus: Corpus, line: int) -> str:
        """Return the source column of a line."""
        return self.split(text, self.columns(corpus)[:1], corpus.source, line)[0]


class TabSeparatedFormat(ColumnFormat):
    """Columns that are separated by tabs, and numbered from 0."""

    name = "tsv"
    default_columns = (0, 1)

    def columns(self, corpus: Corpus) -> list[int]:
        """Return the numbers of the source and the target column, from 0."""
        columns = super().columns(corpus)
        if invalid_columns := [column for column in columns if not str(column).isdecimal()]:
            raise UserError(
                f"{corpus.source}: a column of a TSV file must be a number from 0, not {invalid_columns[0]!r}"
            )
        return [int(column) for column in columns]

    def split(self, text: str, columns: Sequence[int], path: Path, line: int) -> list[str]:
        """Return the given columns of a line; raise a UserError if it has too few."""
        fields = text.split("\t")
        try:
            return [fields[column] for column in columns]
        except IndexError:
            raise UserError(
                f"{path}, line {line:,}: expected columns {' and '.join(map(str, columns))} (counted from 0), found "
                f"{len(fields)} tab-separated column{'s' * (len(fields) != 1)}"
            ) from None


class JsonLinesFormat(ColumnFormat):
    """JSON objects, one per line: pairs, texts, or dialogues.

    A dialogue has `turns`, a list of texts, or `messages`, a list of objects with `role` (alternately user and
    assistant) and `content`. A first message with the role system is prepended to the first user turn.
    """

    name = "jsonl"
    default_columns = ("source", "target")

    def data_format(self, corpus: Corpus) -> str:
        """Return the name of the data format that suits the first line: "turns" (dialogues), "pairs" or "text"."""
        line, text = next(iter(read_lines(corpus.source)))
        if self.record_turns(text, corpus, line) is not None:
            return "turns"
        if corpus.source_column is None or corpus.target_column is not None:
            return "pairs"
        return "pairs" if "target" in _parse_object(text, corpus.source, line) else "text"

    def split(self, text: str, columns: Sequence[str], path: Path, line: int) -> list[str]:
        """Return the strings at the given keys of a line; raise a UserError if one is missing."""
        record = _parse_object(text, path, line)
        for key in columns:
            if key not in record:
                raise UserError(f"{path}, line {line:,}: {unknown_name('key', key, record)}")
            if not isinstance(record[key], str):
                raise UserError(f"{path}, line {line:,}: {key!r} must be a string, not {json.dumps(record[key])[:40]}")
            _check_unicode(record[key], f"{path}, line {line:,}: {key!r}")
        return [record[key] for key in columns]

    def parse_turns(self, text: str, path: Path, line: int) -> list[str] | None:
        """Return the turns of a line with a dialogue ("turns" or "messages"); None if it has none."""
        record = _parse_object(text, path, line)
        turns = record.get("turns")
        if turns is None and "messages" in record:
            turns = _parse_messages(record["messages"], f"{path}, line {line:,}")
        if turns is None:
            return None
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise UserError(f"{path}, line {line:,}: 'turns' (the turns of a dialogue) must be a list of strings")
        _check_unicode("".join(turns), f"{path}, line {line:,}: 'turns'")
        return [turn.replace("\t", " ") for turn in turns]

    def record_turns(self, text: str, corpus: Corpus, line: int) -> list[str] | None:
        """Return the turns of a line with a dialogue; None if it has none, or if the corpus names a column to read."""
        return self.parse_turns(text, corpus.source, line) if corpus.source_column is None else None


FILE_FORMATS = {form.name: form for form in (FileFormat(), TabSeparatedFormat(), JsonLinesFormat())}


def _format_by_suffix(path: Path) -> FileFormat:
    """Return the format that a file name implies: text unless its suffix is .tsv or .jsonl, before .gz if gzipped."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in _UNSUPPORTED_SUFFIXES:
        raise UserError(
            f"{path} has the suffix {suffix}, which is not supported: convert it to text, TSV or JSON lines, or set "
            "its format (text, tsv or jsonl)"
        )
    return FILE_FORMATS.get(suffix.removeprefix("."), FILE_FORMATS["text"])


def _parse_object(text: str, path: Path, line: int) -> dict[str, Any]:
    """Parse a line of a JSON-lines file; raise a UserError with its number unless it is a JSON object."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        raise UserError(f"{path}, line {line:,} is not JSON ({reason}): expected one object per line") from None
    if not isinstance(record, dict):
        raise UserError(f"{path}, line {line:,} is a JSON {type(record).__name__}: expected one object per line")
    return record


def _parse_messages(messages: Any, location: str) -> list[str]:
    """Return the turns of a chat, with a system message prepended to the first one."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UserError(f"{location}: 'messages' must be a list of objects with 'role' and 'content'")
    roles = [message.get("role") for message in messages]
    has_system = roles[:1] == ["system"]
    chat_roles = roles[1:] if has_system else roles
    if chat_roles != (["user", "assistant"] * len(chat_roles))[: len(chat_roles)]:
        raise UserError(
            f"{location}: the roles must alternate between user and assistant, user first, after at most one system "
            f"message, not {roles}"
        )
    turns = [message.get("content") for message in messages]
    if not all(isinstance(turn, str) for turn in turns):
        raise UserError(f"{location}: the 'content' of every message must be a string")
    if has_system and len(turns) < 2:
        raise UserError(f"{location}: a dialogue needs more than a system message")
    return [f"{turns[0]}\n{turns[1]}", *turns[2:]] if has_system else turns


def _check_unicode(text: str, location: str) -> None:
    """Raise a UserError for text that cannot be written as UTF-8, which JSON escapes can produce."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{location} contains an unpaired surrogate, which is not valid Unicode: remove it") from None
