"""The same pairs in every file format, and one sentence about every file that cannot be read."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.data import DATA_FORMATS, detect_data_format
from dragoman.data.corpus import Corpus
from dragoman.errors import UserError

PAIRS = [("The dog, it sleeps.", 'Der "Hund"\nschläft.'), ("Größe & <Maß>", ""), ("three", "drei")]
EN, DE = [source for source, _ in PAIRS], [target for _, target in PAIRS]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write(name: str, content: str | bytes) -> Path:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / name

    return write


def texts(corpus: Corpus) -> list[tuple[str, str | None]]:
    return [(pair.source, pair.target) for pair in DATA_FORMATS["pairs"].read([corpus])]


def message(corpus: Corpus) -> str:
    with pytest.raises(UserError) as caught:
        list(DATA_FORMATS["pairs"].read([corpus]))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def csv_text(rows: list[list[str]], **options: Any) -> str:
    csv.writer(buffer := io.StringIO(newline=""), **options).writerows(rows)
    return buffer.getvalue()


# CSV and TSV


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("columns", [["en", "de"], ["source", "target"]])
def test_csv_is_read_as_pythons_csv_writes_it(write, delimiter: str, columns: list[str]) -> None:
    rows = [columns, *map(list, PAIRS)]
    path = write("a.csv", csv_text(rows, delimiter=delimiter))
    assert texts(Corpus(path)) == PAIRS
    assert texts(Corpus(path, source_column=columns[1], target_column="0")) == list(zip(DE, EN))


def test_columns_of_a_header_are_chosen_by_name_number_and_language(write) -> None:
    path = write("a.csv", csv_text([["id", "en", "de"], *([str(n), *pair] for n, pair in enumerate(PAIRS))]))
    for choice in (
        {"source_column": "en", "target_column": "de"},
        {"source_column": 1, "target_column": "2"},
        {"source_language": "en", "target_language": "de"},
    ):
        assert texts(Corpus(path, **choice)) == PAIRS
    assert message(Corpus(path)).endswith(
        "a.csv has no column 'source', only 'id', 'en', 'de': name the source column with --source-column"
    )
    assert "has no column 'fr', only 'id', 'en', 'de'" in message(Corpus(path, source_column="en", target_column="fr"))
    assert detect_data_format(Corpus(path, source_column="en")).name == "text"


def test_a_csv_file_without_header(write) -> None:
    assert texts(Corpus(write("a.csv", csv_text(list(map(list, PAIRS)))), header=False)) == PAIRS


def test_lines_of_csv_rows_with_line_feeds(write) -> None:
    pairs = DATA_FORMATS["pairs"].read([Corpus(write("a.csv", 'en,de\n\na,"b\nc"\nd,e\n'))])
    assert [(pair.line, pair.target) for pair in pairs] == [(3, "b\nc"), (5, "e")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('en,de\n"a"b,c\n', "a.csv, line 2 is not valid CSV ("),
        ('en,de\na,b\nc,"d\n', "a.csv, line 3 is not valid CSV (unexpected end of data)"),
        ("en,de\na,b\nc\n", "a.csv, line 3: expected columns 0 and 1 (counted from 0), found 1 CSV column"),
        ("", "a.csv is empty"),
    ],
)
def test_broken_csv(write, content: str, expected: str) -> None:
    assert expected in message(Corpus(write("a.csv", content)))


def test_a_tsv_file_has_a_header_if_columns_are_named(write) -> None:
    path = write("a.tsv", "id\ten\tde\n1\tone\teins\n")
    assert texts(Corpus(path, source_column="en", target_column="de")) == [("one", "eins")]
    assert texts(Corpus(path, source_language="en", target_language="de")) == [("one", "eins")]
    assert texts(Corpus(path, source_column=1, target_column=2)) == [("en", "de"), ("one", "eins")]
    assert texts(Corpus(path, source_column=1, target_column=2, header=True)) == [("one", "eins")]
    assert "has no column 'fr', only 'id', 'en', 'de'" in message(Corpus(path, source_column="fr"))


def test_a_tsv_file_whose_first_line_names_the_roles(write) -> None:
    path = write("a.tsv", "id\ttarget\tsource\n1\teins\tone\n")
    assert texts(Corpus(path)) == [("one", "eins")]
    assert texts(Corpus(path, header=False)) == [("id", "target"), ("1", "eins")]


def test_columns_of_other_languages_are_not_taken_by_their_order(write) -> None:
    """A file with English and German cannot be read as a pair with French."""
    path = write("a.csv", "en,de\none,eins\n")
    for languages in (("de", "fr"), ("en", "fr"), ("fr", "de")):
        assert "no column 'fr', only 'en', 'de'" in message(Corpus(path, None, "", None, None, None, None, *languages))
    assert texts(Corpus(path, source_language="de", target_language="en")) == [("eins", "one")]
    assert texts(Corpus(write("b.csv", "x,y\none,eins\n"), source_language="en", target_language="de")) == [
        ("one", "eins")
    ]


@pytest.mark.parametrize(
    ("name", "content", "settings", "expected"),
    [
        ("a.csv", "en,de\none,eins\n", {}, ("en", "de", "the first line names the columns")),
        ("a.csv", "en,de\none,eins\n", {"source_language": "en", "target_language": "de"}, None),
        ("a.csv", "source,target\none,eins\n", {}, None),
        ("a.csv", "one,eins\n", {"header": False}, None),
        ("a.tsv", "one\teins\n", {}, None),
        ("a.tsv", "1\tone\teins\n", {}, ("0", "1", "of 3 columns; --header")),
        ("a.tsv", "walk\twalked\tV;PST\n", {"features_column": "2"}, None),
        ("a.tsv", "1\tone\teins\n", {"source_column": 1, "target_column": 2}, None),
        ("a.txt", "one\n", {}, None),
    ],
)
def test_columns_that_are_taken_by_their_order(
    write, name: str, content: str, settings: dict[str, Any], expected: tuple[str, str, str] | None
) -> None:
    corpus = Corpus(write(name, content), **settings)
    columns = corpus.file_format.columns_by_order(corpus)
    assert (columns is None) == (expected is None)
    if columns is not None and expected is not None:
        assert columns[:2] == expected[:2]
        assert columns.reason.startswith(expected[2])


# JSON lines


def test_nested_keys_languages_and_null_in_json_lines(write) -> None:
    path = write("a.json", '{"translation": {"en": "one", "de": null}}\n')
    assert texts(Corpus(path, source_language="en", target_language="de")) == [("one", "")]
    assert texts(Corpus(path, source_column="translation.en", target_column="translation.de")) == [("one", "")]
    assert "unknown key 'translation.fr'" in message(Corpus(path, source_column="translation.fr"))


# compression


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard", reason="needs the package zstandard").compress(data)


@pytest.mark.parametrize(
    ("name", "compress"), [("gzip", gzip.compress), ("xz", lzma.compress), ("bzip2", bz2.compress), ("Zstandard", zstd)]
)
def test_compressed_files(write, name: str, compress: Callable[[bytes], bytes]) -> None:
    lines = [f"{n} {n * n}\t{n}\n" for n in range(20_000)]
    data = compress("".join(lines[:-1]).encode())
    path = write("a.tsv.x", data + compress(lines[-1].encode()))  # recognized by content; two streams
    assert [f"{source}\t{target}\n" for source, target in texts(Corpus(path, format="tsv"))] == lines
    for suffix in (".gz", ".xz", ".bz2", ".zst"):
        assert Corpus(Path(f"a.tsv{suffix}")).file_format.name == "tsv"
    for broken in (data[:-9], data[:20], data[: len(data) // 2]):
        assert f"a.tsv.x is not valid {name} data (" in message(Corpus(write("a.tsv.x", broken), format="tsv"))


def test_zstandard_without_its_package(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    said = message(Corpus(write("a.tsv", b"\x28\xb5\x2f\xfd")))
    assert "a.tsv is compressed with Zstandard, which needs the package zstandard: install it with pip" in said


# Moses


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_stem_and_two_languages_are_two_files(write, tmp_path: Path, suffix: str) -> None:
    compress = gzip.compress if suffix else bytes
    write(f"corpus.en{suffix}", compress(b"one\n"))
    write(f"corpus.de{suffix}", compress(b"eins\n"))
    corpus = Corpus(tmp_path / "corpus", source_language="en", target_language="de").with_language_files()
    assert texts(corpus) == [("one", "eins")]
    assert "corpus does not exist: for the files of corpus in de and en, add --from and --to" in message(
        Corpus(tmp_path / "corpus", target=tmp_path / "x")
    )


# translation memories

TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="{source}" adminlang="en" datatype="plaintext" segtype="sentence"/><body>
<tu><tuv xml:lang="de-DE"><seg>Der <bpt i="1">&lt;b&gt;<sub>x</sub></bpt>Hund<ept>y</ept> &amp; <hi>er</hi></seg></tuv>
<tuv xml:lang="EN-us"><prop type="x">no text</prop><seg>The dog</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>only English</seg></tuv></tu>
<tu><tuv lang="en_GB"><seg>two</seg></tuv><tuv lang="de"><seg>zwei</seg></tuv><tuv lang="fr"><seg>deux</seg></tuv></tu>
</body></tmx>
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_translation_memory(write, encoding: str) -> None:
    path = write("a.tmx", TMX.format(encoding=encoding, source="en-US").encode(encoding))
    pairs = list(DATA_FORMATS["pairs"].read([Corpus(path, source_language="en", target_language="de")]))
    assert [(pair.source, pair.target, pair.line) for pair in pairs] == [
        ("The dog", "Der Hund & er", 4),
        ("two", "zwei", 7),
    ]
    assert texts(Corpus(path, source_language="fr", target_language="en")) == [("deux", "two")]
    sources = Corpus(path, source_language="en").read_sources()
    assert [pair.source for pair in sources] == ["The dog", "only English", "two"]


def test_the_languages_of_a_translation_memory_are_those_of_its_first_unit(write) -> None:
    content = TMX.format(encoding="utf-8", source="en-US")
    assert texts(Corpus(write("a.tmx", content)))[0] == ("The dog", "Der Hund & er")
    assert texts(Corpus(write("a.tmx", content), target_language="en"))[0] == ("Der Hund & er", "The dog")
    assert texts(Corpus(write("b.tmx", content.replace("en-US", "*all*"))))[0] == ("Der Hund & er", "The dog")
    said = message(Corpus(write("a.tmx", content), source_language="en", target_language="it"))
    assert "has no translation unit in en and it, only texts in de-DE, EN-us, en, en_GB, de, fr: choose two" in said


def test_a_translation_memory_has_no_column_of_features(write) -> None:
    path = write("a.tmx", TMX.format(encoding="utf-8", source="en-US"))
    corpus = Corpus(path, features_column="x")
    expected = "a.tmx is a translation memory, which has no column 'x' of features: name a file with"
    assert expected in message(corpus)
    with pytest.raises(UserError, match="has no column 'x' of features"):
        list(corpus.read_sources())
    features = write("features", "N\nV\n")
    pairs = list(Corpus(path, source_language="en", target_language="de", source_features=features).read_pairs())
    assert [pair.source_with_features for pair in pairs] == ["The dog\tN", "two\tV"]


ENTITIES = '<!DOCTYPE tmx [<!ENTITY a "haha"><!ENTITY b "&a;&a;&a;">]><tmx><body/></tmx>'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (ENTITIES, "line 1 declares or uses an XML entity"),
        ('<!DOCTYPE tmx SYSTEM "x.dtd" [<!ENTITY x SYSTEM "file:///etc/passwd">]><tmx/>', "declares or uses an XML"),
        ('<!DOCTYPE tmx SYSTEM "x.dtd"><tmx><body><tu><tuv><seg>&x;</seg></tuv></tu></body></tmx>', "uses an XML"),
        ("<tmx><body><tu>", "is not valid XML (no element found)"),
        ("<tmx><body>\n<tu></body></tmx>", "a.tmx, line 2 is not valid XML (mismatched tag)"),
        ("<html></html>", "is an XML file of <html>, not a translation memory"),
        ("no XML", "line 1 is not valid XML (syntax error)"),
        ("", "is not valid XML (no element found)"),
        (b'<?xml version="1.0"?><tmx>\xff</tmx>', "is not valid XML (not well-formed (invalid token))"),
        ('<?xml version="1.0" encoding="klingon"?><tmx/>', "is not valid XML (unknown encoding: klingon)"),
        ("<tmx><body></body></tmx>", "has no translation unit in two languages, only texts in no language"),
        ("<tmx><body><tu><tuv lang='en'><seg>a</seg></tuv></tu></body></tmx>", "has texts in en, but two languages"),
    ],
)
def test_broken_and_malicious_translation_memories(write, content: str | bytes, expected: str) -> None:
    assert expected in message(Corpus(write("a.tmx", content)))


# Parquet and datasets


def parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def saved_dataset(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write two Arrow files as `datasets.Dataset.save_to_disk` does."""
    pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    import pyarrow

    path.mkdir(exist_ok=True)
    names = [f"data-0000{n}-of-00002.arrow" for n in range(2)]
    for n, name in enumerate(names):
        table = pyarrow.table({key: values[n::2] for key, values in columns.items()})
        with pyarrow.OSFile(str(path / name), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return path


@pytest.mark.parametrize("save", [parquet, saved_dataset])
def test_tables(tmp_path: Path, save: Callable[[Path, dict[str, list[Any]]], Path]) -> None:
    rows = sorted(PAIRS * 2000)  # several batches
    translation = [{"en": source, "de": target or None} for source, target in rows]
    path = save(tmp_path / "a.parquet", {"id": list(range(len(rows))), "translation": translation})
    languages = {"source_language": "en", "target_language": "de"}
    columns = {"source_column": "translation.en", "target_column": "translation.de"}
    for choice in (languages, columns):
        assert sorted(texts(Corpus(path, **choice))) == rows
    assert detect_data_format(Corpus(path, **languages)).name == "pairs"
    assert detect_data_format(Corpus(path, source_language="en")).name == "text"
    assert "no column 'source', only 'id', 'translation.en', 'translation.de'" in message(Corpus(path))
    assert "the column 'id' must hold strings, not int such as 0" in message(
        Corpus(path, source_column="id", target_column="translation.de")
    )
    path = save(tmp_path / "b.parquet", {"x": EN, "y": DE})
    assert sorted(texts(Corpus(path))) == sorted(PAIRS)
    path = save(tmp_path / "c.parquet", {"turns": [["Who?", "I."], ["a", "b", "c", "d"]]})
    assert detect_data_format(Corpus(path)).name == "turns"
    assert [pair.source for pair in Corpus(path).read_dialogues()] == ["Who?\tI.", "a\tb\tc\td"]


def test_broken_tables(tmp_path: Path, write) -> None:
    path = parquet(tmp_path / "a.parquet", {"source": EN, "target": DE})
    content = path.read_bytes()
    for broken in (content[:-5], content[:30], b"", b"PAR1" * 10):
        assert "b.parquet is not a valid Parquet file (" in message(Corpus(write("b.parquet", broken)))
    assert "is a Parquet file: add --format parquet" in message(Corpus(write("a.en", content), path, format="text"))
    folder = saved_dataset(tmp_path / "data", {"source": EN, "target": DE})
    arrow = folder / "data-00001-of-00002.arrow"
    arrow.write_bytes(arrow.read_bytes()[:300])
    assert "data is not a valid saved dataset (" in message(Corpus(folder))
    arrow.unlink()
    assert "data-00001-of-00002.arrow does not exist" in message(Corpus(folder))
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../a.arrow"}]}')
    assert "must list Arrow files of its own folder, but lists ['../a.arrow']" in message(Corpus(folder))
    (folder / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}], "_indices_data_files": [{}]}')
    assert "was saved with an indices mapping" in message(Corpus(folder))
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert f"give the folder of one of them, such as {folder}/train" in message(Corpus(folder))


