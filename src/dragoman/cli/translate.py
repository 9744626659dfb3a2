"""`dragoman translate`: text to text."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import search_options as searching
from dragoman.cli.checks import check_run
from dragoman.cli.inputs import FileLayout, Format, Input, SourceKey, check_file
from dragoman.cli.live import show
from dragoman.cli.options import (
    Checkpoint,
    Device,
    Json,
    Progress,
    RunFolder,
    log,
    print_json,
    print_json_list,
    program,
    weights_of,
)
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory

if TYPE_CHECKING:
    from dragoman.run import Run, Source, Translation
    from dragoman.run.file_translation import FileProgress
    from dragoman.search import SearchConfig

Translate = Callable[..., "Iterator[Translation]"]  # sources, and the number of the first of them


def translate(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Text, one sentence a line, TSV, JSON lines (plain or gzipped) or .npz; standard input if not given.",
            show_default=False,
        ),
    ] = None,
    search: searching.Description = None,
    show_search: Annotated[
        bool, typer.Option("--show-search", help="Print the search that these options describe, and translate nothing.")
    ] = False,
    beam: searching.Width = None,
    length_penalty: searching.LengthPenalty = None,
    gnmt: searching.Gnmt = False,
    coverage: searching.Coverage = None,
    early_stopping: searching.EarlyStopping = None,
    all_steps: searching.AllSteps = False,
    groups: searching.Groups = None,
    diversity: searching.Diversity = None,
    best: searching.Best = None,
    sample: searching.Sampling = False,
    temperature: searching.Temperature = None,
    top_k: searching.TopK = None,
    top_p: searching.TopP = None,
    min_p: searching.MinP = None,
    typical: searching.Typical = None,
    seed: searching.Seed = None,
    least: searching.Least = None,
    no_repeat: searching.NoRepeat = None,
    risk: searching.Risk = None,
    rerank_with: searching.Judges = None,
    rerank_length: searching.RerankLength = None,
    candidates: searching.Candidates = None,
    exact: searching.Exactly = False,
    states: searching.States = None,
    draft: searching.Draft = None,
    ahead: searching.Ahead = None,
    together: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="RUN",
            help="Translate together with this run, each word by the mean of both. May be repeated.",
            show_default=False,
        ),
    ] = None,
    prefixes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="How each translation begins, line by line with the source.", show_default=False
        ),
    ] = None,
    required: Annotated[
        Path | None,
        typer.Option(
            "--require",
            metavar="FILE",
            help="Phrases that each translation must contain: a line a source, tabs between them.",
            show_default=False,
        ),
    ] = None,
    forbidden: Annotated[
        list[str] | None,
        typer.Option(
            "--forbid",
            metavar="PHRASE",
            help="A word or phrase that no translation may contain. May be repeated.",
            show_default=False,
        ),
    ] = None,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Print word alignments (0-0 1-2) after a tab.")
    ] = False,
    copy_unknown: Annotated[
        bool, typer.Option("--copy-unknown", help="Copy what the vocabulary of a word tokenizer does not know.")
    ] = False,
    dictionary: Annotated[
        Path | None, typer.Option(help="Look unknown words up here first: word, tab and translation a line.")
    ] = None,
    split_sentences: Annotated[
        bool,
        typer.Option(
            "--split-sentences",
            help="Translate the sentences of a line one by one, and write them as one line.",
        ),
    ] = False,
    tag: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Translate as if from this corpus, one of the run's data.corpus_tags."),
    ] = None,
    format: Format = "",
    source_key: SourceKey = None,
    live: Annotated[bool, typer.Option("--live", help="Show each translation as it is written, word by word.")] = False,
    as_json: Json = False,
    json_lines: Annotated[bool, typer.Option("--json-lines", help="Print one JSON document a line.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Write to this file, with progress and time left.", show_default=False
        ),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Go on with OUT where it was stopped or killed, or begin it.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it exists, when all is ready.")
    ] = False,
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Look only at likely words, as 'dragoman shortlist' has learned them.")
    ] = False,
    workers: Annotated[
        int, typer.Option(help="Processes that translate at a time and share the weights, on a CPU.", min=1)
    ] = 1,
    int8: Annotated[
        bool, typer.Option("--int8", help="Multiply by bytes: faster on a CPU, and a little less accurate.")
    ] = False,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Compute in bfloat16: faster on a GPU, and a little less accurate.")
    ] = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Translate a file or standard input, line by line; at a terminal each line as it is typed.

    The order is kept, an empty line stays empty, and an empty file gives empty output. A file may be of any size: it is
    translated bit by bit. Of TSV and JSON lines the source is translated, and the output is text unless --json-lines
    is given.

    With --output the translations grow in OUT.part, which becomes OUT when all are there. If that is stopped or killed,
    the same command with --continue goes on with it.
    """
    wanted = searching.SearchOptions(
        search=search,
        beam=beam,
        length_penalty=length_penalty,
        gnmt=gnmt,
        coverage=coverage,
        early_stopping=early_stopping,
        all_steps=all_steps,
        groups=groups,
        diversity=diversity,
        best=best,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical=typical,
        seed=seed,
        least=least,
        no_repeat=no_repeat,
        risk=risk,
        rerank_with=rerank_with,
        rerank_length=rerank_length,
        candidates=candidates,
        exact=exact,
        states=states,
        draft=draft,
        ahead=ahead,
    )
    target = Output(output, go_on, overwrite, as_json, json_lines, alignment)
    others = {"output": output, "json": as_json, "json-lines": json_lines, "alignment": alignment, "prefixes": prefixes}
    others |= {"require": required, "copy-unknown": copy_unknown, "dictionary": dictionary}
    others |= {"split-sentences": split_sentences}
    if live and (wrong := [name for name, value in others.items() if value]):
        raise UserError(f"--live shows plain text as it is written: leave --{wrong[0]} out")
    if split_sentences and (prefixes or required):
        name = "--prefixes" if prefixes else "--require"
        raise UserError(f"{name} applies to one sentence: leave --split-sentences out")
    given = Input(file, FileLayout(format, source_key), may_be_empty=True)
    given.check()
    for folder in (run, *(together or [])):
        check_run(folder, checkpoint, device)
    if draft is not None and not show_search:
        check_run(draft)
    for path in (prefixes, required, dictionary):
        if path is not None:
            check_file(path)
    if output is not None and not show_search and _is_done(output, file, go_on, overwrite):
        log(f"{output} is complete already: nothing is left to do")
        return

    from dragoman import load
    from dragoman.run.sources import normalize_source
    from dragoman.search import search_to_dict
    from dragoman.search.unknown_words import read_dictionary

    total = _count(given) if output and not show_search else None
    weights = weights_of(int8, bfloat16)
    keep_freed_memory()
    loaded = load(run, checkpoint, device, weights=weights)
    if together:
        loaded = loaded.ensemble(*(load(other, checkpoint, device) for other in together))
    if shortlist:
        loaded = loaded.with_shortlist()
    loaded = loaded.with_workers(workers)
    settings = wanted.describe(loaded)
    if show_search:
        print_json(search_to_dict(settings))
        return
    if live:
        given.answer(lambda sources, _: show(loaded, sources, settings, tag, forbidden or ()))
        return
    for lines in (prefixes, required):
        _check_lines(given, lines)
    known = read_dictionary(dictionary) if dictionary else {} if copy_unknown else None
    words = known and blake2b(repr(known).encode(), digest_size=8).hexdigest()
    made: dict[str, Any] = {"alignment": alignment, "JSON lines": json_lines, "dictionary": words, "tag": tag}
    made |= {"with": [str(other) for other in together or []], "prefixes": prefixes and str(prefixes)}
    made |= {"required": required and str(required), "forbidden": forbidden, "weights": weights}
    made |= {"shortlist": shortlist, "several workers": workers > 1}
    made |= {"split sentences": True} if split_sentences else {}

    def translated(sources: Iterable[Source], first: int = 0) -> Iterator[Translation]:
        begun, phrases = (
            None if lines is None else islice(_lines_of(lines), first, None) for lines in (prefixes, required)
        )
        if split_sentences:  # white space around a line goes, as without splitting
            sources = (normalize_source(loaded, source) for source in sources)
        return loaded.translate_stream(
            sources,
            settings,
            alignment=alignment,
            dictionary=known,
            tag=tag,
            first_index=first,
            prefixes=begun,
            include=None if phrases is None else map(_phrases, phrases),
            exclude=forbidden or (),
            split_sentences=split_sentences,
        )

    target.write(loaded, settings, given, translated, made, total)


