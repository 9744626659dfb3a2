"""`dragoman diagnose`: measure known failures of translation."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.inputs import FileLayout, Input, read_pairs, read_texts
from dragoman.cli.options import Json, ModelOptions, RunFolder, choose_languages
from dragoman.console import log, print_json, print_lines
from dragoman.errors import UserError


def diagnose(
    run: RunFolder,
    source: Annotated[Path | None, "Test set. Default: the run's validation sentences.", "FILE"] = None,
    target: Annotated[Path | None, "File of reference translations.", "FILE"] = None,
    alignments: Annotated[
        Path | None,
        "Gold word alignments of the test set, line by line: source word-target word from 0, such as 0-0 1-2.",
        "FILE",
    ] = None,
    language_pair: Annotated[
        str | None, "Source and target language of the run, such as en-de. Default: from names of its training files."
    ] = None,
    templates: Annotated[
        Path | None,
        "File of further sentences that do not say the gender of a person, to measure gender bias; docs/seeing.md "
        "describes its format.",
        "FILE",
    ] = None,
    max_sentences: Annotated[
        int, typer.Option(help="Maximum number of test sentences to translate and diagnose.", min=1)
    ] = 200,
    html: Annotated[Path | None, "Write the result to this file, as a web page.", "FILE"] = None,
    *,
    layout: FileLayout,
    as_json: Json = False,
    model: ModelOptions,
) -> None:
    """Measure known failures of translation: each as a number, with its meaning and examples.

    Gender bias, hallucination on unusual input, copying, omitted and repeated content, length, and quality by the
    length of the source.
    """
    if source is None and (target or alignments):
        raise UserError(
            "--target and --alignments belong to a test set, whose sources are missing: name its source file with "
            "--source"
        )
    model.check(run)
    layout = layout.for_run(run)

    from dragoman.data.data_formats import has_references
    from dragoman.data.text_files import check_file
    from dragoman.evaluation import parse_pharaoh
    from dragoman.lens import diagnosis
    from dragoman.lens.diagnosis.diagnosis_report import diagnosis_lines, diagnosis_page
    from dragoman.storage import write_file

    if source is not None:
        layout.corpus(source, target).check()
    for path in filter(None, (alignments, templates)):
        check_file(path)
    loaded = choose_languages(model.load(run), layout.source_language, layout.target_language)
    references: list[str] | None
    if source is None:
        sources, references = diagnosis.validation_pairs(loaded, max_sentences)
    elif target is None and not has_references(layout.corpus(source)):  # a file of sources alone
        sources, references = list(islice(Input(source, layout).texts(), max_sentences)), None
    else:
        sources, references = (texts[:max_sentences] for texts in read_pairs(source, target, layout))
    gold = None  # for each sentence the set of its alignment links; None: the alignment error is not measured
    if alignments is not None:
        lines = read_texts(alignments, format="text")[:max_sentences]
        gold = [parse_pharaoh(line, f"{alignments}, line {number:,}") for number, line in enumerate(lines, 1)]
    log(f"translating {len(sources):,} sentences, and unusual inputs to test for hallucination")
    result = diagnosis.diagnose(loaded, sources, references, languages=language_pair, templates=templates, gold=gold)
    if html is not None:
        write_file(html, diagnosis_page(result))
        log(f"wrote {html}")
    if as_json:
        print_json(result.to_dict())
        return
    print_lines(diagnosis_lines(result))
