"""Pretrained word vectors: word2vec (text and binary), GloVe and fastText files, plain or gzipped.

The content tells the format, not the name. A text line is a word and its values with spaces between them, and GloVe has
nothing else; the others begin with a line of two numbers, how many vectors there are and how wide. In word2vec's binary
format there follow for each word the word itself, a space, and the values as little-endian float32; some programs write
a newline after that.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import unicodedata
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import GZIP_MAGIC, open_file
from dragoman.errors import UserError
from dragoman.text.special_tokens import BYTE_TOKENS, SPECIAL_TOKENS
from dragoman.text.tokenizer import UNMARKED_TYPES, Tokenizer

MAX_RECORD_BYTES = (
    2**20
)  # bytes of a line or of a binary record; a file of something else must not be read into memory whole
READ_BYTES = 2**20
DETECTION_BYTES = 2**12  # bytes that are looked at to tell binary from text

_HEADER = re.compile(rb"(\d{1,18})[ \t]+(\d{1,18})\s*")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")

Wanted = Container[str] | Callable[[str], bool]


@dataclass(frozen=True)
class WordVectors:
    """The vector of a word is `matrix[rows[word]]`; rows stand in the order of the file."""

    rows: dict[str, int]
    matrix: NDArray[np.float32]


@dataclass(frozen=True)
class TokenVectors:
    """The vectors of a tokenizer's pieces: piece `rows[i]` has `matrix[i]`, and `of` pieces stand for a word."""

    rows: NDArray[np.int64]
    matrix: NDArray[np.float32]
    candidates: int

    @property
    def found(self) -> int:
        return len(self.rows)

    @property
    def share(self) -> float:
        return self.found / self.candidates


class VectorRecord(NamedTuple):
    """A word and its values as they stand in the file; `number` counts lines in text and vectors in a binary file."""

    number: int
    word: bytes
    values: bytes


def match_word_vectors(tokenizer: Tokenizer, path: Path, width: int) -> TokenVectors:
    """The vectors of the pieces that stand for a word, looked up as they are and then in lower case.

    Those are all pieces of a tokenizer of words, and elsewhere the pieces that carry the space of their word (▁house,
    with the other marker house▁) and punctuation marks. A piece inside a word is none: “ing” the piece is not “ing”
    the word of a vector file.
    """
    words = _words(tokenizer)
    if not words:
        raise UserError(
            f"no piece of a tokenizer of kind {tokenizer.kind!r} stands for a word, so none has a word vector: "
            f"learn 'word', 'bpe' or 'unigram', or do without {path}"
        )
    wanted = {form for word in words.values() for form in (word, word.lower())}
    vectors = read_word_vectors(path, wanted, width)
    rows = {piece: vectors.rows.get(word, vectors.rows.get(word.lower(), -1)) for piece, word in words.items()}
    known = {piece: row for piece, row in rows.items() if row >= 0}
    return TokenVectors(np.array(list(known), np.int64), vectors.matrix[list(known.values())], candidates=len(words))


def _words(tokenizer: Tokenizer) -> dict[int, str]:
    """The pieces that stand for a word, by number, without their markers."""
    if tokenizer.kind in UNMARKED_TYPES:
        return {}
    words = {}
    strip = str.removeprefix if tokenizer.marker == "initial" else str.removesuffix
    for number, piece in enumerate(tokenizer.tokens(range(tokenizer.vocab_size))):
        word = strip(piece, "▁")
        whole = word != piece or tokenizer.kind == "word" or (len(piece) == 1 and _is_punctuation(piece))
        if whole and word.strip() and piece not in SPECIAL_TOKENS and piece not in BYTE_TOKENS:
            words[number] = word
    return words


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS" and character != "_"


