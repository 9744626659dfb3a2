"""`dragoman fill`: fill the gaps in a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.inputs import FileLayout, Format, Input, SourceKey
from dragoman.cli.options import Checkpoint, Device, Json, RunFolder, in_windows, print_json_list


def fill(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(help="Texts with <mask> in them, one a line; standard input if not given.", show_default=False),
    ] = None,
    best: Annotated[
        int,
        typer.Option(help="Also show the N likeliest pieces of each gap, or the N best texts with log p.", min=1),
    ] = 1,
    format: Format = "",
    source_key: SourceKey = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Fill every <mask> of a file or of standard input, line by line.

    bert, roberta and electra put one piece into each gap. t5, pretrained on spans, puts any number of words into each;
    gaps may also be written as its sentinels, <extra_id_0> and so on. bart, pretrained by denoising, writes the text
    anew.
    """
    given = Input(file, FileLayout(format, source_key))
    given.check()
    check_run(run, checkpoint, device)

    from dragoman import load

    loaded = load(run, checkpoint, device)

    def show(lines: Iterable[str], first: int) -> None:
        texts = in_windows(lines, lambda some: loaded.fill(some, best))
        if as_json:
            print_json_list(asdict(text) for text in texts)
            return
        for text in texts:
            print(text.text, flush=True)
            for other, score in text.alternatives:
                print(f"  {score:.4f}\t{other}")
            for number, choices in enumerate(text.choices if best > 1 and not text.alternatives else [], 1):
                print(f"  {number}: " + ", ".join(f"{piece} {probability:.3g}" for piece, probability in choices))

    given.answer(show)
