"""Choice of a run's beam size and length penalty from Python: `dragoman.tune_search`."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.evaluation.metric_score import References
from dragoman.evaluation.text_metrics import text_metric
from dragoman.run import Run, Source
from dragoman.run.search_choice import CHOSEN_SETTINGS, SearchChoice, choose_search, store_choice
from dragoman.run.sources import Tag
from dragoman.training.validation import MAX_CHOICE_SENTENCES, decoding_metric
from dragoman.training.validation_corpora import stored_sentences


def tune_search(
    run: Run,
    sources: Sequence[Source] | None = None,
    references: References | None = None,
    *,
    metric: str | None = None,
    tag: Tag | None = None,
) -> SearchChoice:
    """Choose beam size and length penalty of a trained run anew, and store them in its config.yaml.

    Training does this at its end, unless they are set. A run that does not translate, or whose configuration has a
    complete `search.strategy`, is a UserError.

    Args:
        run: the run, which uses the chosen values from now on.
        sources: sentences that were not trained on. If these or their references are None, sentences of the run's
            validation set are used, with their tags.
        references: translations of the sources.
        metric: metric of texts to choose by, such as bleu or exact; by default the one that selected the checkpoint.
        tag: corpus tag (`data.corpus_tags`) of all sources, or one for each; by default the first tag.

    Examples:
        >>> choice = dragoman.tune_search(run, ["The dog sleeps."], ["Der Hund schläft."], metric="chrf")
        >>> sorted(choice.settings)
        ['search.beam_size', 'search.length_penalty']
    """
    run.check_translates()
    if run.config.search.strategy:
        raise UserError(
            f"{run.folder} has a search.strategy (a complete search configuration), which replaces search.beam_size "
            "and search.length_penalty: remove it from config.yaml to tune these two settings"
        )
    if sources is None or references is None:
        sources, tag, references = stored_sentences(run, validation_store(run), MAX_CHOICE_SENTENCES)
    chosen_metric = text_metric(metric) if metric else decoding_metric(run, sources, references)
    choice = choose_search(run, sources, references, chosen_metric, tag, CHOSEN_SETTINGS)
    run.config = store_choice(run.folder, choice)
    return choice


def validation_store(run: Run) -> TokenStore:
    """Return the tokenized validation pairs of a run; raise a UserError if it has none, such as an imported model."""
    folder = run.member_folders[0] / "data" / "valid"  # of an ensemble: those of its first run
    if not folder.exists():
        raise UserError(
            f"the run {run.folder} has no validation set on which its search could be tuned: name a corpus with "
            "--source and --reference (in Python: sources and references)"
        )
    return TokenStore(folder)
