"""`dragoman shortlist`: which words are worth looking at."""

from __future__ import annotations

from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.options import RunFolder, log


def shortlist(
    run: RunFolder,
    best: Annotated[int, typer.Option(help="Translations of every source piece.", min=1)] = 100,
    frequent: Annotated[int, typer.Option(help="Most frequent target pieces, always looked at.", min=0)] = 100,
    pairs: Annotated[int, typer.Option(help="Training pairs to learn from.", min=1)] = 200_000,
) -> None:
    """Learn from the training data which words a translation may need, for translate --shortlist.

    With a large vocabulary this makes translating on a CPU faster: the output layer looks at some hundred words
    instead of all.
    """
    check_run(run)

    from dragoman.data.token_store import TokenStore
    from dragoman.run.run_folder import read_spec, read_tokenizers
    from dragoman.search.shortlist import SHORTLIST_FILE, learn_shortlist

    read_spec(run)  # says what is wrong with the folder
    tokenizers = read_tokenizers(run)
    store = TokenStore(run / "data" / "train")
    log(f"learning from {min(pairs, len(store)):,} of {len(store):,} pairs")
    found = learn_shortlist(store, (tokenizers[0].vocab_size, tokenizers[1].vocab_size), best, frequent, pairs)
    found.save(run)
    log(
        f"{run / SHORTLIST_FILE}: {len(found.pieces):,} translations of pieces, and the {len(found.frequent):,} most frequent"
    )
