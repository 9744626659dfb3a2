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
from dragoman.bulk.blocks import BlockTask, BulkInput, Line, read_block, read_blocks
from dragoman.bulk.file_storage import StorageFolder
from dragoman.bulk.line_formats import LineError, TextLines
from dragoman.errors import UserError

BLOCK_FOLDER = "blocks"  # in the output folder, while the job runs
MAX_ERROR_TEXT = 200  # characters of a line in the file of errors


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
        """Return the result that JSON values describe."""
        errors = [(int(line), str(message), str(text)) for line, message, text in values["errors"]]
        return cls(**values | {"errors": errors})

    @property
    def name(self) -> str:
        """The name of the files of the block, without suffix."""
        return block_name(self.file, self.block)


def block_name(file: int, block: int) -> str:
    """Return the name of the files of a block, without suffix; names sort like blocks."""
    return f"{file:06d}-{block:09d}"


#: processes texts; returns for each a dictionary with `text`, other fields, and `num_tokens`
ProcessTexts = Callable[[list[str]], list[dict[str, Any]]]


@dataclass(frozen=True)
class BlockWorker:
    """Processes tasks of a job; it is sent to every worker process, which opens the run when the first task comes.

    Attributes:
        inputs: the input files, and `formats` that of the lines of each.
        output: path or URL of the output folder.
        block_bytes: size of a block.
        open_process: opens the run, and returns the function that processes texts.
        finished: names of blocks that are complete already, which are skipped in compressed files.
        version: of the program that made the job; all machines must have the same.
    """

    inputs: Sequence[BulkInput]
    formats: Sequence[TextLines]
    output: str
    block_bytes: int
    open_process: Callable[[], ProcessTexts]
    finished: frozenset[str] = frozenset()
    version: str = __version__

    @cached_property
    def _process(self) -> ProcessTexts:
        """The function that processes texts; the run is opened once per process."""
        if self.version != __version__:
            raise UserError(
                f"the job was started by dragoman {self.version}, but this worker has {__version__}: install the same "
                "version on all machines"
            )
        return self.open_process()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the opened run out when the worker is sent to another process."""
        return {name: value for name, value in self.__dict__.items() if name != "_process"}

    def __call__(self, task: BlockTask) -> list[BlockResult]:
        """Process a task; each block is written as soon as it is complete."""
        source = self.inputs[task.file]
        if task.block is None:
            return list(self._process_file(task.file))
        count = source.num_blocks(self.block_bytes)
        is_last = count is not None and task.block + 1 == count
        return [self._write(task.file, task.block, read_block(source, task.block, self.block_bytes), is_last)]

    def _process_file(self, file: int) -> Iterator[BlockResult]:
        """Process all blocks of a compressed file that are not complete yet."""
        previous: list[Line] | None = None
        block = -1
        for block, lines in enumerate(read_blocks(self.inputs[file], self.block_bytes)):
            if previous is not None and block_name(file, block - 1) not in self.finished:
                yield self._write(file, block - 1, previous, is_last=False)
            previous = lines
        if block_name(file, max(block, 0)) not in self.finished:
            yield self._write(file, max(block, 0), previous or [], is_last=True)

    def _write(self, file: int, block: int, lines: list[Line], is_last: bool) -> BlockResult:
        """Process the lines of a block; write its output, then its result, which marks it as complete."""
        start = time.perf_counter()
        output, tokens, errors = self._process_lines(self.formats[file], lines)
        content = "".join(f"{line}\n" for line in output).encode(errors="replace")
        result = BlockResult(
            *(file, block, len(lines), tokens, len(content), time.perf_counter() - start),
            *(blake2b(content, digest_size=16).hexdigest(), errors, is_last),
        )
        folder = StorageFolder(self.output)
        folder.write(f"{BLOCK_FOLDER}/{result.name}.out", content)
        folder.write(f"{BLOCK_FOLDER}/{result.name}.json", json.dumps(asdict(result), ensure_ascii=False).encode())
        return result

    def _process_lines(
        self, lines_format: TextLines, lines: list[Line]
    ) -> tuple[list[str], int, list[tuple[int, str, str]]]:
        """Return the output line of each line, the number of output tokens, and the lines that failed."""
        output, errors = [""] * len(lines), []
        texts, records = {}, {}
        for number, line in enumerate(lines):
            try:
                texts[number], records[number] = lines_format.parse(line)
            except LineError as error:
                errors.append((number, str(error), (line or b"")[:MAX_ERROR_TEXT].decode(errors="replace")))
                output[number] = lines_format.format_error(error.record, str(error))
        tokens = 0
        for number, result in zip(texts, self._results(list(texts.values()))):
            if isinstance(result, str):
                errors.append((number, result, texts[number][:MAX_ERROR_TEXT]))
                output[number] = lines_format.format_error(records[number], result)
                continue
            tokens += result.pop("num_tokens", 0)
            output[number] = lines_format.format(records[number], result)
        return output, tokens, sorted(errors)

    def _results(self, texts: list[str]) -> list[dict[str, Any] | str]:
        """Process texts together; if that fails, one by one, so that only those fail that must: an error message."""
        if not texts:
            return []
        process = self._process  # an error of opening the run concerns all lines
        try:
            return [*process(texts)]
        except UserError as error:
            if len(texts) == 1:
                return [str(error)]
        return [result for text in texts for result in self._results([text])]
