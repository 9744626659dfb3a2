"""`dragoman score`: log-probabilities of texts or translations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from dragoman.cli.bulk_jobs import BulkJobOptions, is_bulk_job, process_files
from dragoman.cli.inputs import FileLayout, read_pairs, read_texts
from dragoman.cli.options import Json, ModelOptions, RunFolder, choose_languages
from dragoman.console import print_json
from dragoman.errors import UserError


def score(
    run: RunFolder,
    target: Annotated[Path | None, "File of translations, or of texts for a language model."] = None,
    source: Annotated[
        Path | None, "File of sources, or TSV or JSON lines with sources and translations. Omit for a language model."
    ] = None,
    token_scores: Annotated[bool, "Also print the log-probability of every token."] = False,
    *,
    layout: FileLayout,
    as_json: Json = False,
    bulk: BulkJobOptions,
    model: ModelOptions,
) -> None:
    """Print log p(y|x) of translations, or log p(y) of texts: natural logarithm, including EOS.

    With --input, the lines of many files are scored: source, tab and target, or JSON lines or Parquet with both; for a
    language model, texts.
    """
    model.check(run)
    unsupported = {"target": target, "token_scores": token_scores, "json": as_json, **layout.feature_options}
    if is_bulk_job(bulk, source, bulk.output, unsupported):
        from dragoman.bulk.run_rows import RowTask, score_rows

        columns = {"source": layout.source_column, "target": layout.target_column}
        if model.load(run).is_language_model:  # it scores the texts in the source column
            del columns["target"]
        process_files(run, bulk, layout, model, RowTask(score_rows, results={"score": float}), columns)
        return
    layout = layout.for_run(run)
    if source is not None:
        sources, targets = read_pairs(source, target, layout)
    elif target is not None:
        sources, targets = None, read_texts(target, layout.format)
    else:
        raise UserError(
            "no texts to score are given: name files with --source and --target, or with --target alone for a "
            "language model"
        )
    loaded = choose_languages(model.load(run), layout.source_language, layout.target_language)
    if loaded.model.can_generate:
        for line, fits in enumerate(loaded.within_max_length(sources, targets), 1):
            if not fits:
                raise UserError(
                    f"line {line} of {target or source} has more tokens than the model in {run} has position "
                    "embeddings: shorten the line"
                )
    scored = loaded.score(sources, targets)
    if as_json:
        print_json([asdict(text) for text in scored])
        return
    for text in scored:
        tokens = zip(text.tokens, text.token_scores) if token_scores else ()
        print(f"{text.score:.4f}" + "".join(f"\t{token} {log_p:.4f}" for token, log_p in tokens))