@dataclass(frozen=True)
class Output:
    """Where translations go, and how they look."""

    file: Path | None
    go_on: bool
    overwrite: bool
    as_json: bool
    json_lines: bool
    alignment: bool

    def __post_init__(self) -> None:
        if self.as_json and self.json_lines:
            raise UserError("--json prints one document, --json-lines one a line: choose one of them")
        if self.file is None and (self.go_on or self.overwrite):
            raise UserError(f"{'--continue' if self.go_on else '--overwrite'} is for a file: name it with --output")
        if self.file is not None and self.as_json:
            raise UserError("a file gets one JSON document a line: use --json-lines with --output")

    def write(
        self,
        run: Run,
        settings: SearchConfig,
        given: Input,
        translated: Translate,
        made: dict[str, Any],
        total: int | None,
    ) -> None:
        """Translate what there is and write it; `made` is what must be the same for a file to be gone on with."""
        from dragoman.run.file_translation import translation_fingerprint, window_size, write_translations

        best = settings.n_best

        def written(translation: Translation) -> str:
            if self.json_lines:
                return json.dumps(asdict(translation), ensure_ascii=False) + "\n"
            return "".join(f"{line}\n" for line in _lines(translation, best, self.alignment))

        def show(sources: Iterable[Source], first: int) -> None:
            if self.as_json:
                print_json_list(asdict(translation) for translation in _warn(translated(sources, first)))
                return
            for translation in _warn(translated(sources, first)):
                print(written(translation), end="", flush=True)

        if self.file is not None:
            places = write_translations(
                self.file,
                given.sources(),
                translated,
                written,
                translation_fingerprint(run, settings, made),
                window_lines=window_size(run),
                resume=self.go_on,
                overwrite=self.overwrite,
            )
            _write(places, self.file, total, given.file is not None)
        else:
            given.answer(show)


