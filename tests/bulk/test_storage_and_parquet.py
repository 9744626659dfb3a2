"""The same job on Parquet files, and on other storages than the local disk."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_bulk_job import StoppingExecutor, UpperCase, contents, run

from dragoman.bulk import BulkJob, LocalExecutor
from dragoman.bulk.file_storage import StorageFolder
from dragoman.errors import UserError

TEXTS = ["one", "two", None, "bad", "three", "four", "five"]


def job(pattern: str, output: str, **options: Any) -> BulkJob:
    return BulkJob([pattern], output, UpperCase(), {}, block_bytes=16, **options)


@pytest.fixture
def parquet_file(tmp_path: Path) -> Path:
    """A table of texts, numbers and structures in row groups of two rows."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.parquet"
    pairs = [{"en": text, "de": "x"} for text in TEXTS]
    table = pyarrow.table({"id": list(range(7)), "text": TEXTS, "pair": pairs})
    parquet.write_table(table, path, row_group_size=2)
    return path


def test_row_groups_of_parquet_are_blocks(parquet_file: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    last = run(job(str(parquet_file), str(tmp_path / "out")))
    assert (last.blocks, last.lines, last.failed) == (4, 7, 2)
    with parquet.ParquetFile(tmp_path / "out" / "a.parquet") as file:
        assert [file.metadata.row_group(group).num_rows for group in range(4)] == [2, 2, 2, 1]
        table = file.read()
    assert table.drop_columns(["translation", "error"]).equals(parquet.read_table(parquet_file))
    assert table["translation"].to_pylist() == ["ONE", "TWO", None, None, "THREE", "FOUR", "FIVE"]
    errors = ["the column 'text' must hold a string, not null", "bad text"]
    assert table["error"].to_pylist() == [None, None, *errors, None, None, None]
    rows = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    assert [row["line"] for row in rows] == [3, 4]


@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_an_interrupted_parquet_job_gives_the_same_bytes(parquet_file: Path, tmp_path: Path, tasks: int) -> None:
    options = {"columns": {"source": "pair.en"}, "results": {"capitals": str}}
    run(job(str(parquet_file), str(tmp_path / "whole"), **options))
    with pytest.raises(KeyboardInterrupt):
        run(job(str(parquet_file), str(tmp_path / "out"), **options), StoppingExecutor(tasks))
    run(job(str(parquet_file), str(tmp_path / "out"), **options), LocalExecutor(2), resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_table_without_rows_stays_one(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "a.parquet")
    run(job(str(tmp_path / "a.parquet"), str(tmp_path / "out")))
    assert parquet.read_table(tmp_path / "out" / "a.parquet").column_names == ["text", "translation", "error"]


def test_mistakes_in_parquet(parquet_file: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(UserError, match=r"has no column 'words', only id, text, pair.en, pair.de: name the source"):
        job(str(parquet_file), out, columns={"source": "words"})
    with pytest.raises(UserError, match="already has a column 'id', which the bulk job would add for its results"):
        job(str(parquet_file), out, results={"id": str})
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(UserError, match="is not a valid Parquet file"):
        job(str(tmp_path / "broken.parquet"), out)
    assert not Path(out).exists()


@pytest.mark.parametrize("scheme", ["file", "memory", "simplecache::file"])
def test_any_file_system_of_fsspec(scheme: str, tmp_path: Path, parquet_file: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    folder = parquet_file.parent
    (folder / "b.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    run(job(f"{folder}/*", str(tmp_path / "local")))
    source, output = f"{scheme}://{folder}/*", f"{scheme.rpartition(':')[2]}://{tmp_path}/out"
    if scheme == "memory":  # of this process
        fsspec.filesystem("memory").put(f"{folder}/", f"{folder}/", recursive=True)
    with pytest.raises(KeyboardInterrupt):
        run(job(source, output), StoppingExecutor(2))
    run(job(source, output), LocalExecutor(1 if scheme == "memory" else 2), resume=True)
    written = StorageFolder(output)
    assert {name for name in written.names() if "job" not in name} == {
        *("a.parquet", "b.txt", "errors.jsonl", "manifest.json")
    }
    for name in ("a.parquet", "b.txt"):
        assert written.read(name) == (tmp_path / "local" / name).read_bytes()
    run(job(source, output), overwrite=True)
    assert written.read("b.txt") == (tmp_path / "local" / "b.txt").read_bytes()


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves files, and parts of files as object stores do."""

    def log_message(self, *arguments: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        """Send a file, or the range that the client asks for."""
        path = Path(self.translate_path(self.path))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        begin, end = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{end}/{len(content)}")
        self.send_header("Content-Length", str(end - begin + 1))
        self.end_headers()
        self.wfile.write(content[begin : end + 1])


@pytest.fixture
def web_server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the files of the test."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_inputs_on_a_web_server(web_server: str, tmp_path: Path, parquet_file: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "in" / "b.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    for name in ("b.txt", "a.parquet"):
        run(job(f"{web_server}/in/{name}", str(tmp_path / "web" / name)))
        run(job(str(tmp_path / "in" / name), str(tmp_path / "local" / name)))
        outputs = [(tmp_path / kind / name / name).read_bytes() for kind in ("web", "local")]
        assert outputs[0] == outputs[1]
    with pytest.raises(UserError, match=r"no file matches .*nothing.txt"):
        job(f"{web_server}/in/nothing.txt", str(tmp_path / "out"))
