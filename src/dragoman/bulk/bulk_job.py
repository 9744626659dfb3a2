"""A job over many files: planning, progress, resuming, and joining the blocks of each file to its output."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.bulk.block_worker import BLOCK_FOLDER, BlockResult, BlockWorker, ProcessRows
from dragoman.bulk.blocks import BlockTask
from dragoman.bulk.file_storage import StorageFolder, find_files, is_url
from dragoman.bulk.input_formats import describe_input, find_format
from dragoman.data.compression import without_compression_suffix
from dragoman.errors import UserError
from dragoman.storage import lock_file, os_errors_as_user_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from dragoman.bulk.executors import Executor

JOB_FILE, MANIFEST_NAME, ERROR_FILE, LOCK_FILE = "job.json", "manifest.json", "errors.jsonl", ".lock"
JOB_VERSION = 1

FinishedBlocks = defaultdict[int, dict[int, BlockResult]]  # by input file and block


@dataclass(frozen=True)
class JobProgress:
    """How much of a job is done, by this process and by earlier ones that it continues.

    Attributes:
        files, blocks: complete ones; `total_files` and `total_blocks` are all, as far as they are known.
        done_bytes, total_bytes: of the input files, compressed or not.
        lines, tokens, failed: input lines, output tokens, and lines that failed.
        new_lines, new_tokens, new_bytes: those of this process, for the speed.
    """

    total_files: int
    total_bytes: int
    files: int = 0
    blocks: int = 0
    done_bytes: float = 0.0
    lines: int = 0
    tokens: int = 0
    failed: int = 0
    new_lines: int = 0
    new_tokens: int = 0
    new_bytes: float = 0.0

    def after(self, result: BlockResult, num_bytes: float, is_new: bool = True) -> JobProgress:
        """Return the progress after a block that took `num_bytes` of an input file.

        A block that is not `is_new` was processed before this process continued the job.
        """
        return replace(
            self,
            blocks=self.blocks + 1,
            done_bytes=self.done_bytes + num_bytes,
            lines=self.lines + result.lines,
            tokens=self.tokens + result.tokens,
            failed=self.failed + len(result.errors),
            new_lines=self.new_lines + is_new * result.lines,
            new_tokens=self.new_tokens + is_new * result.tokens,
            new_bytes=self.new_bytes + is_new * num_bytes,
        )


class BulkJob:
    """A job: its input files, its output folder, and what is done with every line.

    The output folder has one file per input file, `errors.jsonl` with the lines that failed, and `manifest.json`, which
    is written last. While the job runs, complete blocks are in the folder `blocks`; a job that was killed continues
    with the blocks that are missing, and gives the same bytes.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        output: str,
        open_process: Callable[[], ProcessRows],
        fingerprint: dict[str, Any],
        *,
        block_bytes: int,
        format: str = "",
        columns: Mapping[str, str | None] | None = None,
        results: Mapping[str, type] | None = None,
    ) -> None:
        """Find the input files; nothing is written yet.

        Args:
            patterns: paths or URLs of input files, which may contain * and **.
            output: path or URL of the output folder.
            open_process: called in each worker process; opens the run, and returns the function that processes rows.
            fingerprint: what determines the results, such as the run and its options, as JSON values; a job is
                resumed only if they are equal.
            block_bytes: bytes of text in a block, the consecutive rows that a worker processes as a whole.
            format: text, jsonl or parquet; "": by the suffix of each file.
            columns: role of each text of a row (source, target), and the name of its column or None; default: source.
            results: names and types of the columns of the result; default: a translation.
        """
        locations = find_files(list(patterns))
        names = _output_names(locations)
        columns, results = columns or {"source": None}, results or {"translation": str}
        formats = [find_format(location, format, columns, results) for location in locations]
        self.inputs = [
            describe_input(location, name, block_bytes, row_format)
            for location, name, row_format in zip(locations, names, formats)
        ]
        self.folder = StorageFolder(output)
        self.worker = BlockWorker(self.inputs, formats, output, open_process)
        self.description = {  # stored with the job, and compared when it is resumed
            "version": JOB_VERSION,
            "block_bytes": block_bytes,
            "columns": columns,
            "results": list(results),
            **fingerprint,
            "files": [{"input": source.location, "output": source.name, "size": source.size} for source in self.inputs],
        }

    def run(self, executor: Executor, *, resume: bool = False, overwrite: bool = False) -> Iterator[JobProgress]:
        """Process all blocks that are missing, and yield the progress before the first and after each of them.

        Args:
            executor: where blocks are processed.
            resume: continue the job in the output folder, if there is one.
            overwrite: remove the job in the output folder and start again.
        """
        executor.check()  # before anything is written
        with ExitStack() as locks:
            self._open_folder(resume, overwrite, locks)
            total_bytes = sum(source.size for source in self.inputs)
            progress = JobProgress(total_files=len(self.inputs), total_bytes=total_bytes)
            if self.folder.exists(MANIFEST_NAME):  # it is written last: the job is complete
                self._remove_blocks()
                yield self._complete_progress(progress)
                return
            results = self._finished_blocks()
            for result in (result for blocks in results.values() for result in blocks.values()):
                progress = progress.after(result, self._input_bytes(result), is_new=False)
            # indices of the input files whose blocks have been joined to the output file
            joined = {file for file in range(len(self.inputs)) if self._is_joined(file, results)}
            progress = replace(progress, files=len(joined))
            yield progress
            for task_results in executor.map(self.worker, self._missing_tasks(results, joined)):
                for result in task_results:  # one for each block of the task
                    if result.block in results[result.file]:  # complete before, or the task has been repeated
                        continue
                    results[result.file][result.block] = result
                    progress = progress.after(result, self._input_bytes(result))
                    if result.file not in joined and self._is_complete(result.file, results):
                        self._join(result.file, results)
                        joined.add(result.file)
                        progress = replace(progress, files=len(joined))
                    yield progress
            for file in sorted(set(range(len(self.inputs))) - joined):  # empty, or killed before joining
                self._join(file, results)
            self._finish(results)
            yield replace(progress, files=len(self.inputs), done_bytes=progress.total_bytes)

    # ---- steps

    def _open_folder(self, resume: bool, overwrite: bool, locks: ExitStack) -> None:
        """Create the output folder, or check that it belongs to this job; lock it against other jobs.

        `resume` and `overwrite` say what to do with a job in the folder; without them, it is a UserError, as is a
        folder with other files or with input files of the job. A local folder is locked until `locks` is closed.
        """
        if any(source.location.startswith(f"{self.folder.location}/") for source in self.inputs):
            raise UserError(
                f"the output folder {self.folder.location} contains input files of the bulk job: choose another "
                "output folder"
            )
        names = set(self.folder.names()) - {LOCK_FILE, BLOCK_FOLDER}  # what is in the folder
        if names and overwrite and JOB_FILE in names:
            outputs = {*self._outputs_of_earlier_job(), *(source.name for source in self.inputs)}
            for name in (*sorted(outputs), BLOCK_FOLDER, MANIFEST_NAME, ERROR_FILE, JOB_FILE):
                self.folder.remove(name)
        elif names and JOB_FILE not in names:
            raise UserError(f"the output folder {self.folder.location} is not empty: choose a new or empty folder")
        elif names and not resume:
            raise UserError(
                f"the output folder {self.folder.location} already holds a bulk job (an earlier command with --input): "
                "continue that job with --resume, or delete its output and process all inputs again with --overwrite"
            )
        elif names:
            self._check_same_job()
        self.folder.create(BLOCK_FOLDER)
        for parent in {source.name.rpartition("/")[0] for source in self.inputs} - {""}:
            self.folder.create(parent)
        if not self.folder.is_remote:
            path = Path(self.folder.path(LOCK_FILE))
            with os_errors_as_user_errors(path):
                file = locks.enter_context(path.open("ab"))
            lock_file(file, f"{self.folder.location} is being written by another bulk job: wait for it, or stop it")
        if not self.folder.exists(JOB_FILE):
            self.folder.write(JOB_FILE, json.dumps(self.description, indent=1, ensure_ascii=False).encode())

    def _outputs_of_earlier_job(self) -> list[str]:
        """Return the names of the output files of the job in the output folder; none if its description is damaged."""
        try:
            names = [str(file["output"]) for file in json.loads(self.folder.read(JOB_FILE))["files"]]
        except (ValueError, KeyError, TypeError):
            return []
        return [name for name in names if ".." not in name.split("/") and not name.startswith("/")]

    def _check_same_job(self) -> None:
        """Raise a UserError if the output folder was started with other inputs or settings, or its job is damaged.

        An input file may have changed, for example because it was damaged, if nothing of it has been processed.
        """
        try:
            before = json.loads(self.folder.read(JOB_FILE))
        except ValueError:
            raise UserError(
                f"{self.folder.path(JOB_FILE)}, the description of the bulk job to resume, is damaged: process all "
                "inputs again with --overwrite"
            ) from None
        now = json.loads(json.dumps(self.description))  # with lists instead of tuples, as in the file
        processed = self._finished_blocks().keys()  # indices of input files
        before_files = before.get("files", [])
        for index, (old, new) in enumerate(zip(before_files, now["files"])):
            if index not in processed and not self.folder.exists(new["output"]):
                before_files[index] = old | {"size": new["size"]}
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                raise UserError(
                    f"the bulk job in {self.folder.location} was started with a different value of "
                    f"'{name.replace('_', ' ')}': resume it with the same inputs and options, or start it again with "
                    "--overwrite"
                )
        self.folder.write(JOB_FILE, json.dumps(now, indent=1, ensure_ascii=False).encode())

    def _finished_blocks(self) -> FinishedBlocks:
        """Read the results of the complete blocks, which have an output and a result, by input file and block."""
        names = set(self.folder.names(BLOCK_FOLDER))
        results: FinishedBlocks = defaultdict(dict)
        for name in sorted(names):
            stem, _, suffix = name.rpartition(".")
            if suffix == "json" and f"{stem}.out" in names:
                result = BlockResult.from_dict(json.loads(self.folder.read(f"{BLOCK_FOLDER}/{name}")))
                results[result.file][result.block] = result
        return results

    def _missing_tasks(self, results: FinishedBlocks, joined: set[int]) -> Iterator[BlockTask]:
        """Yield the tasks that are left: blocks of plain files, and compressed files (`num_blocks` None) as a whole.

        `joined` are indices of input files whose output is complete.
        """
        for file, source in enumerate(self.inputs):
            if file in joined or self._is_complete(file, results):
                continue
            if source.num_blocks is None:
                yield BlockTask(file, block=None)
            else:
                missing = (block for block in range(source.num_blocks) if block not in results[file])
                yield from (BlockTask(file, block) for block in missing)

    def _blocks_of(self, file: int, results: FinishedBlocks) -> list[BlockResult]:
        """Return the results of the complete blocks of an input file (by index), in order."""
        return [results[file][block] for block in sorted(results[file])]

    def _is_complete(self, file: int, results: FinishedBlocks) -> bool:
        """Whether all blocks of an input file (by index) are complete.

        How many blocks a compressed file has is known only when one of them is marked as the last.
        """
        num_blocks, blocks = self.inputs[file].num_blocks, results[file]
        if num_blocks is None:
            last_block = max(blocks, default=-1)  # blocks are numbered from 0
            return last_block >= 0 and blocks[last_block].is_last and len(blocks) == last_block + 1
        return len(blocks) == num_blocks

    def _is_joined(self, file: int, results: FinishedBlocks) -> bool:
        """Whether the output file of an input file (by index) has been written from its blocks."""
        return self._is_complete(file, results) and self.folder.exists(self.inputs[file].name)

    def _join(self, file: int, results: FinishedBlocks) -> None:
        """Write the output file of an input file (by index) from its blocks."""
        names = [f"{BLOCK_FOLDER}/{result.name}.out" for result in self._blocks_of(file, results)]
        with self.folder.writing(self.inputs[file].name) as output:
            self.worker.formats[file].join(self.folder.read_files(names), output)

    def _finish(self, results: FinishedBlocks) -> None:
        """Write the file of errors and the manifest, which marks the job as complete, then remove the blocks."""
        files, errors = [], []
        for index, source in enumerate(self.inputs):
            lines = num_bytes = failed = 0
            for result in self._blocks_of(index, results):
                for number, message, text in result.errors:  # `number` counts in the block, from 0
                    errors.append({"file": source.location, "line": lines + number + 1, "error": message, "text": text})
                lines, num_bytes, failed = lines + result.lines, num_bytes + result.bytes, failed + len(result.errors)
            files.append(
                {"input": source.location, "output": source.name, "lines": lines, "bytes": num_bytes, "failed": failed}
            )
        rows = "".join(f"{json.dumps(error, ensure_ascii=False)}\n" for error in errors)
        self.folder.write(ERROR_FILE, rows.encode(errors="replace"))
        self.folder.write(MANIFEST_NAME, json.dumps({"files": files}, indent=1, ensure_ascii=False).encode())
        self._remove_blocks()

    def _remove_blocks(self) -> None:
        """Remove the blocks and the lock of a complete job."""
        self.folder.remove(BLOCK_FOLDER)
        self.folder.remove(LOCK_FILE)

    def _complete_progress(self, start: JobProgress) -> JobProgress:
        """Return the progress of a job that is complete: its totals from `start`, and counts from its manifest."""
        files = json.loads(self.folder.read(MANIFEST_NAME))["files"]
        lines, failed = (sum(file[name] for file in files) for name in ("lines", "failed"))
        return replace(start, files=len(files), done_bytes=start.total_bytes, lines=lines, failed=failed)

    def _input_bytes(self, result: BlockResult) -> float:
        """Estimate the bytes of the input file that a block took up.

        Of a compressed file, the last block counts as the whole file, and the others as 0.
        """
        source = self.inputs[result.file]
        if source.num_blocks is None:
            return float(source.size) if result.is_last else 0.0
        return source.block_size(result.block)


