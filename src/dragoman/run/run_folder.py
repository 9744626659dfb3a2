"""The files of a run folder: model description, configuration, tokenizers, metrics, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dragoman import legacy
from dragoman.errors import UserError
from dragoman.models import ModelSpec, model_from_dict, model_to_dict
from dragoman.parts.spec import Spec
from dragoman.run_files import MODEL_FILE, check_run_folder, is_foreign_checkpoint, is_hugging_face_folder
from dragoman.text import Framing, Tokenizer

RUN_FORMAT_VERSION = 1


def write_model_file(folder: Path, system: str, spec: ModelSpec, framing: Framing) -> None:
    """Write `model.json` into a run folder.

    It holds the name of the system, the spec (hyper-parameters) of the model, and the framing: the special tokens
    around source and target.
    """
    values = {
        "version": RUN_FORMAT_VERSION,
        "system": system,
        "framing": framing.to_dict(),
        "spec": model_to_dict(spec),
    }
    (folder / MODEL_FILE).write_text(json.dumps(values, indent=1), encoding="utf-8")


def read_spec(folder: Path, custom_parts: Sequence[type[Spec]] = ()) -> ModelSpec:
    """Read the spec (hyper-parameters) of the model from `model.json` in a run folder.

    `custom_parts` are classes of parts, such as layers, that the user has defined and the spec may contain.
    """
    return model_from_dict(_read_model_file(folder)["spec"], {part.__name__: part for part in custom_parts})


def read_framing(folder: Path) -> Framing:
    """Read the framing, the special tokens around source and target, from `model.json` in a run folder.

    Early versions did not store it: their runs have the default of their model class.
    """
    document = _read_model_file(folder)
    if "framing" not in document:
        return read_spec(folder).default_framing
    try:
        fields = legacy.rename_fields(document["framing"], "framing")  # early versions have other names
        return Framing.from_dict(fields)
    except (TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{folder / MODEL_FILE} is damaged: its field 'framing' (the special tokens around a text) is invalid "
            f"({error}); copy the run folder again"
        ) from None


def _read_model_file(folder: Path) -> dict[str, Any]:
    """Return the JSON object in `model.json` of a run folder.

    A file that is missing, damaged or of another format version, and a folder with a checkpoint of another library, are
    UserErrors.
    """
    if is_foreign_checkpoint(folder):
        library = "Hugging Face" if is_hugging_face_folder(folder) else "Marian"
        raise UserError(
            f"{folder} holds a {library} checkpoint, not a run: convert it first with 'dragoman import {folder} RUN'"
        )
    check_run_folder(folder)
    try:
        document = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))
        version, _ = document["version"], document["spec"]  # a missing field raises a KeyError
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder / MODEL_FILE} is damaged: expected the fields 'version' and 'spec'; copy the run folder again"
        ) from None
    if version != RUN_FORMAT_VERSION:
        raise UserError(
            f"{folder / MODEL_FILE} has format version {version!r}, but only version {RUN_FORMAT_VERSION} is "
            "supported: update Dragoman"
        )
    return document


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizers of source and target from a run folder; if they share one, it is returned twice."""
    if (folder / "tokenizer.json").exists():
        shared = Tokenizer.load(folder / "tokenizer.json")
        return shared, shared
    return Tokenizer.load(folder / "tokenizer.source.json"), Tokenizer.load(folder / "tokenizer.target.json")


def write_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Write the tokenizers of source and target into a run folder; into one file if they are the same object."""
    if source is target:
        source.save(folder / "tokenizer.json")
    else:
        source.save(folder / "tokenizer.source.json")
        target.save(folder / "tokenizer.target.json")


def select_device(name: str) -> torch.device:
    """Return the device with this name; `auto` is the GPU if there is one (`cuda`, or Apple's `mps`), else the CPU.

    An unknown device, or a GPU that is not available, is a UserError.
    """
    if name == "auto":
        available = (device_type for device_type, is_available in _available_devices().items() if is_available)
        return torch.device(next(available, "cpu"))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu, cuda, cuda:N or mps") from None
    if not _available_devices().get(device.type, True):  # other types, such as cpu, are not GPUs
        raise UserError(
            f"the device {device.type} was requested, but no GPU is available: use --device cpu (in Python: "
            "device='cpu')"
        )
    return device


def _available_devices() -> dict[str, bool]:
    """Return whether a GPU of each type of device ("cuda", "mps") is available, the preferred type first."""
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
