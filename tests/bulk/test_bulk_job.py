"""Jobs over many files: the same bytes for every executor, and after every interruption."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dragoman.bulk import BlockResult, BlockWorker, BulkJob, Executor, JobProgress, LocalExecutor, executor_from_text
from dragoman.bulk.block_worker import ProcessRows, Rows
from dragoman.bulk.blocks import BlockTask
from dragoman.bulk.row_formats import RowResult
from dragoman.errors import UserError


@dataclass(frozen=True)
class UpperCase:
    """A run that writes capital letters, and fails for one text."""

    def __call__(self) -> ProcessRows:
        def process(rows: Rows, first_index: int) -> list[RowResult]:
            if ("bad",) in rows:
                raise UserError("bad text")
            return [RowResult((text.upper(),), len(text.split())) for (text,) in rows]

        return process


@dataclass(frozen=True)
class StoppingExecutor:
    """Ends after some tasks, as a killed driver does."""

    tasks: int

    def check(self) -> None:
        pass

    def map(self, worker: BlockWorker, tasks: Iterable[BlockTask]) -> Iterator[list[BlockResult]]:
        yield from islice(LocalExecutor().map(worker, tasks), self.tasks)
        raise KeyboardInterrupt


@dataclass(frozen=True)
class UnluckyExecutor:
    """Loses the worker of each task once, after some blocks, and repeats the task, as Ray does."""

    blocks: int
    processed: list[int]  # first row of every block that is processed

    def check(self) -> None:
        pass

    def map(self, worker: BlockWorker, tasks: Iterable[BlockTask]) -> Iterator[list[BlockResult]]:
        def process_counted(rows: Rows, first_index: int) -> list[RowResult]:
            if len(self.processed) == self.blocks:
                self.processed.append(-1)
                raise MemoryError
            self.processed.append(first_index)
            return worker.open_process()(rows, first_index)

        counting = replace(worker, open_process=lambda: process_counted)
        for task in tasks:
            try:
                yield counting(task)
            except MemoryError:
                yield counting(task)


@dataclass(frozen=True)
class Killed:
    """A run whose process is killed."""

    def __call__(self) -> ProcessRows:
        os._exit(1)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    lines = [f"line {n} " + "x" * (n % 7) for n in range(60)]
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "b.txt.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines[:25]).encode(), mtime=0))
    records = [json.dumps({"id": n, "text": text}) for n, text in enumerate(["good", "bad", "fine"])]
    (folder / "sub" / "c.jsonl").write_text("\n".join([*records, "no json", '{"id": 9}']) + "\n")
    (folder / "empty.txt").write_text("")
    return folder


def job(inputs: Path, output: Path, block_bytes: int = 64, **options: Any) -> BulkJob:
    patterns = [f"{inputs}/**/*"]
    return BulkJob(patterns, str(output), UpperCase(), {"kind": "upper"}, block_bytes=block_bytes, **options)


def run(job: BulkJob, executor: Executor | None = None, **options: bool) -> JobProgress:
    return list(job.run(executor or LocalExecutor(), **options))[-1]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_output_has_a_line_for_every_line(inputs: Path, tmp_path: Path) -> None:
    last = run(job(inputs, tmp_path / "out"))
    written = contents(tmp_path / "out")
    assert set(written) == {
        *("a.txt", "b.txt", "empty.txt", "sub/c.jsonl"),
        *("errors.jsonl", "job.json", "manifest.json"),
    }
    assert written["a.txt"] == (inputs / "a.txt").read_bytes().upper()
    assert written["b.txt"] == gzip.decompress((inputs / "b.txt.gz").read_bytes()).upper()
    assert written["empty.txt"] == b""
    records = [json.loads(line) for line in written["sub/c.jsonl"].splitlines()]
    assert records[0] == {"id": 0, "text": "good", "translation": "GOOD"}
    assert records[1] == {"id": 1, "text": "bad", "translation": None, "error": "bad text"}
    assert records[2]["translation"] == "FINE"
    assert records[3]["error"] == "the line is not valid JSON"
    assert records[4]["id"] == 9
    assert "--source-column" in records[4]["error"]
    errors = [json.loads(line) for line in written["errors.jsonl"].splitlines()]
    assert [(error["line"], error["text"]) for error in errors] == [(2, "bad"), (4, "no json"), (5, '{"id": 9}')]
    manifest = {file["output"]: file for file in json.loads(written["manifest.json"])["files"]}
    assert manifest["a.txt"]["lines"] == 60
    assert manifest["sub/c.jsonl"]["failed"] == 3
    assert (last.lines, last.failed, last.files) == (90, 3, 4)
    assert last.done_bytes == last.total_bytes


@pytest.mark.parametrize("tasks", [0, 1, 3, 9, 20])
def test_resuming_gives_the_same_bytes(inputs: Path, tmp_path: Path, tasks: int) -> None:
    run(job(inputs, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        run(job(inputs, tmp_path / "out"), StoppingExecutor(tasks))
    for path in sorted((tmp_path / "out" / "blocks").glob("*.json"))[:1]:
        path.unlink()  # killed between the output of a block and its result
    left = len(list((tmp_path / "out" / "blocks").glob("*.json")))
    progress = list(job(inputs, tmp_path / "out").run(LocalExecutor(), resume=True))
    assert progress[0].blocks == left
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert run(job(inputs, tmp_path / "out"), resume=True).lines == 90  # complete: nothing is processed again


def test_two_processes_give_the_same_bytes(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    run(job(inputs, tmp_path / "one"))
    run(job(inputs, tmp_path / "two"), LocalExecutor(2))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_a_lost_worker_costs_only_its_block_of_a_compressed_file(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress("".join(f"line {n}\n" for n in range(90)).encode()))
    for name, executor in (("out", UnluckyExecutor(7, [])), ("whole", LocalExecutor())):
        run(BulkJob([str(tmp_path / "a.gz")], str(tmp_path / name), UpperCase(), {}, block_bytes=64), executor)
        if isinstance(executor, UnluckyExecutor):
            rows = [row for row in executor.processed if row >= 0]
            assert len(rows) == len(set(rows)) > 9
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_lost_process_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    (tmp_path / "a.txt").write_text("line\n" * 20)
    lost = BulkJob([str(tmp_path / "a.txt")], str(tmp_path / "out"), Killed(), {}, block_bytes=8)
    with pytest.raises(UserError, match="continue with the same command and --resume, or a smaller --num-workers"):
        run(lost, LocalExecutor(2))


def test_overwriting_removes_the_outputs_of_the_earlier_job(inputs: Path, tmp_path: Path) -> None:
    run(job(inputs, tmp_path / "out"))
    (tmp_path / "out" / "notes").write_text("keep")
    (inputs / "a.txt").unlink()
    run(job(inputs, tmp_path / "out"), overwrite=True)
    assert set(contents(tmp_path / "out")) == {
        *("b.txt", "empty.txt", "sub/c.jsonl", "notes"),
        *("errors.jsonl", "job.json", "manifest.json"),
    }


def test_a_damaged_input_can_be_repaired(inputs: Path, tmp_path: Path) -> None:
    """The job goes on with the new file, unless blocks of the old one are complete."""
    whole = (inputs / "b.txt.gz").read_bytes()
    (inputs / "b.txt.gz").write_bytes(whole[:-20])
    with pytest.raises(UserError, match=r"b\.txt\.gz"):
        run(job(inputs, tmp_path / "out", block_bytes=10_000))
    (inputs / "b.txt.gz").write_bytes(whole)
    run(job(inputs, tmp_path / "out", block_bytes=10_000), resume=True)
    assert (tmp_path / "out" / "b.txt").read_bytes() == gzip.decompress(whole).upper()
    with pytest.raises(KeyboardInterrupt):
        run(job(inputs, tmp_path / "part"), StoppingExecutor(2))
    (inputs / "a.txt").write_text("other\n")
    with pytest.raises(UserError, match="started with a different value of 'files'"):
        run(job(inputs, tmp_path / "part"), resume=True)


def test_mistakes(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(job(inputs, out))
    with pytest.raises(UserError, match=r"already holds a bulk job .*: continue that job with --resume"):
        run(job(inputs, out))
    with pytest.raises(UserError, match="started with a different value of 'block bytes'"):
        run(job(inputs, out, block_bytes=65), resume=True)
    run(job(inputs, out, block_bytes=65), overwrite=True)
    with pytest.raises(UserError, match="no file matches"):
        BulkJob([f"{tmp_path}/nothing*"], str(out), UpperCase(), {}, block_bytes=64)
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("keep")
    with pytest.raises(UserError, match="is not empty: choose a new or empty folder"):
        run(job(inputs, full))
    with pytest.raises(UserError, match="contains input files"):
        run(job(inputs, inputs), overwrite=True)
    for name in ("d.tsv", "d.html", "d.docx"):
        (inputs / name).write_bytes(b"data")
        with pytest.raises(UserError, match="reads files of plain text, JSON lines or Parquet"):
            job(inputs, out)
        (inputs / name).unlink()
    with pytest.raises(UserError, match=r"must be local \(processes of this machine\), ray .* or ray://HOST:PORT"):
        executor_from_text("spark", None, 0, 1)


def test_another_version_on_a_worker_is_an_error(inputs: Path, tmp_path: Path) -> None:
    worker = job(inputs, tmp_path / "out").worker
    old = BlockWorker(worker.inputs, worker.formats, worker.output, UpperCase(), version="0.0.1")
    with pytest.raises(UserError, match="install the same version of dragoman on all machines"):
        old(BlockTask(0, 0))
