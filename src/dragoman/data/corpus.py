"""Corpora on disk, read as a stream: two files of text, or one file or folder with columns for source and target."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

from dragoman.data.compression import COMPRESSIONS
from dragoman.data.text_files import check_file, decode_line, open_decompressed, read_raw_lines, split_lines
from dragoman.errors import UserError, unknown_name
from dragoman.text.language_names import language_spellings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dragoman.config import DataConfig, FeatureConfig
    from dragoman.data.cleaning import KeptPairs
    from dragoman.data.file_formats import FileFormat
    from dragoman.data.media_files import MediaFile

MEDIA_SAMPLE_LINES = 100  # of a list, of which one must name an existing file
FEATURE_SUFFIXES = (".npy", ".npz")

Column = int | str
Item = TypeVar("Item")


class SentencePair(NamedTuple):
    """A sentence, its translation and where they come from."""

    source: str  # for feature vectors a description, which identifies them
    target: str | None  # None in monolingual data
    corpus: str
    line: int  # from 1
    features: NDArray[Any] | MediaFile | None = None  # in place of source text: vectors, S F, or a file with vectors
    follows_previous: bool = False  # whether the line before belongs to the same document
    holdout_unit: str = ""  # identifies pairs that are held out together, a part of a document; default: the source
    feature_symbols: str = ""  # features of the source, such as V;PST;3

    @property
    def source_with_features(self) -> str:
        """The source as one text: with its features, such as V;PST, after a tab, if it has any."""
        return f"{self.source}\t{self.feature_symbols}" if self.feature_symbols else self.source


class ColumnChoice(NamedTuple):
    """Which column of a file holds the sources, the targets or the features of sources."""

    role: str  # source, target or features: the name of the column by default
    column: Column | None = None  # its name or number, if it was chosen
    language: str = ""  # such as en: the name of the column, or the language in a translation memory


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus: one text file per side, or one file or folder with columns for both."""

    source: Path
    target: Path | None = None
    format: str = ""  # a name in FILE_FORMATS, such as csv; detected from the file name if empty
    source_column: Column | None = None  # name or number (from 0) of the source column; likewise `target_column`
    target_column: Column | None = None
    #: how vectors are computed if the sources are image or sound files; None: by default settings
    features: FeatureConfig | None = None
    #: whether the first line of CSV or TSV names the columns; None: in CSV, and if a column is chosen by name
    header: bool | None = None
    #: language of the sources in a translation memory, or name of their column; likewise `target_language`
    source_language: str = ""
    target_language: str = ""
    stream: BinaryIO | None = None  # open file to read instead of `source`, which then is only a name
    #: name or number of the column with features of the sources, such as V;PST; None or '': none
    features_column: Column | None = None
    source_features: Path | None = None  # file of features, line by line with the source, in place of a column
    kept: KeptPairs | None = None  # which pairs are read, after cleaning; None: all

    @classmethod
    def from_settings(
        cls,
        data: DataConfig,
        source: str,
        target: str | None = None,
        features: FeatureConfig | None = None,
        source_features: str | None = None,
    ) -> Corpus:
        """Return the corpus of a source file, its target file and its file of features, with the columns of `data`.

        A source that is the stem of a Moses corpus stands for its files: `corpus` for corpus.en and corpus.de. Without
        `target`, the source file has both sides or is monolingual; `features` are the settings for vectors of images
        and sound, None their defaults.
        """
        return cls(
            source=Path(source),
            target=Path(target) if target else None,
            format=data.format,
            source_column=data.source_column,
            target_column=data.target_column,
            features=features,
            header=data.header,
            source_language=data.source_language,
            target_language=data.target_language,
            features_column=data.features_column,
            source_features=Path(source_features) if source_features else None,
        ).with_language_files()

    @property
    def name(self) -> str:
        """Return the path of the source file, which names the corpus in messages and reports."""
        return str(self.source)

    @property
    def files(self) -> list[Path]:
        """Return the paths of the source file and, if there is one, of the target file."""
        return [self.source] if self.target is None else [self.source, self.target]

    @property
    def columns(self) -> tuple[ColumnChoice, ColumnChoice]:
        """The columns of source and target in a file with both, each chosen by name, number or language, or not at all.

        Then the file format chooses it.
        """
        return (
            ColumnChoice("source", self.source_column, self.source_language),
            ColumnChoice("target", self.target_column, self.target_language),
        )

    @property
    def feature_columns(self) -> tuple[ColumnChoice, ...]:
        """The column with features of the sources such as V;PST: one element, or none."""
        return () if self.features_column in (None, "") else (ColumnChoice("features", self.features_column),)

    @property
    def has_feature_symbols(self) -> bool:
        """Whether sources have features such as V;PST, in a column or a file of their own."""
        return bool(self.feature_columns) or self.source_features is not None

    @property
    def _is_array_file(self) -> bool:
        """Whether the source is a file of arrays of feature vectors (.npy or .npz), and no other format is declared."""
        return self.source.suffix.lower() in FEATURE_SUFFIXES and not self.format

    @property
    def has_features(self) -> bool:
        """Whether the sources are feature vectors, of a file of arrays or of image and sound files."""
        return self._is_array_file or self.has_media

    @property
    def has_media(self) -> bool:
        """Whether the source is a list or folder of image or sound files; of a list, the first lines are read."""
        from dragoman.data.media_files import contains_media, lists_media

        if self._is_array_file:
            return False
        if not self.source.is_file():  # a folder, or a pipe, which is not read here because that is possible only once
            return self.source.is_dir() and contains_media(self.source)
        try:  # to read the first lines of a list
            sources = islice(self.read_sources(allow_empty=True), MEDIA_SAMPLE_LINES)
            texts = [pair.source for pair in sources]
        except UserError:  # not a list, or one with an error that is reported where the corpus is read
            return False
        return lists_media(self, texts)

    @property
    def has_target_text(self) -> bool:
        """Whether the corpus has target texts, such as captions of its images.

        They are in a target file, in a column, or they are the names of the subfolders of a folder; to read pairs of a
        folder with neither is a UserError.
        """
        return self.target is not None or self.source.is_dir() or self.file_format.has_both_sides

    @property
    def file_format(self) -> FileFormat:
        """The declared format, or the one that the file names imply.

        An unknown format is a UserError, and so is a target file beside a file that has both sides.
        """
        from dragoman.data.format_registry import FILE_FORMATS, format_by_name

        if self.format and self.format not in FILE_FORMATS:
            raise unknown_name("corpus format", self.format, FILE_FORMATS)
        file_format = FILE_FORMATS[self.format] if self.format else format_by_name(self.source)
        if self.target is not None and file_format.has_both_sides:
            raise UserError(
                f"{self.source} is read as {file_format.name}, a format that contains source and target, but there is "
                f"also a target file {self.target}: leave out the target file, or read both as lines of text with "
                "--format text"
            )
        if self.target is not None and not self.format and format_by_name(self.target).has_both_sides:
            raise UserError(
                f"{self.target} has the suffix of a format that contains source and target, but is given as the target "
                f"file of {self.source}: give it as the only file, or read both as lines of text with --format text"
            )
        return file_format

    def with_language_files(self) -> Corpus:
        """Replace the stem of a Moses corpus by its files: `corpus` for en and de becomes corpus.en and corpus.de.

        A corpus whose source exists, or that has a target file, is returned as it is.
        """
        if self.target is not None or not self.source_language or self.source.exists():
            return self
        source, target = (
            language_file(self.source, language) if language else None
            for language in (self.source_language, self.target_language)
        )
        return self if source is None else replace(self, source=source, target=target)

    def check(self) -> None:
        """Raise a UserError if a file cannot be opened, or its format is unknown or needs a missing package."""
        from dragoman.data.media_files import contains_media

        file_format = self.file_format
        for path in self.files:
            # a pipe can be opened only once, and a folder of images or sound has no file format
            if path.is_fifo() or (path.is_dir() and contains_media(path)):
                continue
            file_format.check_file(path)
        if self.source_features is not None:
            check_file(self.source_features)

    def open(self) -> AbstractContextManager[io.BufferedReader | BinaryIO]:
        """Return `stream`, which is open already, if it is set; otherwise open the source file, decompressed."""
        return open_decompressed(self.source) if self.stream is None else nullcontext(self.stream)

    def read_lines(self, allow_empty: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (number from 1, text) for the lines of the source file.

        An empty file is a UserError unless `allow_empty`; an empty `stream`, such as standard input, is not.
        """
        if self.stream is None:
            lines = read_raw_lines(self.source, allow_empty)
        else:
            lines = split_lines(self.stream, self.source, allow_empty=True)
        for number, line in enumerate(lines, 1):
            yield number, decode_line(line, self.source, number)

    def read_pairs(self) -> Iterator[SentencePair]:
        """Read sentence pairs, with the features of their sources such as V;PST, from a column or a file of their own.

        Such a file (`source_features`) has one line for each pair.
        """
        pairs = self.file_format.read_pairs(self)
        if self.source_features is None:
            return pairs
        with_features = zip_lines(pairs, self.source, self.source_features)
        return (pair._replace(feature_symbols=features) for pair, features in with_features)

    def read_sources(self, allow_empty: bool = False) -> Iterator[SentencePair]:
        """Read the source sentences only; the target is None.

        Features from a column follow their source after a tab. A file without sources is a UserError by default.
        """
        for number, text in self.file_format.read_sources(self, allow_empty):
            yield SentencePair(text, target=None, corpus=self.name, line=number)

    def read_dialogues(self) -> Iterator[SentencePair]:
        """Read dialogues, one per line; the source is the tab-separated turns, the target is None.

        A line without a dialogue of at least two turns is a UserError.
        """
        for number, turns in self.file_format.read_turns(self):
            if turns is None or len(turns) < 2:
                problem = "neither 'turns' nor 'messages'" if turns is None else "fewer than 2 turns"
                raise UserError(
                    f"{self.source}, line {number:,} has {problem}: expected a dialogue of 2 or more turns in each line"
                )
            yield SentencePair("\t".join(turns), target=None, corpus=self.name, line=number)


def zip_lines(items: Iterable[Item], path: Path, feature_file: Path) -> Iterator[tuple[Item, str]]:
    """Yield items, each read from a line of the file `path`, with their features: the same lines of `feature_file`.

    Different numbers of lines are a UserError.
    """
    raw_lines = read_raw_lines(feature_file, allow_empty=True)
    lines = (decode_line(line, feature_file, number) for number, line in enumerate(raw_lines, 1))
    for number, (item, line) in enumerate(zip_longest(items, lines), 1):
        if item is None or line is None:
            more, fewer = (feature_file, path) if item is None else (path, feature_file)
            raise UserError(
                f"{more} has more lines than {fewer}, which has {number - 1:,}: a file of source features needs "
                "one line for each source sentence, so add or remove lines"
            )
        yield item, line


def language_file(stem: Path, language: str) -> Path | None:
    """Return the file of a Moses corpus in one language, such as corpus.en.gz for `stem` corpus; None if there is none.

    It may be plain or compressed. The file of eng_Latn may also be that of en.
    """
    suffixes = ("", *(kind.suffix for kind in COMPRESSIONS))
    names = [f"{stem.name}.{code}{suffix}" for code in language_spellings(language) for suffix in suffixes]
    return next((path for name in names if (path := stem.with_name(name)).exists()), None)
