"""`dragoman tag`: one label a word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.inputs import FileLayout, Format, Input, SourceKey
from dragoman.cli.options import Checkpoint, Device, Json, RunFolder, in_windows, log, print_json_list


def tag(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(help="Words parted by spaces, one sentence a line; standard input if not given."),
    ] = None,
    columns: Annotated[bool, typer.Option("--columns", help="One word a line: word, tag and probability.")] = False,
    format: Format = "",
    source_key: SourceKey = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Tag the words of a file or of standard input, line by line.

    Prints the tags of each line, parted by spaces; the order is kept, and an empty line stays empty.
    """
    given = Input(file, FileLayout(format, source_key))
    given.check()
    check_run(run, checkpoint, device)

    from dragoman import load

    loaded = load(run, checkpoint, device)

    def show(lines: Iterable[str], first: int) -> None:
        sentences = in_windows(lines, loaded.tag)
        if as_json:
            print_json_list(asdict(sentence) for sentence in sentences)
            return
        cut = 0
        for sentence in sentences:
            cut += len(sentence.tags) < len(sentence.words)
            if not columns:
                print(" ".join(sentence.tags), flush=True)
                continue
            for word, label, probability in zip(sentence.words, sentence.tags, sentence.probabilities):
                print(f"{word}\t{label}\t{probability:.3f}")
            print(flush=True)
        if cut:
            log(
                f"{cut:,} lines were longer than the run reads (search.max_source_length): their last words have no tag"
            )

    given.answer(show)
