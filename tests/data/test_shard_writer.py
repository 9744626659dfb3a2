"""A store in shards reads as one without, opens without looking at its rows, and knows its corpora."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.data import EncodedPair, SentencePair, TokenStore, write_shards, write_store
from dragoman.data import store_columns as sides
from dragoman.data import token_store as store
from dragoman.data.token_store import EncodedColumns, encode_columns
from dragoman.errors import UserError

Row = list[int]


def examples(rows: list[tuple[Row, Row | None]]) -> list[EncodedPair]:
    return [
        EncodedPair(SentencePair("x", None if target is None else "y", "c", 1), source, target)
        for source, target in rows
    ]


def parts(corpora: list[list[tuple[Row, Row | None]]], chunk: int = 3) -> Iterator[tuple[int, EncodedColumns]]:
    for number, rows in enumerate(corpora):
        for start in range(0, len(rows), chunk):
            yield number, encode_columns(examples(rows[start : start + chunk]), (70_001, 70_001))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_SHARD_PAIRS", 4)
    monkeypatch.setattr(sides, "MAX_OPEN_SHARDS", 2)


rows_of_a_corpus = st.lists(st.tuples(*[st.lists(st.integers(0, 70_000), min_size=1, max_size=5)] * 2), max_size=11)


@given(st.lists(rows_of_a_corpus, min_size=1, max_size=3).filter(any), st.integers(1, 7), st.randoms())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_do_not_depend_on_shards_and_chunks(tmp_path_factory, corpora, chunk, random) -> None:
    folder = tmp_path_factory.mktemp("data")
    written = write_shards(folder / "store", parts(corpora, chunk), [str(n) for n in range(len(corpora))])
    flat = [row for rows in corpora for row in rows]
    whole = write_store(folder / "whole", [examples(flat)], 70_001)
    assert len(written) == len(whole) == len(flat)
    assert [(written.source(i).tolist(), written.target(i).tolist()) for i in range(len(flat))] == flat
    chosen = np.array([random.randrange(len(flat)) for _ in range(20)])
    for sharded, single in zip(written.columns, whole.columns):
        assert sharded.rows(chosen).tolist() == single.rows(chosen).tolist()
        assert sharded.lengths[chosen].tolist() == single.lengths[chosen].tolist()
        assert sharded.lengths[:].tolist() == single.lengths[:].tolist()
        assert [sharded.lengths[i] for i in range(len(flat))] == single.lengths[:].tolist()
        assert len(sharded.lengths) == len(flat)
        assert sharded.tokens == single.tokens
    assert [(corpus.pairs, corpus.draws) for corpus in written.corpora] == [(len(rows),) * 2 for rows in corpora]
    assert (written.max_length, written.tokens) == (whole.max_length, whole.tokens)
    for sharded, single in zip(written.length_counts(), whole.length_counts()):
        assert sharded.tolist() == single.tolist()


def test_length_counts_give_sums_over_all_pairs(tmp_path: Path) -> None:
    rows = [([1] * (1 + n % 3), [1] * (1 + n % 2)) for n in range(10)]
    source, target, pairs = write_shards(tmp_path / "store", parts([rows]), ["a"]).length_counts()
    assert sorted(zip(source.tolist(), target.tolist(), pairs.tolist())) == [
        (1, 1, 2), (1, 2, 2), (2, 1, 1), (2, 2, 2), (3, 1, 2), (3, 2, 1)
    ]  # fmt: skip
    assert np.maximum(source, target) @ pairs == sum(max(len(s), len(t)) for s, t in rows)


def test_every_shard_belongs_to_one_corpus_and_is_a_store_itself(tmp_path: Path) -> None:
    corpora = [[([n], [n]) for n in range(6)], [([n], [n]) for n in range(3)]]
    opened = write_shards(tmp_path / "store", parts(corpora), ["a", "b"], tags=["", "x"], draws=lambda counts: [8, 1])
    about = json.loads((opened.folder / "store.json").read_text())
    assert [(shard["corpus"], shard["pairs"]) for shard in about["shards"]] == [(0, 4), (0, 2), (1, 3)]
    assert opened.corpora == [store.StoredCorpus("a", 6, 8, ""), store.StoredCorpus("b", 3, 1, "x")]
    assert TokenStore(opened.folder / "000001").source(0).tolist() == [4]


def test_opening_reads_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shards(tmp_path / "store", parts([[([n], [n]) for n in range(40)]]), ["a"]).folder

    def refused(*arguments: object) -> None:
        raise AssertionError("a shard was mapped")

    monkeypatch.setattr(sides.MappedRows, "_map_file", refused)
    opened = TokenStore(folder)
    assert len(opened.length_counts().pairs) == 1
    assert (len(opened), opened.tokens) == (40, 40)


def test_few_shards_are_open_at_a_time(tmp_path: Path) -> None:
    opened = write_shards(tmp_path / "store", parts([[([n], [n]) for n in range(60)]]), ["a"])
    before = open_files()
    for _ in range(2):
        assert opened.columns[0].rows(np.arange(60)).tolist() == list(range(60))
    assert open_files() - before <= 3 * sides.MAX_OPEN_SHARDS


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return sum(1 for _ in folder.iterdir()) if folder.exists() else 0


@pytest.mark.parametrize("hand", [2**20, 30])
def test_preloaded_rows_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand: int) -> None:
    monkeypatch.setattr(sides, "MAX_RESIDENT_BYTES", 0)
    monkeypatch.setattr(sides, "MAX_PRELOAD_BYTES", hand)
    rows = [([n] * (1 + n % 3), [n]) for n in range(30)]
    opened = write_shards(tmp_path / "store", parts([rows]), ["a"])
    opened.preload(np.array([20, 3, 3, 11, 29]))
    loaded = opened.columns[0].find_preloaded(np.array([3, 29]))
    assert (loaded is not None) == (hand > 30)  # tokens are four bytes here
    for asked in ([3, 29, 20], [3, 4], [11]):
        assert opened.columns[0].rows(np.array(asked)).tolist() == [token for n in asked for token in rows[n][0]]
        assert opened.columns[0].lengths[np.array(asked)].tolist() == [len(rows[n][0]) for n in asked]
        assert [opened.source(n).tolist() for n in asked] == [rows[n][0] for n in asked]
    assert opened.columns[0].lengths[29] == 3
    opened.preload(np.array([1]))
    assert opened.columns[0].find_preloaded(np.array([3])) is None
    assert opened.target(3).tolist() == [3]


def test_features_and_monolingual_text_are_sharded(tmp_path: Path) -> None:
    signals = [np.full((1 + n % 2, 3), n, np.float32) for n in range(6)]
    made = [EncodedPair(SentencePair("x", "y", "c", 1), signal, [n]) for n, signal in enumerate(signals)]
    opened = write_shards(tmp_path / "signals", [(0, encode_columns(made, (0, 10)))], ["a"])
    assert (opened.source(5) == signals[5]).all()
    assert (opened.columns[0].rows(np.array([5, 0, 4])) == np.concatenate([signals[n] for n in (5, 0, 4)])).all()
    text = write_shards(tmp_path / "text", parts([[([n], None) for n in range(6)]]), ["a"])
    assert text.monolingual
    assert text.target(5).tolist() == [5]


@pytest.mark.parametrize("name", ["000001/source.tokens", "000000/target.lengths", "lengths.counts", "store.json"])
def test_a_truncated_shard_is_rejected(tmp_path: Path, name: str) -> None:
    folder = write_shards(tmp_path / "store", parts([[([n], [n]) for n in range(6)]]), ["a"]).folder
    os.truncate(folder / name, (folder / name).stat().st_size - 1)
    with pytest.raises(UserError, match="damaged or incomplete: train a new run"):
        TokenStore(folder).length_counts()


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about | {"pairs": 7},
        lambda about: about | {"shards": about["shards"][:1]},
        lambda about: about | {"corpora": [about["corpora"][0] | {"pairs": 5}]},
        lambda about: about | {"corpora": [about["corpora"][0] | {"colour": "red"}]},
        lambda about: {key: value for key, value in about.items() if key != "shards"},
    ],
)
def test_an_altered_index_is_rejected(tmp_path: Path, change) -> None:
    folder = write_shards(tmp_path / "store", parts([[([n], [n]) for n in range(6)]]), ["a"]).folder
    about = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps(change(about)))
    with pytest.raises(UserError, match="damaged or incomplete"):
        TokenStore(folder)


def test_interrupted_writing_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[tuple[int, EncodedColumns]]:
        yield from parts([[([n], [n]) for n in range(9)]])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(tmp_path / "store", interrupted(), ["a"])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="no sentence pair"):
        write_shards(tmp_path / "store", [], ["a"])
