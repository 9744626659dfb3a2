"""Checks of what the user typed that need no torch: run folders, checkpoints, systems and devices by their names."""

from __future__ import annotations

import ast
import difflib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import dragoman
from dragoman.errors import UserError, unknown_name

if TYPE_CHECKING:
    from dragoman.config import Config

# As in dragoman.run and dragoman.interop, which cannot be imported without torch.
MODEL, CHECKPOINTS, FOREIGN = "model.json", "checkpoints", "config.json"
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")


def is_run(folder: Path) -> bool:
    return (folder / MODEL).exists()


def check_run(folder: str | Path, checkpoint: str | None = None, device: str | None = None) -> None:
    """Reject a folder that is neither a run nor a checkpoint of another library, and names that cannot exist."""
    folder = Path(folder)
    if not folder.exists():
        near = difflib.get_close_matches(folder.name, [path.name for path in runs_in(folder.parent)], n=1, cutoff=0.6)
        hint = (
            f"did you mean {folder.with_name(near[0])}?" if near else "name a run folder, which 'dragoman train' makes"
        )
        raise UserError(f"{folder} does not exist: {hint}")
    if not is_run(folder):
        if not (folder / FOREIGN).exists():
            raise UserError(f"{folder} is not a run folder: it has no {MODEL}")
    elif checkpoint is not None and not (folder / CHECKPOINTS / checkpoint).exists():
        known = sorted(path.name for path in (folder / CHECKPOINTS).glob("[!.]*"))
        listed = ", ".join(known) or "none: nothing has been trained yet"
        raise UserError(f"{folder} has no checkpoint {checkpoint!r}; it has {listed}")
    if device is not None:
        check_device(device)


def check_training(folder: Path, config: Config) -> None:
    """Reject names and files of a training that cannot be, and a folder that is taken."""
    from dragoman.cli.inputs import check_file
    from dragoman.data.corpus import Corpus

    data, start = config.data, config.training.start_from
    if is_run(folder):
        raise UserError(f"{folder} already holds a run: go on with --resume, or choose another name")
    if folder.exists():
        raise UserError(f"{folder} exists and is no run: choose another name, or remove it")
    if config.system.name is not None:
        check_system(config.system.name)
    if start is not None:
        check_run(start)
    if config.text.tokenizer_from and not Path(config.text.tokenizer_from).exists():
        raise UserError(
            f"{config.text.tokenizer_from} does not exist: name a run, a SentencePiece .model or a tokenizer.json"
        )
    check_device(config.training.device)
    for sources, targets in ((data.source, data.target), (data.valid_source, data.valid_target)):
        for path in (*sources, *targets):
            check_file(Path(path))
        for source, target in zip(sources, targets or [None] * len(sources)):
            _ = Corpus(Path(source), Path(target) if target else None, data.format).file_format
    for name in (config.text.source_word_vectors, config.text.target_word_vectors):
        if name is not None:
            check_file(Path(name))


def check_device(device: str) -> None:
    if device.split(":")[0] not in DEVICES:
        raise UserError(f"unknown device {device!r}: use auto, cpu or cuda")


def check_system(name: str) -> None:
    if name not in system_names():
        raise unknown_name("system", name, system_names())


@cache
def system_names() -> tuple[str, ...]:
    """The names of all systems, from the source of their modules: importing them imports torch."""
    names = []
    for path in sorted((Path(dragoman.__file__).parent / "systems").glob("[!_]*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]).endswith("_SYSTEMS")
                and isinstance(node.value, ast.Dict)
            ):
                names += [
                    key.value for key in node.value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
                ]
    return tuple(names)


def runs_in(folder: Path) -> list[Path]:
    """The run folders in a folder."""
    try:
        return sorted(path for path in folder.iterdir() if is_run(path))
    except OSError:
        return []
