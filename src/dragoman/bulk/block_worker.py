"""A worker: reads blocks, processes their lines with a run, and writes the results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from dragoman import __version__
from dragoman.bulk.blocks import BlockTask, BulkInput
from dragoman.bulk.file_storage import StorageFolder
from dragoman.bulk.row_formats import MAX_EXCERPT, Outcome, RowResult, TextLines
from dragoman.errors import UserError

BLOCK_FOLDER = "blocks"  # in the output folder, while the job runs
FILE_INDEX_BITS = 40  # low bits of the index of a row in a job: its index in its file; the file's is above them


@dataclass(frozen=True)
class BlockResult:
    """What a block gave: numbers for progress, and the lines that failed.

    Attributes:
        file, block: index of the input file, and of the block in it.
        lines, tokens: input lines and output tokens.
        seconds: how long it took.
        digest: of the output, which has `bytes` bytes.
        errors: line in the block (from 0), message and beginning of the line, for each line that failed.
        is_last: whether the file has no further block; always true for the last one of a compressed file.
    """

    file: int
    block: int
    lines: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    digest: str = ""
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    is_last: bool = False

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> BlockResult:
        """Return the result from its JSON values, as `asdict` gives them."""
        errors = [(int(line), str(message), str(text)) for line, message, text in values["errors"]]  # lists in JSON
        return cls(**values | {"errors": errors})

    @property
    def name(self) -> str:
        """The name of the two files of the block (its output and this result), without suffix."""
        return block_name(self.file, self.block)


def check_version(version: str) -> None:
    """Raise a UserError if a job was started by another version of this program than that of this process."""
    if version != __version__:
        raise UserError(
            f"the bulk job was started by dragoman {version}, but this worker process has dragoman {__version__}: "
            "install the same version of dragoman on all machines"
        )


def block_name(file: int, block: int) -> str:
    """Return the name, without suffix, of the output of block number `block` of the input file number `file`.

    Sorted by name, the outputs are in the order of files and blocks.
    """
    return f"{file:06d}-{block:09d}"


Rows = list[tuple[str, ...]]  # the texts of each row
#: maps rows to their results; the second argument is the index of the first row, which seeds sampling
ProcessRows = Callable[[Rows, int], list[RowResult]]


@dataclass(frozen=True)
class BlockWorker:
    """Processes tasks of a job; it is sent to every worker process, which opens the run when the first task comes.

    Attributes:
        inputs: the input files, and `formats` that of the rows of each.
        output: path or URL of the output folder.
        open_process: opens the run, and returns the function that processes rows.
        version: of the program that made the job; all machines must have the same.
    """

    inputs: Sequence[BulkInput]
    formats: Sequence[TextLines]
    output: str
    open_process: Callable[[], ProcessRows]
    version: str = __version__

    @cached_property
    def _process_function(self) -> ProcessRows:
        """The function that processes rows with the run, which is opened once per process."""
        check_version(self.version)
        return self.open_process()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out `_process_function`, which holds the opened run: another process opens the run itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_process_function"}

    def __call__(self, task: BlockTask) -> list[BlockResult]:
        """Process a task, and return the results of its blocks, each of which is written as soon as it is complete.

        A task is one block, or (`task.block` None) all blocks of a compressed file, which cannot be found by seeking.
        """
        if task.block is None:
            return list(self._process_file(task.file))
        source = self.inputs[task.file]
        is_last = task.block + 1 == source.num_blocks
        return [self._process_block(task.file, task.block, source.read_block(task.block), is_last=is_last)]

    def _process_file(self, file: int) -> Iterator[BlockResult]:
        """Process the blocks of a compressed file (by index), except those that an earlier process has completed.

        A block is processed when the next one has been read: only then is it known not to be the last.
        """
        previous_rows: Any = None
        last_block = -1
        for block, rows in enumerate(self.inputs[file].read_blocks()):  # complete blocks, too, must be decompressed
            if previous_rows is not None:
                yield self._complete_block(file, block - 1, previous_rows, is_last=False)
            previous_rows, last_block = rows, block
        last_block = max(last_block, 0)  # an empty file has one block without rows
        yield self._complete_block(file, last_block, previous_rows or [], is_last=True)

    def _complete_block(self, file: int, block: int, rows: Any, is_last: bool) -> BlockResult:
        """Return the result of a block that an earlier process or a worker that has died has completed, or process it.

        The arguments are those of `_process_block`.
        """
        folder, name = StorageFolder(self.output), f"{BLOCK_FOLDER}/{block_name(file, block)}"
        if folder.exists(f"{name}.json") and folder.exists(f"{name}.out"):
            return BlockResult.from_dict(json.loads(folder.read(f"{name}.json")))
        return self._process_block(file, block, rows, is_last)

    def _process_block(self, file: int, block: int, rows: Any, is_last: bool) -> BlockResult:
        """Process the rows of block `block` of the input file `file`, write its output, and return its result.

        `rows` are as the input reads them (lines, or an Arrow table); `is_last`: whether no block of the file follows.
        The output is written first, then the result (as JSON), which marks the block as complete.
        """
        start = time.perf_counter()
        row_format = self.formats[file]
        # of the first row, which seeds sampling; with the file in the upper bits, no two rows of the job have the same
        first_index = (file << FILE_INDEX_BITS) + self.inputs[file].first_index(block)
        parsed = row_format.parse(rows)
        valid = [row.texts for row in parsed if not row.error]
        results = iter(self._process_rows(valid, first_index))
        outcomes = [row.error or next(results) for row in parsed]  # an error message (str), or a result
        content = row_format.encode(rows, parsed, outcomes)
        errors = [  # (line in the block, message, beginning of the line)
            (number, outcome, row_format.excerpt(rows, number) if row.error else "\t".join(row.texts)[:MAX_EXCERPT])
            for number, (row, outcome) in enumerate(zip(parsed, outcomes))
            if isinstance(outcome, str)
        ]
        tokens = sum(outcome.num_tokens for outcome in outcomes if not isinstance(outcome, str))
        result = BlockResult(
            file,
            block,
            lines=len(parsed),
            tokens=tokens,
            bytes=len(content),
            seconds=time.perf_counter() - start,
            digest=blake2b(content, digest_size=16).hexdigest(),
            errors=errors,
            is_last=is_last,
        )
        folder = StorageFolder(self.output)
        folder.write(f"{BLOCK_FOLDER}/{result.name}.out", content)
        folder.write(f"{BLOCK_FOLDER}/{result.name}.json", json.dumps(asdict(result), ensure_ascii=False).encode())
        return result

    def _process_rows(self, rows: Rows, first_index: int) -> list[Outcome]:
        """Process rows together, or if that fails, one by one, and return their results.

        A row that fails has the message of its UserError as its result. `first_index` is the index of the first row in
        the job, which seeds sampling.
        """
        if not rows:
            return []
        process = self._process_function  # outside `try`: an error of opening the run concerns all rows
        try:
            return [*process(rows, first_index)]
        except UserError as error:
            if len(rows) == 1:
                return [str(error)]
        return [result for number, row in enumerate(rows) for result in self._process_rows([row], first_index + number)]
