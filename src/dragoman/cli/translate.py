"""`dragoman translate`: translate text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.bulk_jobs import BulkOptions, LoadRun, is_bulk_job, run_bulk_job
from dragoman.cli.checks import check_run
from dragoman.cli.document_files import DocumentOptions, check_document_options, read_document, translate_document
from dragoman.cli.inputs import DocumentLayout, Input, SourceFormat, SourceLayout
from dragoman.cli.options import ModelOptions, PrecisionOptions, RunFolder, TargetLanguage, choose_languages
from dragoman.cli.search_options import SearchOptions
from dragoman.cli.translation_output import OutputOptions, log_suspicious, print_streams
from dragoman.console import log, print_json
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory

if TYPE_CHECKING:
    from dragoman.run import Run, Source, Translation


@dataclass(frozen=True)
class ConstraintOptions:
    """What translations must or must not contain, how sources are split, and the treatment of unknown words."""

    prefixes: Annotated[Path | None, "Beginning of each translation, line by line with the source.", "FILE"] = None
    include: Annotated[
        Path | None, "Phrases that each translation must contain: one line per source, separated by tabs.", "FILE"
    ] = None
    exclude: Annotated[list[str] | None, "Phrase that no translation may contain. Repeatable.", "PHRASE"] = None
    copy_unknown: Annotated[bool, "With a word tokenizer: copy unknown words from the source into the translation."] = (
        False
    )
    dictionary: Annotated[
        Path | None, "File of translations of unknown words: word, tab, translation on each line.", "FILE"
    ] = None
    corpus_tag: Annotated[str | None, "Token to prepend to each source: one of the run's data.corpus_tags.", "TAG"] = (
        None
    )
    split_sentences: Annotated[bool, "Translate the sentences of a line separately and rejoin them."] = False

    def __post_init__(self) -> None:
        """Raise a UserError for --prefixes or --include, which belong to whole lines, with --split-sentences."""
        if self.split_sentences and (self.prefixes or self.include):
            option = "--prefixes" if self.prefixes else "--include"
            raise UserError(
                f"{option} applies to a whole input line and cannot be used with --split-sentences: leave one of "
                "them out"
            )

    def check_files(self) -> None:
        """Raise a UserError if a file of --prefixes, --include or --dictionary cannot be opened."""
        from dragoman.data.text_files import check_file

        for path in filter(None, (self.prefixes, self.include, self.dictionary)):
            check_file(path)

    def read_dictionary(self) -> dict[str, str] | None:
        """Return the translations of unknown words by word (--dictionary).

        Words without an entry are copied: with --copy-unknown alone the result is empty. None: words stay unknown.
        """
        from dragoman.search.unknown_words import read_dictionary

        if self.dictionary is not None:
            return read_dictionary(self.dictionary)
        return {} if self.copy_unknown else None


@dataclass(frozen=True)
class TranslatorOptions(PrecisionOptions, ModelOptions):
    """Which models translate, and how they are computed."""

    ensemble: Annotated[
        list[Path] | None, "Translate with an ensemble: average the probabilities with this run. Repeatable.", "RUN"
    ] = None
    shortlist: Annotated[
        bool,
        "Compute only the output tokens that 'dragoman shortlist' has learned for the source tokens: faster on a CPU.",
    ] = False
    num_workers: Annotated[
        int,
        typer.Option(help="Number of processes that translate in parallel on a CPU; they share the weights.", min=1),
    ] = 1

    def check_runs(self, run: Path) -> None:
        """Raise a UserError for a run or a member of the ensemble that cannot be loaded, without importing torch."""
        self.check(run, *(self.ensemble or []))

    def load_translator(self, run: Path) -> Run:
        """Load a run and those of its ensemble, with the shortlist and the worker processes of the options.

        A shortlist has for each source token the target tokens that its translations may contain. The number format of
        --int8 or --bfloat16, with which the first run is loaded, applies to all models of the ensemble.
        """
        loaded = self.load(run, self.precision)
        if self.ensemble:
            loaded = loaded.ensemble(*(self.load(other) for other in self.ensemble))
        if self.shortlist:
            loaded = loaded.with_shortlist()
        return loaded.with_workers(self.num_workers)

    def fingerprint(self) -> dict[str, object]:
        """Return the options that must be equal when an interrupted file is resumed, by names for error messages."""
        return {
            "--ensemble": self.ensemble or [],
            "--shortlist": self.shortlist,
            "weights": self.precision,
            "several workers": self.num_workers > 1,
        }


def translate(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Input file: text with one sentence per line, or TSV, CSV, JSON lines, TMX or Parquet; a document "
            "(.html, .md, .srt, .vtt, .docx, .pptx, .odt, .odp); .npz feature vectors, or a list or folder of image or "
            "sound files. Default: standard input."
        ),
    ] = None,
    *,
    search: SearchOptions,
    show_search: Annotated[bool, "Print the search configuration as JSON and exit."] = False,
    constraints: ConstraintOptions,
    layout: DocumentLayout,
    target_language: TargetLanguage = "",
    output: OutputOptions,
    bulk: BulkOptions,
    stream: Annotated[bool, "Show each translation token by token while it is generated."] = False,
    documents: DocumentOptions,
    translator: TranslatorOptions,
) -> None:
    """Translate a file or standard input line by line, or interactively at a terminal.

    The order of lines is kept, and an empty line stays empty. Files of any size are translated in bounded memory.
    The source column of files with columns is translated; the output is text unless --json-lines is given. Lines of
    text for a run that was trained with features end with these after a tab: walk<TAB>V;PST.

    Documents (HTML, Markdown, subtitles, office files, and plain text with --format txt) keep their structure: their
    texts are split into sentences, and tags such as bold words and links are placed around the aligned words of the
    translation.

    A multilingual model, such as NLLB-200, translates between the languages of --from and --to: 'dragoman show
    languages RUN' lists them.

    With --output, translations are written to OUT.part, which is renamed to OUT at the end. If the command is
    interrupted, the same command with --resume continues it.

    With --input, many files are translated in blocks by several processes or machines, into the folder OUT.
    """
    unsupported = {"stream": stream, "prefixes": constraints.prefixes, "include": constraints.include}
    unsupported |= {"json": output.json, "json_lines": output.json_lines, "alignment": output.alignment}
    unsupported |= {"warnings": output.warnings, **layout.feature_options}
    if is_bulk_job(bulk, file, output.output, unsupported):
        translate_files(run, bulk, search, constraints, layout, target_language, output, translator, show_search)
        return
    document_format = documents.find_format(file, layout.format)
    if stream:
        _check_stream(output, constraints)
        if document_format is not None:
            raise UserError(
                "--stream prints each translation token by token, but a document is only written when it is "
                "translated completely: leave out --stream"
            )
    inputs = Input(file, layout.for_run(run), may_be_empty=True)
    if document_format is None:
        inputs.check()
    else:
        check_document_options(search, output, constraints, layout)
    content = read_document(file) if document_format else b""
    translator.check_runs(run)
    if search.draft_model is not None and not show_search:
        check_run(search.draft_model)
    constraints.check_files()
    if not show_search and output.is_done(file):
        log(f"{output.output} is already complete")
        return

    from dragoman.run.sources import normalize_source
    from dragoman.search import search_to_dict

    counted = output.output and not show_search and document_format is None
    total = count_lines(inputs) if counted else None  # number of lines, for the progress bar; None: unknown
    keep_freed_memory()  # in the process, which makes translation on a CPU faster
    loaded = translator.load_translator(run)
    if target_language and not loaded.languages:
        loaded.with_languages(target=target_language)  # raises the UserError that the run has no language codes
    loaded = choose_languages(loaded, layout.source_language, target_language)
    config = search.search_config(loaded)
    exclude, tag = constraints.exclude or (), constraints.corpus_tag
    if show_search:
        print_json(search_to_dict(config))
        return
    if document_format is not None:
        translate_document(loaded, config, content, document_format, documents, output, tag=tag, exclude=exclude)
        return
    if stream:
        inputs.process(lambda sources, _: print_streams(loaded, sources, config, tag, exclude))
        return
    for path in filter(None, (constraints.prefixes, constraints.include)):
        _check_line_count(inputs, path)
    dictionary = constraints.read_dictionary()
    # options that must be equal when an interrupted file is resumed
    fingerprint = {f"--{name.replace('_', '-')}": value for name, value in asdict(constraints).items()}
    # a hash of the content; without a dictionary None, or {} if unknown words are copied
    fingerprint["--dictionary"] = dictionary and blake2b(repr(dictionary).encode(), digest_size=8).hexdigest()
    fingerprint |= {"--alignment": output.alignment, "--json-lines": output.json_lines, **translator.fingerprint()}

    def translate_sources(sources: Iterable[Source], first_index: int = 0) -> Iterator[Translation]:
        """Translate sources with all options; `first_index` is the index of the first one in the input, from 0."""

        def lines_from_first(path: Path | None) -> Iterator[str] | None:
            """Return the lines of a file of --prefixes or --include for these sources; None without a file."""
            return None if path is None else islice(_padded_lines(path), first_index, None)

        phrase_lines = lines_from_first(constraints.include)
        if constraints.split_sentences:  # drop white space around lines, as without splitting
            sources = (normalize_source(loaded, source) for source in sources)
        return loaded.translate_stream(
            sources,
            config,
            alignment=output.alignment,
            dictionary=dictionary,
            tag=tag,
            first_index=first_index,
            prefixes=lines_from_first(constraints.prefixes),
            include=None if phrase_lines is None else map(_split_phrases, phrase_lines),
            exclude=exclude,
            split_sentences=constraints.split_sentences,
        )

    translate_and_check = partial(log_suspicious, loaded, translate=translate_sources)
    translate_all = translate_and_check if output.warnings else translate_sources
    output.write(loaded, config, inputs, translate_all, fingerprint=fingerprint, total=total)


def translate_files(
    run: Path,
    bulk: BulkOptions,
    search: SearchOptions,
    constraints: ConstraintOptions,
    layout: SourceLayout,
    target_language: str,
    output: OutputOptions,
    translator: TranslatorOptions,
    show_search: bool,
) -> None:
    """Translate the files of --input in blocks, or with `show_search` only print the search configuration.

    The other arguments are the run folder and options of `dragoman translate`; a `target_language` of "" is the default
    of the model. The fingerprint of the job has what must be equal when it is resumed: the run, search and options.
    """
    translator.check_runs(run)
    constraints.check_files()

    from dragoman.bulk import BulkJob, RowTask, RunRows
    from dragoman.bulk.run_rows import translate_rows
    from dragoman.run.file_translation import translation_fingerprint
    from dragoman.search import search_to_dict

    languages = (layout.source_language, target_language)
    single = replace(translator, num_workers=1)  # each worker of the job translates alone
    # loaded here to check the options and to identify the run; workers load it on the device of --device
    loaded = LoadRun(run, replace(single, device="cpu").load_translator, languages)()
    config = search_to_dict(search.search_config(loaded))
    if show_search:
        print_json(config)
        return
    options = {
        "dictionary": constraints.read_dictionary(),
        "tag": constraints.corpus_tag,
        "exclude": tuple(constraints.exclude or ()),
        "split_sentences": constraints.split_sentences,
    }
    fingerprint = translation_fingerprint(loaded, search.search_config(loaded), single.fingerprint() | options)
    task = RowTask(translate_rows, results={"translation": str}, options={"search": config, **options})
    job = BulkJob(
        bulk.input or [],
        output.output or "",
        RunRows(LoadRun(run.resolve(), single.load_translator, languages), task),
        fingerprint,
        block_bytes=bulk.block_kib * 1024,
        format=layout.format,
        columns={"source": layout.source_column},
        results=bulk.name_result(task.results),
    )
    run_bulk_job(job, bulk, translator.num_workers, output.resume, output.overwrite)


def _split_phrases(line: str) -> list[str]:
    """Return the phrases in a line of the file of --include, which are separated by tabs."""
    return [phrase for phrase in line.split("\t") if phrase.strip()]


def count_lines(inputs: Input) -> int | None:
    """Return the number of sources of a file, or None for standard input and pipes, which can be read only once.

    The whole file is read, so that errors in it show before the translation starts.
    """
    if inputs.file is None or inputs.file.is_fifo() or inputs.file.is_char_device():
        return None
    return sum(1 for _ in inputs.sources())


def _check_stream(output: OutputOptions, constraints: ConstraintOptions) -> None:
    """Raise a UserError for options that need complete translations and cannot be used with --stream.

    All of both groups are rejected if they are given, except for --exclude and --corpus-tag.
    """
    for name, value in (asdict(output) | asdict(constraints)).items():
        if value and name not in ("exclude", "corpus_tag"):  # these two work token by token
            flag = name.replace("_", "-")
            raise UserError(f"--stream prints plain text while it is generated: leave --{flag} out")


def _check_line_count(inputs: Input, path: Path) -> None:
    """Raise a UserError if `path`, a file with one line per source, and the input differ in their number of lines.

    Inputs that can be read only once are not checked.
    """
    expected, count = count_lines(inputs), count_lines(Input(path, SourceFormat("text"), may_be_empty=True))
    if count != expected and None not in (count, expected):
        raise UserError(
            f"the file {path} has {count:,} lines, but the input {inputs.file} has {expected:,} sources: give {path} "
            "one line for each source, which may be empty"
        )


def _padded_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, then empty ones without end, for sources for which the file has no line."""
    from dragoman.data.text_files import read_lines

    return chain((text for _, text in read_lines(path, allow_empty=True)), repeat(""))
