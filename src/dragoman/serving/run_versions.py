"""Versions of runs: which checkpoint is loaded, and whether the files of a run have changed since."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dragoman.checkpoint import is_complete, tensors_digest
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, MODEL_FILE, ensemble_members, is_ensemble_folder
from dragoman.storage import resolve_link

DIGEST_LENGTH = 8  # hexadecimal digits


def run_version(folder: Path, checkpoint: str) -> str:
    """Return the version of a run on disk, such as 000500-1f0c93ab: its checkpoint, and a digest of its files.

    `checkpoint` may be a link such as best. The digest covers the configuration, the tokenizers and the weights.
    Checkpoints of other libraries are recognized by names, sizes and times of their files.
    """
    folder = resolve_link(folder)
    digest, names, members = hashlib.sha256(), [], [folder]  # names of checkpoints; run folders
    if is_ensemble_folder(folder):
        members = ensemble_members(folder)
        _add_files(digest, [folder / CONFIG_FILE])
    for member in members:
        weights = resolve_link(member / CHECKPOINT_DIR / checkpoint).resolve()
        if is_complete(weights):
            names.append(weights.name)
            digest.update(f"{tensors_digest(weights, 'model')} ".encode())  # of the file of weights, model.safetensors
            _add_files(digest, [member / CONFIG_FILE, member / MODEL_FILE, *sorted(member.glob("tokenizer*.json"))])
        else:  # a checkpoint of another library, without a manifest of digests
            _add_times(digest, member)
    return "-".join([*dict.fromkeys(names), digest.hexdigest()[:DIGEST_LENGTH]])


def _add_files(digest: hashlib._Hash, paths: list[Path]) -> None:
    """Update a digest with names and contents of small files; missing files are skipped."""
    for path in paths:
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)} ".encode() + content)


def _add_times(digest: hashlib._Hash, path: Path) -> None:
    """Update a digest with names, sizes and modification times of the files of a folder, or of a single file."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns} ".encode())
