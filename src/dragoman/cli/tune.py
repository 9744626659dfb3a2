"""`dragoman tune`: the weights of a reranking."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.inputs import FileLayout, Format, SourceKey, TargetKey, read_pairs
from dragoman.cli.options import Checkpoint, Device, Json, RunFolder, beam_config, log, print_json
from dragoman.cli.search_options import Judges, classify_rerankers
from dragoman.errors import UserError


def tune(
    run: RunFolder,
    source: Annotated[Path, typer.Option(help="Sentences that the run was not trained on.", show_default=False)],
    reference: Annotated[
        Path | None,
        typer.Option(help="Their translations; none where the source is TSV or JSON lines.", show_default=False),
    ] = None,
    rerank_with: Judges = None,
    candidates: Annotated[int, typer.Option(help="Choose among the so many best of a beam.", min=2)] = 10,
    metric: Annotated[str, typer.Option(help="bleu, chrf or chrf++.")] = "bleu",
    format: Format = "",
    source_key: SourceKey = None,
    target_key: TargetKey = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Find the weights with which other runs rerank translations best, by BLEU or chrF of a corpus.

    The options that 'translate' is to be given are printed. Weights that are named with a run are not looked at.
    """
    check_run(run, checkpoint, device)
    sources, references = read_pairs(source, reference, FileLayout(format, source_key, target_key), "--reference")

    from dragoman import load
    from dragoman.run.decoding import reranking_scorers
    from dragoman.search.reranking import Candidate, Reranker, RerankWeights
    from dragoman.search.reranking import tune_rerank_weights as best_weights

    loaded = load(run, checkpoint, device)
    if not all(isinstance(text, str) for text in sources):
        raise UserError(f"{source} holds vectors: weights are tuned on text")
    named = {kind: folder for kind, (folder, _) in classify_rerankers(loaded, rerank_with or []).items()}
    log(f"translating {len(sources):,} sentences")
    found = loaded.translate(sources, search=beam_config(loaded, None, None, candidates), alignment=False)
    nbest = [
        [Candidate(one.text, one.score, len(one.tokens)) for one in (first, *first.alternatives)] for first in found
    ]
    log("asking the other runs")
    reranker = Reranker(RerankWeights(), *reranking_scorers(loaded, named.get("channel"), named.get("language")))
    tuned = best_weights(reranker.score(sources, nbest), references, metric)
    weights = asdict(tuned.weights)
    if as_json:
        print_json({"weights": weights, "metric": metric, "score": tuned.score, "alone": tuned.baseline_score})
        return
    print(f"{metric} {tuned.score:.2f} in place of {tuned.baseline_score:.2f}")
    options = [f"--rerank-with {folder}:{weights[kind]:g}" for kind, folder in named.items() if weights[kind]]
    options += [f"--rerank-length {tuned.weights.length:g}"] if tuned.weights.length else []
    print(f"--candidates {candidates} {' '.join(options)}" if options else "nothing is better than the run alone")
