"""`dragoman phrasebook`: the embedded corpus as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import log, program


def phrasebook(
    out: Annotated[Path, typer.Argument(help="The folder to make.", show_default=False)],
    pairs: Annotated[int, typer.Option(help="Training pairs.", min=1)] = 20_000,
    seed: Annotated[int, typer.Option(help="Another seed gives other sentences.")] = 0,
) -> None:
    """Write phrasebook pairs with gold alignments as files.

    The phrasebook is a grammar of English and German that makes grammatical sentence pairs: train, valid and test, each
    as .en, .de and .align (“0-0 1-2”: source word-target word, counted from 0).
    """
    from dragoman.data.phrasebook import write

    write(out, pairs=pairs, seed=seed)
    log(f"wrote {pairs:,} training pairs, and validation and test pairs with unseen sentences, to {out}")
    log(f"next: {program()} train runs/phrasebook --source {out}/train.en --target {out}/train.de")