def test_tables_without_pyarrow(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    said = message(Corpus(write("a.parquet", b"PAR1")))
    assert said.endswith("which needs the package pyarrow: install it with pip install 'dragoman[parquet]'")


def test_datasets_saved_by_the_library_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    rows = {"translation": [{"en": source, "de": target} for source, target in PAIRS]}
    datasets.Dataset.from_dict(rows).select([2, 0]).save_to_disk(tmp_path / "saved")
    corpus = Corpus(tmp_path / "saved", source_language="en", target_language="de")
    assert texts(corpus) == [PAIRS[2], PAIRS[0]]


# files that are not text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_explained(write, encoding: str) -> None:
    path = write("a.en", "The dog sleeps.\n".encode(encoding))
    name = encoding.upper().replace("16-", "16")
    assert f"a.en is encoded in {name}, but text must be UTF-8: convert it with iconv -f {name} -t UTF-8 a.en" in (
        message(Corpus(path, path))
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"PK\x03\x04rest", "is a ZIP archive: unpack it first"),
        (b"\x89PNG\r\n", "is a PNG image"),
        (b"\x00\x01\x00\x00\x02\x00\x07\x00\x00\x00", "is a binary file: expected UTF-8 text"),
    ],
)
def test_binary_files_are_named(write, content: bytes, expected: str) -> None:
    path = write("a.en", content)
    assert expected in message(Corpus(path, path))
