"""`dragoman score`: log p(y|x) of given translations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.inputs import FileLayout, Format, SourceKey, TargetKey, read_lines, read_pairs
from dragoman.cli.options import Checkpoint, Device, Json, RunFolder, print_json
from dragoman.errors import UserError


def score(
    run: RunFolder,
    target: Annotated[
        Path | None, typer.Option(help="Translations, or texts for a language model.", show_default=False)
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Their sources, or TSV or JSON lines with both; none for texts.", show_default=False),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Print every token's log-probability too.")] = False,
    format: Format = "",
    source_key: SourceKey = None,
    target_key: TargetKey = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Say how likely given translations are.

    One log p(y|x) a line (log p(y) without a source), natural logarithm, END counted in; with --tokens every token's.
    """
    check_run(run, checkpoint, device)
    columns = FileLayout(format, source_key, target_key)
    if source is not None:
        sources, targets = read_pairs(source, target, columns)
    elif target is not None:
        sources, targets = None, read_lines(target, columns)
    else:
        raise UserError("name what to score: --source and --target, or --target alone for a language model")

    from dragoman import load

    loaded = load(run, checkpoint, device)
    if loaded.model.can_generate and (
        long := [line for line, fits in enumerate(loaded.within_max_length(sources, targets), 1) if not fits]
    ):
        raise UserError(f"line {long[0]:,} of {target or source} is longer than the positions of {run}: shorten it")
    scored = loaded.score(sources, targets)
    if as_json:
        print_json([asdict(one) for one in scored])
        return
    for one in scored:
        detail = (
            "".join(f"\t{piece} {log_p:.4f}" for piece, log_p in zip(one.tokens, one.token_scores)) if tokens else ""
        )
        print(f"{one.score:.4f}{detail}")
