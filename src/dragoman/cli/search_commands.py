"""`dragoman tune`, `tune-search` and `shortlist`: choose or learn values that a search uses."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.inputs import FileLayout, read_pairs
from dragoman.cli.options import Json, ModelOptions, RunFolder, beam_config, choose_languages
from dragoman.cli.search_options import RerankWith, classify_rerankers
from dragoman.console import log, print_json
from dragoman.errors import UserError


def tune(
    run: RunFolder,
    source: Annotated[Path, "File of sources that are not in the training data."],
    reference: Annotated[
        Path | None, "File of reference translations; omit it for TSV and JSON lines with both."
    ] = None,
    rerank_with: RerankWith = None,
    num_candidates: Annotated[
        int,
        typer.Option(
            help="Number of candidate translations of each source that are reranked: the n-best list of the beam "
            "search.",
            min=2,
        ),
    ] = 10,
    metric: Annotated[str, "Metric to maximize: bleu, chrf or chrf++."] = "bleu",
    *,
    layout: FileLayout,
    as_json: Json = False,
    model: ModelOptions,
) -> None:
    """Find the weights of reranking that maximize BLEU or chrF on a corpus.

    Reranking chooses among the n best translations by a weighted sum of scores. Prints the options for 'translate'.
    Weights given as RUN:WEIGHT are ignored.
    """
    model.check(run)
    sources, references = read_pairs(source, reference, layout.for_run(run), "--reference")

    from dragoman.search.reranking import Candidate, score_candidates, tune_rerank_weights

    loaded = choose_languages(model.load(run), layout.source_language, layout.target_language)
    if not all(isinstance(text, str) for text in sources):
        raise UserError(f"{source} holds feature vectors, but reranking weights are tuned on text: name a text file")
    # folders by the kind of their model: "channel" (from target to source) or "language"
    rerankers = {kind: folder for kind, (folder, _) in classify_rerankers(loaded, rerank_with or []).items()}
    log(f"translating {len(sources):,} sentences")
    search = beam_config(loaded, None, n_best=num_candidates)
    # `direct`: log p(y|x) of this run; the score of a candidate is a weighted sum of it and of the rerankers' scores
    candidates = [
        [Candidate(text.text, direct=text.score, length=len(text.tokens)) for text in (best, *best.alternatives)]
        for best in loaded.translate(sources, search=search, alignment=False)
    ]
    log("scoring the candidates")
    scored = score_candidates(loaded, sources, candidates, rerankers.get("channel"), rerankers.get("language"))
    tuned = tune_rerank_weights(scored, references, metric)
    weights = asdict(tuned.weights)
    if as_json:
        document = {"weights": weights, "metric": metric, "score": tuned.score, "baseline_score": tuned.baseline_score}
        print_json(document)
        return
    print(f"{metric} {tuned.score:.2f} instead of {tuned.baseline_score:.2f}")
    # a model or length with the weight 0 is not needed
    options = [f"--rerank-with {folder}:{weights[kind]:g}" for kind, folder in rerankers.items() if weights[kind]]
    options += [f"--rerank-length-weight {tuned.weights.length:g}"] if tuned.weights.length else []
    print(f"--num-candidates {num_candidates} {' '.join(options)}" if options else "reranking does not help")


def tune_search(
    run: RunFolder,
    source: Annotated[
        Path | None, "File of sources that are not in the training data. Default: the run's validation set."
    ] = None,
    reference: Annotated[
        Path | None, "File of reference translations; omit it for TSV and JSON lines with both."
    ] = None,
    metric: Annotated[
        str | None, "Metric to choose by, such as bleu. Default: the one that selected the best checkpoint."
    ] = None,
    *,
    layout: FileLayout,
    as_json: Json = False,
    model: ModelOptions,
) -> None:
    """Choose beam size and length penalty on a corpus, and store them in the run.

    Training does this at its end, on the validation set. 'translate', 'evaluate' and 'serve' use the stored values;
    their option --beam-size overrides them.
    """
    model.check(run)
    layout = layout.for_run(run)
    sources, references = (None, None) if source is None else read_pairs(source, reference, layout, "--reference")

    from dragoman.api.tune_search import tune_search as tune

    loaded = choose_languages(model.load(run), layout.source_language, layout.target_language)
    choice = tune(loaded, sources, references, metric=metric)
    if as_json:
        print_json(choice.to_record())
    else:
        print("\n".join(choice.lines()))


def shortlist(
    run: RunFolder,
    translations: Annotated[
        int,
        typer.Option(
            help="Number of most probable target tokens to store for each source token, as its possible translations.",
            min=1,
        ),
    ] = 100,
    frequent_tokens: Annotated[
        int,
        typer.Option(help="Number of most frequent target tokens that are possible outputs for every source.", min=0),
    ] = 100,
    max_pairs: Annotated[
        int, typer.Option(help="Maximum number of training pairs from which possible translations are learned.", min=1)
    ] = 200_000,
) -> None:
    """Learn from the training data which target tokens each source token needs, for 'translate --shortlist'.

    With a large vocabulary this makes translation on a CPU faster: the output layer computes some hundred tokens
    instead of all.
    """
    check_run(run)

    from dragoman.data.token_store import TokenStore
    from dragoman.run.run_folder import read_spec, read_tokenizers
    from dragoman.search.shortlist import SHORTLIST_FILE, learn_shortlist

    spec = read_spec(run)
    if not spec.supports_shortlist:
        raise UserError(
            "a vocabulary shortlist restricts the target tokens that an encoder–decoder can generate, but the model of "
            f"{run} has the architecture {spec.architecture}: use it without a shortlist"
        )
    source_tokenizer, target_tokenizer = read_tokenizers(run)
    vocab_sizes = (source_tokenizer.vocab_size, target_tokenizer.vocab_size)
    store = TokenStore(run / "data" / "train")
    log(f"learning a shortlist from {min(max_pairs, len(store)):,} of {len(store):,} sentence pairs")
    learned = learn_shortlist(
        store, vocab_sizes, translations=translations, frequent=frequent_tokens, max_pairs=max_pairs
    )
    learned.save(run)
    num_translations, num_frequent = len(learned.translations), len(learned.frequent)
    log(
        f"{run / SHORTLIST_FILE}: {num_translations:,} translations of source tokens, and the {num_frequent:,} most "
        "frequent target tokens"
    )
