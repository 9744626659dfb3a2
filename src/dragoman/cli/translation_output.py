"""Output of `dragoman translate`: to standard output, token by token, or to a file that can be resumed."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Json, program_name
from dragoman.console import LOG_INTERVAL_SECONDS, format_duration, log, one_line, print_json_list, progress_bar
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.cli.inputs import Input
    from dragoman.run import Run, Source, Translation
    from dragoman.run.file_translation import FileProgress
    from dragoman.search import SearchConfig

TranslateSources = Callable[..., "Iterator[Translation]"]  # called with sources and the index of the first one, from 0


@dataclass(frozen=True)
class OutputOptions:
    """Where translations are written, and in which format."""

    alignment: Annotated[
        bool, "Print word alignments after a tab: source word-target word from 0, such as 0-0 1-2."
    ] = False
    warnings: Annotated[
        bool,
        "Log what is suspicious about a translation: missing words, another language, repetition, low probability.",
    ] = False
    json: Json = False
    json_lines: Annotated[bool, "Print one JSON document per translation, each on a line of its own."] = False
    output: Annotated[
        str | None,  # with --input it may be a URL
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Write the translations to this file, and show the progress. With --input: folder for the "
            "result files.",
        ),
    ] = None
    resume: Annotated[bool, "Continue an interrupted translation into the file of --output, or start it."] = False
    overwrite: Annotated[bool, "Replace the file of --output if it exists, once all is translated."] = False

    def __post_init__(self) -> None:
        """Raise a UserError for options that contradict each other, or that need --output."""
        if self.json and self.json_lines:
            raise UserError(
                "--json prints one JSON document for all translations, --json-lines one per line: use one of them"
            )
        if self.file is None and (self.resume or self.overwrite):
            raise UserError(
                f"{'--resume' if self.resume else '--overwrite'} needs an output file: name it with --output"
            )
        if self.file is not None and self.json:
            raise UserError(
                "--json prints all translations as one JSON document and cannot be used with --output: use "
                "--json-lines, which writes one JSON document per translation"
            )

    @property
    def file(self) -> Path | None:
        """The output file, if there is one."""
        return None if self.output is None else Path(self.output)

    def is_done(self, source: Path | None) -> bool:
        """Whether --resume is given and the output file is complete; raise a UserError if it cannot be written.

        False without an output file. `source` is the input file, None for standard input, which cannot be resumed. An
        output that is the input, or that exists and shall not be replaced, is a UserError.
        """
        from dragoman.run.file_translation import check_output, is_complete
        from dragoman.storage import os_errors_as_user_errors

        if self.file is None:
            return False
        if self.resume and source is None:
            raise UserError(
                "--resume cannot continue a translation of standard input: write the input to a file, and "
                "translate the file"
            )
        with os_errors_as_user_errors(self.file):
            if self.resume and is_complete(self.file):
                return True
            if source is not None and source.exists() and self.file.exists() and source.samefile(self.file):
                raise UserError(f"{self.file} is the input: choose another file for the output")
            check_output(self.file, self.overwrite)
        return False

    def write(
        self,
        run: Run,
        search: SearchConfig,
        inputs: Input,
        translate: TranslateSources,
        fingerprint: dict[str, Any],
        total: int | None,
    ) -> None:
        """Translate all sources, and write the translations to the output file or to standard output.

        Args:
            run: the run that translates.
            search: its search; an n-best list is written if it returns several hypotheses.
            inputs: the sources.
            translate: translates an iterable of sources, given the index of the first one.
            fingerprint: options that must be equal when an interrupted file is resumed.
            total: number of sources for the progress bar; None if it is unknown.
        """
        from dragoman.run.file_translation import translation_fingerprint, window_size, write_translations

        def render(translation: Translation) -> str:
            """Return the output lines of one translation: JSON, or text with scores and alignment."""
            if self.json_lines:
                return json.dumps(asdict(translation), ensure_ascii=False) + "\n"
            return "".join(f"{line}\n" for line in format_translation(translation, search.n_best, self.alignment))

        def print_translations(sources: Iterable[Source], first_index: int) -> None:
            """Translate sources and print each translation as soon as it is ready.

            `first_index` is the index of the first source in the input.
            """
            translations = _warn_at_end(translate(sources, first_index))
            if self.json:
                print_json_list(map(asdict, translations))
                return
            for translation in translations:
                print(render(translation), end="", flush=True)

        if self.file is None:
            inputs.process(print_translations)
            return
        # yields the progress after each window of lines that is written
        progress = write_translations(
            self.file,
            inputs.sources(),
            translate,
            render,
            fingerprint=translation_fingerprint(run, search, fingerprint),
            window_lines=window_size(run),
            resume=self.resume,
            overwrite=self.overwrite,
        )
        _write_with_progress(progress, self.file, total, resumable=inputs.file is not None)


def log_suspicious(
    run: Run, sources: Iterable[Source], first_index: int = 0, *, translate: TranslateSources
) -> Iterator[Translation]:
    """Translate sources by `translate`, and log what is suspicious about each translation, with its line number.

    `first_index` is the index of the first source in the input, from 0. Images and sound are not checked.
    """
    from dragoman.run.translation_warnings import checker_of

    sources, checked_sources = tee(sources)  # one iterator to translate, one to compare with the translations
    checker, line = checker_of(run), first_index
    for source, translation in zip(checked_sources, translate(sources, first_index)):
        line += 1  # counted from 1
        if isinstance(source, str):
            for warning in checker.check(source, translation):
                log(f"line {line}: {warning.message}")
        yield translation


def print_streams(
    run: Run, sources: Iterable[Source], search: SearchConfig, tag: str | None, exclude: Sequence[str]
) -> None:
    """Print each translation while it is generated, on a line of its own.

    A terminal also shows, dimmed, how the translation continues at the moment: text that may still change. `tag` is the
    corpus tag of the sources, `exclude` are phrases that no translation may contain.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    for source in sources:
        # parts of the translation, each when it is final
        with closing(run.stream(source, search=search, alignment=False, tag=tag, exclude=exclude)) as parts:
            if not sys.stdout.isatty():
                for tokens in parts:
                    print(one_line(tokens.text), end="", flush=True)
                print(flush=True)
                continue
            final = ""  # the translation so far
            with Live(console=Console(highlight=False), auto_refresh=False) as view:
                for tokens in parts:
                    final += one_line(tokens.text)
                    # `tentative_text`: how the best hypothesis continues at the moment; later parts may replace it
                    view.update(Text.assemble(final, (one_line(tokens.tentative_text), "dim")), refresh=True)


