"""The files of a run folder, and checks that they exist; without torch, so that mistakes are answered at once."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.storage import resolve_link

CONFIG_FILE, MODEL_FILE, METRICS_FILE = "config.yaml", "model.json", "metrics.jsonl"
CHECKPOINT_DIR, INITIAL_CHECKPOINT, HISTORY_DIR = "checkpoints", "initial", "history"
SAMPLES_DIR = "samples"
STATUS_FILE, MESSAGES_FILE = "status.json", "messages.jsonl"  # of a training, for those who watch it
HUGGING_FACE_CONFIG = "config.json"
ENSEMBLE_FILE, ENSEMBLE_VERSION = "ensemble.json", 1


def is_run_folder(folder: Path) -> bool:
    """Whether a folder contains a run (a training with its model and checkpoints), recognized by its model file."""
    return (folder / MODEL_FILE).exists()


def is_hugging_face_folder(folder: Path) -> bool:
    """Whether a folder holds a checkpoint of Hugging Face transformers."""
    return (folder / HUGGING_FACE_CONFIG).exists() and not is_run_folder(folder)


def is_marian_checkpoint(path: Path) -> bool:
    """Whether a path is a model of Marian in its own format (.npz), or a folder with one.

    A folder that also holds a run or a Hugging Face checkpoint is not one of Marian.
    """
    if path.is_file():
        return path.suffix == ".npz"
    if not path.is_dir() or is_run_folder(path) or (path / HUGGING_FACE_CONFIG).exists():
        return False
    return any(path.glob("*.npz"))


def is_foreign_checkpoint(path: Path) -> bool:
    """Whether a path holds a checkpoint of another library (transformers or Marian) that can be opened as it is."""
    return is_hugging_face_folder(path) or is_marian_checkpoint(path)


def is_ensemble_folder(folder: Path) -> bool:
    """Whether a folder holds several runs that differ in their random seed only, which translate as an ensemble."""
    return (folder / ENSEMBLE_FILE).exists()


def read_ensemble(folder: Path) -> dict[str, Any]:
    """Read `ensemble.json`: the names of the runs (`members`), the results of the finished ones, and the report.

    A file that is damaged, or has another format version, is a UserError.
    """
    try:
        document = json.loads((folder / ENSEMBLE_FILE).read_text(encoding="utf-8"))
        version, members = document["version"], [str(name) for name in document["members"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder / ENSEMBLE_FILE} is damaged: expected the fields 'version' and 'members'; name one of the runs "
            "in its folder instead"
        ) from None
    if version != ENSEMBLE_VERSION:
        raise UserError(
            f"{folder / ENSEMBLE_FILE} has format version {version!r}, but only version {ENSEMBLE_VERSION} is "
            "supported: update dragoman"
        )
    return document | {"members": members}


def ensemble_members(folder: Path) -> list[Path]:
    """Return the run folders of an ensemble folder."""
    return [folder / name for name in read_ensemble(folder)["members"]]


def _check_ensemble_folder(folder: Path, checkpoint: str | None) -> None:
    """Raise a UserError unless all runs of an ensemble have the checkpoint of this name.

    `checkpoint` None means that the caller needs a single run, so that an ensemble is an error.
    """
    members = ensemble_members(folder)
    if checkpoint is None:
        raise UserError(
            f"{folder} holds {len(members)} runs with different seeds, but a single run is needed: name one of them, "
            f"such as {members[0]}"
        )
    for member in members:
        if not has_checkpoint(member, checkpoint):
            raise UserError(
                f"{member} has no checkpoint {checkpoint!r}, which the ensemble {folder} needs of all its runs: "
                f"continue the training with 'dragoman train {folder} --resume', or name a single run"
            )


def check_run_folder(folder: Path, checkpoint: str | None = None) -> None:
    """Raise a UserError if a folder is not a run folder, or has no checkpoint of this name.

    `checkpoint` None: no checkpoint is needed. A folder with an ensemble of runs is accepted only if a checkpoint is
    named, which all of its runs must have.
    """
    folder = resolve_link(folder)
    if not folder.exists():
        siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
        runs = [path.name for path in siblings if is_run_folder(path) or is_ensemble_folder(path)]
        near = difflib.get_close_matches(folder.name, runs, n=1)
        hint = f"did you mean {folder.with_name(near[0])}?" if near else "name a run folder created by 'dragoman train'"
        raise UserError(f"{folder} does not exist: {hint}")
    if is_ensemble_folder(folder):
        _check_ensemble_folder(folder, checkpoint)
        return
    if not is_run_folder(folder):
        raise UserError(
            f"{folder} is not a run folder, because it has no {MODEL_FILE}: name a folder created by 'dragoman train'"
        )
    if checkpoint is not None and not has_checkpoint(folder, checkpoint):
        names = ", ".join(checkpoint_names(folder)) or "none (nothing has been trained yet)"
        raise UserError(f"{folder} has no checkpoint {checkpoint!r}: choose one of its checkpoints, {names}")


def check_new_folder(folder: Path) -> None:
    """Raise a UserError if the folder for a new run exists: training never overwrites anything."""
    if is_ensemble_folder(folder):
        raise UserError(f"{folder} already contains runs: continue them with --resume, or choose another name")
    if is_run_folder(folder):
        raise UserError(
            f"{folder} already contains a run: choose another name, or continue its training with train --resume"
        )
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists and is not a run: choose another name, or remove it")


def has_checkpoint(folder: Path, name: str) -> bool:
    """Whether a run has a checkpoint of this name: a step, or a link such as `best`."""
    return resolve_link(folder / CHECKPOINT_DIR / name).exists()


def checkpoint_names(folder: Path) -> list[str]:
    """List the checkpoints of a run: step numbers first, then `averaged`, `best` and `last`.

    Those of the history, a folder with the weights of some earlier steps, are left out.
    """
    return sorted(path.name for path in (folder / CHECKPOINT_DIR).glob("[!.]*") if path.name != HISTORY_DIR)


def history_steps(folder: Path) -> list[int]:
    """Return the steps whose weights are kept in the history of a run (`checkpoints/history/STEP`), in order."""
    paths = (folder / CHECKPOINT_DIR / HISTORY_DIR).glob("*")
    return sorted(int(path.name) for path in paths if path.name.isdecimal())


def checkpoints_by_step(folder: Path) -> dict[int, str]:
    """Return the names of all checkpoints of a run by step, such as {16: "history/000016", 500: "000500"}.

    Those without a step in their name, `averaged`, `best` and `last`, are left out.
    """
    names = {step: f"{HISTORY_DIR}/{step:06d}" for step in history_steps(folder)}
    names |= {int(name): name for name in checkpoint_names(folder) if name.isdecimal()}
    return dict(sorted(names.items()))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the records of `metrics.jsonl`, none if there is no such file.

    They end at the first line that is not valid JSON: the last one may be incomplete, as after a kill.
    """
    path = folder / METRICS_FILE
    records = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def sample_files(folder: Path) -> dict[int, Path]:
    """Return the files with the sample sentences of each validation, `samples/STEP.jsonl`, by step, in order."""
    paths = (folder / SAMPLES_DIR).glob("*.jsonl")
    return dict(sorted((int(path.stem), path) for path in paths if path.stem.isdecimal()))
