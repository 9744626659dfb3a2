"""The files of a run folder, and checks that they exist; without torch, so that mistakes are answered at once."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from dragoman.errors import UserError

CONFIG_FILE, MODEL_FILE, METRICS_FILE = "config.yaml", "model.json", "metrics.jsonl"
CHECKPOINT_DIR, INITIAL_CHECKPOINT = "checkpoints", "initial"
HUGGING_FACE_CONFIG = "config.json"


def is_run_folder(folder: Path) -> bool:
    """Whether a folder contains a run, recognized by its model file."""
    return (folder / MODEL_FILE).exists()


def is_hugging_face_folder(folder: Path) -> bool:
    """Whether a folder holds a checkpoint of Hugging Face transformers."""
    return (folder / HUGGING_FACE_CONFIG).exists() and not is_run_folder(folder)


def check_run_folder(folder: Path, checkpoint: str | None = None) -> None:
    """Raise a UserError if a folder is not a run folder, or has no checkpoint of this name."""
    if not folder.exists():
        siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
        near = difflib.get_close_matches(folder.name, [path.name for path in siblings if is_run_folder(path)], n=1)
        hint = f"did you mean {folder.with_name(near[0])}?" if near else "name a run folder created by 'dragoman train'"
        raise UserError(f"{folder} does not exist: {hint}")
    if not is_run_folder(folder):
        raise UserError(
            f"{folder} is not a run folder, because it has no {MODEL_FILE}: name a folder created by 'dragoman train'"
        )
    if checkpoint is not None and not (folder / CHECKPOINT_DIR / checkpoint).exists():
        names = ", ".join(checkpoint_names(folder)) or "none (nothing has been trained yet)"
        raise UserError(f"{folder} has no checkpoint {checkpoint!r}: choose one of {names}")


def check_new_folder(folder: Path) -> None:
    """Raise a UserError if the folder exists: a run never overwrites anything."""
    if is_run_folder(folder):
        raise UserError(f"{folder} already contains a run: continue it with --resume, or choose another name")
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists and is not a run: choose another name, or remove it")


def checkpoint_names(folder: Path) -> list[str]:
    """List the checkpoints: step numbers first, then `averaged`, `best` and `last`."""
    return sorted(path.name for path in (folder / CHECKPOINT_DIR).glob("[!.]*"))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the records of `metrics.jsonl`; an incomplete last line, as after a kill, is ignored."""
    path = folder / METRICS_FILE
    records = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records
