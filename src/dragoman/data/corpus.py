"""Corpora on disk, read as a stream: parallel text files, tab-separated columns and JSON lines, plain or gzipped."""

from __future__ import annotations

import codecs
import difflib
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from dragoman.errors import UserError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_LINE_BYTES = 2**24  # bytes; a file without newlines must not be read into memory whole
FEATURE_SUFFIXES = (".npy", ".npz")  # files of numpy's arrays
GZIP_MAGIC = b"\x1f\x8b"  # never the start of UTF-8 text, so the content and not the name decides
SUFFIXES = {".tsv": "tsv", ".jsonl": "jsonl"}  # formats by the file's name; any other name is text
UNREADABLE = (".csv", ".json", ".parquet", ".arrow", ".xml", ".tmx", ".bz2", ".xz", ".zst", ".zip")

Key = int | str


class SentencePair(NamedTuple):
    """A sentence and its translation (None where the reading is monolingual), and where they stand (from line 1).

    A source that is no text has its vectors beside it, S F.
    """

    source: str
    target: str | None
    corpus: str
    line: int
    features: NDArray[Any] | None = None
    follows_previous: bool = False  # the line before is of the same document
    holdout_unit: str = ""  # names what is held out together, a part of a document; the source alone if empty


@dataclass(frozen=True)
class Corpus:
    """Where sentences stand: one text file a side, or one file of columns (`tsv`) or records (`jsonl`) for both.

    `format` is told from the suffix if empty; the keys are columns from 0 (`tsv`, by default 0 and 1) or names
    (`jsonl`, by default "source" and "target").
    """

    source: Path
    target: Path | None = None
    format: str = ""
    source_key: Key | None = None
    target_key: Key | None = None

    @property
    def name(self) -> str:
        return str(self.source)

    @property
    def files(self) -> list[Path]:
        return [self.source] if self.target is None else [self.source, self.target]


