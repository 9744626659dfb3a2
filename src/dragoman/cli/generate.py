"""`dragoman generate`: continue a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.inputs import FileLayout, Format, Input, SourceKey
from dragoman.cli.options import Checkpoint, Device, Json, RunFolder, print_json_list

if TYPE_CHECKING:
    from dragoman.search import TokenSearch


def generate(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(help="Prompts, one a line; standard input if not given.", show_default=False),
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens at most to go on for.", min=1)] = 50,
    beam: Annotated[int | None, typer.Option(help="Search with a beam of this width instead of drawing.")] = None,
    temperature: Annotated[float, typer.Option(help="Below 1 surer, above 1 bolder.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that make up p of the mass.")] = 0.95,
    best: Annotated[int, typer.Option(help="Continuations of each prompt.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Another seed gives other texts.")] = 0,
    format: Format = "",
    source_key: SourceKey = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Continue each line of a file or of standard input, or reply to it.

    An empty line is continued from nothing. The run must hold a decoder alone: a language model such as gpt. A run
    trained on dialogues replies: each line is a dialogue so far, its turns separated by tabs.
    """
    given = Input(file, FileLayout(format, source_key))
    given.check()
    check_run(run, checkpoint, device)

    from dragoman import load
    from dragoman.search import Beam, LengthLimit, Sample

    loaded = load(run, checkpoint, device)
    length = LengthLimit(0, tokens, tokens)
    search: TokenSearch = Sample(temperature, top_k, top_p, best, seed, length)
    if beam is not None:
        search = Beam(beam, n_best=best, length_limit=length)

    def show(prompts: Iterable[str], first: int) -> None:
        texts = loaded.generate(list(prompts), search)
        if as_json:
            print_json_list(asdict(text) for text in texts)
            return
        for text in texts:
            for one in (text, *text.alternatives):
                print(one.text if best == 1 else f"{one.score:.4f}\t{one.text}", flush=True)
            if best > 1:
                print(flush=True)

    given.answer(show)
