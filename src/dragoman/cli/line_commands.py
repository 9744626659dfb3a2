"""`dragoman generate`, `fill`, `tag` and `classify`: commands that turn each line of text into a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.bulk_jobs import BulkJobOptions, is_bulk_job, process_files
from dragoman.cli.inputs import Input, SourceFormat
from dragoman.cli.options import InputFile, Json, ModelOptions, RunFolder, choose_languages
from dragoman.console import log, print_json_list

if TYPE_CHECKING:
    from dragoman.run import Classification, FillResult, Run, TaggedSentence, Translation
    from dragoman.search import TokenSearch

LINES_PER_CALL = 4096  # passed to a model in one call


def _process_lines(
    inputs: Input,
    as_json: bool,
    apply: Callable[[list[str]], list[Any]],
    show: Callable[[Any], None],
    lines_per_call: int | None = LINES_PER_CALL,
) -> None:
    """Apply a function to the lines of the input and print its results, as JSON or text.

    Args:
        inputs: the lines of a file, of standard input, or typed at a terminal.
        as_json: print a JSON list of all results.
        apply: maps a list of lines to their results, which are dataclasses.
        show: prints one result as text; not used with `as_json`.
        lines_per_call: maximum number of lines that `apply` gets at once; None: all lines.
    """

    def process(lines: Iterable[str], first_index: int) -> None:
        """Apply the function to `lines_per_call` lines at a time, and print the results in order.

        `first_index`, the index of the first line in the input, is not used.
        """
        lines = iter(lines)
        chunks = iter(lambda: list(islice(lines, lines_per_call)), [])  # until a chunk is empty: no more lines
        results = (result for chunk in chunks for result in apply(chunk))
        if as_json:
            print_json_list(map(asdict, results))
            return
        for result in results:
            show(result)

    inputs.process(process)


def _open_run_and_input(run: Path, file: Path | None, layout: SourceFormat, model: ModelOptions) -> tuple[Run, Input]:
    """Check run folder and input file of a command; return the loaded run and the lines to process.

    `file` is None for standard input. `layout` says in which format and language the lines are, `model` which
    checkpoint is loaded on which device. A multilingual model writes in the language that it reads.
    """
    inputs = Input(file, layout)
    inputs.check()
    loaded = model.open(run)
    language = layout.source_language
    return choose_languages(loaded, source=language, target=language), inputs


def generate(
    run: RunFolder,
    file: InputFile = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Maximum number of new tokens that are generated after a prompt, EOS included.", min=1)
    ] = 50,
    beam_size: Annotated[int | None, "Use beam search with this number of hypotheses instead of sampling."] = None,
    temperature: Annotated[float, "Sampling temperature T: sample from p^(1/T); below 1 is more conservative."] = 1.0,
    top_k: Annotated[int | None, "Sample from the k most probable tokens. Default: from all."] = None,
    top_p: Annotated[float, "Nucleus sampling: the most probable tokens up to probability mass P."] = 0.95,
    n_best: Annotated[
        int,
        typer.Option(
            help="Number of continuations to print for each prompt; if more than 1, each is preceded by its "
            "log-probability.",
            min=1,
        ),
    ] = 1,
    seed: Annotated[int, "Random seed of sampling."] = 0,
    *,
    layout: SourceFormat,
    as_json: Json = False,
    bulk: BulkJobOptions,
    model: ModelOptions,
) -> None:
    """Continue each line of a file or of standard input with a language model.

    An empty line is continued from BOS alone. A run trained on dialogues replies instead: each line is a dialogue,
    its turns separated by tabs.
    """
    is_bulk = is_bulk_job(bulk, file, bulk.output, {"json": as_json, "n_best": n_best > 1})
    if not is_bulk:
        Input(file, layout).check()
    model.check(run)

    from dragoman.search import Beam, LengthLimit, Sample, search_to_dict

    # the limit is ratio · prompt tokens + offset, here --max-new-tokens for any prompt
    limit = LengthLimit(ratio=0, offset=max_new_tokens, max=max_new_tokens)
    search: TokenSearch = Sample(temperature, top_k, top_p, n_best=n_best, seed=seed, length_limit=limit)
    if beam_size is not None:
        search = Beam(beam_size, n_best=n_best, length_limit=limit)
    if is_bulk:
        from dragoman.bulk.run_rows import RowTask, generate_rows

        task = RowTask(generate_rows, results={"generated": str}, options={"search": search_to_dict(search)})
        process_files(run, bulk, layout, model, task)
        return
    loaded, inputs = _open_run_and_input(run, file, layout, model)

    def show(result: Translation) -> None:
        """Print the texts of one prompt; with --n-best several with their log probabilities, then an empty line."""
        for text in (result, *result.alternatives):
            print(text.text if n_best == 1 else f"{text.score:.4f}\t{text.text}", flush=True)
        if n_best > 1:
            print(flush=True)

    # all lines at once: the position of a line in the call seeds its sampling
    _process_lines(inputs, as_json, lambda prompts: loaded.generate(prompts, search), show, lines_per_call=None)


def fill(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Input file: one text per line, with <mask> in place of each part to fill in. Default: standard input."
        ),
    ] = None,
    top_k: Annotated[
        int,
        typer.Option(
            help="Number of most probable tokens to print for each mask, or of best texts if the model generates "
            "text (t5, bart). 1: print only the filled text.",
            min=1,
        ),
    ] = 1,
    *,
    layout: SourceFormat,
    as_json: Json = False,
    bulk: BulkJobOptions,
    model: ModelOptions,
) -> None:
    """Fill every <mask> of a file or of standard input, line by line.

    bert, roberta and electra fill a mask with one token. t5, pretrained by span corruption, fills it with any number of
    tokens; masks may also be written as its sentinels, <extra_id_0> and so on. bart, pretrained by denoising, generates
    the whole text.
    """
    if is_bulk_job(bulk, file, bulk.output, {"json": as_json, "top_k": top_k > 1}):
        from dragoman.bulk.run_rows import RowTask, fill_rows

        process_files(run, bulk, layout, model, RowTask(fill_rows, results={"filled": str}))
        return
    loaded, inputs = _open_run_and_input(run, file, layout, model)

    from dragoman.run.filling import GAP_PATTERN

    def fill_lines(texts: list[str]) -> list[FillResult]:
        """Fill all masks of some texts; log how many non-empty texts have none."""
        if unmasked := [text for text in texts if text.strip() and not GAP_PATTERN.search(text)]:
            log(f"{len(unmasked):,} lines without <mask> are printed unchanged, such as: {unmasked[0]}")
        return loaded.fill(texts, top_k)

    def show(result: FillResult) -> None:
        """Print the filled text, and with --top-k the next best texts, or the most probable tokens of each mask.

        Only models that fill masks with spans or generate the text, such as t5 and bart, have next best texts.
        """
        print(result.text, flush=True)
        for text, score in result.alternatives:  # score: log probability
            print(f"  {score:.4f}\t{text}")
        if top_k > 1 and not result.alternatives:
            for number, choices in enumerate(result.choices, 1):
                print(f"  {number}: {', '.join(f'{token} {probability:.3g}' for token, probability in choices)}")

    _process_lines(inputs, as_json, fill_lines, show)


def tag(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Input file to tag: one sentence per line, its words separated by spaces. Default: standard input."
        ),
    ] = None,
    columns: Annotated[
        bool, "Print one word per line with its tag and the probability of the tag, separated by tabs."
    ] = False,
    *,
    layout: SourceFormat,
    as_json: Json = False,
    bulk: BulkJobOptions,
    model: ModelOptions,
) -> None:
    """Tag the words of a file or of standard input, line by line.

    Prints the tags of each line, separated by spaces. An empty line stays empty.
    """
    if is_bulk_job(bulk, file, bulk.output, {"json": as_json, "columns": columns}):
        from dragoman.bulk.run_rows import RowTask, tag_rows

        process_files(run, bulk, layout, model, RowTask(tag_rows, results={"tags": str}))
        return
    loaded, inputs = _open_run_and_input(run, file, layout, model)

    def tag_lines(texts: list[str]) -> list[TaggedSentence]:
        """Tag the words of some texts; log how many texts are too long to be tagged completely."""
        sentences = loaded.tag(texts)
        if truncated := sum(len(sentence.tags) < len(sentence.words) for sentence in sentences):
            log(f"{truncated:,} lines have more than search.max_source_length tokens: their last words have no tag")
        return sentences

    def show(sentence: TaggedSentence) -> None:
        """Print the tags of a sentence on one line, or with --columns one word per line and an empty line."""
        if columns:
            for word, label, probability in zip(sentence.words, sentence.tags, sentence.probabilities):
                print(f"{word}\t{label}\t{probability:.3f}")
        print("" if columns else " ".join(sentence.tags), flush=True)

    _process_lines(inputs, as_json, tag_lines, show)


def classify(
    run: RunFolder,
    file: InputFile = None,
    probabilities: Annotated[bool, "Print all labels of a text with their probabilities, the highest first."] = False,
    *,
    layout: SourceFormat,
    as_json: Json = False,
    bulk: BulkJobOptions,
    model: ModelOptions,
) -> None:
    """Classify each line of a file or of standard input: print the most probable label of each text."""
    if is_bulk_job(bulk, file, bulk.output, {"json": as_json, "probabilities": probabilities}):
        from dragoman.bulk.run_rows import RowTask, classify_rows

        task = RowTask(classify_rows, results={"label": str, "probability": float})
        process_files(run, bulk, layout, model, task)
        return
    loaded, inputs = _open_run_and_input(run, file, layout, model)

    def classify_lines(texts: list[str]) -> list[Classification]:
        """Classify some texts; log how many are so long that only their beginning is classified."""
        results = loaded.classify(texts)
        if truncated := sum(result.truncated_source for result in results):
            log(f"{truncated:,} lines have more than search.max_source_length tokens: only their start is classified")
        return results

    def show(result: Classification) -> None:
        """Print the label of a text, or with --probabilities all labels, separated by tabs."""
        labels = [f"{label} {probability:.3f}" for label, probability in result.probabilities.items()]
        print("\t".join(labels) if probabilities else result.label, flush=True)

    _process_lines(inputs, as_json, classify_lines, show)