def read_pairs(corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
    """The sentence pairs of all corpora, one after the other."""
    for corpus in corpora:
        yield from _read_text(corpus) if file_format(corpus) == "text" else _read_fields(corpus, sides=2)


def read_monolingual(corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
    """The source sentences of all corpora, with target None."""
    for corpus in corpora:
        if file_format(corpus) == "text":
            for line, sentence in read_lines(corpus.source):
                yield SentencePair(sentence, None, corpus.name, line)
        else:
            yield from _read_fields(corpus, sides=1)


def detect_data_format(corpus: Corpus) -> str:
    """What a corpus holds, by its files and first line.

    `pairs`, `text` (one side alone), `turns` of dialogues, or `signals`: vectors in the place of the source's text.
    """
    if corpus.source.suffix.lower() in FEATURE_SUFFIXES and not corpus.format:
        return "signals"
    format = file_format(corpus)
    if format == "jsonl":
        line, text = next(iter(read_lines(corpus.source)))
        if corpus.source_key is None and parse_turns(text, corpus.source, line) is not None:
            return "turns"
        alone = corpus.target_key is None and "target" not in _record(text, corpus.source, line)
        return "text" if alone and corpus.source_key is not None else "pairs"
    return "pairs" if format == "tsv" or corpus.target is not None else "text"


def read_dialogues(corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
    """Dialogues, one a line, as sources whose turns are parted by tabs; target None.

    A line is a JSON object with `turns`, a list of texts said by turns, or `messages`, a list of objects with `role`
    (user or assistant, by turns) and `content`; or a text whose turns are parted by tabs already. A message of the role
    system may come first: it becomes the beginning of the first user turn.
    """
    for corpus in corpora:
        for line, text in read_lines(corpus.source):
            turns = text.split("\t")
            if file_format(corpus) == "jsonl":
                found = parse_turns(text, corpus.source, line)
                if found is None:
                    raise UserError(f"{corpus.source}, line {line:,} has neither 'turns' nor 'messages'")
                turns = [" ".join(turn.split("\t")) for turn in found]
            if len(turns) < 2:
                raise UserError(
                    f"{corpus.source}, line {line:,} is no dialogue: it has {len(turns)} turn, not 2 or more"
                )
            yield SentencePair("\t".join(turns), None, corpus.name, line)


def parse_turns(text: str, path: Path, line: int) -> list[str] | None:
    """The turns of a dialogue in JSON, or None if it is something else."""
    record = _record(text, path, line)
    turns = record.get("turns")
    if turns is None and "messages" in record:
        turns = _said(record["messages"], f"{path}, line {line:,}")
    if turns is None:
        return None
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise UserError(f"{path}, line {line:,}: the turns of a dialogue must be a list of texts")
    try:
        "".join(turns).encode()
    except UnicodeEncodeError:
        raise UserError(f"{path}, line {line:,}: a turn holds half a surrogate pair, which is no text") from None
    return turns


def _said(messages: Any, where: str) -> list[str]:
    """The turns of `messages`, with a system message put before the first of them."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UserError(f"{where}: 'messages' must be a list of objects with 'role' and 'content'")
    roles = [message.get("role") for message in messages]
    system = roles[:1] == ["system"]
    count = len(roles) - system
    if roles[system:] != ["user", "assistant"] * (count // 2) + ["user"] * (count % 2):
        raise UserError(
            f"{where}: user and assistant must speak by turns, user first, after at most one message of the role "
            f"system, not {roles}"
        )
    said = [message.get("content") for message in messages]
    if not all(isinstance(content, str) for content in said):
        raise UserError(f"{where}: the 'content' of every message must be a text")
    if system and len(said) < 2:
        raise UserError(f"{where}: a system message alone is no dialogue")
    return [f"{said[0]}\n{said[1]}", *said[2:]] if system else said


def file_format(corpus: Corpus) -> str:
    """`text`, `tsv` or `jsonl`: as declared, or by the file's name; a file that cannot be read as any is rejected."""
    format = corpus.format or _named_format(corpus.source)
    if format not in ("text", *FIELDS):
        raise unknown_name("corpus format", format, ("text", *FIELDS))
    if format != "text" and corpus.target is not None:
        raise UserError(
            f"{corpus.source} is read as {format}, which holds both sides, but a target file {corpus.target} was given "
            f"too: give no target, or say format text"
        )
    if corpus.target is not None and not corpus.format and (other := _named_format(corpus.target)) != "text":
        raise UserError(
            f"{corpus.target} is named as {other}, which holds both sides, but it was given as the target of "
            f"{corpus.source}: give it as the only file, or say format text"
        )
    return format


def _named_format(path: Path) -> str:
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in UNREADABLE:
        raise UserError(
            f"{path} is named as {suffix}, which cannot be read: convert it to text, TSV or JSON lines, or say its "
            "format (text, tsv or jsonl)"
        )
    return SUFFIXES.get(suffix, "text")


def _read_text(corpus: Corpus) -> Iterator[SentencePair]:
    if corpus.target is None:
        raise UserError(f"{corpus.source} is one side of a parallel corpus: name the target file too")
    source, target, name = _lines(corpus.source), _lines(corpus.target), corpus.name
    for line, (left, right) in enumerate(zip_longest(source, target), 1):
        if left is None or right is None:
            rest = line + sum(1 for _ in (target if left is None else source))
            counts = (line - 1, rest) if left is None else (rest, line - 1)
            raise UserError(
                f"{corpus.source} has {_count(counts[0])} but {corpus.target} has {_count(counts[1])}: "
                f"line counts of a parallel corpus must match"
            )
        yield SentencePair(_decode(left, corpus.source, line), _decode(right, corpus.target, line), name, line)


def _read_fields(corpus: Corpus, sides: int) -> Iterator[SentencePair]:
    return split_fields(corpus, read_lines(corpus.source), sides)


def split_fields(corpus: Corpus, lines: Iterable[tuple[int, str]], columns: int) -> Iterator[SentencePair]:
    """The columns of numbered TSV lines, or the values of JSON lines: the source, and with `sides` 2 the target too."""
    format, name = file_format(corpus), corpus.name
    split, defaults = FIELDS[format]
    given = (corpus.source_key, corpus.target_key)
    keys: list[Key] = [default if key is None else key for key, default in zip(given, defaults)][:columns]
    if format == "tsv":
        if wrong := [key for key in keys if not str(key).isdecimal()]:
            raise UserError(f"{corpus.source}: a key of tsv must be a column number from 0, not {wrong[0]!r}")
        keys = [int(key) for key in keys]
    for line, text in lines:
        fields = split(text, keys, corpus.source, line)
        yield SentencePair(fields[0], fields[1] if columns == 2 else None, name, line)


def _split_columns(text: str, keys: Sequence[Key], path: Path, line: int) -> list[str]:
    columns = text.split("\t")
    try:
        return [columns[cast(int, key)] for key in keys]
    except IndexError:
        raise UserError(
            f"{path}, line {line:,}: {len(columns)} tab-separated {'column' if len(columns) == 1 else 'columns'}, "
            f"but columns {' and '.join(str(key) for key in keys)} (counted from 0) are read"
        ) from None


def _record(text: str, path: Path, line: int) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        raise UserError(f"{path}, line {line:,} is not JSON ({reason}): one object a line is expected") from None
    if not isinstance(record, dict):
        raise UserError(f"{path}, line {line:,} is a JSON {type(record).__name__}: one object a line is expected")
    return record


def _split_record(text: str, keys: Sequence[Key], path: Path, line: int) -> list[str]:
    record = _record(text, path, line)
    fields = []
    for key in cast(Sequence[str], keys):
        if key not in record:
            raise UserError(f"{path}, line {line:,}: {unknown_name('key', key, record)}")
        if not isinstance(field := record[key], str):
            raise UserError(f"{path}, line {line:,}: {key!r} must be a string, not {json.dumps(field)[:40]}")
        try:
            field.encode()
        except UnicodeEncodeError:
            raise UserError(f"{path}, line {line:,}: {key!r} holds half a surrogate pair, which is no text") from None
        fields.append(field)
    return fields


FIELDS: dict[str, tuple[Callable[[str, Sequence[Key], Path, int], list[str]], tuple[Key, Key]]] = {
    "tsv": (_split_columns, (0, 1)),
    "jsonl": (_split_record, ("source", "target")),
}


def read_lines(path: Path, allow_empty: bool = False) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1; a file without lines is an error unless it may be empty."""
    for line, raw in enumerate(_lines(path, allow_empty), 1):
        yield line, _decode(raw, path, line)


def _decode(raw: bytes, path: Path, line: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {line:,} is not UTF-8 (byte {error.start + 1} of the line): convert the file to UTF-8"
        ) from None


def _lines(path: Path, may_be_empty: bool = False) -> Iterator[bytes]:
    """The lines of a file, ended by a line feed alone: U+2028, form feeds and the like stay inside a sentence."""
    line = 0
    with open_file(path) as file:
        stream: IO[bytes] = file
        if file.peek(2)[:2] == GZIP_MAGIC:
            stream = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), 2**18)
        try:
            for line, raw in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES), b""), 1):
                if len(raw) == MAX_LINE_BYTES and raw[-1:] != b"\n":
                    raise UserError(f"{path}, line {line:,} is longer than 16 MiB: one sentence a line is expected")
                if line == 1:
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                yield raw.removesuffix(b"\n").removesuffix(b"\r")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(
                f"{path} is broken gzip after line {line:,} ({error}): fetch or compress it again"
            ) from None
    if not line and not may_be_empty:
        raise UserError(f"{path} is empty: one sentence a line is expected")


@contextmanager
def open_file(path: Path) -> Iterator[io.BufferedReader]:
    """The file opened for reading; what goes wrong with it is told in a sentence."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} does not exist{_nearest(path)}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name a file in it") from None
    except PermissionError:
        raise UserError(f"{path} may not be read: give yourself read permission") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _nearest(path: Path) -> str:
    try:
        names = [file.name for file in path.parent.iterdir()]
    except OSError:
        return f": there is no folder {path.parent}"
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f": did you mean {near[0]}?" if near else ""


def _count(lines: int) -> str:
    return f"{lines:,} line{'' if lines == 1 else 's'}"
