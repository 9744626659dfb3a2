"""What commands read: files or standard input as text, TSV or JSON lines, and lines typed at a terminal."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import log
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.data.corpus import Corpus
    from dragoman.run import Source

STANDARD_INPUT = Path("standard input")

Format = Annotated[str, typer.Option("--format", help="text, tsv or jsonl; by the file's name if not given.")]
SourceKey = Annotated[
    str | None, typer.Option(help="Source column of a TSV file (from 0: 0) or key of a JSON line (source).")
]
TargetKey = Annotated[
    str | None, typer.Option(help="Target column of a TSV file (from 0: 1) or key of a JSON line (target).")
]


@dataclass(frozen=True)
class FileLayout:
    """How the lines of a file are laid out: its format, and where source and target are in a line."""

    format: str = ""
    source_key: str | None = None
    target_key: str | None = None

    def corpus(self, source: Path, target: Path | None = None) -> Corpus:
        from dragoman.data.corpus import Corpus

        return Corpus(source, target, self.format, self.source_key, self.target_key)


@dataclass(frozen=True)
class Input:
    """The sources that a command answers: those of a file, of standard input, or lines typed at a terminal."""

    file: Path | None
    columns: FileLayout = FileLayout()
    may_be_empty: bool = False  # may a file have no lines?

    @property
    def interactive(self) -> bool:
        return self.file is None and sys.stdin is not None and sys.stdin.isatty()

    def check(self) -> None:
        """Reject a file that cannot be opened or read, before anything heavy is imported."""
        _ = self.columns.corpus(self.file or STANDARD_INPUT).file_format
        if self.file is not None:
            check_file(self.file)

    def sources(self) -> Iterator[Source]:
        if self.interactive:
            yield from typed_lines()
            return
        if self.file is None:
            yield from read_sources(self.columns.corpus(STANDARD_INPUT), standard_input())
            return
        from dragoman.data.feature_files import FeatureFile
        from dragoman.data.text_files import read_lines

        corpus = self.columns.corpus(self.file)
        if corpus.has_features:
            yield from FeatureFile(self.file)
        else:
            yield from read_sources(corpus, read_lines(self.file, self.may_be_empty))

    def texts(self) -> Iterator[str]:
        """The same for systems that read only text."""
        for source in self.sources():
            if not isinstance(source, str):
                raise UserError(f"{self.file} holds vectors, but this command reads text")
            yield source

    def answer(self, answer: Callable[[Iterable[Any], int], None]) -> None:
        """Call `answer` with all sources, or at a terminal with each line as it is typed; and its number, from 0.

        There Ctrl-C cancels an answer, and a line that cannot be answered ends nothing.
        """
        if not self.interactive:
            answer(self.sources(), 0)
            return
        for number, line in enumerate(typed_lines()):
            try:
                answer([line], number)
            except KeyboardInterrupt:
                log("\ncancelled")
            except UserError as error:
                print(f"dragoman: {error}", file=sys.stderr)


def check_file(path: Path) -> None:
    """Reject a file that cannot be opened."""
    from dragoman.data.text_files import open_file

    if not path.is_fifo():  # which can be opened only once
        with open_file(path):
            pass


def read_sources(corpus: Corpus, lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    """The sources in numbered lines of a corpus; that of a dialogue is what was said before its last reply."""
    file_format = corpus.file_format
    for line, text in lines:
        turns = file_format.record_turns(text, corpus, line)
        if turns is not None:
            yield _split_dialogue(turns)[0]
        else:
            yield from (source for _, source in file_format.parse_sources(corpus, [(line, text)]))


def read_pairs(
    source: Path, target: Path | None, columns: FileLayout, option: str = "--target"
) -> tuple[list[Any], list[str]]:
    """Sources and targets: of two text files, of an .npz and a text file, or of one TSV or JSON-lines file.

    Of a dialogue the target is the last reply. `option` is what names the file of the targets.
    """
    from dragoman.data.data_formats import detect_data_format, has_references

    corpus = columns.corpus(source, target)
    if not has_references(corpus):
        name = "their key with --target-key" if columns.source_key else f"their translations with {option}"
        raise UserError(f"{source} holds sources alone: name {name}, or give TSV or JSON lines with both")
    data_format = detect_data_format(corpus)
    pairs = data_format.read([corpus])
    if data_format.is_dialogue:
        dialogues = [_split_dialogue(pair.source.split("\t")) for pair in pairs]
        return [before for before, _ in dialogues], [reply for _, reply in dialogues]
    sources: list[Any] = []
    targets: list[str] = []
    for pair in pairs:
        sources.append(pair.source if pair.features is None else pair.features)
        targets.append(pair.target or "")
    return sources, targets


def read_lines(path: Path, columns: FileLayout) -> list[str]:
    """The lines of a file that holds one text a line and nothing else."""
    from dragoman.data.text_files import read_lines

    plain = FileLayout("text" if columns.format == "text" else "")
    if (file_format := plain.corpus(path).file_format).has_both_sides:
        raise UserError(
            f"{path} is named as {file_format.name}, but expected one text per line: convert it, or use --format text"
        )
    return [text for _, text in read_lines(path)]


def check_counts(counts: Sequence[tuple[Path, int]]) -> None:
    """Reject files that do not have the same number of lines."""
    (first, expected), *others = counts
    for path, count in others:
        if count != expected:
            raise UserError(f"{first} has {expected:,} lines but {path} has {count:,}: line counts must match")


def _split_dialogue(turns: list[str]) -> tuple[str, str]:
    """What was said before the last reply, turns parted by tabs, and the reply; '' if nobody has replied yet."""
    if len(turns) == 1:
        return turns[0], ""
    replied = len(turns) // 2 * 2
    return "\t".join(turns[: replied - 1]), turns[replied - 1]


def standard_input() -> Iterator[tuple[int, str]]:
    """The numbered lines of standard input; only a line feed ends a line."""
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file, or pipe text in")
    for number, raw in enumerate(sys.stdin.buffer, 1):
        raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        try:
            yield number, raw.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input, line {number:,} is not UTF-8 (byte {error.start + 1} of the line)"
            ) from None


def typed_lines(prompt: str = "> ") -> Iterator[str]:
    """Lines typed at a terminal, with readline's editing: Ctrl-C drops a line, Ctrl-D ends them."""
    with suppress(ImportError):
        import readline  # noqa: F401  # what `input` edits with
    log("one sentence a line; Ctrl-D ends")
    while True:
        try:
            with _stdout_on_stderr():
                line = input(prompt)
            line.encode()
        except EOFError:
            log("")
            return
        except KeyboardInterrupt:
            log("")
        except UnicodeEncodeError:
            log("dragoman: this line is not UTF-8")
        else:
            yield line


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Let what is written to standard output go to standard error: `input` writes its prompt to the former."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
