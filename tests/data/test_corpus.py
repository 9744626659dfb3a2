"""Corpora are read line by line exactly as they stand, and what is wrong with a file is told in one sentence."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from dragoman.data import DATA_FORMATS, detect_data_format, text_files
from dragoman.data.corpus import Corpus, SentencePair
from dragoman.errors import UserError
from dragoman.text.normalization import TextNormalizer


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write(name: str, content: str | bytes) -> Path:
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def texts(*corpora: Corpus) -> list[tuple[str, str | None]]:
    return [(pair.source, pair.target) for pair in DATA_FORMATS["pairs"].read(corpora)]


def message(*corpora: Corpus) -> str:
    with pytest.raises(UserError) as caught:
        list(DATA_FORMATS["pairs"].read(corpora))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_parallel_files_are_read_as_pairs_with_line_numbers(write) -> None:
    source, target = write("a.en", "one\ntwo\n"), write("a.de", "eins\nzwei")
    first, second = DATA_FORMATS["pairs"].read([Corpus(source, target)])
    assert first == SentencePair("one", "eins", str(source), 1)
    assert second == SentencePair("two", "zwei", str(source), 2)


def test_corpora_are_read_in_order_with_their_names(write) -> None:
    first = Corpus(write("a.en", "one\n"), write("a.de", "eins\n"))
    second = Corpus(write("b.tsv", "two\tzwei\n"))
    assert [
        (pair.source, Path(pair.corpus).name, pair.line) for pair in DATA_FORMATS["pairs"].read([first, second])
    ] == [
        ("one", "a.en", 1),
        ("two", "b.tsv", 1),
    ]


def test_only_line_feeds_end_a_line(write) -> None:
    odd = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\rh"
    assert texts(Corpus(write("a.en", f"{odd}\n\n"), write("a.de", "x\ny\n"))) == [(odd, "x"), ("", "y")]


def test_windows_line_ends_and_byte_order_mark_are_dropped(write) -> None:
    corpus = Corpus(write("a.en", b"\xef\xbb\xbfone\r\ntwo\r\r\n"), write("a.de", "\ufeffeins\n\ufeffzwei\n"))
    assert texts(corpus) == [("one", "eins"), ("two\r", "\ufeffzwei")]


@pytest.mark.parametrize("name", ["a.en.gz", "a.en"])
def test_gzip_is_detected_from_the_content(write, name: str) -> None:
    corpus = Corpus(write(name, gzip.compress(b"one\ntwo\n") + gzip.compress(b"three\n")), write("a.de", "1\n2\n3\n"))
    assert texts(corpus) == [("one", "1"), ("two", "2"), ("three", "3")]


def test_a_pipe_is_read_like_a_file(tmp_path: Path, write) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    Thread(target=pipe.write_text, args=("one\n",)).start()
    assert texts(Corpus(pipe, write("a.de", "eins\n"))) == [("one", "eins")]


@pytest.mark.parametrize(("name", "content"), [("tsv", "one\teins\n"), ("csv", "en,de\none,eins\n")])
def test_a_pipe_with_columns_is_read_once(tmp_path: Path, name: str, content: str) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    Thread(target=pipe.write_text, args=(content,)).start()
    corpus = Corpus(pipe, format=name)
    assert detect_data_format(corpus) == DATA_FORMATS["pairs"]
    assert texts(corpus) == [("one", "eins")]


def test_columns_of_tab_separated_lines(write) -> None:
    path = write("a.tsv", "id1\tone\teins\nid2\ttwo\tzwei\textra\n")
    assert texts(Corpus(path)) == [("id1", "one"), ("id2", "two")]
    assert texts(Corpus(path, source_column=2, target_column="1")) == [("eins", "one"), ("zwei", "two")]


def test_keys_of_json_lines_plain_and_gzipped(write) -> None:
    lines = [{"source": "one\u2028\n", "target": "eins", "n": 1}, {"target": "zwei", "source": "two"}]
    content = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert texts(Corpus(write("a.jsonl", content))) == [("one\u2028\n", "eins"), ("two", "zwei")]
    path = write("a.jsonl.gz", gzip.compress(b'{"de": "eins", "en": "one"}'))
    assert texts(Corpus(path, source_column="en", target_column="de")) == [("one", "eins")]


def test_a_declared_format_overrides_the_suffix(write) -> None:
    assert texts(Corpus(write("a.txt", "one\teins\n"), format="tsv")) == [("one", "eins")]
    both = Corpus(write("a.tsv", "one\tone\n"), write("b.tsv", "eins\n"), format="text")
    assert texts(both) == [("one\tone", "eins")]


def test_monolingual_reading_has_no_target(write) -> None:
    corpora = [
        Corpus(write("a.txt", "one\n")),
        Corpus(write("a.tsv", "two\n")),
        Corpus(write("a.jsonl", '{"source": "three"}')),
    ]
    assert [(pair.source, pair.target) for pair in DATA_FORMATS["text"].read(corpora)] == [
        ("one", None),
        ("two", None),
        ("three", None),
    ]


@pytest.mark.parametrize(("source", "target"), [(3, 5), (5, 3), (1, 2), (2, 1)])
def test_different_line_counts(write, source: int, target: int) -> None:
    said = message(Corpus(write("a.en", "x\n" * source), write("a.de", "y\n" * target)))

    def lines(count: int) -> str:
        return "1 line" if count == 1 else f"{count} lines"

    assert f"a.en has {lines(source)} but " in said
    assert f"a.de has {lines(target)}: the files of a parallel corpus must have equally many lines" in said


def test_large_counts_are_written_with_commas(write) -> None:
    said = message(Corpus(write("a.en", "x\n" * 1000), write("a.de", "y\n" * 1001)))
    assert "a.en has 1,000 lines but " in said
    assert "a.de has 1,001 lines:" in said


def test_a_missing_file_suggests_a_similar_name(write, tmp_path: Path) -> None:
    target = write("train.de", "x\n")
    assert "train.dee does not exist: did you mean train.de?" in message(Corpus(tmp_path / "train.dee", target))
    assert message(Corpus(tmp_path / "zzz", target)).endswith("zzz does not exist: correct the path")
    assert "does not exist: its folder" in message(Corpus(tmp_path / "no" / "train.en", target))


def test_unreadable_files(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write("a.de", "x\n")
    assert "is a folder" in message(Corpus(tmp_path, whole))
    assert "a.en is empty" in message(Corpus(write("a.en", ""), whole))
    assert "empty.gz is empty" in message(Corpus(write("empty.gz", gzip.compress(b"")), whole))

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "a.de: change its permissions, or use another file" in message(Corpus(whole, whole))


def test_invalid_utf8_is_reported_with_its_line(write) -> None:
    said = message(Corpus(write("a.en", b"good\ngr\xfcn\n"), write("a.de", "x\ny\n")))
    assert "a.en, line 2 is not UTF-8 (byte 3 of the line)" in said


def test_broken_gzip(write) -> None:
    data = gzip.compress("".join(f"sentence {n}\n" for n in range(1000)).encode())
    target = write("a.de", "x\n" * 1000)
    for broken in (data[:-9], data[:20], data[:30] + b"\xff\xff\xff" + data[33:], data + b"rubbish"):
        assert "a.gz is not valid gzip data" in message(Corpus(write("a.gz", broken), target))


def test_an_overlong_line_is_rejected(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 8)
    path = write("a.en", "1234567\n12345678\n")
    assert "a.en, line 2 is longer than" in message(Corpus(path, path))


def test_too_few_columns(write) -> None:
    path = write("a.tsv", "one\teins\ntwo\n")
    assert "a.tsv, line 2: expected columns 0 and 1 (counted from 0), found 1 tab-separated column" in message(
        Corpus(path)
    )


@pytest.mark.parametrize("key", ["source", -1])
def test_a_column_without_a_header_must_be_a_number(write, key: int | str) -> None:
    said = message(Corpus(write("a.tsv", "a\tb\n"), source_column=key, header=False))
    assert f"columns are numbers from 0, not {key!r}" in said


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"source": "a", ', "line 2 is not JSON"),
        ("", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('["a", "b"]', "line 2 is a JSON list: expected one object per line"),
        ('{"sorce": "a", "target": "b"}', "line 2: unknown key 'source': did you mean 'sorce'?"),
        ('{"source": "a", "target": 7}', "line 2: 'target' must be a string, not 7"),
        ('{"source": "a", "target": "\\ud800"}', "line 2: 'target' contains an unpaired surrogate"),
    ],
)
def test_broken_json_lines(write, line: str, expected: str) -> None:
    path = write("a.jsonl", '{"source": "a", "target": "b"}\n' + line + "\n")
    assert f"a.jsonl, {expected}" in message(Corpus(path))


def test_files_that_do_not_fit_the_format_are_rejected(write) -> None:
    path = write("a.tsv", "a\tb\n")
    assert "contains source and target" in message(Corpus(path, path))
    assert "name the file with their translations, too" in message(Corpus(write("a.en", "a\n")))
    assert "unknown corpus format 'tvs': did you mean 'tsv'?" in message(Corpus(path, format="tvs"))


@pytest.mark.parametrize(
    ("record", "keys", "holds"),
    [
        ({"source": "a", "target": "b"}, (None, None), "pairs"),
        ({"en": "a", "de": "b"}, ("en", "de"), "pairs"),
        ({"text": "a"}, ("text", None), "text"),
        ({"turns": ["a", "b"]}, (None, None), "turns"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            (None, None),
            "turns",
        ),
    ],
)
def test_data_formats_of_json_lines(record: dict, keys: tuple, holds: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    assert detect_data_format(Corpus(path, None, "", *keys)) == DATA_FORMATS[holds]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"turns": ["a"]}', "has fewer than 2 turns: expected a dialogue of 2 or more turns"),
        ('{"turns": "a"}', "must be a list of strings"),
        ('{"turns": ["a", "\\ud800"]}', "unpaired surrogate"),
        (
            '{"messages": [{"role": "assistant", "content": "a"}]}',
            "must be user and assistant in turn",
        ),
        ('{"messages": [{"role": "system", "content": "a"}]}', "has only a system message"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}', "user and assistant"),
        ('{"messages": [{"role": "user", "content": "a"}, "b"]}', "a list of objects with 'role' and 'content'"),
        ('{"messages": [{"role": "user", "content": ["a"]}]}', "'content' of every message must be a string"),
        ('{"text": "a"}', "neither 'turns' nor 'messages'"),
    ],
)
def test_invalid_dialogues_are_rejected(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        list(Corpus(path).read_dialogues())


def test_a_system_message_is_prepended_to_the_first_turn(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    messages = [("system", "Be brief."), ("user", "Who?"), ("assistant", "I."), ("user", "And?")]
    record = {"messages": [{"role": role, "content": content} for role, content in messages]}
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    assert [pair.source for pair in Corpus(path).read_dialogues()] == ["Be brief.\nWho?\tI.\tAnd?"]
    (pair,) = DATA_FORMATS["turns"].with_normalizer(TextNormalizer(whitespace=True)).read([Corpus(path)])
    assert pair.source == "Be brief. Who?\tI.\tAnd?"
