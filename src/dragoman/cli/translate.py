"""`dragoman translate`: text to text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.common import Checkpoint, Device, Json, RunFolder, beam_settings, print_json_list, say, sources_of

if TYPE_CHECKING:
    from dragoman.run import Translation


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
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
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
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Translate a file or standard input, line by line.

    The order is kept, and an empty line stays empty.
    """
    from dragoman import load
    from dragoman.search import Sample, Search
    from dragoman.search.unknown import read_dictionary

    loaded = load(run, checkpoint, device)
    settings: Search = (
        Sample(temperature, top_k, top_p, best, seed, loaded.length)
        if sample
        else beam_settings(
            loaded,
            beam,
            length_penalty,
            best,
            "steps" if all_steps else None,
            "gnmt" if gnmt else None,
            coverage,
        )
    )
    known = read_dictionary(dictionary) if dictionary else {} if copy_unknown else None
    translations = loaded.translate_stream(sources_of(file), settings, alignment=alignment, dictionary=known, tag=tag)
    translations = _warn(translations)
    if as_json:
        print_json_list(asdict(translation) for translation in translations)
        return
    for translation in translations:
        for line in _lines(translation, best, alignment):
            print(line, flush=True)


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
    unfinished = partial = 0
    for translation in translations:
        unfinished += not translation.finished
        partial += not translation.whole
        yield translation
    if unfinished:
        say(f"{unfinished:,} translations reached the length limit before they ended")
    if partial:
        say(f"{partial:,} lines were longer than the run reads (search.longest_source) and were cut there")
