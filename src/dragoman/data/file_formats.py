"""File formats of corpora: how sources and targets are found in text, TSV, CSV and JSON lines.

All formats are read as a stream, and errors name the file and the line.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dragoman.data.corpus import ColumnChoice, SentencePair
from dragoman.data.text_files import decode_line, open_file, read_raw_lines
from dragoman.errors import UserError, unknown_name
from dragoman.text.language_names import language_spellings

if TYPE_CHECKING:
    from dragoman.data.corpus import Corpus

DELIMITERS = ",;\t|"  # of CSV files; the one that occurs most often in the first line
MAX_FIELD_CHARACTERS = 2**24  # of CSV: a quote that is never closed must not read the file into memory
MAX_SHOWN_COLUMNS = 20  # in messages
#: columns of features in TSV of the shared tasks of SIGMORPHON: lemma, form, features; later lemma, features, form
SIGMORPHON_FEATURES_COLUMNS = ("2", "1")
FEATURE_SAMPLE_ROWS = 1000  # in which features are looked for


class ColumnsByOrder(NamedTuple):
    """Columns that are source and target because of their order, which the user may not have meant."""

    source: str
    target: str
    reason: str


class FileFormat:
    """Text files with one sentence per line, one file per side."""

    name: ClassVar[str] = "text"
    suffixes: ClassVar[tuple[str, ...]] = ()
    has_both_sides: ClassVar[bool] = False
    can_be_streamed: ClassVar[bool] = True  # whether it can be read from standard input

    def check_file(self, path: Path) -> None:
        """Raise a UserError if a file cannot be opened."""
        with open_file(path):
            pass

    def data_format(self, corpus: Corpus) -> str:
        """Return the name of the data format: "text" (monolingual) without a target, or "pairs"."""
        return "text" if corpus.target is None else "pairs"

    def read_pairs(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield line n of the source file with line n of the target file; unequal line counts are a UserError."""
        if corpus.target is None:
            raise UserError(
                f"{corpus.source} has only source sentences: name the file with their translations, too (data.target)"
            )
        sources, targets = read_raw_lines(corpus.source), read_raw_lines(corpus.target)
        for line, (source, target) in enumerate(zip_longest(sources, targets), 1):
            if source is None or target is None:  # one file has ended: count the lines of the other
                longer = line + sum(1 for _ in (targets if source is None else sources))
                counts = [line - 1, longer] if source is None else [longer, line - 1]
                source_with_line_count, target_with_line_count = [
                    f"{path} has {count:,} line{'s' * (count != 1)}" for path, count in zip(corpus.files, counts)
                ]
                raise UserError(
                    f"{source_with_line_count} but {target_with_line_count}: the files of a parallel corpus must have "
                    "equally many lines, so correct them"
                )
            source_text = decode_line(source, path=corpus.source, number=line)
            target_text = decode_line(target, path=corpus.target, number=line)
            yield SentencePair(source_text, target_text, corpus=corpus.name, line=line)

    def read_sources(self, corpus: Corpus, allow_empty: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (line number, source) for every line; an empty file is a UserError by default."""
        return corpus.read_lines(allow_empty)

    def find_features(self, corpus: Corpus, separator: str) -> dict[str, str]:
        """Return settings of the section `data` for a column that seems to hold features such as V;PST; {} without one.

        They are `features_column`, and `target_column` if the features are where the target usually is. `separator`
        separates the features. Text files have no columns.
        """
        return {}

    def columns_by_order(self, corpus: Corpus) -> ColumnsByOrder | None:
        """Return which columns of a file are source and target only because of their order; None if none are."""
        return None

    def read_turns(self, corpus: Corpus) -> Iterator[tuple[int, list[str] | None]]:
        """Yield (line number, turns) for every line, a dialogue of tab-separated turns.

        Formats in which a line may be something else yield None in place of its turns.
        """
        return ((number, text.split("\t")) for number, text in corpus.read_lines())

    def read_inputs(self, corpus: Corpus, allow_empty: bool = False) -> Iterator[str | list[str]]:
        """Yield the inputs of a command: sources; formats that mark dialogues yield the turns of these as a list."""
        return (text for _, text in self.read_sources(corpus, allow_empty))


class ColumnFormat(FileFormat):
    """One file or folder with columns, of which one is the source and one the target."""

    has_both_sides = True

    def data_format(self, corpus: Corpus) -> str:
        """Return the name of the data format, "pairs"; formats with named columns also have "text" (no targets)."""
        return "pairs"

    def read_columns(
        self, corpus: Corpus, columns: Sequence[ColumnChoice], allow_empty: bool = False
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield (line number, texts of the chosen columns) for every record.

        A file without records is a UserError unless `allow_empty`.
        """
        raise NotImplementedError

    def read_pairs(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield the source and target column of every record, and features of the source such as V;PST, if any."""
        columns = (*corpus.columns, *corpus.feature_columns)
        for line, (source, target, *features) in self.read_columns(corpus, columns):  # one column of features or none
            yield SentencePair(source, target, corpus=corpus.name, line=line, feature_symbols="".join(features))

    def read_sources(self, corpus: Corpus, allow_empty: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (line number, source) for every record; features of the source such as V;PST follow after a tab."""
        columns = (*corpus.columns[:1], *corpus.feature_columns)  # without the target
        for line, texts in self.read_columns(corpus, columns, allow_empty):
            yield line, "\t".join(texts)


def find_column(choice: ColumnChoice, names: Sequence[str]) -> str | None:
    """Return which of the columns `names` of a file is chosen; None if there is no such column.

    Unless the user has named a column, it is the one that has the name of its language (`en` or `translation.en`) or of
    its role (`source`).
    """
    if choice.column is not None:
        return str(choice.column) if str(choice.column) in names else None
    codes = language_spellings(choice.language)  # en for eng_Latn, too
    language_names = [name for code in codes for name in (code, f"translation.{code}")]
    return next((name for name in [*language_names, choice.role] if name in names), None)


def find_columns(columns: Sequence[ColumnChoice], names: Sequence[str]) -> list[str | None]:
    """Return the name of each chosen column in a file with the columns `names`; None for one that the file lacks.

    The two columns of a file are source and target if the user has chosen none, and none has a name by which it could
    be found.
    """
    found = [find_column(choice, names) for choice in columns]
    if len(names) != 2 or any(found) or any(choice.column is not None for choice in columns):
        return found
    return [names[1] if choice.role == "target" else names[0] for choice in columns]


def by_order(columns: Sequence[ColumnChoice], names: Sequence[str], reason: str) -> ColumnsByOrder | None:
    """Return the columns `names` of a file that are source and target only because of their order; None if none are.

    `columns` are those that the user has chosen, if any; `reason` is for the user.
    """
    if any(find_column(choice, names) for choice in columns):
        return None
    source, target = find_columns(columns, names)
    return None if source is None or target is None else ColumnsByOrder(source, target, reason)


def pairs_or_text(corpus: Corpus, names: Sequence[str]) -> str:
    """Return the data format of a file with the columns `names`: "text" if it has only a source, otherwise "pairs".

    A file that lacks a column which the user has chosen, by name or by the target language, is "pairs" as well: the
    error is raised when it is read.
    """
    source, target = find_columns(corpus.columns, names)
    names_target = corpus.target_column is not None or (len(names) > 1 and bool(corpus.target_language))
    return "text" if source is not None and target is None and not names_target else "pairs"


def missing_column(choice: ColumnChoice, names: Sequence[str], path: Path) -> UserError:
    """Return the error about a chosen column that the file `path` does not have among its columns `names`."""
    wanted = choice.column if choice.column is not None else choice.language or choice.role
    shown = [*map(repr, names[:MAX_SHOWN_COLUMNS]), *["…"] * (len(names) > MAX_SHOWN_COLUMNS)]
    return UserError(
        f"{path} has no column {str(wanted)!r}, only {', '.join(shown)}: name the {choice.role} column with "
        f"--{choice.role}-column"
    )


class DelimitedFormat(ColumnFormat):
    """Lines of fields, whose columns are chosen by number (from 0), or by name if the first line is a header."""

    header_is_usual: ClassVar[bool] = False  # whether the first row names the columns unless the user denies it
    columns_kind: ClassVar[str] = "CSV"  # of columns, in messages

    def rows(self, corpus: Corpus, allow_empty: bool) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number, fields) for every row, the header included; no rows are a UserError by default."""
        raise NotImplementedError

    def data_format(self, corpus: Corpus) -> str:
        """Return the name of the data format: "text" if the header has a source column, but no target; else "pairs"."""
        if not corpus.source.is_file():  # a pipe can be read only once
            return "pairs"
        _, first_row = next(self.rows(corpus, allow_empty=False))
        return pairs_or_text(corpus, _header_names(first_row)) if self._has_header(corpus, first_row) else "pairs"

    def read_columns(
        self, corpus: Corpus, columns: Sequence[ColumnChoice], allow_empty: bool = False
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield (line number, the chosen fields) for every row after the header, if there is one.

        A row without one of the columns is a UserError, and so is a file without rows unless `allow_empty`.
        """
        positions: list[int] | None = None  # of the chosen columns; known after the first row
        for line, fields in self.rows(corpus, allow_empty):
            if positions is None:
                has_header = self._has_header(corpus, fields)
                positions = self._positions(corpus, columns, fields, has_header)
                if has_header:
                    continue
            try:
                yield line, [fields[position] for position in positions]
            except IndexError:
                expected = " and ".join(map(str, positions))
                raise UserError(
                    f"{corpus.source}, line {line:,}: expected columns {expected} (counted from 0), found "
                    f"{len(fields)} {self.columns_kind} column{'s' * (len(fields) != 1)}: correct the line, or choose "
                    "other columns (data.source_column, data.target_column)"
                ) from None

    def read_turns(self, corpus: Corpus) -> Iterator[tuple[int, list[str] | None]]:
        """Yield (line number, turns of a dialogue) for every row after the header: its fields are the turns.

        Tabs within a turn become spaces, because dialogues are stored with tabs between turns.
        """
        rows = self.rows(corpus, allow_empty=False)
        for index, (line, fields) in enumerate(rows):
            if index > 0 or not self._has_header(corpus, fields):
                yield line, [field.replace("\t", " ") for field in fields]

    def find_features(self, corpus: Corpus, separator: str) -> dict[str, str]:
        """Return the settings for a column of features such as V;PST, with `separator` between them; {} without one.

        It is the column "features" of the header. Without a header it is column 2 or 1 (from 0), if it looks like
        features and is not chosen as source or target. The target is usually in column 1: if the features are there,
        column 2 becomes the target, unless the user has chosen a target or the source is there.
        """
        rows = [fields for _, fields in islice(self.rows(corpus, allow_empty=False), FEATURE_SAMPLE_ROWS)]
        if self._has_header(corpus, rows[0]):
            return {"features_column": "features"} if "features" in _header_names(rows[0]) else {}
        source, target = (None if choice.column is None else str(choice.column) for choice in corpus.columns)
        # columns 2 and 1, if every row has three columns: source, target and features
        for column in SIGMORPHON_FEATURES_COLUMNS if min(map(len, rows)) > 2 else ():
            if column not in (source, target) and _holds_features([row[int(column)] for row in rows], separator):
                is_usual_target = column == "1" and target is None and source != "2"
                return {"features_column": column} | ({"target_column": "2"} if is_usual_target else {})
        return {}

    def columns_by_order(self, corpus: Corpus) -> ColumnsByOrder | None:
        """Return the columns that are source and target only because of their order; None if none are.

        They are the two columns of a header with other names, or the first ones of more than source, target and
        features.
        """
        if not corpus.source.is_file() or any(choice.column is not None for choice in corpus.columns):
            return None
        _, first_row = next(self.rows(corpus, allow_empty=False))
        if not self._has_header(corpus, first_row):
            if len(first_row) <= 2 + len(corpus.feature_columns):
                return None
            return ColumnsByOrder("0", "1", f"of {len(first_row)} columns; --header if the first line names them")
        names = _header_names(first_row)
        return by_order(corpus.columns, names, "the first line names the columns; --no-header if it is text")

    def _has_header(self, corpus: Corpus, first_row: list[str]) -> bool:
        """Whether the first row names the columns.

        That is so if it is declared (`corpus.header`), if it is usual in the format, if a column is chosen by name, or
        if none is chosen and the first row names the languages of source and target, or is "source" and "target".
        """
        if corpus.header is not None:
            return corpus.header
        if self.header_is_usual:
            return True
        choices = (*corpus.columns, *corpus.feature_columns)
        names = [str(choice.column) for choice in choices if choice.column is not None]
        if names:
            return any(not name.isdecimal() for name in names)
        header = set(_header_names(first_row))
        languages = {choice.language for choice in corpus.columns if choice.language}
        return (bool(languages) and languages <= header) or {"source", "target"} <= header

    def _positions(
        self, corpus: Corpus, columns: Sequence[ColumnChoice], first_row: list[str], has_header: bool
    ) -> list[int]:
        """Return the positions of the chosen columns in a row, from 0.

        Columns are chosen by name if `first_row` is a header, or by number. By default the source is column 0 and the
        target column 1, or in a file with a header those with their names. A column that the header lacks, and a name
        in a file without a header, is a UserError.
        """
        if not has_header:
            defaults = {"source": 0, "target": 1, "features": 0}
            chosen = [defaults[choice.role] if choice.column is None else choice.column for choice in columns]
            if wrong := [column for column in chosen if not str(column).isdecimal()]:
                raise UserError(
                    f"{corpus.source} is read without a header, so that columns are numbers from 0, not {wrong[0]!r}: "
                    "give a number, or set data.header=true if the first line names the columns"
                )
            positions = [int(column) for column in chosen]
            if columns[-1].role == "features" and "target" not in [choice.role for choice in columns]:
                positions[-1] = min(positions[-1], len(first_row) - 1)  # lines without a target have fewer columns
            return positions
        header = _header_names(first_row)
        positions = []
        for choice, name in zip(columns, find_columns(columns, header)):
            if name is not None:
                positions.append(header.index(name))
            elif str(choice.column).isdecimal() and int(str(choice.column)) < len(header):
                positions.append(int(str(choice.column)))
            else:
                raise missing_column(choice, header, corpus.source)
        return positions


def _header_names(row: list[str]) -> list[str]:
    """Return the names of columns in the first row of a file, without white space around them."""
    return [name.strip() for name in row]


def _holds_features(values: Sequence[str], separator: str) -> bool:
    """Whether texts look like features such as V;PST: most have the separator, none a space, and the names repeat."""
    separated = [value for value in values if separator in value]
    names = {name for value in values for name in value.split(separator)}  # different ones, such as V and PST
    has_spaces = any(character.isspace() for value in values for character in value.strip())
    names_repeat = len(names) <= 10 + len(values)  # 10: in a small sample, few names repeat
    return not has_spaces and 2 * len(separated) > len(values) and names_repeat


class TabSeparatedFormat(DelimitedFormat):
    """Columns that are separated by tabs, without quotes."""

    name, suffixes, columns_kind = "tsv", (".tsv",), "tab-separated"

    def rows(self, corpus: Corpus, allow_empty: bool) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number, fields) for every line; an empty file is a UserError unless `allow_empty`."""
        return ((line, text.split("\t")) for line, text in corpus.read_lines(allow_empty))


class CommaSeparatedFormat(DelimitedFormat):
    """CSV: fields may be in double quotes, and then contain commas, line feeds and doubled quotes (RFC 4180).

    The first line names the columns. Its most frequent delimiter is that of the file: comma, semicolon, tab or bar.
    """

    name, suffixes, header_is_usual = "csv", (".csv",), True

    def rows(self, corpus: Corpus, allow_empty: bool) -> Iterator[tuple[int, list[str]]]:
        """Yield (number of the row's first line, fields) for every row that is not blank.

        Invalid CSV is a UserError, and so is an empty file unless `allow_empty`.
        """
        lines = (text for _, text in corpus.read_lines(allow_empty))
        first_line = next(lines, None)
        if first_line is None:
            return
        unquoted = re.sub(r'"[^"]*"', "", first_line)  # without fields in quotes, which may contain delimiters
        delimiter = max(DELIMITERS, key=unquoted.count)  # the comma if there is none
        texts = (f"{text}\n" for text in chain([first_line], lines))
        csv.field_size_limit(MAX_FIELD_CHARACTERS)
        reader = csv.reader(texts, delimiter=delimiter, strict=True)
        line = 1
        try:
            for fields in reader:
                if fields:
                    yield line, fields
                line = reader.line_num + 1  # where the next row begins
        except csv.Error as error:
            raise UserError(
                f"{corpus.source}, line {line:,} is not valid CSV ({error}): put texts with quotes, delimiters or line "
                "feeds into double quotes, and double the quotes in them"
            ) from None


class JsonLinesFormat(ColumnFormat):
    """JSON objects, one per line: pairs, texts, or dialogues.

    A dialogue has `turns`, a list of texts, or `messages`, a list of objects with `role` (alternately user and
    assistant) and `content`. A first message with the role system is prepended to the first user turn. Objects in an
    object are named with a dot: `translation.en`.
    """

    name, suffixes = "jsonl", (".jsonl", ".ndjson", ".json")

    def data_format(self, corpus: Corpus) -> str:
        """Return the name of the data format that suits the first line: "turns" (dialogues), "pairs" or "text".

        It is "text" (sources without targets) if the user has chosen only the key of sources, and there is no target,
        the second of `corpus.columns`.
        """
        line, text = next(iter(corpus.read_lines()))
        record = parse_object(text, corpus.source, line)
        if self._record_turns(record, corpus, line) is not None:
            return "turns"
        if corpus.source_column is None or corpus.target_column is not None:
            return "pairs"
        return "pairs" if find_column(corpus.columns[1], _key_names(record)) else "text"

    def read_columns(
        self, corpus: Corpus, columns: Sequence[ColumnChoice], allow_empty: bool = False
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield (line number, strings at the chosen keys) for every line; a missing key is a UserError.

        A file without lines is one as well, unless `allow_empty`.
        """
        for line, text in corpus.read_lines(allow_empty):
            record = parse_object(text, corpus.source, line)
            yield line, self._strings(record, columns, corpus.source, line)

    def read_turns(self, corpus: Corpus) -> Iterator[tuple[int, list[str] | None]]:
        """Yield (line number, turns of its dialogue) for every line; the turns are None if it has no dialogue."""
        for line, text in corpus.read_lines():
            record = parse_object(text, corpus.source, line)
            yield line, parse_turns(record, location=f"{corpus.source}, line {line:,}")

    def read_inputs(self, corpus: Corpus, allow_empty: bool = False) -> Iterator[str | list[str]]:
        """Yield the turns of a line with a dialogue, the source of another one, with its features after a tab.

        A file without lines is a UserError unless `allow_empty`.
        """
        for line, text in corpus.read_lines(allow_empty):
            record = parse_object(text, corpus.source, line)
            turns = self._record_turns(record, corpus, line)
            columns = (*corpus.columns[:1], *corpus.feature_columns)  # without the target
            yield turns if turns is not None else "\t".join(self._strings(record, columns, corpus.source, line))

    def find_features(self, corpus: Corpus, separator: str) -> dict[str, str]:
        """Return the setting `features_column` = "features" if the first line has this key, with a string; else {}.

        `separator` is not used: the name of the key is enough.
        """
        line, text = next(iter(corpus.read_lines()))
        has_features = isinstance(parse_object(text, corpus.source, line).get("features"), str)
        return {"features_column": "features"} if has_features else {}

    def _record_turns(self, record: dict[str, Any], corpus: Corpus, line: int) -> list[str] | None:
        """Return the turns of a dialogue; None for other objects, or if the user has chosen the key of sources.

        `line` is the number of the line, for error messages.
        """
        return parse_turns(record, f"{corpus.source}, line {line:,}") if corpus.source_column is None else None

    def _strings(self, record: dict[str, Any], columns: Sequence[ColumnChoice], path: Path, line: int) -> list[str]:
        """Return the strings at the chosen keys of an object, "" for null; a missing key or other value is a UserError.

        A key is chosen by name; by default it is that of the language, such as en, or the role, such as source. `path`
        and `line` are for error messages.
        """
        strings = []
        for choice in columns:
            key = str(choice.column) if choice.column is not None else choice.role
            if choice.column is None and choice.language:  # the language itself is for the message about a missing key
                key = find_column(choice, _key_names(record)) or choice.language
            value = record[key] if key in record else _nested_value(record, key)
            if value is _MISSING:
                unknown_key = unknown_name("key", key, _key_names(record))
                raise UserError(
                    f"{path}, line {line:,}: {unknown_key} (choose the key of the {choice.role} with "
                    f"--{choice.role}-column)"
                )
            if value is not None and not isinstance(value, str):
                raise UserError(
                    f"{path}, line {line:,}: {key!r} must be a string, not {json.dumps(value)[:40]}: correct the line, "
                    f"or choose another key with --{choice.role}-column"
                )
            check_unicode(value or "", f"{path}, line {line:,}: {key!r}")
            strings.append(value or "")
        return strings


_MISSING = object()  # no value at a key


def _nested_value(record: Any, key: str) -> Any:
    """Return the value at a dotted key such as `translation.en` of nested objects, or _MISSING if there is none."""
    for name in key.split("."):
        if not isinstance(record, dict) or name not in record:
            return _MISSING
        record = record[name]
    return record


def _key_names(record: dict[str, Any]) -> list[str]:
    """Return the keys of an object, and dotted keys of the objects in it, such as `translation.en`."""
    nested = (f"{key}.{inner}" for key, value in record.items() if isinstance(value, dict) for inner in value)
    return [*record, *nested]


def parse_object(text: str, path: Path, line: int) -> dict[str, Any]:
    """Parse a line of a JSON-lines file; raise a UserError with its number (`line`) unless it is a JSON object."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        raise UserError(f"{path}, line {line:,} is not JSON ({reason}): expected one object per line") from None
    if not isinstance(record, dict):
        raise UserError(f"{path}, line {line:,} is a JSON {type(record).__name__}: expected one object per line")
    return record


def parse_turns(record: dict[str, Any], location: str) -> list[str] | None:
    """Return the turns of a JSON object with a dialogue; None if it has none.

    They are its list "turns" of strings, or else the contents of its list "messages" with roles; other values are a
    UserError. Tabs in turns become spaces, because tabs separate turns. `location` (file and line) is for errors.
    """
    turns = record.get("turns")
    if turns is None and record.get("messages") is not None:
        turns = _parse_messages(record["messages"], location)
    if turns is None:
        return None
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise UserError(f"{location}: 'turns' (the turns of a dialogue) must be a list of strings: correct the line")
    check_unicode("".join(turns), f"{location}: 'turns'")
    return [turn.replace("\t", " ") for turn in turns]


def _parse_messages(messages: Any, location: str) -> list[str]:
    """Return the turns of a chat, alternately of user and assistant; a system message is prepended to the first one.

    `messages` must be a list of objects with "role" and "content"; anything else, other roles, or a system message
    alone is a UserError, in which `location` names file and line.
    """
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UserError(f"{location}: 'messages' must be a list of objects with 'role' and 'content': correct the line")
    roles = [message.get("role") for message in messages]
    has_system = roles[:1] == ["system"]
    chat_roles = roles[1:] if has_system else roles
    if chat_roles != (["user", "assistant"] * len(chat_roles))[: len(chat_roles)]:
        raise UserError(
            f"{location}: the roles of 'messages' must be user and assistant in turn, user first, after at most one "
            f"system message, but are {roles}: correct or remove the line"
        )
    turns = [message.get("content") for message in messages]
    if not all(isinstance(turn, str) for turn in turns):
        raise UserError(f"{location}: the 'content' of every message must be a string: correct the line")
    if not has_system:
        return turns
    if len(turns) < 2:
        raise UserError(f"{location} has only a system message: add messages of user and assistant, or remove the line")
    system, first_turn, *others = turns
    return [f"{system}\n{first_turn}", *others]


def check_unicode(text: str, location: str) -> None:
    """Raise a UserError for text that cannot be written as UTF-8, which JSON escapes can produce.

    `location` says in the error where the text is.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{location} contains an unpaired surrogate (one of the code points U+D800 to U+DFFF), which is not "
            "valid Unicode: remove it"
        ) from None
