"""`dragoman translate`: text to text."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from hashlib import blake2b
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.common import (
    Checkpoint,
    Device,
    Json,
    Progress,
    RunFolder,
    beam_settings,
    print_json_list,
    program,
    say,
    sources_of,
)
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.run import Source, Translation
    from dragoman.run.streaming import Place


def translate(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Text, one sentence a line, plain or gzipped, or .npz; standard input if not given.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the beam; 1 is greedy search.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="α of log p(y|x) / |y|^α.")] = None,
    gnmt: Annotated[bool, typer.Option("--gnmt", help="Divide by GNMT's ((5 + |y|) / 6)^α instead of |y|^α.")] = False,
    coverage: Annotated[
        float | None, typer.Option(help="β: how much it counts that every source word was looked at.")
    ] = None,
    all_steps: Annotated[
        bool, typer.Option("--all-steps", help="Search up to the length limit, not only until enough are complete.")
    ] = False,
    best: Annotated[int, typer.Option(help="Print the N best, each with its score before it.", min=1)] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw from p(y|x) instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(help="Of sampling.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that make up p of the mass.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Sample from tokens at least so many times as likely as the likeliest.")
    ] = None,
    typical: Annotated[
        float | None,
        typer.Option(help="Sample from the tokens of about the expected surprise, so much of the mass."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    groups: Annotated[int, typer.Option(help="Part the beam into groups that keep away from one another.", min=1)] = 1,
    diversity: Annotated[float, typer.Option(help="λ: how far they keep away.")] = 0.5,
    least: Annotated[int, typer.Option(help="Tokens that a translation has at least.", min=0)] = 0,
    no_repeat: Annotated[int, typer.Option(help="Write no N tokens in a row twice.", metavar="N", min=0)] = 0,
    risk: Annotated[
        str | None,
        typer.Option(
            metavar="chrf|bleu",
            help="Take what is nearest by this measure to all candidates: minimum Bayes risk.",
            show_default=False,
        ),
    ] = None,
    candidates: Annotated[
        int, typer.Option(help="With --risk: of so many samples, or of the so many best of a beam.", min=2)
    ] = 32,
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
    tag: Annotated[
        str | None, typer.Option(metavar="NAME", help="Translate as if from this corpus, one of the run's data.tags.")
    ] = None,
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
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Translate a file or standard input, line by line.

    The order is kept, and an empty line stays empty. A file may be of any size: it is translated bit by bit.

    With --output the translations grow in OUT.part, which becomes OUT when all are there. If that is stopped or killed,
    the same command with --continue goes on with it.
    """
    if sample and (beam is not None or groups > 1):
        raise UserError("--sample draws, --beam and --groups search: choose one of them")
    if not sample and (top_k is not None or top_p is not None or min_p is not None or typical is not None):
        raise UserError("--top-k, --top-p, --min-p and --typical are for drawing: add --sample, or leave them out")
    if as_json and json_lines:
        raise UserError("--json prints one document, --json-lines one a line: choose one of them")
    if output is None and (go_on or overwrite):
        raise UserError(f"{'--continue' if go_on else '--overwrite'} is for a file: name it with --output")
    if output is not None and as_json:
        raise UserError("a file gets one JSON document a line: use --json-lines with --output")
    if output is not None and _is_done(output, file, go_on, overwrite):
        say(f"{output} is complete already: nothing is left to do")
        return

    from dragoman import load
    from dragoman.run.streaming import made_with, window, write_translations
    from dragoman.search import Decision, MinimumRisk, Sample, Search
    from dragoman.search.unknown import read_dictionary

    total = _count(file) if output else None
    loaded = load(run, checkpoint, device)
    if together:
        loaded = loaded.together(*(load(other, checkpoint, device) for other in together))
    count = candidates if risk else best
    search: Search = (
        Sample(
            temperature,
            top_k,
            top_p,
            count,
            seed,
            replace(loaded.length, least=least),
            min_p,
            typical,
            no_repeat,
        )
        if sample
        else beam_settings(
            loaded,
            max(beam or 0, count) if risk else beam,
            length_penalty,
            count,
            "steps" if all_steps else None,
            "gnmt" if gnmt else None,
            coverage,
            least,
            no_repeat,
            groups,
            diversity,
        )
    )
    settings: Decision = MinimumRisk(search, utility=risk, best=best) if risk else search
    known = read_dictionary(dictionary) if dictionary else {} if copy_unknown else None

    def translated(sources: Iterable[Source], first: int = 0) -> Iterator[Translation]:
        begun, wanted = (
            None if lines is None else islice(_lines_of(lines), first, None) for lines in (prefixes, required)
        )
        phrases = None if wanted is None else ([one for one in line.split("\t") if one.strip()] for line in wanted)
        return loaded.translate_stream(
            sources,
            settings,
            alignment=alignment,
            dictionary=known,
            tag=tag,
            first=first,
            prefixes=begun,
            required=phrases,
            forbidden=forbidden or (),
        )

    def written(translation: Translation) -> str:
        if json_lines:
            return json.dumps(asdict(translation), ensure_ascii=False) + "\n"
        return "".join(f"{line}\n" for line in _lines(translation, best, alignment))

    if output is not None:
        words = known and blake2b(repr(known).encode(), digest_size=8).hexdigest()
        options: dict[str, Any] = {"alignment": alignment, "JSON lines": json_lines, "dictionary": words, "tag": tag}
        options |= {"with": [str(other) for other in together or []], "prefixes": prefixes and str(prefixes)}
        options |= {"required": required and str(required), "forbidden": forbidden}
        made, sources = made_with(loaded, settings, options), sources_of(file)
        places = write_translations(
            output, sources, translated, written, made, size=window(loaded), go_on=go_on, overwrite=overwrite
        )
        _write(places, output, total, file is not None)
    elif as_json:
        print_json_list(asdict(translation) for translation in _warn(translated(sources_of(file))))
    else:
        for translation in _warn(translated(sources_of(file))):
            print(written(translation), end="", flush=True)


