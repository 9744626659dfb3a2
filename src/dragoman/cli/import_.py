"""`dragoman import`: a checkpoint from elsewhere as a run folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Json, log, print_json, program
from dragoman.errors import UserError


def import_(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A checkpoint of Hugging Face's transformers.", show_default=False)
    ],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder to make.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Make a run of a checkpoint from elsewhere.

    FOLDER holds config.json, model.safetensors (or its shards) and the files of the tokenizer, as save_pretrained
    writes them or the hub keeps them. Nothing in it is executed. What cannot be computed exactly as there is refused.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: name the one that holds the checkpoint's config.json")

    from dragoman.interop.huggingface import import_checkpoint

    found = import_checkpoint(folder, run, log)
    checkpoint = found.checkpoint
    if as_json:
        print_json(
            {
                "run": str(run),
                "architecture": checkpoint.architecture,
                "system": checkpoint.system,
                "parameters": found.parameters,
                "vocabulary": found.vocab_sizes,
                "framing": asdict(checkpoint.framing),
                "labels": checkpoint.labels,
                "left_out": found.unsupported_generation_settings,
            }
        )
        return
    source, target = found.vocab_sizes
    pieces = f"{source:,}" if source == target else f"{source:,} and {target:,}"
    print(f"{checkpoint.architecture}, here nearest to the system {checkpoint.system}")
    print(f"{found.parameters:,} parameters, {pieces} pieces")
    if checkpoint.labels:
        print(f"labels: {', '.join(checkpoint.labels)}")
    for name, value in found.unsupported_generation_settings.items():
        print(f"not taken over: {name} {value}")
    print(f"look at it with: {program()} show {run}")