def format_translation(translation: Translation, n_best: int, alignment: bool) -> Iterator[str]:
    """Yield the output lines of a translation: its text, or with `n_best` above 1 a list of scores and texts.

    A list ends with an empty line. `alignment` adds the word alignment of the best translation after a tab: "0-0 1-2".
    """
    links = " ".join(f"{source}-{target}" for source, target in translation.alignment or [])
    suffix = f"\t{links}" if alignment else ""
    if n_best == 1:
        yield one_line(translation.text) + suffix
        return
    for hypothesis in (translation, *translation.alternatives):  # the best one first
        yield f"{hypothesis.score:.4f}\t{one_line(hypothesis.text)}{suffix if hypothesis is translation else ''}"
    yield ""


class LineProgress:
    """Progress of a file in lines, with speed and remaining time: a bar on a terminal, else a line now and then.

    Use it within `with progress.bar:`. The first update says how many lines an interrupted process has translated
    before; they do not count for the speed.
    """

    def __init__(self, total: int | None, unit: str = "lines") -> None:
        """Create the bar for `total` lines; None if their number is unknown. `unit` is what is counted, in the plural.

        The number of translated lines is unknown until the first call of `update`.
        """
        self.total, self.unit = total, unit
        self.done = -1  # translated lines; −1: `update` has not been called yet
        self.resumed_at = 0  # lines that were translated before this process resumed the file
        self.started = self.last_logged = time.monotonic()
        self.bar = progress_bar(visible=sys.stderr.isatty())
        self.task = self.bar.add_task("starting", total=total)

    def update(self, done: int) -> None:
        """Set the number of translated lines; the first call sets how many were translated before a resume."""
        now = time.monotonic()
        if self.done < 0:  # the first call
            self.resumed_at, self.started, self.last_logged = done, now, now
        self.done = done
        self.bar.update(self.task, completed=done, description=self.line())
        # without a terminal, where the bar is disabled
        if self.bar.disable and now - self.last_logged >= LOG_INTERVAL_SECONDS:
            self.last_logged = now
            log(self.line())

    def set_total(self, total: int) -> None:
        """Set the number of lines, once it is known."""
        self.total = total
        self.bar.update(self.task, total=total)

    @property
    def lines_per_second(self) -> float:
        """Lines translated per second since the first update, without those translated before a resume."""
        return (self.done - self.resumed_at) / max(1e-3, time.monotonic() - self.started)

    def line(self) -> str:
        """Return the present state as text: "1,200 of 5,000 lines  85 lines/s  0:00:44 left"."""
        speed = self.lines_per_second
        total = "" if self.total is None else f" of {self.total:,}"
        text = f"{self.done:,}{total} {self.unit}"
        if speed > 0:
            text += f"  {self._speed_text(speed)}"
            text += "" if self.total is None else f"  {format_duration((self.total - self.done) / speed)} left"
        return text

    def _speed_text(self, speed: float) -> str:
        """Return a speed in lines per second as text, with a decimal below 10: "85 lines/s", "8.5 lines/s"."""
        decimals = 1 if speed < 10 else 0
        return f"{speed:,.{decimals}f} {self.unit}/s"

    def summary(self) -> str:
        """Return the result as text: "5,000 lines in 0:00:59 (85 lines/s)"; "1 line …" for one."""
        speed, seconds = self.lines_per_second, max(0.0, time.monotonic() - self.started)
        # without an update, `done` is −1, and the speed is negative
        lines = f"{max(0, self.done):,} {self.unit.removesuffix('s') if self.done == 1 else self.unit}"
        lines += f", {self.done - self.resumed_at:,} of them now," if self.resumed_at else ""
        return f"{lines} in {format_duration(seconds)} ({self._speed_text(max(0.0, speed))})"


