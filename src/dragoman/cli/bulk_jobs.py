"""The option --input of several commands: they process many files, on this machine or on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import choose_languages
from dragoman.console import LOG_INTERVAL_SECONDS, format_duration, log, progress_bar
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.bulk import BulkJob, JobProgress, RowTask
    from dragoman.cli.inputs import SourceFormat
    from dragoman.cli.options import ModelOptions
    from dragoman.run import Run


@dataclass(frozen=True)
class BulkOptions:
    """A job over many files in blocks, which several processes or machines share."""

    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Process all files that match this pattern, such as 'in/*.jsonl.zst' or s3://bucket/in/*.txt.gz: "
            "text or JSON lines, plain or compressed, or Parquet. --output is then a folder. Repeatable.",
        ),
    ] = None
    on: Annotated[
        str,
        "With --input: where the files are processed: local, ray (a cluster on this machine), or ray://HOST:PORT.",
        "PLACE",
    ] = "local"
    block_kib: Annotated[
        int,
        typer.Option(
            help="With --input: size in KiB of the blocks of text into which the files are split; a worker "
            "processes one block at a time.",
            min=1,
        ),
    ] = 256
    result_column: Annotated[
        str,
        "With --input: key of the result in JSON lines, or its column in Parquet. Default: by command, such as tags.",
        "NAME",
    ] = ""
    gpus_per_worker: Annotated[
        float, typer.Option(help="With --on ray: number of GPUs of each worker; 0.5 puts two workers on a GPU.", min=0)
    ] = 0.0
    cpus_per_worker: Annotated[
        float,
        typer.Option(
            help="With --on ray: number of CPUs reserved for each worker; ignored for workers with a GPU "
            "(--gpus-per-worker).",
            min=0.01,
        ),
    ] = 1.0
    cost_per_hour: Annotated[
        float | None,
        typer.Option(
            help="With --input: price per hour of all machines together, in any currency; the progress display "
            "then shows the estimated cost of processing all files.",
            min=0,
        ),
    ] = None

    def name_result(self, results: Mapping[str, type]) -> dict[str, type]:
        """Return `results`, the types of the result's columns by name, with the first one named by --result-column.

        Further columns, such as the probability of a label, keep their names.
        """
        (first_name, first_type), *others = results.items()
        return {self.result_column or first_name: first_type, **dict(others)}


@dataclass(frozen=True)
class BulkJobOptions(BulkOptions):
    """A job over many files, and where its results are written."""

    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="With --input: folder for the result files, or its URL, such as s3://bucket/out.",
        ),
    ] = None
    resume: Annotated[bool, "With --input: continue an interrupted command with the same --output, or start it."] = (
        False
    )
    overwrite: Annotated[bool, "With --input: replace earlier results in the folder of --output, if any."] = False
    num_workers: Annotated[
        int,
        typer.Option(
            help="With --input: number of worker processes. With --on ray: number of Ray workers; 1 means as many as "
            "the cluster has room for.",
            min=1,
        ),
    ] = 1


@dataclass(frozen=True)
class LoadRun:
    """Loads a run in a worker process, for the source and target language of a multilingual model.

    `load` opens the folder `run` as the options of the command say. A language "" is the default of the model.
    """

    run: Path
    load: Callable[[Path], Run]
    languages: tuple[str, str] = ("", "")

    def __call__(self) -> Run:
        """Load the run, and choose its languages."""
        source_language, target_language = self.languages
        return choose_languages(self.load(self.run), source_language, target_language)


def process_files(
    run: Path,
    bulk: BulkJobOptions,
    layout: SourceFormat,
    model: ModelOptions,
    task: RowTask,
    columns: Mapping[str, str | None] | None = None,
) -> None:
    """Process the files of --input with a run: apply a task, such as tagging, to their lines.

    `layout` has the format of the files, and the languages for a multilingual model. `task` is the function that is
    applied to blocks of rows, with its options and the columns of its results. `columns` are the columns of the files
    that it needs, by their content ("source", "target"), each None for the default; None: only the source.
    """
    model.check(run)

    from dragoman.bulk import BulkJob, RunRows
    from dragoman.run.file_translation import run_fingerprint

    # without the option --to, a multilingual model writes in the language that it reads
    target_language = getattr(layout, "target_language", layout.source_language)
    languages = (layout.source_language, target_language)
    loaded = LoadRun(run, replace(model, device="cpu").load, languages)()
    # a UserError, before workers start, if the run is of another kind, such as a translation model that should tag
    sample_row = ("a",) * (len(columns) if columns else 1)
    task.apply(loaded, [sample_row], first_index=0, **task.options)
    job = BulkJob(
        bulk.input or [],
        str(bulk.output),
        RunRows(LoadRun(run.resolve(), model.load, languages), task),
        run_fingerprint(loaded) | {name.replace("_", " "): value for name, value in task.options.items()},
        block_bytes=bulk.block_kib * 1024,
        format=layout.format,
        columns=columns or {"source": layout.source_column},
        results=bulk.name_result(task.results),
    )
    run_bulk_job(job, bulk, bulk.num_workers, bulk.resume, bulk.overwrite)


def run_bulk_job(job: BulkJob, options: BulkOptions, num_workers: int, resume: bool, overwrite: bool) -> None:
    """Run a job over many files, show its progress, and print what it did.

    `options` say where it runs, with `num_workers` processes. A job that exists in the output folder is continued
    (`resume`) or replaced (`overwrite`); without either, it is a UserError.
    """
    from dragoman.bulk import executor_from_text

    # on a Ray cluster the default of --num-workers, 1, means as many workers as the cluster has room for (None)
    workers = None if options.on != "local" and num_workers == 1 else num_workers
    executor = executor_from_text(options.on, workers, options.gpus_per_worker, options.cpus_per_worker)
    progress = job.run(executor, resume=resume, overwrite=overwrite)
    try:
        final = _show_progress(progress, options.cost_per_hour)
    except KeyboardInterrupt:
        log(f"interrupted: complete blocks are in {job.folder.location}; the same command with --resume goes on")
        raise
    failed = f"; {final.failed:,} lines failed: see errors.jsonl" if final.failed else ""
    log(f"wrote {final.lines:,} lines of {final.files:,} files to {job.folder.location}{failed}")


def _show_progress(states: Iterator[JobProgress], cost_per_hour: float | None) -> JobProgress:
    """Show the progress of a running job: a bar on a terminal, otherwise a line now and then; return the final state.

    `states` yields the state before the first block (or that of a complete job), then one after each block.
    `cost_per_hour`, the price of all machines, adds the estimated cost; None: no cost.
    """
    started = last_logged = time.monotonic()
    state = next(states)
    with progress_bar() as bar:
        task = bar.add_task("starting", total=state.total_bytes or None, completed=round(state.done_bytes))
        for state in states:
            now = time.monotonic()
            text = describe_progress(state, now - started, cost_per_hour)
            bar.update(task, completed=state.done_bytes, description=text)
            if not bar.console.is_terminal and now - last_logged > LOG_INTERVAL_SECONDS:
                log(text)
                last_logged = now
    return state


def describe_progress(state: JobProgress, seconds: float, cost_per_hour: float | None = None) -> str:
    """Return the progress of a job in words: complete files, lines, speed, time left, and cost.

    This process has run for `seconds`, in which it has processed the state's new lines, tokens and bytes; a job that
    it continues has others, too. The cost is that of this process from its start to its end, for the price
    `cost_per_hour`; None: no cost.
    """
    seconds = max(seconds, 1e-9)  # not 0, by which the speed is divided
    parts = [f"{state.files:,} of {state.total_files:,} files", f"{state.lines:,} lines"]
    parts += [f"{state.new_lines / seconds:,.0f} lines/s", f"{state.new_tokens / seconds:,.0f} tokens/s"]
    if state.new_bytes:
        seconds_left = seconds * (state.total_bytes - state.done_bytes) / state.new_bytes
        parts.append(f"{format_duration(seconds_left)} left")
        if cost_per_hour is not None:
            parts.append(f"cost {cost_per_hour * (seconds + seconds_left) / 3600:,.2f}")
    return "  ".join(parts)


def is_bulk_job(options: BulkOptions, file: Path | None, output: str | None, unsupported: dict[str, Any]) -> bool:
    """Return whether --input is given; raise a UserError for options that contradict it, or that need it.

    Args:
        options: --input and the options that have no meaning without it.
        file: input file of the command, which must be None with --input.
        output: folder of the results (--output), which --input needs.
        unsupported: values of options that cannot be used with --input, by name; false values are not given.
    """
    if not options.input:
        defaults = type(options)()
        for name, value in asdict(options).items():
            if value != getattr(defaults, name):
                raise UserError(
                    f"--{name.replace('_', '-')} needs --input, which names many input files: add --input, or leave "
                    f"out --{name.replace('_', '-')}"
                )
        return False
    if file is not None:
        raise UserError(f"the input is given twice, by --input and by the argument {file}: leave out one of them")
    if output is None:
        raise UserError("--input needs a folder for the result files: name it with --output")
    for name, value in unsupported.items():
        if value:
            raise UserError(f"--{name.replace('_', '-')} cannot be used with --input: leave one of them out")
    return True
