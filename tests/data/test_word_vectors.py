"""Word vectors are read from every common format, and a damaged file is told by name and line."""

from __future__ import annotations

import gzip
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.data import word_vectors as vectors
from dragoman.data.word_vectors import match_word_vectors, read_word_vectors
from dragoman.errors import UserError
from dragoman.text import Tokenizer, learn_tokenizer

HOUSE, CAT, SHIP = (0.1, -2.0, 3.5), (0.25, 0.5, -0.75), (1e-3, 7.0, 0.0)
WORDS = {"house": HOUSE, "Käse": CAT, "ship": SHIP}


def binary(words: dict[str, tuple[float, ...]], newline: bytes = b"", count: int | None = None) -> bytes:
    width = len(next(iter(words.values())))
    header = f"{len(words) if count is None else count} {width}\n".encode()
    records = [word.encode() + b" " + struct.pack(f"<{width}f", *values) + newline for word, values in words.items()]
    return header + b"".join(records)


GLOVE = "house 0.1 -2.0 3.5\nKäse 0.25 0.5 -0.75\nship 1e-3 7 0\n".encode()
FORMATS = {
    "GloVe": GLOVE,
    "GloVe without a last newline": GLOVE[:-1],
    "word2vec text": b"3 3\n" + GLOVE,
    "fastText with spaces at the end of lines": b"3 3\n" + GLOVE.replace(b"\n", b" \n"),
    "text from Windows": b"\xef\xbb\xbf3 3\r\n" + GLOVE.replace(b"\n", b"\r\n"),
    "empty lines at the end": GLOVE + b"\n\n",
    "word2vec binary": binary(WORDS),
    "word2vec binary with newlines": binary(WORDS, b"\n"),
}


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        path = tmp_path / "vectors"
        path.write_bytes(content)
        return path

    return write


def everything(word: str) -> bool:
    return True


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_vectors(file: Callable[[bytes], Path], name: str, pack: Callable) -> None:
    read = read_word_vectors(file(pack(FORMATS[name])), everything)
    assert read.rows == {"house": 0, "Käse": 1, "ship": 2}
    assert read.matrix.dtype == np.float32
    assert np.array_equal(read.matrix, np.array([HOUSE, CAT, SHIP], np.float32))


@pytest.mark.parametrize("content", [GLOVE, binary(WORDS)], ids=["text", "binary"])
def test_only_wanted_words_are_kept_in_the_order_of_the_file(file: Callable[[bytes], Path], content: bytes) -> None:
    for wanted in ({"ship", "Käse", "zebra"}, ["zebra", "ship", "Käse"], lambda word: word != "house"):
        read = read_word_vectors(file(content), wanted)
        assert list(read.rows) == ["Käse", "ship"]
        assert np.array_equal(read.matrix, np.array([CAT, SHIP], np.float32))


@pytest.mark.parametrize(
    "content",
    [b"a 1 2\nb 3 4\na 5 6\n", b"2 1\n" + b"".join(b"a " + struct.pack("<f", value) for value in (1.0, 5.0))],
    ids=["text", "binary"],
)
def test_the_first_vector_of_a_word_counts(file: Callable[[bytes], Path], content: bytes) -> None:
    read = read_word_vectors(file(content), {"a"})
    assert read.rows == {"a": 0}
    assert read.matrix[0, 0] == 1


def test_words_may_have_spaces_in_them(file: Callable[[bytes], Path]) -> None:
    content = ", 0.1 0.2\n. . . 0.3 0.4\nat name@domain.com 0.5 0.6\n\u00a0 0.7 0.8\n2 0.9 1.0\n"
    read = read_word_vectors(file(content.encode()), everything)
    assert list(read.rows) == [",", ". . .", "at name@domain.com", "\u00a0", "2"]
    assert read.matrix[:, 0].tolist() == np.array([0.1, 0.3, 0.5, 0.7, 0.9], np.float32).tolist()
    first = read_word_vectors(file(b". . . 0.3 0.4\n, 0.1 0.2\n"), everything)
    assert list(first.rows) == [". . .", ","]


def test_a_first_word_that_is_a_number_is_not_a_header(file: Callable[[bytes], Path]) -> None:
    assert list(read_word_vectors(file(b"1 2 3\n7 8 9\n"), everything).rows) == ["1", "7"]


def test_words_with_truncated_characters_are_skipped(file: Callable[[bytes], Path]) -> None:
    cut = "Käse".encode()[:2]
    assert list(read_word_vectors(file(b"a 1 2\n" + cut + b" 3 4\nb 5 6\n"), everything).rows) == ["a", "b"]
    words = b"".join(word + b" " + struct.pack("<2f", 0.1, 0.2) for word in (b"a", cut, b"b"))
    assert list(read_word_vectors(file(b"3 2\n" + words), everything).rows) == ["a", "b"]


