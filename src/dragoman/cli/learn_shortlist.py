"""`dragoman shortlist`: learn a restriction of the output vocabulary."""

from __future__ import annotations

from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.options import RunFolder
from dragoman.console import log


def shortlist(
    run: RunFolder,
    translations: Annotated[int, typer.Option(help="Target tokens kept for each source token.", min=1)] = 100,
    frequent_tokens: Annotated[int, typer.Option(help="Most frequent target tokens, always kept.", min=0)] = 100,
    max_pairs: Annotated[int, typer.Option(help="Training pairs to learn from.", min=1)] = 200_000,
) -> None:
    """Learn from the training data which target tokens each source token needs, for 'translate --shortlist'.

    With a large vocabulary this makes translation on a CPU faster: the output layer computes some hundred tokens
    instead of all.
    """
    check_run(run)

    from dragoman.data.token_store import TokenStore
    from dragoman.run.run_folder import read_spec, read_tokenizers
    from dragoman.search.shortlist import SHORTLIST_FILE, learn_shortlist

    read_spec(run)  # raises a UserError if the folder is damaged
    source, target = read_tokenizers(run)
    store = TokenStore(run / "data" / "train")
    log(f"learning from {min(max_pairs, len(store)):,} of {len(store):,} pairs")
    learned = learn_shortlist(store, (source.vocab_size, target.vocab_size), translations, frequent_tokens, max_pairs)
    learned.save(run)
    pairs, frequent = len(learned.translations), len(learned.frequent)
    log(f"{run / SHORTLIST_FILE}: {pairs:,} token translations and the {frequent:,} most frequent tokens")
