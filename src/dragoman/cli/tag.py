"""`dragoman tag`: one tag per word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.inputs import Input, SourceFormat, map_windows
from dragoman.cli.options import Json, ModelOptions, RunFolder
from dragoman.cli.printing import print_json_list
from dragoman.console import log


def tag(
    run: RunFolder,
    file: Annotated[
        Path | None, typer.Argument(help="Words separated by spaces, one sentence per line. Default: standard input.")
    ] = None,
    columns: Annotated[bool, "One word per line: word, tag and probability."] = False,
    *,
    layout: SourceFormat,
    as_json: Json = False,
    model: ModelOptions,
) -> None:
    """Tag the words of a file or of standard input, line by line.

    Prints the tags of each line, separated by spaces. An empty line stays empty.
    """
    inputs = Input(file, layout)
    inputs.check()
    model.check(run)
    loaded = model.load(run)

    def process(lines: Iterable[str], first_index: int) -> None:
        sentences = map_windows(lines, loaded.tag)
        if as_json:
            print_json_list(map(asdict, sentences))
            return
        truncated = 0
        for sentence in sentences:
            truncated += len(sentence.tags) < len(sentence.words)
            if not columns:
                print(" ".join(sentence.tags), flush=True)
                continue
            for word, label, probability in zip(sentence.words, sentence.tags, sentence.probabilities):
                print(f"{word}\t{label}\t{probability:.3f}")
            print(flush=True)
        if truncated:
            log(f"{truncated:,} lines were longer than search.max_source_length: their last words have no tag")

    inputs.process(process)
