"""What an export holds beside the model: tokenizers, settings, an example program and a description.

The example program needs the library of the format and the `tokenizers` library. It needs Dragoman only for tokenizers
that `tokenizers` cannot read: those of imported SentencePiece models, and those that number unknown words.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from dragoman import __version__
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.run.run_folder import write_tokenizers
from dragoman.run.sources import max_source_tokens, tag_ids
from dragoman.text import Tokenizer
from dragoman.text.normalization import TextNormalizer

SETTINGS_FILE = "dragoman.json"
MAX_NEW_TOKENS = 512  # maximum target length, if the run has none


def deployment_settings(run: Run, file_format: str) -> dict[str, Any]:
    """Return what a program needs to know to use an exported model: files of tokenizers, special tokens, limits.

    `file_format` is the name of the format, such as "ONNX". Token ids of a source are `source_prefix`, those of its
    text (at most `max_source_tokens`), `source_suffix`. A target begins with `bos` and `target_prefix` and ends with
    `eos`. No target has a token of `suppressed`. For a multilingual model these are the tokens of its default language
    pair; `languages` maps every language code to its token id.
    """
    framing = run.framing
    if framing.languages is not None:  # no pair was chosen, so that the language codes around a source are unknown
        raise UserError(
            f"{run.folder} translates between several languages and has no default pair: choose one with "
            "--languages SOURCE:TARGET (in Python: languages=(SOURCE, TARGET)), or fine-tune the model for one pair "
            "with --from and --to"
        )
    shared = run.source_tokenizer is run.target_tokenizer
    tokenizers = {side: "tokenizer.json" if shared else f"tokenizer.{side}.json" for side in ("source", "target")}
    (tag_tokens,) = tag_ids(run, count=1, tag=None)  # of a text without a stated tag: the first corpus tag, if any
    settings: dict[str, Any] = {
        "dragoman": __version__,
        "format": file_format,
        "source_tokenizer": tokenizers["source"],
        "target_tokenizer": tokenizers["target"],
        "source_prefix": [*framing.source_prefix, *tag_tokens],
        "source_suffix": list(framing.source_suffix),
        "max_source_tokens": max_source_tokens(run),
    }
    if run.model.can_generate:
        settings |= {
            "bos": framing.bos,
            "target_prefix": list(framing.forced_bos),
            "eos": framing.eos,
            # a model may have fewer output tokens than there are special tokens
            "suppressed": [token for token in framing.suppressed if token < run.model.vocab_size],
            "max_target_tokens": max_target_tokens(run),
        }
    elif run.model.num_labels:
        settings["labels"] = label_names(run)
    # `model_framing`: special tokens of the model itself; `framing`: those of its language pair, once it is chosen
    if run.model_framing.languages is not None:  # a multilingual model
        settings["languages"] = dict(run.model_framing.languages.ids)
    return settings


def max_target_tokens(run: Run) -> int:
    """Return the maximum number of target tokens: the run's limit (default 512), or the model's positions if fewer."""
    limit = run.length_limit.max or MAX_NEW_TOKENS
    # for a source of 0 tokens: in a decoder-only model, a source takes positions from the target
    positions = run.model.max_target_length(torch.tensor([0]))
    return limit if positions is None else min(limit, int(positions))


def label_names(run: Run) -> list[str]:
    """Return the name of each output of a model that predicts labels; "" for an output that is no label."""
    tokenizer, count = run.target_tokenizer, run.model.num_labels
    if tokenizer is run.source_tokenizer:  # labels without names, of an imported checkpoint: they have no tokenizer
        return [str(label) for label in range(count)]
    # the unknown word, which the tokenizer of labels has too, is no label
    return ["" if label == tokenizer.unk else tokenizer.decode([label]) for label in range(count)]


def write_deployment_files(
    run: Run, folder: Path, settings: dict[str, Any], example: str, files: dict[str, str], **template_values: Any
) -> None:
    """Write what an exported model needs beside its own files: tokenizers, settings, an example program, README.md.

    `settings` are the content of dragoman.json. `example` is the file name of the program; its template has the suffix
    .jinja, and `template_values` are further values for it. `files` describes the model's files by name, for README.md.
    """
    write_tokenizers(folder, run.source_tokenizer, run.target_tokenizer)
    text = json.dumps(settings, indent=1, ensure_ascii=False)
    (folder / SETTINGS_FILE).write_text(text, encoding="utf-8")
    values = {
        "settings": settings,
        # otherwise the program loads the tokenizers with Dragoman
        "library_reads_tokenizers": all(map(is_read_by_library, (run.source_tokenizer, run.target_tokenizer))),
        "normalizer": TextNormalizer.from_settings(run.config.text),
        "run": run,
        "files": files,
        **template_values,
    }
    program = render_template(f"{example}.jinja", **values)
    (folder / example).write_text(program, encoding="utf-8")
    readme = render_template("export_readme.md.jinja", **values, program=program, example=example)
    (folder / "README.md").write_text(readme, encoding="utf-8")


def is_read_by_library(tokenizer: Tokenizer) -> bool:
    """Whether the `tokenizers` library alone gives the ids of this tokenizer.

    It does not for imported SentencePiece models, nor if unknown words are distributed among several tokens by a hash.
    """
    return tokenizer.is_library_tokenizer and not tokenizer.unknown_word_tokens


def render_template(template: str, **values: Any) -> str:
    """Fill a template, given by its file name, with `values`."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    """Return the template engine (Jinja); it does not escape HTML, since it writes programs and Markdown."""
    loader = PackageLoader("dragoman.interop")
    return Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
