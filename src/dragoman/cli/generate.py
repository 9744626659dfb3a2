"""`dragoman generate`: continue texts, or reply to dialogues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.inputs import Input, SourceFormat
from dragoman.cli.options import InputFile, Json, ModelOptions, RunFolder
from dragoman.cli.printing import print_json_list

if TYPE_CHECKING:
    from dragoman.search import TokenSearch


def generate(
    run: RunFolder,
    file: InputFile = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum tokens of a continuation.", min=1)] = 50,
    beam_size: Annotated[int | None, "Use beam search of this size instead of sampling."] = None,
    temperature: Annotated[float, "Sampling temperature."] = 1.0,
    top_k: Annotated[int | None, "Sample from the k most probable tokens."] = None,
    top_p: Annotated[float, "Nucleus sampling: the most probable tokens up to probability mass P."] = 0.95,
    n_best: Annotated[int, typer.Option(help="Number of continuations per prompt.", min=1)] = 1,
    seed: Annotated[int, "Random seed of sampling."] = 0,
    *,
    layout: SourceFormat,
    as_json: Json = False,
    model: ModelOptions,
) -> None:
    """Continue each line of a file or of standard input with a language model.

    An empty line is continued from BOS alone. A run trained on dialogues replies instead: each line is a dialogue,
    its turns separated by tabs.
    """
    prompts = Input(file, layout)
    prompts.check()
    model.check(run)

    from dragoman.search import Beam, LengthLimit, Sample

    loaded = model.load(run)
    limit = LengthLimit(0, max_new_tokens, max_new_tokens)
    search: TokenSearch = Sample(temperature, top_k, top_p, n_best, seed, limit)
    if beam_size is not None:
        search = Beam(beam_size, n_best=n_best, length_limit=limit)

    def process(lines: Iterable[str], first_index: int) -> None:
        results = loaded.generate(list(lines), search)
        if as_json:
            print_json_list(map(asdict, results))
            return
        for result in results:
            for text in (result, *result.alternatives):
                print(text.text if n_best == 1 else f"{text.score:.4f}\t{text.text}", flush=True)
            if n_best > 1:
                print(flush=True)

    prompts.process(process)