def _write_with_progress(
    translations: Generator[FileProgress], output: Path, total: int | None, resumable: bool
) -> None:
    """Run the generator `translations`, which writes translations to `output`, and show its progress.

    It yields the progress before the first window of lines and after each. `total` is the number of lines, None if it
    is unknown. If the generator is interrupted, the command that continues it is logged, provided that the input can be
    read again (`resumable`).
    """
    written, progress = None, LineProgress(total)
    try:
        with progress.bar, closing(translations):
            for written in translations:
                if progress.done < 0 and written.lines:  # the first one: lines of a process that was interrupted
                    log(f"resuming after {written.lines:,} lines")
                progress.update(written.lines)
    except (KeyboardInterrupt, UserError):
        if written is not None and written.lines:
            log(f"{written.lines:,} lines are translated and saved in {output}.part")
            if resumable:
                arguments = [argument for argument in sys.argv[1:] if argument != "--resume"]
                log(f"continue with:  {program_name()} {shlex.join([*arguments, '--resume'])}")
        raise
    assert written is not None  # the generator yields at least once
    _log_warnings(written)
    log(f"{output}: {progress.summary()}")


def _warn_at_end(translations: Iterable[Translation]) -> Iterator[Translation]:
    """Yield translations; at the end log how many were truncated, had truncated sources, or were not proven optimal."""
    from dragoman.run.file_translation import FileProgress

    progress = FileProgress()  # counts them
    for translation in translations:
        progress = progress.after([translation])
        yield translation
    _log_warnings(progress)


def _log_warnings(progress: FileProgress) -> None:
    """Log how many translations or sources were truncated, and how many translations were not proven optimal."""
    warnings = {
        "translations that reached the length limit before EOS": progress.unfinished,
        "sources truncated to search.max_source_length tokens": progress.truncated_sources,
        "translations not proven optimal, because exact search reached --max-expansions": progress.unproven,
    }
    for warning, count in warnings.items():
        if count:
            log(f"{warning}: {count:,}")
