"""The weights in the safetensors files of a checkpoint."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from dragoman.errors import UserError
from dragoman.tensor_files import CPU, TensorFile

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class StoredWeights:
    """The weights of a checkpoint by name, read on access.

    Names lack the prefix of the base model (`bert.`, `model.` …), and norms have `weight` and `bias` also in old files
    that say `gamma` and `beta`.
    """

    def __init__(self, files: dict[str, TensorFile], folder: Path, base_prefix: str) -> None:
        """Map names without `base_prefix`, and with weight and bias for gamma and beta, to the stored (full) names.

        `files` has the safetensors file of every full name; `folder`, that of the checkpoint, is for messages.
        """
        self.folder, self._files = folder, files
        self._full_names: dict[str, str] = {}
        modern = {".gamma": ".weight", ".beta": ".bias"}
        for full_name in files:
            name = full_name.removeprefix(base_prefix)
            name = re.sub(r"(?<=LayerNorm)\.(gamma|beta)$", lambda match: modern[match[0]], name)
            if name in self._full_names:
                raise UserError(
                    f"{folder} has the weight {name} twice, stored as {self._full_names[name]} and as {full_name}: "
                    "remove one of the two"
                )
            self._full_names[name] = full_name

    def __contains__(self, name: str) -> bool:
        """Whether a weight of this name, without the prefix of the base model, is stored."""
        return name in self._full_names

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all weights, without the prefix of the base model."""
        return iter(self._full_names)

    def __getitem__(self, name: str) -> Tensor:
        """Read a weight, whose name lacks the prefix of the base model, as float32."""
        return self.load(name, torch.float32)

    def load(self, name: str, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """Return a weight in this dtype on the device; memory-mapped if a large file holds it in this dtype."""
        full_name = self._full_names[name]
        self.float_dtype(name)  # raises an error for integers
        try:
            return self._files[full_name].load(full_name, dtype, device)
        except OSError as error:
            raise UserError(
                f"the weight {full_name} of {self.folder} cannot be read ({error}): get the file again"
            ) from None

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a weight from the header of its file, without reading the weight."""
        full_name = self._full_names[name]
        return self._files[full_name].tensors[full_name].shape

    def float_dtype(self, name: str) -> torch.dtype:
        """Return the data type of a weight from the header of its file; a UserError if it is no floating-point type."""
        full_name = self._full_names[name]
        dtype = self._files[full_name].tensors[full_name].dtype
        if dtype not in FLOAT_TYPES:
            found, *supported = (str(kind).removeprefix("torch.") for kind in (dtype, *FLOAT_TYPES))
            raise UserError(
                f"the weight {full_name} of {self.folder} has the data type {found}, but only {', '.join(supported)} "
                "are supported: use another checkpoint"
            )
        return dtype

    def first_present(self, *names: str) -> str:
        """Return the first of these names that is stored; the first name if none is, to be reported as missing."""
        return next((name for name in names if name in self), names[0])

    def equal(self, first: str, second: str) -> bool:
        """Whether two weights are equal (tied), or one of them is not stored, so that nothing contradicts it."""
        if first == second or first not in self or second not in self:
            return True
        first_full, second_full = self._full_names[first], self._full_names[second]  # as they are stored, with a prefix
        return self._files[first_full].equal(first_full, self._files[second_full], second_full)


def open_weights(folder: Path, base_prefix: str, class_name: str) -> StoredWeights:
    """Open the weights of a checkpoint, one safetensors file or several (shards) with an index.

    `base_prefix`, such as "model.", is removed from their names; `class_name` is that of the model in transformers.
    """
    if (folder / SINGLE_FILE).exists():
        file = _open(folder / SINGLE_FILE)
        return StoredWeights(dict.fromkeys(file, file), folder, base_prefix)
    if (folder / INDEX_FILE).exists():
        return _open_shards(folder, base_prefix)
    if pickles := [name for name in PICKLE_FILES if (folder / name).exists()]:
        path = repr(str(folder))
        program = f"import transformers as t; t.{class_name}.from_pretrained({path}).save_pretrained({path})"
        raise UserError(
            f"{folder} has its weights only in {pickles[0]}, a pickle file, which can execute any program when it is "
            f"loaded, and is therefore not read: if you trust it, convert it to {SINGLE_FILE} with the command "
            f"python -c {shlex.quote(program)}"
        )
    raise UserError(
        f"{folder} has no weights: expected {SINGLE_FILE}, or {INDEX_FILE} and the files that it lists: get these "
        "files, or name another folder"
    )


def _open_shards(folder: Path, base_prefix: str) -> StoredWeights:
    """Open the weights of a checkpoint in several files; raise a UserError if index and files do not fit."""
    shard_of = _read_index(folder)  # weight name → file name
    shards = {name: _open(folder / name) for name in sorted(set(shard_of.values()))}
    if missing := sorted(weight for weight, name in shard_of.items() if weight not in shards[name]):
        raise UserError(
            f"{folder / shard_of[missing[0]]} lacks the weight {missing[0]} that {INDEX_FILE} lists: get all "
            "files of the checkpoint again"
        )
    if unlisted := sorted(weight for shard in shards.values() for weight in shard if weight not in shard_of):
        raise UserError(
            f"{folder / INDEX_FILE} does not list the weight {unlisted[0]}, which one of the weight files "
            "holds: get all files of the checkpoint again"
        )
    return StoredWeights({weight: shards[name] for weight, name in shard_of.items()}, folder, base_prefix)


def _open(path: Path) -> TensorFile:
    """Open a safetensors file; raise a UserError if it is missing or damaged."""
    try:
        return TensorFile(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing, but {INDEX_FILE} lists it: get all files of the checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is truncated or damaged, get it again: {error}") from None


def _read_index(folder: Path) -> dict[str, str]:
    """Read the index file: name of every weight → name of the file (shard) that holds it."""
    path = folder / INDEX_FILE
    try:
        shard_of = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(shard_of, dict) or any(Path(str(name)).name != name for name in shard_of.values()):
            raise ValueError("weight_map must give a file in the same folder for every weight")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}; get the file again") from None
    return shard_of
