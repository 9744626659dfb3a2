"""`dragoman diagnose`: the known failures of translation, measured on a run."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.inputs import FileLayout, Format, Input, SourceKey, TargetKey, check_file, read_lines, read_pairs
from dragoman.cli.options import Checkpoint, Device, Json, RunFolder, log, print_json
from dragoman.errors import UserError


def diagnose(
    run: RunFolder,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A test set; the run's validation sentences if not given.")
    ] = None,
    target: Annotated[Path | None, typer.Option(metavar="FILE", help="Its reference translations.")] = None,
    alignments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Gold links between them, such as 0-0 1-2, a line each.")
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="The languages, such as en-de; by the training files' endings.")
    ] = None,
    templates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="More sentences that leave a gender open; see docs/seeing.md.")
    ] = None,
    sentences: Annotated[int, typer.Option(help="How many sentences at most.", min=1)] = 200,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page.")] = None,
    format: Format = "",
    source_key: SourceKey = None,
    target_key: TargetKey = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """The known failures of translation, measured: each a number, what it means, and examples.

    Gender chosen where the source has none, babbling on odd input, copying, dropped and repeated content, length, and
    quality by the length of the source.
    """
    if source is None and (target or alignments):
        raise UserError("references and alignments are of a test set: name it with --source")
    check_run(run, checkpoint, device)
    columns = FileLayout(format, source_key, target_key)
    for path in (source, target, alignments, templates):
        if path is not None:
            check_file(path)

    from dragoman import load
    from dragoman.data.data_formats import has_references
    from dragoman.evaluation import parse_pharaoh
    from dragoman.lens import diagnosis as looking
    from dragoman.lens.diagnosis.diagnosis_report import diagnosis_lines, diagnosis_page
    from dragoman.storage import write_file

    loaded = load(run, checkpoint, device)
    references: list[str] | None
    if source is None:
        sources, references = looking.validation_pairs(loaded, sentences)
    elif target is None and not has_references(columns.corpus(source)):
        sources, references = list(islice(Input(source, columns).texts(), sentences)), None
    else:
        sources, references = (side[:sentences] for side in read_pairs(source, target, columns))
    gold = None
    if alignments is not None:
        gold = [
            parse_pharaoh(line, f"{alignments}, line {number:,}")
            for number, line in enumerate(read_lines(alignments, FileLayout("text"))[:sentences], 1)
        ]
    log(f"translating {len(sources):,} sentences and some odd ones")
    found = looking.diagnose(loaded, sources, references, languages=pair, templates=templates, gold=gold)
    if html is not None:
        write_file(html, diagnosis_page(found))
        log(f"wrote {html}")
    if as_json:
        print_json(found.to_dict())
        return
    for line in diagnosis_lines(found):
        print(line)
