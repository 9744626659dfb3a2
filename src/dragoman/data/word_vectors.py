"""Pretrained word vectors: word2vec (text and binary), GloVe and fastText (.vec) files, plain or gzipped.

The format is detected from the content. Each text line is a word and its values, separated by spaces, as in GloVe. The
other formats start with a header line, the number of vectors and their size. In word2vec's binary format each word is
followed by a space and its values as little-endian float32; some programs write a newline after that.
"""

from __future__ import annotations

import codecs
import io
import re
import unicodedata
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.data.text_files import open_decompressed
from dragoman.errors import UserError
from dragoman.text.special_tokens import BYTE_TOKENS, SPECIAL_TOKENS
from dragoman.text.tokenizer import Tokenizer

MAX_RECORD_BYTES = 2**20  # of a line or binary record: a file of another kind must not be read into memory
READ_BYTES = 2**20
DETECTION_BYTES = 2**12  # from the start of the file, to distinguish binary from text

_HEADER = re.compile(rb"(\d{1,18})[ \t]+(\d{1,18})\s*")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class WordVectors:
    """Vectors by word: the vector of `word` is `matrix[rows[word]]`."""

    rows: dict[str, int]
    matrix: NDArray[np.float32]  # words × size


@dataclass(frozen=True)
class TokenVectors:
    """Vectors by token id: token `rows[i]` has the vector `matrix[i]`."""

    rows: NDArray[np.int64]
    matrix: NDArray[np.float32]
    candidates: int  # number of tokens that represent a word, with or without a vector

    @property
    def found(self) -> int:
        """The number of tokens that have a vector."""
        return len(self.rows)


def match_word_vectors(tokenizer: Tokenizer, path: Path, size: int) -> TokenVectors:
    """Look up vectors of the given size for the tokens that represent a word, first as they are, then in lower case.

    These are all tokens of a word tokenizer; of other tokenizers the tokens with a word marker (▁house or house▁) and
    punctuation marks. A token inside a word does not count: the token “ing” is not the word “ing” of a vector file.
    A tokenizer without such tokens, and a file with vectors of another size or of no token, are UserErrors.
    """
    words = _word_tokens(tokenizer)  # by token id
    if not words:
        raise UserError(
            f"no token of a tokenizer of type {tokenizer.kind!r} is a word, so that no token has a vector in {path}: "
            "use a 'word', 'symbol', 'bpe', 'byte-bpe' or 'unigram' tokenizer, or leave out the word vectors"
        )
    wanted = {spelling for word in words.values() for spelling in (word, word.lower())}
    vectors = read_word_vectors(path, wanted, expect_size=size)
    # row of the matrix of vectors by token id, first of the word as it is, then in lower case; −1: without a vector
    rows = {token: vectors.rows.get(word, vectors.rows.get(word.lower(), -1)) for token, word in words.items()}
    row_of_token = {token: row for token, row in rows.items() if row >= 0}  # tokens with a vector
    token_ids, matrix = np.array(list(row_of_token), np.int64), vectors.matrix[list(row_of_token.values())]
    return TokenVectors(token_ids, matrix, candidates=len(words))