def _lines_of(file: Path) -> Iterator[str]:
    """The lines of a file, and after them as many empty ones as are asked for."""
    return chain((text for text in sources_of(file) if isinstance(text, str)), repeat(""))


def _is_done(output: Path, file: Path | None, go_on: bool, overwrite: bool) -> bool:
    """Whether the output is there to be gone on with and complete; what may not be written is refused."""
    from dragoman.run.streaming import check_output, is_complete
    from dragoman.storage import plain_errors

    if go_on and file is None:
        raise UserError("standard input cannot be gone on with: write it to a file, and translate that")
    with plain_errors(output):
        if go_on and is_complete(output):
            return True
        if file is not None and file.exists() and output.exists() and file.samefile(output):
            raise UserError(f"{output} is the input: name another file for the output")
        check_output(output, overwrite)
    return False


def _count(file: Path | None) -> int | None:
    """How many lines the input has, so that it is read once before any is translated: what is wrong is said at once.

    None where it can be read only once.
    """
    if file is None or file.is_fifo() or file.is_char_device():
        return None
    return sum(1 for _ in sources_of(file))


def _write(places: Generator[Place], output: Path, total: int | None, again: bool) -> None:
    """Write a file, show how far it has come, and say how to go on with it if it is stopped."""
    place, progress = None, Progress(total)
    try:
        with progress, closing(places):
            for place in places:
                if progress.done is None and place.lines:
                    say(f"going on after {place.lines:,} lines")
                progress.show(place.lines)
    except (KeyboardInterrupt, UserError):
        if place is not None and place.lines:
            say(f"{place.lines:,} lines are translated and safe in {output}.part")
            if again:
                arguments = [word for word in sys.argv[1:] if word != "--continue"]
                say(f"go on with:  {program()} {shlex.join([*arguments, '--continue'])}")
        raise
    assert place is not None
    _say_limits(place.unfinished, place.cut)
    say(f"{output}: {progress.summary()}")


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
    unfinished = cut = 0
    for translation in translations:
        unfinished += not translation.finished
        cut += not translation.whole
        yield translation
    _say_limits(unfinished, cut)


def _say_limits(unfinished: int, cut: int) -> None:
    if unfinished:
        say(f"{unfinished:,} translations reached the length limit before they ended")
    if cut:
        say(f"{cut:,} lines were longer than the run reads (search.longest_source) and were cut there")
