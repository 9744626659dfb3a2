"""Checks of names and files on the command line that do not import torch, so that mistakes are answered at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.builtin_names import system_names, system_setting_names
from dragoman.errors import UserError, unknown_name
from dragoman.run_files import check_new_folder, check_run_folder, is_foreign_checkpoint

if TYPE_CHECKING:
    from dragoman.config import Config

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")


def check_run(folder: str | Path, checkpoint: str | None = None, device: str | None = None) -> None:
    """Raise a UserError for a folder that cannot be loaded: neither a run nor a Hugging Face checkpoint.

    `checkpoint` names a checkpoint that the run must have, `device` a device to check; None: not checked.
    """
    if not is_foreign_checkpoint(Path(folder)):
        check_run_folder(Path(folder), checkpoint)
    if device is not None:
        check_device(device)


def check_training(folder: Path, config: Config) -> None:
    """Check the arguments of a training before torch is imported, which takes seconds.

    Raise a UserError if the run folder exists already, or if a file or name in the configuration is wrong.
    """
    from dragoman.data.corpus import Corpus
    from dragoman.data.text_files import check_file

    data, text, training = config.data, config.text, config.training
    check_new_folder(folder)
    if config.system.name is not None:
        check_system(config.system.name)
    for setting in config.system.settings:
        if isinstance(setting, str) and setting not in (known := system_setting_names()):
            raise unknown_name("setting of systems", setting, known)
    if training.start_from is not None:
        check_run(training.start_from)
    if text.tokenizer_from and not Path(text.tokenizer_from).exists():
        raise UserError(
            f"the tokenizer {text.tokenizer_from} (--tokenizer-from) does not exist: name a run folder, a "
            "SentencePiece .model or a tokenizer.json"
        )
    check_device(training.device)
    for sources, targets in ((data.source, data.target), (data.valid_source, data.valid_target)):
        for source, target in zip(sources, targets or [None] * len(sources)):
            Corpus.from_settings(data, source, target).check()
    for name in (text.source_word_vectors, text.target_word_vectors):
        if name is not None:
            check_file(Path(name))


def check_device(device: str) -> None:
    """Raise a UserError for an unknown device."""
    if device.split(":")[0] not in DEVICES:
        raise UserError(f"unknown device {device!r}: use auto, cpu, cuda, cuda:N or mps")


def check_system(name: str) -> None:
    """Raise a UserError for an unknown system."""
    if name not in system_names():
        raise unknown_name("system", name, system_names())