def read_word_vectors(path: Path, wanted: Wanted, expect_width: int | None = None) -> WordVectors:
    """The vectors of the wanted words, read as a stream; of a word that stands there twice the first counts.

    Of the other lines only the number of values is checked. Words that are not UTF-8 are passed over: word2vec cuts
    long words in the middle of a character.
    """
    keep = wanted if callable(wanted) else wanted.__contains__
    rows: dict[str, int] = {}
    values = bytearray()
    with _opened(path) as stream:
        file = _File.recognise(stream, path)
        if expect_width not in (None, file.width):
            raise UserError(
                f"{path} holds vectors {file.width:,} wide, but the model's embeddings are {expect_width:,} wide: "
                f"make the model {file.width:,} wide or choose vectors of its width"
            )
        for number, raw, numbers in file.records():
            try:
                word = raw.decode()
            except UnicodeDecodeError:
                continue
            if word not in rows and keep(word):
                rows[word] = len(rows)
                values += file.parse(numbers, number).tobytes()
    if not rows:
        raise UserError(f"{path} holds no vector for any of the words that were looked for: is it of another language?")
    return WordVectors(rows, np.frombuffer(values, np.float32).reshape(-1, file.width))


@dataclass(frozen=True)
class _File:
    """A file of vectors, recognised and positioned at its first vector; `count` is what its header promises."""

    stream: io.BufferedReader
    path: Path
    width: int
    count: int | None
    first: bytes  # the line that was read to recognise it, empty if it was a header
    binary: bool

    @classmethod
    def recognise(cls, stream: io.BufferedReader, path: Path) -> _File:
        first = stream.readline(MAX_RECORD_BYTES + 1).removeprefix(codecs.BOM_UTF8)
        _check_length(first, path, 1)
        if not first.strip():
            raise UserError(f"{path} {'begins with an empty line' if first else 'is empty'}: word vectors are expected")
        if header := _HEADER.fullmatch(first):
            count, width = map(int, header.groups())
            if not 1 <= width <= MAX_RECORD_BYTES // 4:
                raise UserError(
                    f"{path}, line 1 promises vectors {width:,} wide: from 1 to {MAX_RECORD_BYTES // 4:,} are read"
                )
            return cls(
                stream, path, width, count, b"", _is_binary(stream.peek(DETECTION_BYTES)[:DETECTION_BYTES], width)
            )
        width = _trailing_numbers(first)
        if not width:
            raise UserError(
                f"{path}, line 1 is neither a word and its values with spaces between them nor a number of vectors and "
                f"their width: a file in the format of word2vec, GloVe or fastText's .vec is expected"
            )
        rest = first.rstrip().split(b" ")[1:-width]  # of the word, if there are spaces in it
        if any(map(_NUMBER.fullmatch, rest)):
            raise _no_number(path, "line 1", len(rest), rest[-1].decode(errors="replace"))
        return cls(stream, path, width, None, first, False)

    def records(self) -> Iterator[VectorRecord]:
        return self._binary_records() if self.binary else self._text_records()

    def parse(self, values: bytes, number: int) -> NDArray[np.float32]:
        if self.binary:
            fields, row = None, np.frombuffer(values, "<f4").astype(np.float32)
        else:
            fields = values.split(b" ")
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
                row = np.array(_floats(fields)).astype(np.float32)
        wrong = np.flatnonzero(~np.isfinite(row))
        if len(wrong):
            value = fields[wrong[0]].decode(errors="replace") if fields else row[wrong[0]]
            raise _no_number(self.path, f"{'line' if fields else 'vector'} {number:,}", wrong[0] + 1, str(value))
        return row

    def _text_records(self) -> Iterator[VectorRecord]:
        path, width, seen = self.path, self.width, 0
        lines = chain([self.first], iter(partial(self.stream.readline, MAX_RECORD_BYTES + 1), b""))
        for number, raw in enumerate(lines, 1):
            _check_length(raw, path, number)
            line = raw.rstrip(b" \r\n")
            if not line:  # the header, or an empty line at the end
                continue
            extra = line.count(b" ") - width
            # What stands before the values is the word, which may have spaces in it; but a number there is a value.
            cut = _nth_space_from_right(line, width) if extra > 0 else line.find(b" ")
            if extra < 0 or (extra > 0 and _NUMBER.fullmatch(line[:cut].rpartition(b" ")[2])):
                values = max(_trailing_numbers(line), width + 1) if extra > 0 else line.count(b" ")
                raise UserError(
                    f"{path}, line {number:,} holds {values:,} value{'' if values == 1 else 's'}, but the vectors are "
                    f"{width:,} wide: the file is damaged, fetch it again or mend the line"
                )
            seen += 1
            self._check_excess(seen)
            yield VectorRecord(number, line[:cut], line[cut + 1 :])
        if self.count is not None and seen < self.count:
            raise UserError(
                f"{path} holds fewer vectors ({seen:,}) than line 1 promises ({self.count:,}): "
                f"it is truncated, fetch it again"
            )

    def _binary_records(self) -> Iterator[VectorRecord]:
        size, buffer, place = 4 * self.width, b"", 0
        for number in range(1, cast(int, self.count) + 1):
            while (space := buffer.find(b" ", place)) < 0 or len(buffer) <= space + size:
                if space < 0 and len(buffer) - place > MAX_RECORD_BYTES:
                    raise UserError(f"{self.path}, vector {number:,} has a word longer than 1 MiB: the file is damaged")
                more = self.stream.read(READ_BYTES)
                if not more:
                    raise UserError(
                        f"{self.path} ends before vector {number:,} of the {self.count:,} that line 1 promises is "
                        f"complete: it is truncated, fetch it again"
                    )
                buffer, place = buffer[place:] + more, 0
            yield VectorRecord(number, buffer[place:space].lstrip(b"\n"), buffer[space + 1 : space + 1 + size])
            place = space + 1 + size
        if (buffer[place:] + self.stream.read(2)).strip(b"\n"):
            self._check_excess(cast(int, self.count) + 1)

    def _check_excess(self, seen: int) -> None:
        if self.count is not None and seen > self.count:
            raise UserError(
                f"{self.path} holds more vectors than line 1 promises ({self.count:,}): "
                f"correct line 1 or fetch the file again"
            )


