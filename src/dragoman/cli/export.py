"""`dragoman export`: write a run in the format of another library."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.inputs import read_texts
from dragoman.cli.options import Json, ModelOptions, RunFolder
from dragoman.console import print_json, print_lines
from dragoman.errors import UserError


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to create for the exported model.")],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="Format of the exported model: huggingface, ctranslate2 or onnx.")
    ],
    dtype: Annotated[
        str,
        "Number format of the weights: float32, float16 or bfloat16; for ctranslate2 also int8 and int8_float32.",
        "TYPE",
    ] = "float32",
    sentences: Annotated[
        Path | None, "Sample sentences for the verification, one per line. Default: the run's validation set.", "FILE"
    ] = None,
    license: Annotated[str, "Licence of the model for its model card, such as mit or cc-by-4.0.", "NAME"] = "",
    languages: Annotated[
        str | None,
        "Default language pair of a multilingual model, such as eng_Latn:kin_Latn. The formats ctranslate2 and onnx "
        "need one, unless the run has it.",
        "SOURCE:TARGET",
    ] = None,
    as_json: Json = False,
    *,
    model: ModelOptions,
) -> None:
    """Write a run in the format of another library, and verify the result with it.

    The other library opens the new folder, and its teacher-forced logits and beam outputs are compared with ours on
    sample sentences. If they differ, no folder is left. If the library is not installed, nothing is verified.
    """
    model.check(run)
    from dragoman.api.export_run import export as export_run

    texts = None if sentences is None else read_texts(sentences)
    source, separator, target = (languages or "").partition(":")
    if languages is not None and not (source and separator and target):
        raise UserError(f"--languages must be SOURCE:TARGET, such as eng_Latn:kin_Latn, got {languages!r}")
    result = export_run(
        run,
        out,
        to,
        dtype=dtype,
        checkpoint=model.checkpoint,
        device=model.device,
        sentences=texts,
        license=license,
        languages=(source, target) if languages else None,
    )
    if as_json:
        # how far the other library's results differ; None: it is not installed, and nothing was verified
        check = None if result.check is None else asdict(result.check)
        print_json(
            {
                "folder": str(out),
                "format": to,
                "model": result.model,
                "files": result.files,
                "notes": result.notes,
                "verified": check is not None,
                "check": check,
            }
        )
        return
    print(f"{result.model} in {out}: {', '.join(result.files)}")
    print_lines(f"note: {note}" for note in result.notes)
    print(result.verification)