letters = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=5)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
tables = st.integers(1, 4).flatmap(
    lambda width: st.dictionaries(letters, st.tuples(*[numbers] * width), min_size=1, max_size=5)
)


@given(tables, st.sampled_from([b"", b"\n"]), st.integers(1, 64))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_binary_file_is_read_back(
    file: Callable[[bytes], Path],
    monkeypatch: pytest.MonkeyPatch,
    table: dict[str, tuple[float, ...]],
    newline: bytes,
    chunk: int,
) -> None:
    table = {"</s>": (0.1,) * len(next(iter(table.values()))), **table}  # 0.1 is no text
    with monkeypatch.context() as patch:
        patch.setattr(vectors, "READ_BYTES", chunk)
        read = read_word_vectors(file(binary(table, newline)), everything)
    assert list(read.rows) == list(table)
    assert np.array_equal(read.matrix, np.array(list(table.values()), np.float32))


@given(tables, st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_file_is_read_back(
    file: Callable[[bytes], Path], table: dict[str, tuple[float, ...]], header: bool
) -> None:
    lines = [" ".join([word, *(repr(value) for value in values)]) for word, values in table.items()]
    if header:
        lines.insert(0, f"{len(table)} {len(next(iter(table.values())))}")
    read = read_word_vectors(file("\n".join(lines).encode()), everything)
    assert list(read.rows) == list(table)
    assert np.array_equal(read.matrix, np.array(list(table.values()), np.float32))


WIDE = b"0." + b"0" * 2**20


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: expected word2vec, GloVe or fastText"),
        (b"\n\n", "starts with an empty line: expected word2vec, GloVe or fastText"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"a 1 2 3\nb 4 5\nc 6 7 8\n", "line 2: expected 3 values, found 2"),
        (b"a 1 2 3\nb\n", "line 2: expected 3 values, found 0"),
        (b"a 1 2 3\nb 4\n", "line 2: expected 3 values, found 1"),
        (b"a 1 2 3\nb 4 5 6 7\n", "line 2: expected 3 values, found 4"),
        (b"2 3\na 1 2 3\nb 4 5 6 7 8\n", "line 3: expected 3 values, found 5"),
        (b"2 3\na 1 2\nb 4 5\n", "line 2: expected 3 values, found 2"),
        (b"a 1 2 3\nb 4 x 6\n", "line 2: value 2 is 'x', expected a finite float32 number"),
        (b"a 1 x 3\nb 4 5 6\n", "line 1: value 2 is 'x', expected a finite float32 number"),
        (b"a 1 2\nb nan 6\n", "line 2: value 1 is 'nan', expected a finite float32 number"),
        (b"a 1 2\nb 4 1e39\n", "line 2: value 2 is '1e39', expected a finite float32 number"),
        (b"1 1\na " + struct.pack("<f", np.inf), "vector 1 of 1: value 1 is 'inf', expected a finite float32 number"),
        (b"3 2\na 1 2\nb 3 4\n", "line 1: the header declares 3 vectors, found 2"),
        (b"3 2\n", "line 1: the header declares 3 vectors, found 0"),
        (b"1 2\na 1 2\nb 3 4\n", "line 1: the header declares 1 vectors, found 2"),
        (binary(WORDS, count=4), "vector 4 of 4: the file ends too early"),
        (binary(WORDS, b"\n", count=2), "line 1: the header declares 2 vectors, found more"),
        (binary(WORDS)[:-1], "vector 3 of 3: the file ends too early"),
        (binary(WORDS)[:-14], "vector 3 of 3: the file ends too early"),
        (binary(WORDS)[:20], "vector 1 of 3: the file ends too early"),
        (b"3 0\na\n", "line 1: expected a size from 1 to 262,144, found 0"),
        (b"3 999999999\na\n", "line 1: expected a size from 1 to 262,144, found 999,999,999"),
        (
            b"Once upon a time\n",
            "line 1 is neither a word with its values, separated by spaces, nor the number",
        ),
        (b"word\n", "expected a file in word2vec, GloVe or fastText (.vec) format"),
        (b"a\t1\t2\n", "line 1 is neither a word with its values"),
        (b"PK\x03\x04\x14\x00 \x00\xff\n", "line 1 is neither a word"),
        (b"a " + WIDE, "has a line longer than 1 MiB"),
        (b"a 1\nb " + WIDE, "has a line longer than 1 MiB"),
        (b"1 2\n" + b"\0" * (2**20 + 1), "vector 1 of 1: the word is longer than 1 MiB"),
        (gzip.compress(GLOVE, mtime=0)[:-9], "is not valid gzip data"),
    ],
)
def test_damaged_files_are_reported(file: Callable[[bytes], Path], content: bytes, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        read_word_vectors(file(content), everything)
    assert str(caught.value).startswith(str(file(content)))


def test_values_of_other_words_are_not_read(file: Callable[[bytes], Path]) -> None:
    assert read_word_vectors(file(b"a 1 2\nb x 3\n"), {"a"}).matrix.tolist() == [[1, 2]]


def test_missing_files_and_words_are_reported(file: Callable[[bytes], Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_word_vectors(tmp_path / "nowhere", everything)
    with pytest.raises(UserError, match="has no vector for any word of the vocabulary"):
        read_word_vectors(file(GLOVE), {"zebra"})


@pytest.mark.parametrize("content", [GLOVE, b"3 3\n" + GLOVE, binary(WORDS)], ids=["GloVe", "text", "binary"])
def test_another_size_than_that_of_the_model_is_rejected(file: Callable[[bytes], Path], content: bytes) -> None:
    said = "has word vectors of size 3, but the embeddings of the model have size 128"
    with pytest.raises(UserError, match=said):
        read_word_vectors(file(content), everything, expect_size=128)
    assert len(read_word_vectors(file(content), everything, expect_size=3).rows) == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["text", "binary"])
def test_memory_is_bounded_by_the_wanted_words(file: Callable[[bytes], Path], form: str) -> None:
    words = {f"w{number}": (0.123,) * 200 for number in range(20_000)}
    text = b"".join(word.encode() + b" 0.123" * 200 + b"\n" for word in words)
    path = file(text if form == "text" else binary(words))
    assert path.stat().st_size > 15e6
    tracemalloc.start()
    read_word_vectors(path, {"w5", "w19999"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


# -- pieces of tokenizers

TEXT = ["the House, the houses and the ship - the ship!"] * 20
TABLE = b"the 1 0\nhouse 2 0\nHouse 3 0\nhouses 4 0\n, 5 0\nes 6 0\nh 7 0\nSHIP 8 0\n<unk> 9 0\n<0x41> 9 0\n<s> 9 0\n"


def found(tokenizer: Tokenizer, path: Path) -> dict[str, float]:
    result = match_word_vectors(tokenizer, path, 2)
    assert result.found == len(result.rows) == len(result.matrix)
    assert sorted(result.rows.tolist()) == result.rows.tolist()
    return dict(zip(tokenizer.tokens(result.rows), result.matrix[:, 0].tolist()))


def test_tokens_of_a_word_tokenizer_are_looked_up(file: Callable[[bytes], Path]) -> None:
    tokenizer = learn_tokenizer(TEXT, "word")
    path = file(TABLE)
    assert found(tokenizer, path) == {"▁the": 1, "▁House": 3, ",": 5, "▁houses": 4}
    # the, House, comma, houses, and, ship, dash, exclamation mark
    assert match_word_vectors(tokenizer, path, 2).candidates == 8


def test_missing_words_are_looked_up_in_lower_case(file: Callable[[bytes], Path]) -> None:
    assert found(learn_tokenizer(TEXT, "word"), file(TABLE.replace(b"House 3 0\n", b"")))["▁House"] == 2


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("marker", ["initial", "final"])
def test_subwords_with_a_marker_and_punctuation_are_looked_up(
    file: Callable[[bytes], Path], kind: str, marker: str
) -> None:
    tokenizer = learn_tokenizer(TEXT, kind, size=320, marker=marker)
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    has = found(tokenizer, file(TABLE))
    marked = {"the": 1, "House": 3, "house": 2, "houses": 4, ",": 5, "es": 6, "h": 7, "H": 7}
    expected = {f"▁{word}" if marker == "initial" else f"{word}▁": value for word, value in marked.items()} | {",": 5}
    assert has == {piece: expected[piece] for piece in pieces if piece in expected}
    assert "h" in pieces
    assert "h" not in has
    assert {"initial": "▁the", "final": "the▁"}[marker] in has


@pytest.mark.parametrize("kind", ["character", "byte"])
def test_characters_have_no_word_vectors(file: Callable[[bytes], Path], kind: str) -> None:
    with pytest.raises(UserError, match=f"no token of a tokenizer of type '{kind}' is a word"):
        match_word_vectors(learn_tokenizer(TEXT, kind), file(TABLE), 2)


def test_matching_rejects_another_size_and_another_language(file: Callable[[bytes], Path]) -> None:
    with pytest.raises(UserError, match="has word vectors of size 2, but the embeddings of the model have size 3"):
        match_word_vectors(learn_tokenizer(TEXT, "word"), file(TABLE), 3)
    with pytest.raises(UserError, match="has no vector for any"):
        match_word_vectors(learn_tokenizer(TEXT, "word"), file(b"maison 1 2\n"), 2)