def _phrases(line: str) -> list[str]:
    return [phrase for phrase in line.split("\t") if phrase.strip()]


def _lines_of(file: Path) -> Iterator[str]:
    """The lines of a file, and after them as many empty ones as are asked for."""
    from dragoman.data.text_files import read_lines

    return chain((text for _, text in read_lines(file, allow_empty=True)), repeat(""))


def _is_done(output: Path, file: Path | None, go_on: bool, overwrite: bool) -> bool:
    """Whether the output is there to be gone on with and complete; what may not be written is refused."""
    from dragoman.run.file_translation import check_output, is_complete
    from dragoman.storage import os_errors_as_user_errors

    if go_on and file is None:
        raise UserError("standard input cannot be gone on with: write it to a file, and translate that")
    with os_errors_as_user_errors(output):
        if go_on and is_complete(output):
            return True
        if file is not None and file.exists() and output.exists() and file.samefile(output):
            raise UserError(f"{output} is the input: name another file for the output")
        check_output(output, overwrite)
    return False


def _count(given: Input) -> int | None:
    """How many lines the input has, so that it is read once before any is translated: what is wrong is said at once.

    None where it can be read only once.
    """
    if given.file is None or given.file.is_fifo() or given.file.is_char_device():
        return None
    return sum(1 for _ in given.sources())


def _check_lines(given: Input, lines: Path | None) -> None:
    """What is asked of each source must stand beside it."""
    if lines is None or (sources := _count(given)) is None:
        return
    found = _count(Input(lines, FileLayout("text"), may_be_empty=True))
    if found is not None and found != sources:
        raise UserError(
            f"{lines} has {found:,} lines, but {given.file} {sources:,}: give one for each, an empty one for nothing"
        )


def _write(places: Generator[FileProgress], output: Path, total: int | None, again: bool) -> None:
    """Write a file, show how far it has come, and say how to go on with it if it is stopped."""
    place, progress = None, Progress(total)
    try:
        with progress, closing(places):
            for place in places:
                if progress.done is None and place.lines:
                    log(f"going on after {place.lines:,} lines")
                progress.show(place.lines)
    except (KeyboardInterrupt, UserError):
        if place is not None and place.lines:
            log(f"{place.lines:,} lines are translated and safe in {output}.part")
            if again:
                arguments = [word for word in sys.argv[1:] if word != "--continue"]
                log(f"go on with:  {program()} {shlex.join([*arguments, '--continue'])}")
        raise
    assert place is not None
    _say_limits(place.unfinished, place.truncated_sources, place.unproven)
    log(f"{output}: {progress.summary()}")


def _lines(translation: Translation, best: int, alignment: bool) -> Iterator[str]:
    links = "\t" + " ".join(f"{s}-{t}" for s, t in translation.alignment or []) if alignment else ""
    if best == 1:
        yield _one_line(translation.text) + links
        return
    for one in (translation, *translation.alternatives):
        yield f"{one.score:.4f}\t{_one_line(one.text)}{links if one is translation else ''}"
    yield ""


def _one_line(text: str) -> str:
    """A line for a line: a model of bytes may write line feeds."""
    return text.replace("\n", " ").replace("\r", " ")


def _warn(translations: Iterable[Translation]) -> Iterator[Translation]:
    """Say at the end how many were cut off at a length limit."""
    unfinished = cut = unproved = 0
    for translation in translations:
        unfinished += not translation.finished
        cut += translation.truncated_source
        unproved += translation.proven_optimal is False
        yield translation
    _say_limits(unfinished, cut, unproved)


def _say_limits(unfinished: int, cut: int, unproved: int) -> None:
    if unfinished:
        log(f"{unfinished:,} translations reached the length limit before they ended")
    if cut:
        log(f"{cut:,} lines were longer than the run reads (search.max_source_length) and were cut there")
    if unproved:
        log(
            f"{unproved:,} translations are the best that were found, but not proved to be: exact search gave up "
            "(--states lets it look further)"
        )
