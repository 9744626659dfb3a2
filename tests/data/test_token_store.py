"""A token store gives back what was written, is whole or absent, and refuses to open when it was changed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pair_encoding import encode_pairs

from dragoman.data import DataFormat, EncodedPair, SentencePair, TokenStore, store_columns, write_store
from dragoman.errors import UserError

PAIRS = [SentencePair("abc", "de", "c", 1), SentencePair("f", "ghij", "c", 2), SentencePair("ü", "k", "c", 3)]


def rows(opened: TokenStore) -> list[tuple[list[int], list[int]]]:
    return [(opened.source(i).tolist(), opened.target(i).tolist()) for i in range(len(opened))]


def test_stored_ids_are_read_back(tokenizer, tmp_path: Path) -> None:
    written = write_store(tmp_path / "store", encode_pairs(PAIRS, tokenizer), tokenizer.vocab_size)
    opened = TokenStore(tmp_path / "store")
    assert (
        rows(opened)
        == rows(written)
        == [([101, 102, 103], [104, 105]), ([106], [107, 108, 109, 110]), ([199, 192], [111])]
    )
    assert opened.columns[0].lengths.tolist() == [3, 1, 2]
    assert opened.columns[1].lengths.tolist() == [2, 4, 1]
    assert (len(opened), opened.max_length, opened.monolingual) == (3, 4, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("limit", ["max_chunk_pairs", "max_chunk_characters"])
def test_chunks_do_not_change_the_store(tokenizer, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_store(tmp_path / "whole", encode_pairs(PAIRS, tokenizer), tokenizer.vocab_size)
    monkeypatch.setattr(DataFormat, limit, 1)
    chunks = list(encode_pairs(PAIRS, tokenizer))
    assert len(chunks) == 3
    assert rows(write_store(tmp_path / "chunked", chunks, tokenizer.vocab_size)) == rows(whole)


@given(st.lists(st.tuples(*[st.lists(st.integers(0, 70_000), max_size=6)] * 2), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_are_read_back_alone_and_together(store_of: Callable[..., TokenStore], pairs) -> None:
    sources, targets = zip(*pairs)
    opened = store_of(sources, targets, vocabulary=70_001)
    assert rows(opened) == [(list(source), list(target)) for source, target in pairs]
    order = np.arange(len(pairs))[::-1]
    flat = opened.columns[0].rows(order).tolist()
    assert flat == [token for source in reversed(sources) for token in source]


@pytest.mark.parametrize(("vocabulary", "width"), [(65_535, 2), (65_536, 2), (65_537, 4)])
def test_ids_take_two_bytes_while_they_fit(store_of: Callable[..., TokenStore], vocabulary: int, width: int) -> None:
    opened = store_of([[vocabulary - 1, 0]], [[1]], vocabulary)
    assert opened.source(0).tolist() == [vocabulary - 1, 0]
    assert opened.source(0).itemsize == width


def test_monolingual_text_is_stored_once_and_served_on_both_sides(store_of: Callable[..., TokenStore]) -> None:
    opened = store_of([[5, 6], [7]])
    assert opened.monolingual
    assert rows(opened) == [([5, 6], [5, 6]), ([7], [7])]
    assert not (opened.folder / "target.tokens").exists()


def test_large_columns_release_pages_and_read_the_same(store_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_columns, "MAX_RESIDENT_BYTES", 0)
    opened = store_of([[n % 250] * 3 for n in range(5000)], [[1]] * 5000)
    everything = np.arange(5000)
    first, second = opened.columns[0].rows(everything), opened.columns[0].rows(everything)
    assert first.tolist() == second.tolist() == [n % 250 for n in range(5000) for _ in range(3)]


@pytest.mark.parametrize("name", ["source.tokens", "source.lengths", "target.offsets", "store.json"])
def test_a_truncated_store_is_rejected(store_of: Callable[..., TokenStore], name: str) -> None:
    folder = store_of([[5, 6], [7]], [[8], [9]]).folder
    os.truncate(folder / name, (folder / name).stat().st_size - 1)
    with pytest.raises(UserError, match=r"damaged or incomplete: train a new run"):
        TokenStore(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about | {"pairs": 3},
        lambda about: about | {"pairs": "2"},
        lambda about: about | {"sides": {}},
        lambda about: about | {"sides": {"source": {"dtype": "nonsense", "tokens": 3}}},
        lambda about: about | {"sides": {"source": {}}},
        lambda about: [about],
    ],
)
def test_an_altered_store_file_is_rejected(store_of: Callable[..., TokenStore], change) -> None:
    path = store_of([[5, 6], [7]], [[8], [9]]).folder / "store.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(UserError, match="damaged or incomplete"):
        TokenStore(path.parent)


def test_missing_files_and_other_versions_are_rejected(store_of: Callable[..., TokenStore], tmp_path: Path) -> None:
    folder = store_of([[5]], [[6]]).folder
    about = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps(about | {"version": 99}))
    with pytest.raises(UserError, match="version 99, but only 1 and 2 are supported"):
        TokenStore(folder)
    (folder / "store.json").write_text(json.dumps(about))
    (folder / "target.lengths").unlink()
    with pytest.raises(UserError, match="damaged"):
        TokenStore(folder)
    with pytest.raises(UserError, match="has no tokenized data, because the file"):
        TokenStore(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("code", "said"), [(errno.ENOSPC, r"the disk of .*store is full"), (errno.EROFS, r"no permission to write .*store")]
)
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, tokenizer, monkeypatch, code: int, said: str) -> None:
    def full(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=said):
        write_store(tmp_path / "store", encode_pairs(PAIRS, tokenizer), tokenizer.vocab_size)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_writing_keeps_the_old_store(tmp_path: Path, tokenizer) -> None:
    write_store(tmp_path / "store", encode_pairs(PAIRS, tokenizer), tokenizer.vocab_size)

    def interrupted() -> Iterator[list[EncodedPair]]:
        yield from encode_pairs(PAIRS[:1], tokenizer)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "store", interrupted(), tokenizer.vocab_size)
    assert len(TokenStore(tmp_path / "store")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_files_of_a_killed_run_are_replaced(tmp_path: Path, tokenizer) -> None:
    (tmp_path / ".store.partial").mkdir()
    (tmp_path / ".store.partial" / "source.tokens").write_bytes(b"rubbish")
    write_store(tmp_path / "store", encode_pairs(PAIRS, tokenizer), tokenizer.vocab_size)
    write_store(tmp_path / "store", encode_pairs(PAIRS[:2], tokenizer), tokenizer.vocab_size)
    assert len(TokenStore(tmp_path / "store")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_folder_without_a_store_is_never_replaced(tmp_path: Path, tokenizer) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="exists, but holds no tokenized data"):
        write_store(tmp_path / "thesis", encode_pairs(PAIRS, tokenizer), tokenizer.vocab_size)
    assert (tmp_path / "thesis" / "thesis.tex").read_text() == "years of work"


def test_no_pairs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sentence pair"):
        write_store(tmp_path / "store", [[]], 10)
