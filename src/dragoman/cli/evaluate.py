"""`dragoman evaluate`: the scores of a test set."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.common import Checkpoint, Device, Json, RunFolder, beam_settings, lines_of, parallel, print_json, say
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory


def evaluate(
    run: RunFolder,
    source: Annotated[Path, typer.Option(help="Source text of the test set.", show_default=False)],
    reference: Annotated[Path, typer.Option(help="Its translations.", show_default=False)],
    measures: Annotated[
        str | None,
        typer.Option(
            help="Of bleu, chrf, ter, exact, accuracy, wer, per, ier: comma-separated; bleu,chrf,ter,exact by default, "
            "for tags accuracy,exact."
        ),
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(help="Gold word alignments (0-0 1-2): adds the alignment error rate of forced translations."),
    ] = None,
    by_length: Annotated[bool, typer.Option("--by-length", help="Add a table of quality by source length.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the translations here.")] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the beam; 1 is greedy search.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="α of log p(y|x) / |y|^α.")] = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Translate or tag a test set and score it.

    Every score comes with its signature, and for translations the perplexity of the references beside them.
    """
    from dragoman import evaluation, load
    from dragoman.storage import write_file

    given = [name.strip() for name in (measures or "").split(",") if name.strip()]
    evaluation.check(given)
    sources, references = parallel(source, reference)
    keep_freed_memory()
    loaded = load(run, checkpoint, device)
    say(f"{'translating' if loaded.model.writes else 'tagging'} {len(sources):,} sentences ({loaded.checkpoint})")
    if loaded.model.writes:
        told = beam is not None or length_penalty is not None
        settings = beam_settings(loaded, beam, length_penalty) if told else loaded.search
        texts = [t.text for t in loaded.translate(sources, search=settings, alignment=False)]
        names = given or ["bleu", "chrf", "ter", "exact"]
    else:
        texts = [" ".join(sentence.tags) for sentence in loaded.tag(sources)]
        references = [" ".join(line.split()) for line in references]
        names = given or ["accuracy", "exact"]
    if output:
        write_file(output, "".join(f"{text}\n" for text in texts))
    scores = list(evaluation.evaluate(names, texts, references).values())
    if loaded.model.writes:
        scored = loaded.score(sources, references)
        total, tokens = sum(s.score for s in scored), sum(len(s.tokens) for s in scored)
        scores.append(evaluation.perplexity(total, tokens))
    if alignments:
        gold = [
            evaluation.parse_sure_and_possible(line, f"{alignments}, line {n}")
            for n, line in enumerate(lines_of(alignments), 1)
        ]
        if len(gold) != len(sources):
            raise UserError(
                f"{alignments} has {len(gold):,} lines but {source} has {len(sources):,}: line counts must match"
            )
        found = loaded.align(sources, references)
        if found is None:
            say("no alignments: no part of this system looks from a decoder at an encoder")
        else:
            scores.append(
                evaluation.alignment_error_rate(found, [sure for sure, _ in gold], [possible for _, possible in gold])
            )
    if by_length and not all(isinstance(one, str) for one in sources):
        raise UserError(f"{source} holds vectors: quality by the length of the source is of text alone")
    bands = evaluation.by_length(sources, texts, references) if by_length else []
    if as_json:
        print_json({"scores": [asdict(score) for score in scores], "by_length": [band._asdict() for band in bands]})
        return
    for score in scores:
        print(score)
    if bands:
        print()
        print(evaluation.table([band._asdict() for band in bands]))
