"""Checks of names and files on the command line that do not import torch, so that mistakes are answered at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.builtin_names import system_names, system_setting_names
from dragoman.errors import UserError, unknown_name
from dragoman.run_files import check_new_folder, check_run_folder, is_foreign_checkpoint

if TYPE_CHECKING:
    from dragoman.config import Config

DEVICES = ("auto", "cpu", "cuda", "mps")


def check_run(folder: str | Path, checkpoint: str | None = None, device: str | None = None) -> None:
    """Raise a UserError for a folder that cannot be loaded: neither a run nor a Hugging Face or Marian checkpoint.

    `checkpoint` names a checkpoint that a run must have; None: none is needed, but a folder with an ensemble of runs is
    rejected. `device` is a device to check; None: not checked.
    """
    if not is_foreign_checkpoint(Path(folder)):
        check_run_folder(Path(folder), checkpoint)
    if device is not None:
        check_device(device)


def check_training(folder: Path, config: Config) -> None:
    """Check a new run folder and its configuration before torch is imported, which takes seconds.

    Raise a UserError if the folder exists already, or if the configuration names an unknown system, setting of systems
    or device, or a corpus, tokenizer, file of word vectors or run to start from that cannot be opened.
    """
    from dragoman.data.corpus import Corpus
    from dragoman.data.text_files import check_file

    data, text, training = config.data, config.text, config.training
    check_new_folder(folder)
    if config.system.name is not None:
        check_system(config.system.name)
    known_settings = system_setting_names() if config.system.settings else []
    for setting in config.system.settings:
        if isinstance(setting, str) and setting not in known_settings:  # a key in a YAML file may also be a number
            raise unknown_name("setting of systems", setting, known_settings)
    if training.start_from is not None:
        check_run(training.start_from)
    if text.tokenizer_from and not Path(text.tokenizer_from).exists():
        raise UserError(
            f"the tokenizer {text.tokenizer_from} (--tokenizer-from) does not exist: name a run folder, a "
            "SentencePiece model (.model) or a tokenizer.json of Hugging Face"
        )
    check_device(training.device)
    for sources, targets in ((data.source, data.target), (data.valid_source, data.valid_target)):
        for source, target in zip(sources, targets or [None] * len(sources)):
            Corpus.from_settings(data, source, target).check()
    for vector_file in (text.source_word_vectors, text.target_word_vectors):
        if vector_file is not None:
            check_file(Path(vector_file))


def check_device(device: str) -> None:
    """Raise a UserError for an unknown kind of device; whether this machine has it is not checked."""
    kind = device.split(":")[0]  # "cuda" for cuda:1
    if kind not in DEVICES:
        raise UserError(f"unknown device {device!r}: use auto, cpu, cuda, cuda:N or mps")


def check_system(name: str) -> None:
    """Raise a UserError unless `name` is that of a built-in system (an architecture such as "transformer")."""
    if name not in system_names():
        raise unknown_name("system", name, system_names())
