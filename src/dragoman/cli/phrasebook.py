"""`dragoman phrasebook`: write the built-in corpus to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import program_name
from dragoman.console import log


def phrasebook(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
    pairs: Annotated[int, typer.Option(help="Number of training pairs.", min=1)] = 20_000,
    seed: Annotated[int, "Random seed of the sentences."] = 0,
) -> None:
    """Write sentence pairs of the phrasebook with gold alignments.

    The phrasebook is a grammar of English and German that generates sentence pairs. Training, validation and test sets
    are written as .en, .de and .align files (“0-0 1-2”: source word-target word, counted from 0).
    """
    from dragoman.data.phrasebook import write

    write(folder, pairs=pairs, seed=seed)
    log(f"wrote {pairs:,} training pairs, and validation and test pairs with unseen sentences, to {folder}")
    log(f"next: {program_name()} train runs/phrasebook --source {folder}/train.en --target {folder}/train.de")