def _no_number(path: Path, where: str, place: int, value: str) -> UserError:
    return UserError(
        f"{path}, {where}: value {place:,} is {value[:40]!r}, which is no number in the range of float32: "
        f"the file is damaged, fetch it again"
    )


def _check_length(line: bytes, path: Path, number: int) -> None:
    if len(line) > MAX_RECORD_BYTES:
        raise UserError(f"{path}, line {number:,} is longer than 1 MiB: a word and its values are expected")


def _is_binary(sample: bytes, width: int) -> bool:
    """Whether what follows the first word cannot be text."""
    values = sample.partition(b" ")[2].partition(b"\n")[0][: 4 * width]
    return not values.isascii() or _CONTROL.search(sample) is not None


def _trailing_numbers(line: bytes) -> int:
    """How many values a line ends with; its first field is the word even if it is a number."""
    fields = line.rstrip().split(b" ")[1:]
    return next((place for place, field in enumerate(reversed(fields)) if not _NUMBER.fullmatch(field)), len(fields))


def _nth_space_from_right(line: bytes, count: int) -> int:
    return len(line.rsplit(b" ", count)[0])


def _floats(fields: list[bytes]) -> list[float]:
    """The values, nan for what is no number."""
    try:
        return list(map(float, fields))
    except ValueError:
        return [float(field) if _NUMBER.fullmatch(field) else np.nan for field in fields]


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    with open_file(path) as file:
        try:
            zipped = file.peek(2)[:2] == GZIP_MAGIC
            yield io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), 2**18) if zipped else file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is broken gzip ({error}): fetch or compress it again") from None
