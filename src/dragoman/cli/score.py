"""`dragoman score`: log p(y|x) of given translations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.common import Checkpoint, Device, Json, RunFolder, parallel, print_json


def score(
    run: RunFolder,
    source: Annotated[Path, typer.Option(help="Source text.", show_default=False)],
    target: Annotated[Path, typer.Option(help="Translations to score, line by line.", show_default=False)],
    tokens: Annotated[bool, typer.Option("--tokens", help="Print every token's log-probability too.")] = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Say how likely given translations are.

    One log p(y|x) a line, natural logarithm, END counted in; with --tokens every token's too.
    """
    from dragoman.run import load

    sources, targets = parallel(source, target)
    scored = load(run, checkpoint, device).score(sources, targets)
    if as_json:
        print_json([asdict(one) for one in scored])
        return
    for one in scored:
        detail = (
            "".join(f"\t{piece} {log_p:.4f}" for piece, log_p in zip(one.tokens, one.token_scores)) if tokens else ""
        )
        print(f"{one.score:.4f}{detail}")
