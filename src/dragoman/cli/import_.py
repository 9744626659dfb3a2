"""`dragoman import`: convert a checkpoint of another library to a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.options import Json, program_name
from dragoman.console import log, print_json
from dragoman.errors import UserError
from dragoman.run_files import is_marian_checkpoint

if TYPE_CHECKING:
    from dragoman.text.language_codes import LanguageCodes


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Folder of a Hugging Face transformers checkpoint (config.json and model.safetensors), or of a Marian "
            "model (.npz), or the .npz file itself.",
        ),
    ],
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run folder to create, which holds the converted model, its tokenizer and its settings."
        ),
    ],
    precision: Annotated[
        Literal["stored", "float32", "bfloat16"],
        typer.Option(
            help="Number format in which the weights are stored in the run folder: stored (as in the checkpoint), "
            "float32 or bfloat16. Other commands compute in float32, unless an option such as --bfloat16 "
            "changes this."
        ),
    ] = "stored",
    as_json: Json = False,
) -> None:
    """Convert a checkpoint of Hugging Face transformers or Marian to a run folder.

    FOLDER holds config.json, model.safetensors (or its shards) and the tokenizer files, as written by save_pretrained
    or downloaded from the hub; or a model of Marian with its vocabularies and decoder.yml, as OPUS-MT publishes it.
    No code in it is executed. A model that cannot be computed exactly is rejected.
    """
    if not folder.is_dir() and not is_marian_checkpoint(folder):
        raise UserError(
            f"{folder} is neither a folder nor a Marian model: name the folder that holds the checkpoint's "
            "config.json, or the .npz file of a Marian model"
        )

    from dragoman.interop.huggingface import import_checkpoint
    from dragoman.text.language_codes import described

    imported = import_checkpoint(folder, run, log, precision)
    checkpoint = imported.checkpoint
    if as_json:
        print_json(
            {
                "run": str(run),
                "architecture": checkpoint.architecture,
                "system": checkpoint.system,
                "parameters": imported.parameters,
                "vocab_sizes": imported.vocab_sizes,
                "framing": checkpoint.framing.to_dict(),
                "labels": checkpoint.labels,
                "ignored_settings": imported.unsupported_generation_settings,
            }
        )
        return
    source_size, target_size = imported.vocab_sizes
    tokens = f"{source_size:,}" if source_size == target_size else f"{source_size:,} and {target_size:,}"
    print(f"{checkpoint.architecture}, closest to the system {checkpoint.system}")
    print(f"{imported.parameters:,} parameters, vocabulary of {tokens} tokens")
    if checkpoint.labels:
        print(f"labels: {', '.join(checkpoint.labels)}")
    if codes := checkpoint.framing.languages:  # the language codes of a multilingual model
        print(f"{len(codes.ids)} languages: {described(codes.examples)}")
        if codes.has_default:
            print(f"default: from {codes.source or 'any language'} to {codes.target}")
    for name, value in imported.unsupported_generation_settings.items():
        print(f"ignored setting: {name} {value}")
    if usage := checkpoint.usage:
        # the input in the suggested command: for a speech model a list of sound files, otherwise an example of a line
        file = "recordings.txt" if checkpoint.feature_settings else ""
        print(f"use it with: {usage.hint(program_name(), str(run), file, _example_languages(codes))}")
    print(f"inspect it with: {program_name()} show {run}")


def _example_languages(codes: LanguageCodes | None) -> str:
    """Return options that choose the languages of a multilingual model, as an example: "--from en --to de".

    Only "--to de" if the model is not told the source language. The result is empty if the model has a default pair,
    detects the language of a recording itself, or has fewer than two languages; None stands for a model without codes.
    """
    if codes is None or codes.has_default or codes.detected or len(codes.ids) < 2:
        return ""
    source, target = codes.source or codes.examples[0], codes.target or codes.examples[1]
    return f"--from {source} --to {target}" if codes.reads_source_code else f"--to {target}"