def _output_names(locations: list[str]) -> list[str]:
    """Return names for output files: the paths of the inputs below their common folder, without compression suffix.

    Two inputs with one name, or a name that the job itself uses, are a UserError.
    """
    paths = [_slash_path(location) for location in locations]
    folders = [path.rpartition("/")[0] for path in paths]
    # with "/" before all of them, since commonpath rejects a mixture of absolute (local) and relative (URL) paths
    common = os.path.commonpath([f"/{folder}" for folder in folders]).lstrip("/") if any(folders) else ""
    names = [without_compression_suffix(path.lstrip("/")).removeprefix(f"{common}/") for path in paths]
    if duplicate := next((name for name, count in Counter(names).items() if count > 1), None):
        raise UserError(
            f"several input files have the same name {duplicate} (without .gz or the like), and would so have the same "
            "output file: rename one, or process them in separate commands with different output folders"
        )
    reserved = {JOB_FILE, MANIFEST_NAME, ERROR_FILE, BLOCK_FOLDER, LOCK_FILE}
    if taken := next((name for name in names if name in reserved), None):
        raise UserError(
            f"the input file {taken} has the name of a file that the bulk job itself writes to the output folder: "
            "rename the input file"
        )
    return names


def _slash_path(location: str) -> str:
    """Return a local file as an absolute path with slashes, or a URL without its scheme (s3://bucket/a: bucket/a)."""
    return location.partition("://")[2] if is_url(location) else Path(location).resolve().as_posix()
