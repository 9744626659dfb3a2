"""Input of the commands: a file in any format, standard input, and lines typed at a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer

from dragoman.cli.options import SourceLanguage, TargetLanguage, setting_option
from dragoman.console import log
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.config import DataConfig
    from dragoman.data.corpus import Corpus
    from dragoman.run import Source

STANDARD_INPUT = Path("standard input")  # its name in error messages


@dataclass(frozen=True)
class SourceFormat:
    """Format of a file, and the position of the source in its lines."""

    format: Annotated[
        str,
        typer.Option(
            help="Format of the file: text (one text per line), tsv, csv, jsonl (JSON lines), tmx, parquet or "
            "datasets (a folder of Hugging Face datasets). Default: from the file name.",
            show_default=False,
        ),
    ] = ""
    source_column: Annotated[str | None, setting_option("data.source_column")] = None
    header: Annotated[bool | None, setting_option("data.header", "--header/--no-header")] = None
    source_language: SourceLanguage = ""

    def corpus(self, source: Path, target: Path | None = None) -> Corpus:
        """Return the corpus of a file, or of a source and a target file, in this format.

        The stem of a Moses corpus stands for its files: `source` corpus for corpus.en if the source language is en.
        `target` is None if `source` holds both sides, or sources only.
        """
        from dragoman.data.corpus import Corpus

        return Corpus(source, target, **asdict(self)).with_language_files()

    def standard_input(self) -> Corpus:
        """Return standard input as a corpus in this format; it is a UserError if it is closed."""
        if sys.stdin is None:
            raise UserError("standard input is closed: name an input file, or pipe text in")
        return replace(self.corpus(STANDARD_INPUT), stream=sys.stdin.buffer)


@dataclass(frozen=True)
class SourceLayout(SourceFormat):
    """Format of a file for a run, and the positions of source and features (symbols such as V;PST) in its lines.

    The column of features is by default that of the run's training data: `for_run` must fill it in before a file is
    read. It is "" if there is none.
    """

    features_column: Annotated[
        str | None,
        typer.Option(
            help="Column with the features of each source, labels such as V;PST (verb, past tense) that the model "
            "reads besides the text: its name, or its number from 0 in TSV or CSV. Default: the one of the "
            "run's training data.",
            show_default=False,
        ),
    ] = None
    source_features: Annotated[
        Path | None, "File with the features of each source, labels such as V;PST, line by line with it.", "FILE"
    ] = None

    @property
    def feature_options(self) -> dict[str, Any]:
        """The options that say where the features of sources are, by name."""
        return {"features_column": self.features_column, "source_features": self.source_features}

    def corpus(self, source: Path, target: Path | None = None) -> Corpus:
        """Return the corpus of a file, or of a source and a target file, in this format."""
        assert self.features_column is not None, "for_run fills in the column of features before a file is read"
        return super().corpus(source, target)

    def for_run(self, run: Path | None) -> Self:
        """Return these options with the column of features that the run was trained with, unless the user names one.

        `run` is the run folder, whose config.yaml has the setting data.features_column, or None: the files are for no
        run, and have no features by default.
        """
        from dragoman import config
        from dragoman.run_files import CONFIG_FILE

        if self.features_column is not None:
            return self
        if self.source_features is None and run is not None and (run / CONFIG_FILE).is_file():
            return self.with_features(config.from_yaml(run / CONFIG_FILE).data)
        return replace(self, features_column="")

    def with_features(self, data: DataConfig) -> Self:
        """Return the layout with the column of features (V;PST) in the training files that `data` describes."""
        return replace(self, features_column=data.features_column or "")


@dataclass(frozen=True)
class DocumentLayout(SourceLayout):
    """Format of a file: one with lines, and where the source is in them, or a document."""

    format: Annotated[
        str,
        typer.Option(
            help="Format of the input: text (one text per line), tsv, csv, jsonl, tmx, parquet or datasets (of "
            "Hugging Face); or a document, whose structure is kept: txt, html, md, srt, vtt, docx, pptx, odt or "
            "odp. Default: from the file name.",
            show_default=False,
        ),
    ] = ""


@dataclass(frozen=True)
class PairFormat(SourceFormat):
    """Format of a file, and the positions of source and target in its lines."""

    target_column: Annotated[str | None, setting_option("data.target_column")] = None
    target_language: TargetLanguage = ""


@dataclass(frozen=True)
class FileLayout(SourceLayout, PairFormat):
    """Format of a file for a run, and the positions of source, target and features in its lines."""

    def with_features(self, data: DataConfig) -> Self:
        """Return the layout with the column of features (V;PST) in the training files that `data` describes.

        If there is one, the column of targets is also that of these files unless it was chosen: features may be in the
        column where targets usually are.
        """
        column = data.target_column if self.target_column is None and data.features_column else self.target_column
        return replace(super().with_features(data), target_column=column)

    @classmethod
    def from_settings(cls, data: DataConfig) -> FileLayout:
        """Return the format and columns of the training files that the section `data` of a configuration describes."""
        # `source_features` are files there, one for each training file, which do not describe other files
        names = [field.name for field in fields(cls) if field.name != "source_features"]
        return cls(**{name: getattr(data, name) for name in names}).with_features(data)


@dataclass(frozen=True)
class Input:
    """Sources that a command processes: lines of a file, of standard input, or typed at a terminal."""

    file: Path | None
    layout: SourceFormat = SourceFormat()
    may_be_empty: bool = False  # whether a file without lines is accepted

    @property
    def interactive(self) -> bool:
        """Whether the user types the lines at a terminal."""
        return self.file is None and sys.stdin is not None and sys.stdin.isatty()

    def check(self) -> None:
        """Raise a UserError if the file cannot be opened or its format is unknown, without importing torch.

        Without a file, the format must be one that can be read from standard input.
        """
        if self.file is None:
            file_format = self.layout.corpus(STANDARD_INPUT).file_format
            if not file_format.can_be_streamed:
                raise UserError(
                    f"the format {file_format.name} cannot be read from standard input: name a file as an argument"
                )
        else:
            self.layout.corpus(self.file).check()

    def sources(self) -> Iterator[Source]:
        """Yield the sources: texts, arrays of feature vectors (.npz, .npy), or paths of image or sound files."""
        if self.interactive:
            yield from typed_lines()
            return
        if self.file is None:
            yield from read_sources(self.layout.standard_input())
            return
        from dragoman.data.feature_files import FeatureFile
        from dragoman.data.media_files import read_media_paths

        corpus = self.layout.corpus(self.file)
        if corpus.has_media:
            yield from read_media_paths(corpus)
        elif corpus.has_features:
            yield from FeatureFile(self.file)
        else:
            yield from read_sources(corpus, self.may_be_empty)

    def texts(self) -> Iterator[str]:
        """Yield the sources; raise a UserError at the first one that is not text."""
        for source in self.sources():
            if not isinstance(source, str):
                raise UserError(
                    f"{self.file} holds images, sound or feature vectors, but this command needs text: name a text file"
                )
            yield source

    def process(self, process: Callable[[Iterable[Any], int], None]) -> None:
        """Call `process(sources, first_index)` once with all sources, or, at a terminal, for each line that is typed.

        `first_index` is the index of the first of these sources in the input, from 0. At a terminal, Ctrl-C cancels the
        processing of a line, and a UserError is printed; neither ends the program.
        """
        if not self.interactive:
            process(self.sources(), 0)
            return
        for index, line in enumerate(typed_lines()):
            try:
                process([line], index)
            except KeyboardInterrupt:
                log("\ncancelled")
            except UserError as error:
                print(f"dragoman: {error}", file=sys.stderr)


def read_sources(corpus: Corpus, allow_empty: bool = False) -> Iterator[str]:
    """Yield the sources of a corpus: the source column of files with columns, or whole lines of text.

    The source of a dialogue is all turns before its last reply. Features of a source (symbols such as V;PST) follow
    after a tab. A corpus without any line is a UserError unless `allow_empty`.
    """
    from dragoman.data.corpus import zip_lines

    inputs = corpus.file_format.read_inputs(corpus, allow_empty)  # texts, or lists of the turns of a dialogue
    sources = (text if isinstance(text, str) else _split_dialogue(text).before for text in inputs)
    if corpus.source_features is None:
        return sources
    with_features = zip_lines(sources, corpus.source, corpus.source_features)
    return (f"{source}\t{features}" for source, features in with_features)


def read_pairs(
    source: Path, target: Path | None, layout: SourceFormat, option: str = "--target"
) -> tuple[list[Any], list[str]]:
    """Read sources and targets from two files, or from one file with both sides.

    Args:
        source: file of text or with columns, .npz or .npy with feature vectors, or list or folder of image or sound
            files.
        target: file of text, line by line with the source; None if the source file holds both.
        layout: format and columns of the source file.
        option: the option that names the target file, for the error if there are no targets.

    Returns:
        Sources and targets. Sources are texts, arrays of feature vectors, or paths of image or sound files. The target
        of a dialogue is its last reply.
    """
    from dragoman.data.data_formats import detect_data_format, has_references
    from dragoman.data.media_files import read_media_pairs

    corpus = layout.corpus(source, target)
    if not has_references(corpus):
        missing = "their key with --target-column" if layout.source_column else f"their file with {option}"
        raise UserError(
            f"{source} contains only source texts, without translations: name {missing}, or use a file with both, such "
            "as TSV or CSV"
        )
    if corpus.has_media:
        media = list(read_media_pairs(corpus))
        return [Path(pair.source) for pair in media], [pair.target or "" for pair in media]
    data_format = detect_data_format(corpus)
    pairs = data_format.read([corpus])
    if data_format.is_dialogue:
        dialogues = [_split_dialogue(pair.source.split("\t")) for pair in pairs]
        return [dialogue.before for dialogue in dialogues], [dialogue.reply for dialogue in dialogues]
    sources, targets = [], []
    for pair in pairs:
        # `features` are the vectors of an image or recording, None for text
        sources.append(pair.source_with_features if pair.features is None else pair.features)
        targets.append(pair.target or "")
    return sources, targets


def group_by_source(
    sources: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]], list[int]]:
    """Collect the references of equal sources, such as all pronunciations of a word.

    Returns the different sources, the different references of each, and the index of the first line of each.
    """
    first_lines: dict[str, int] = {}
    grouped: dict[str, dict[str, None]] = {}  # by source: an ordered set of its references
    for index, (source, texts) in enumerate(zip(sources, references)):
        first_lines.setdefault(source, index)
        grouped.setdefault(source, {}).update(dict.fromkeys(texts))
    return list(grouped), [list(texts) for texts in grouped.values()], list(first_lines.values())


def read_texts(path: Path, format: str = "") -> list[str]:
    """Read a text file, one text per line.

    A file whose name says that it holds pairs (.tsv, .jsonl) is a UserError unless `format` (--format) is "text"; other
    formats are those of the file of sources.
    """
    from dragoman.data.text_files import read_lines

    expected_format = SourceFormat("text" if format == "text" else "")  # "": by the file name
    detected = expected_format.corpus(path).file_format
    if detected.has_both_sides:
        raise UserError(
            f"{path} is a {detected.name} file by its name, but a file with one text per line is needed: if it is such "
            "a file, add --format text"
        )
    return [text for _, text in read_lines(path)]


def check_counts(counts: Sequence[tuple[Path, int]]) -> None:
    """Raise a UserError if files, given with their numbers of lines, do not all have the same number."""
    (first, expected), *others = counts
    for path, count in others:
        if count != expected:
            raise UserError(
                f"{first} has {expected:,} lines but {path} has {count:,}: the files of a test set need equal line "
                "counts, so correct one of them"
            )


class SplitDialogue(NamedTuple):
    """The turns of a dialogue before its last reply, separated by tabs, and the reply (empty if there is none)."""

    before: str
    reply: str


def _split_dialogue(turns: list[str]) -> SplitDialogue:
    """Split a dialogue before its last reply; turns of the user (first, third, …) and replies alternate.

    A last turn of the user that has no reply is left out, unless it is the only turn.
    """
    if len(turns) == 1:
        return SplitDialogue(turns[0], reply="")
    num_turns = len(turns) // 2 * 2  # even: up to the last reply
    return SplitDialogue("\t".join(turns[: num_turns - 1]), turns[num_turns - 1])


def typed_lines(prompt: str = "> ") -> Iterator[str]:
    """Yield lines typed at a terminal after `prompt`. Ctrl-C discards a line, Ctrl-D ends the input."""
    with suppress(ImportError):
        import readline  # noqa: F401  # adds line editing to `input`
    log("one sentence per line; Ctrl-D ends")
    while True:
        try:
            with _stdout_on_stderr():
                line = input(prompt)
            line.encode()  # fails if bytes that are not UTF-8 were typed
        except EOFError:  # Ctrl-D
            log("")
            return
        except KeyboardInterrupt:  # Ctrl-C
            log("")
        except UnicodeEncodeError:
            log("dragoman: this line is not UTF-8 and was ignored; set the terminal to UTF-8")
        else:
            yield line


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Redirect standard output to standard error while the block runs.

    So the prompt of `input` does not get among the results on standard output. File descriptors are redirected, because
    readline does not write to `sys.stdout`.
    """
    stdout_descriptor, stderr_descriptor = 1, 2
    sys.stdout.flush()
    saved_stdout = os.dup(stdout_descriptor)
    try:
        os.dup2(stderr_descriptor, stdout_descriptor)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved_stdout, stdout_descriptor)
        os.close(saved_stdout)
