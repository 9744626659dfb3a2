"""Corpora that cannot be learned from or read: one sentence, exit code 2, and nothing left behind."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
from calling import Answer, Dragoman

SMALL = [
    *("--set", "system.settings.model_dim=16", "--set", "system.settings.layers=1", "--set", "system.settings.heads=2"),
    *("--set", "training.batch_tokens=400", "--set", "training.validation_sentences=0", "--device", "cpu"),
]


def refused(answer: Answer) -> str:
    """The sentence of a refusal; progress may stand before it."""
    assert answer.code == 2, answer.err
    *progress, last = answer.err.strip().splitlines()
    steps = ("reading the corpus", "learning a vocabulary", "writing the tokenized text")
    assert all(line.startswith(steps) or line.endswith("per second") for line in progress), answer.err
    assert last.startswith("dragoman: ")
    return last


def train(dragoman: Dragoman, folder: Path, *arguments: object) -> str:
    """The sentence that refuses a training, which leaves nothing behind."""
    before = sorted(folder.rglob("*"))
    said = refused(dragoman("train", folder / "run", *arguments, *SMALL))
    assert sorted(folder.rglob("*")) == before
    return said


def file(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


LINES = "".join(f"sentence number {n}\n" for n in range(40))
ATTACK = '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><tmx><body/></tmx>'


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        (
            "a.csv",
            "id,en,fr\n1,one,un\n",
            ["--source-column", "en", "--target-column", "de"],
            "no column 'de', only 'id'",
        ),
        ("a.csv", "id,en,fr\n1,one,un\n", [], "no column 'source', only 'id', 'en', 'fr': name the source column"),
        ("a.csv", 'en,de\n"one,eins\n', [], "line 2 is not valid CSV"),
        ("a.tsv", "en\tde\none\n", ["--source-column", "en"], "a.tsv is read without a target column: name"),
        ("a.tmx", ATTACK, [], "declares or uses an XML entity"),
        ("a.tmx", "<tmx><body><tu>", [], "is not valid XML (no element found)"),
        (
            "a.tmx.gz",
            gzip.compress(b"<tmx></tmx>", mtime=0),
            ["--from", "en", "--to", "de"],
            "no translation unit in en and de",
        ),
        ("a.parquet", b"PAR1 nothing PAR1", [], "is not a valid Parquet file ("),
        ("a.jsonl", '{"en": "one"}\n', [], "line 1: unknown key 'source'"),
        ("a.tsv", "one\teins\n", [], "has a single one of the pairs that training needs"),
        ("a.tsv", "one\teins\n" * 2000, [], "has the same source in all 2,000 pairs"),
        (
            "a.tsv",
            "one\teins\n" * 2000,
            ["--clean"],
            "a single one of its 2,000 pairs left after cleaning: 1,999 duplicate",
        ),
        ("a.tsv", "one\t\ntwo\t \n", [], "has 2 pairs, but none with text on both sides"),
        ("a.tsv", "one\t\ntwo\t \n", ["--clean"], "cleaning removed all 2 pairs (2 target empty)"),
        ("a.xlsx", b"PK\x03\x04", [], "has the suffix .xlsx, which is not supported"),
    ],
)
def test_files_with_both_sides(
    dragoman: Dragoman, tmp_path: Path, name: str, content: str | bytes, options: list[str], expected: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    assert expected in train(dragoman, tmp_path, "--source", file(tmp_path / name, content), *options)


def test_equal_pairs_with_a_validation_file(dragoman: Dragoman, tmp_path: Path) -> None:
    files = ["--source", file(tmp_path / "a.tsv", "one\teins\n" * 2000)]
    files += ["--valid-source", file(tmp_path / "v.tsv", "two\tzwei\n" * 20)]
    assert "a.tsv consists of 2,000 equal pairs, from which nothing can be learned" in train(dragoman, tmp_path, *files)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (LINES.encode("utf-16"), "a.en is encoded in UTF-16, but text must be UTF-8: convert it with iconv"),
        (LINES.replace("e", "é").encode("latin-1"), "a.en, line 1 is not UTF-8"),
        (bytes(range(256)) * 9, "a.en"),
        (b"\x7fELF\x02\x01\x01" + bytes(500), "a.en is a binary file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "a.en is a PNG image"),
        (LINES + "one more\n", "a.en has 41 lines but "),
        (gzip.compress(LINES.encode(), mtime=0)[:-20], "a.en is not valid gzip data"),
    ],
)
def test_text_files(dragoman: Dragoman, tmp_path: Path, source: str | bytes, expected: str) -> None:
    files = ["--source", file(tmp_path / "a.en", source), "--target", file(tmp_path / "a.de", LINES)]
    assert expected in train(dragoman, tmp_path, *files)


def test_folders_and_missing_packages(dragoman: Dragoman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    file(tmp_path / "folder" / "notes.txt", LINES)
    assert "folder is a folder: name a file in it" in train(dragoman, tmp_path, "--source", tmp_path / "folder")
    for module, name, content in (("pyarrow", "a.parquet", b"PAR1"), ("zstandard", "a.tsv.zst", b"\x28\xb5\x2f\xfd")):
        monkeypatch.setitem(sys.modules, module, None)
        said = train(dragoman, tmp_path, "--source", file(tmp_path / name, content))
        assert f"needs the package {module}: install it with pip install 'dragoman[" in said
    (tmp_path / "saved").mkdir()
    file(tmp_path / "saved" / "dataset_dict.json", '{"splits": ["train"]}')
    assert "the splits train: give the folder" in train(dragoman, tmp_path, "--source", tmp_path / "saved")
    files = ["--source", file(tmp_path / "a.en", LINES), "--target", file(tmp_path / "a.de", LINES)]
    monkeypatch.setitem(sys.modules, "lingua", None)  # as if it were not installed
    said = train(dragoman, tmp_path, *files, "--set", "cleaning.identify_language=true")
    assert "cleaning.identify_language needs " in said


def test_every_command_refuses_them_alike(dragoman: Dragoman, tmp_path: Path) -> None:
    path = file(tmp_path / "a.csv", "id,en\n1,one\n")
    expected = "a.csv has no column 'source', only 'id', 'en'"
    hypothesis = file(tmp_path / "a.de", "eins\n")
    options = ["--source-column", "zz", "--target-column", "en"]
    said = refused(dragoman("evaluate", "--hypothesis", hypothesis, "--source", path, *options))
    assert expected.replace("source", "zz") in said
    said = refused(dragoman("compare", tmp_path / "c", "--source", tmp_path, "--test-source", path))
    assert "is a folder: name a file in it" in said
