"""`dragoman score`: log p(y|x) of given translations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.common import Checkpoint, Device, Json, RunFolder, lines_of, parallel, print_json


def score(
    run: RunFolder,
    target: Annotated[Path, typer.Option(help="Translations to score, line by line.", show_default=False)],
    source: Annotated[
        Path | None, typer.Option(help="Source text; a language model needs none.", show_default=False)
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Print every token's log-probability too.")] = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Say how likely given translations are.

    One log p(y|x) a line (log p(y) without a source), natural logarithm, END counted in; with --tokens every token's.
    """
    from dragoman import load

    sources, targets = parallel(source, target) if source else (None, list(lines_of(target)))
    scored = load(run, checkpoint, device).score(sources, targets)
    if as_json:
        print_json([asdict(one) for one in scored])
        return
    for one in scored:
        detail = (
            "".join(f"\t{piece} {log_p:.4f}" for piece, log_p in zip(one.tokens, one.token_scores)) if tokens else ""
        )
        print(f"{one.score:.4f}{detail}")
