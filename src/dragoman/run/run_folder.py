"""The run folder: what a training leaves, read and written file by file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dragoman import legacy
from dragoman.errors import UserError
from dragoman.models import ModelSpec, model_from_dict
from dragoman.models import model_to_dict as to_dict
from dragoman.parts.spec import Spec
from dragoman.text import Framing, Tokenizer

CONFIG_FILE, MODEL_FILE, METRICS_FILE, CHECKPOINT_DIR, INITIAL_CHECKPOINT = (
    "config.yaml",
    "model.json",
    "metrics.jsonl",
    "checkpoints",
    "initial",
)
RUN_FORMAT_VERSION = 1


def is_run_folder(folder: Path) -> bool:
    return (folder / MODEL_FILE).exists()


def write_model_file(folder: Path, system: str, spec: ModelSpec, framing: Framing) -> None:
    document = {"version": RUN_FORMAT_VERSION, "system": system, "framing": asdict(framing), "spec": to_dict(spec)}
    (folder / MODEL_FILE).write_text(json.dumps(document, indent=1), encoding="utf-8")


def read_spec(folder: Path, parts: Sequence[type[Spec]] = ()) -> ModelSpec:
    """The model's description; `parts` are a user's own parts, if it has any."""
    return model_from_dict(_document(folder)["spec"], {part.__name__: part for part in parts})


def read_framing(folder: Path) -> Framing:
    document = _document(folder)
    if "framing" not in document:
        return read_spec(folder).default_framing
    try:
        framing_values = legacy.translate_framing(document["framing"]).items()
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in framing_values}
        framing = Framing(**values)
    except (TypeError, AttributeError):
        raise UserError(f"{folder / MODEL_FILE} is damaged: its framing is not understood") from None
    flat = [
        framing.pad,
        framing.bos,
        framing.eos,
        *framing.source_prefix,
        *framing.source_suffix,
        *framing.forced_bos,
        *framing.suppressed,
    ]
    if not all(isinstance(token, int) and token >= 0 for token in flat):
        raise UserError(f"{folder / MODEL_FILE} is damaged: its framing must hold numbers of tokens")
    return framing


def _document(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise UserError(f"{folder} does not exist: name a run folder, which 'dragoman train' makes")
    if not is_run_folder(folder) and (folder / "config.json").exists():
        raise UserError(
            f"{folder} holds a Hugging Face checkpoint, not a run: convert it first with 'dragoman import {folder} RUN'"
        )
    if not is_run_folder(folder):
        raise UserError(f"{folder} is not a run folder: it has no {MODEL_FILE}")
    try:
        document = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))
        version, _ = document["version"], document["spec"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / MODEL_FILE} is damaged: it must hold a version and a spec") from None
    if version != RUN_FORMAT_VERSION:
        raise UserError(
            f"{folder / MODEL_FILE} has format {version!r}, but only {RUN_FORMAT_VERSION} is known here: update dragoman"
        )
    return document


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source's and the target's, which are one where the file is joint."""
    if (folder / "tokenizer.json").exists():
        joint = Tokenizer.load(folder / "tokenizer.json")
        return joint, joint
    return Tokenizer.load(folder / "tokenizer.source.json"), Tokenizer.load(folder / "tokenizer.target.json")


def write_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    if source is target:
        source.save(folder / "tokenizer.json")
    else:
        source.save(folder / "tokenizer.source.json")
        target.save(folder / "tokenizer.target.json")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last one that a full disk or a kill has cut short is left out."""
    path = folder / METRICS_FILE
    records = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def checkpoint_names(folder: Path) -> list[str]:
    """The checkpoints by name, steps first, then best, last and averaged where they are."""
    place = folder / CHECKPOINT_DIR
    return sorted(p.name for p in place.iterdir() if not p.name.startswith(".")) if place.is_dir() else []


def select_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but no GPU can be used here: use --device cpu")
    return device
