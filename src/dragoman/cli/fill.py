"""`dragoman fill`: fill masks in texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.inputs import Input, SourceFormat, map_windows
from dragoman.cli.options import Json, ModelOptions, RunFolder
from dragoman.cli.printing import print_json_list
from dragoman.console import log


def fill(
    run: RunFolder,
    file: Annotated[
        Path | None, typer.Argument(help="Texts that contain <mask>, one per line. Default: standard input.")
    ] = None,
    top_k: Annotated[
        int, typer.Option(help="Also print the K most probable fillings of each mask, or the K best texts.", min=1)
    ] = 1,
    *,
    layout: SourceFormat,
    as_json: Json = False,
    model: ModelOptions,
) -> None:
    """Fill every <mask> of a file or of standard input, line by line.

    bert, roberta and electra fill a mask with one token. t5, pretrained by span corruption, fills it with any number of
    tokens; masks may also be written as its sentinels, <extra_id_0> and so on. bart, pretrained by denoising, generates
    the whole text.
    """
    inputs = Input(file, layout)
    inputs.check()
    model.check(run)
    loaded = model.load(run)

    def process(lines: Iterable[str], first_index: int) -> None:
        results = map_windows(_log_lines_without_mask(lines), lambda texts: loaded.fill(texts, top_k))
        if as_json:
            print_json_list(map(asdict, results))
            return
        for result in results:
            print(result.text, flush=True)
            for text, score in result.alternatives:
                print(f"  {score:.4f}\t{text}")
            if top_k > 1 and not result.alternatives:
                for number, choices in enumerate(result.choices, 1):
                    fillings = ", ".join(f"{token} {probability:.3g}" for token, probability in choices)
                    print(f"  {number}: {fillings}")

    inputs.process(process)


def _log_lines_without_mask(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines; at the end log how many are not empty and have no mask."""
    from dragoman.run.filling import GAP_PATTERN

    without = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not GAP_PATTERN.search(line):
            without.append(number)
        yield line
    if without:
        log(f"{len(without):,} lines without <mask> are printed unchanged, such as line {without[0]:,}")