def _word_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Map the ids of tokens that represent a word to the word without its marker ▁, which begins or ends words.

    These are all tokens of a tokenizer whose tokens are words (`has_unknown_words`), otherwise those with a marker and
    punctuation marks; never special tokens or bytes. A tokenizer whose space is a token of its own has none.
    """
    if not tokenizer.has_marked_words:
        return {}
    words = {}
    strip = str.removeprefix if tokenizer.marker == "initial" else str.removesuffix
    for token_id, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size))):
        word = strip(token, "▁")
        is_word = word != token or tokenizer.has_unknown_words or (len(token) == 1 and _is_punctuation(token))
        if is_word and word.strip() and token not in SPECIAL_TOKENS and token not in BYTE_TOKENS:
            words[token_id] = word
    return words


def _is_punctuation(character: str) -> bool:
    """Whether a character is punctuation or a symbol by its Unicode category, except for the underscore."""
    return unicodedata.category(character)[0] in "PS" and character != "_"


def read_word_vectors(
    path: Path, wanted: Container[str] | Callable[[str], bool], expect_size: int | None = None
) -> WordVectors:
    """Read the vectors of the wanted words as a stream; the first vector of a repeated word counts.

    Values of other words are not parsed. Words that are not UTF-8 are skipped, because word2vec truncates long words
    in the middle of a character. A file without any wanted word is a UserError.

    Args:
        path: a file in word2vec, GloVe or fastText format.
        wanted: the words, or a function that says whether a word is wanted.
        expect_size: size that the vectors must have; None: any.
    """
    is_wanted = wanted if callable(wanted) else wanted.__contains__
    rows: dict[str, int] = {}
    values = bytearray()
    with open_decompressed(path) as stream:
        file = _VectorFile.detect(stream, path)
        if expect_size not in (None, file.size):
            raise UserError(
                f"{path} has word vectors of size {file.size:,}, but the embeddings of the model have size "
                f"{expect_size:,}: use vectors of that size, or a model with embeddings of the size of the vectors"
            )
        for location, raw_word, raw_values in file.binary_records() if file.binary else file.text_records():
            try:
                word = raw_word.decode()
            except UnicodeDecodeError:
                continue
            if word not in rows and is_wanted(word):
                rows[word] = len(rows)
                values += file.parse(raw_values, location).tobytes()
    if not rows:
        raise UserError(
            f"{path} has no vector for any word of the vocabulary: use vectors of the same language and spelling"
        )
    return WordVectors(rows, np.frombuffer(values, np.float32).reshape(-1, file.size))


Records = Iterator[tuple[str, bytes, bytes]]  # location (line or number of the vector), word, unparsed values


@dataclass(frozen=True)
class _VectorFile:
    """A file of word vectors after format detection, positioned at the first vector."""

    stream: io.BufferedReader
    path: Path
    size: int  # values per vector
    count: int | None  # number of vectors according to the header
    first_line: bytes  # already read; empty if it was a header
    binary: bool

    @classmethod
    def detect(cls, stream: io.BufferedReader, path: Path) -> _VectorFile:
        """Detect the format from the first line: a header (word2vec, fastText), or a word with its values (GloVe).

        An empty file, or another first line, is a UserError.
        """
        line = _read_line(stream, path).removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            raise UserError(
                f"{path} {'starts with an empty line' if line else 'is empty'}: expected word2vec, GloVe or fastText "
                "vectors"
            )
        if header := _HEADER.fullmatch(line):  # two numbers
            count, size = int(header[1]), int(header[2])
            if not 1 <= size <= MAX_RECORD_BYTES // 4:
                raise _damaged(path, "line 1", f"expected a size from 1 to {MAX_RECORD_BYTES // 4:,}, found {size:,}")
            is_binary = _is_binary(sample=stream.peek(DETECTION_BYTES)[:DETECTION_BYTES], size=size)
            return cls(stream, path, size=size, count=count, first_line=b"", binary=is_binary)
        size = _count_trailing_numbers(line)
        if not size:
            raise UserError(
                f"{path}, line 1 is neither a word with its values, separated by spaces, nor the number and size of "
                "the vectors: expected a file in word2vec, GloVe or fastText (.vec) format"
            )
        spaced_word = line.rstrip().split(b" ")[1:-size]  # the rest of a word that contains spaces
        if any(map(_NUMBER.fullmatch, spaced_word)):
            value = spaced_word[-1].decode(errors="replace")
            raise _invalid_value(path, "line 1", position=len(spaced_word), value=value)
        return cls(stream, path, size=size, count=None, first_line=line, binary=False)

    def parse(self, values: bytes, location: str) -> NDArray[np.float32]:
        """Return the float32 vector of a record; raise a UserError if a value is no finite number.

        `values` are bytes of numbers or, in a text file, of their digits separated by spaces; `location` says in errors
        where they are.
        """
        fields = [] if self.binary else values.split(b" ")
        with np.errstate(over="ignore"):  # values out of range become infinite and are rejected below
            row = np.frombuffer(values, "<f4") if self.binary else np.array(_parse_floats(fields))
            row = row.astype(np.float32)
        invalid = np.flatnonzero(~np.isfinite(row))
        if len(invalid):
            value = fields[invalid[0]].decode(errors="replace") if fields else row[invalid[0]]
            raise _invalid_value(self.path, location, invalid[0] + 1, str(value))
        return row

    def text_records(self) -> Records:
        """Yield the records of a text file, one per line: location for messages, word, unparsed values.

        The last `size` fields of a line are the values, the fields before them the word, which may contain spaces. If a
        word of several fields ends with a number, the line has too many values. That is a UserError, as are too few
        values, and another number of lines than the header says.
        """
        seen = 0  # number of vectors so far
        lines = chain([self.first_line], iter(partial(_read_line, self.stream, self.path), b""))
        for number, line in enumerate(lines, 1):
            line = line.rstrip(b" \r\n")
            if not line:  # the header, or an empty line at the end
                continue
            num_values = line.count(b" ")  # as many as fields after the word, if it has no space
            word_end = len(line.rsplit(b" ", self.size)[0])
            if num_values > self.size and _NUMBER.fullmatch(line[:word_end].rpartition(b" ")[2]):
                num_values = max(_count_trailing_numbers(line), self.size + 1)  # too many: an error
            elif num_values >= self.size:  # the other fields are a word that contains spaces
                num_values = self.size
            if num_values != self.size:
                raise _damaged(self.path, f"line {number:,}", f"expected {self.size:,} values, found {num_values:,}")
            seen += 1
            yield f"line {number:,}", line[:word_end], line[word_end + 1 :]
        if self.count not in (None, seen):
            raise _damaged(self.path, "line 1", f"the header declares {self.count:,} vectors, found {seen:,}")

    def binary_records(self) -> Records:
        """Yield the records (location for messages, word, values) of a binary word2vec file.

        A record is a word, a space, and float32 values. The file is read in blocks; `start` is the position of the next
        record in the `buffer`. A file with fewer or more records than the header says is a UserError.
        """
        count, size = self.count or 0, 4 * self.size  # number of records, bytes of their values
        buffer, start = b"", 0
        for number in range(1, count + 1):
            location = f"vector {number:,} of {count:,}"
            while (space := buffer.find(b" ", start)) < 0 or len(buffer) <= space + size:
                if space < 0 and len(buffer) - start > MAX_RECORD_BYTES:
                    raise _damaged(self.path, location, "the word is longer than 1 MiB")
                block = self.stream.read(READ_BYTES)
                if not block:
                    raise _damaged(self.path, location, "the file ends too early")
                buffer, start = buffer[start:] + block, 0
            values = buffer[space + 1 : space + 1 + size]
            yield location, buffer[start:space].lstrip(b"\n"), values
            start = space + 1 + size
        if (buffer[start:] + self.stream.read(2)).strip(b"\n"):  # only a newline may follow
            raise _damaged(self.path, "line 1", f"the header declares {count:,} vectors, found more")


def _damaged(path: Path, location: str, problem: str) -> UserError:
    """Return the error for a problem at a location (a line or a vector) of a file of word vectors."""
    return UserError(f"{path}, {location}: {problem}; the file of word vectors is damaged, so download it again")


def _invalid_value(path: Path, location: str, position: int, value: str) -> UserError:
    """Return the error for a value that is no finite number; `position` counts the values of a vector from 1."""
    return _damaged(path, location, f"value {position:,} is {value[:40]!r}, expected a finite float32 number")


def _read_line(stream: io.BufferedReader, path: Path) -> bytes:
    """Read a line, b"" at the end of the file; raise a UserError if it is longer than 1 MiB."""
    line = stream.readline(MAX_RECORD_BYTES + 1)
    if len(line) > MAX_RECORD_BYTES:
        raise UserError(f"{path} has a line longer than 1 MiB: expected word vectors, each line a word and its values")
    return line


def _is_binary(sample: bytes, size: int) -> bool:
    """Whether the first record of a file of word vectors is binary; `sample` is its beginning, `size` that of vectors.

    A record is a word, a space, and the values: numbers as text, which is ASCII, or 4 · size bytes, which hardly ever
    are.
    """
    values = sample.partition(b" ")[2].partition(b"\n")[0][: 4 * size]
    return not values.isascii() or _CONTROL.search(sample) is not None


def _count_trailing_numbers(line: bytes) -> int:
    """Count the numbers at the end of a line of fields, which single spaces separate.

    The first field is the word even if it is a number.
    """
    fields = line.rstrip().split(b" ")[1:]
    return next((count for count, field in enumerate(reversed(fields)) if not _NUMBER.fullmatch(field)), len(fields))


def _parse_floats(fields: list[bytes]) -> list[float]:
    """Parse numbers; invalid ones become NaN."""
    try:
        return list(map(float, fields))
    except ValueError:  # slower, but finds the invalid ones
        return [float(field) if _NUMBER.fullmatch(field) else np.nan for field in fields]
