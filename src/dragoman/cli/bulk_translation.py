"""`dragoman translate --input`: translate many files, on this machine or on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import choose_languages
from dragoman.console import LOG_INTERVAL_SECONDS, format_duration, log, progress_bar
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.bulk import BulkJob, JobProgress
    from dragoman.bulk.block_worker import ProcessRows, Rows
    from dragoman.cli.translate import TranslatorOptions


@dataclass(frozen=True)
class BulkOptions:
    """Translation of many files in blocks, which several processes or machines share."""

    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Process all files that match, such as 'in/*.jsonl.zst' or s3://bucket/in/*.txt.gz: text or JSON "
            "lines, plain or compressed, or Parquet. OUT is then a folder. Repeatable.",
        ),
    ] = None
    on: Annotated[
        str, "With --input, where: local, ray (a cluster on this machine), or ray://HOST:PORT of a cluster.", "PLACE"
    ] = "local"
    block_kib: Annotated[
        int,
        typer.Option(help="With --input, KiB of text in a block, which one worker translates at a time.", min=1),
    ] = 256
    result_column: Annotated[
        str, "With --input, key or column of the result in JSON lines and Parquet. Default: translation.", "NAME"
    ] = ""
    gpus_per_worker: Annotated[
        float, typer.Option(help="GPUs of each Ray worker; 0.5 puts two workers on a GPU.", min=0)
    ] = 0.0
    cpus_per_worker: Annotated[float, typer.Option(help="CPUs of each Ray worker without a GPU.", min=0.01)] = 1.0
    cost_per_hour: Annotated[
        float | None, typer.Option(help="Price of all machines per hour: adds the cost to the progress.", min=0)
    ] = None


@dataclass(frozen=True)
class TranslateLines:
    """Opens a run in a worker process, and returns the function that translates lines.

    Attributes:
        run, translator: the run, and how it is loaded.
        languages: source and target of a multilingual run; "": its default.
        search: configuration of the search in JSON values.
        options: further arguments of `Run.translate_stream`.
    """

    run: Path
    translator: TranslatorOptions
    languages: tuple[str, str]
    search: dict[str, Any]
    options: dict[str, Any]

    def __call__(self) -> ProcessRows:
        """Load the run."""
        from dragoman.bulk.row_formats import RowResult
        from dragoman.memory import keep_freed_memory
        from dragoman.search import search_from_dict

        keep_freed_memory()
        loaded = choose_languages(self.translator.load_translator(self.run), *self.languages)
        search = search_from_dict(self.search)

        def process(rows: Rows, first_index: int) -> list[RowResult]:
            """Translate lines."""
            texts = (text for (text,) in rows)
            translations = loaded.translate_stream(texts, search, first_index=first_index, **self.options)
            return [RowResult((result.text,), len(result.tokens)) for result in translations]

        return process


def run_bulk_job(job: BulkJob, options: BulkOptions, num_workers: int, resume: bool, overwrite: bool) -> None:
    """Run a job with progress, and report what it did."""
    from dragoman.bulk import executor_from_text

    workers = None if options.on != "local" and num_workers == 1 else num_workers
    executor = executor_from_text(options.on, workers, options.gpus_per_worker, options.cpus_per_worker)
    states = job.run(executor, resume=resume, overwrite=overwrite)
    try:
        last = _show_progress(states, options.cost_per_hour)
    except KeyboardInterrupt:
        log(f"interrupted: complete blocks are in {job.folder.location}; the same command with --resume goes on")
        raise
    failed = f"; {last.failed:,} lines failed: see errors.jsonl" if last.failed else ""
    log(f"wrote {last.lines:,} lines of {last.files:,} files to {job.folder.location}{failed}")


def _show_progress(states: Iterator[JobProgress], cost_per_hour: float | None) -> JobProgress:
    """Show the progress of a job, as a bar or in lines of a log, and return the last one."""
    begin = last_line = time.monotonic()
    state = next(states)
    with progress_bar() as bar:
        task = bar.add_task("starting", total=state.total_bytes or None, completed=round(state.done_bytes))
        for state in states:
            now = time.monotonic()
            text = describe_progress(state, now - begin, cost_per_hour)
            bar.update(task, completed=state.done_bytes, description=text)
            if not bar.console.is_terminal and now - last_line > LOG_INTERVAL_SECONDS:
                log(text)
                last_line = now
    return state


def describe_progress(state: JobProgress, seconds: float, cost_per_hour: float | None = None) -> str:
    """Return the progress in words: files, lines, speed, time left and cost."""
    lines_per_second, tokens_per_second = (count / max(seconds, 1e-9) for count in (state.new_lines, state.new_tokens))
    parts = [f"{state.files:,} of {state.total_files:,} files", f"{state.lines:,} lines"]
    parts += [f"{lines_per_second:,.0f} lines/s", f"{tokens_per_second:,.0f} tokens/s"]
    if state.new_bytes:
        left = seconds * (state.total_bytes - state.done_bytes) / state.new_bytes
        parts.append(f"{format_duration(left)} left")
        if cost_per_hour is not None:
            parts.append(f"cost {cost_per_hour * (seconds + left) / 3600:,.2f}")
    return "  ".join(parts)


def check_bulk_options(
    options: BulkOptions, file: Path | None, output: Path | None, unsupported: dict[str, Any]
) -> None:
    """Raise a UserError for options that contradict --input; `unsupported` has those that it cannot be used with."""
    if file is not None:
        raise UserError(f"--input names the input files, so leave {file} out")
    if output is None:
        raise UserError("--input needs a folder for the translations: name it with --output")
    for name, value in unsupported.items():
        if value:
            raise UserError(f"--{name.replace('_', '-')} cannot be used with --input: leave one of them out")


def check_without_input(options: BulkOptions) -> None:
    """Raise a UserError for options that have no meaning without --input."""
    for name, value in asdict(options).items():
        if value != getattr(BulkOptions(), name):
            raise UserError(f"--{name.replace('_', '-')} needs --input: name the input files with it")
