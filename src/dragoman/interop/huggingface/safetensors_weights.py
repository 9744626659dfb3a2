"""The weights in the safetensors files of a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dragoman.errors import UserError

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class StoredWeights:
    """Weights by name, read on access as float32.

    Names lack the prefix of the base model (`bert.`, `model.` …), and norms have `weight` and `bias` also in old files
    that say `gamma` and `beta`.

    Args:
        files: the open safetensors file of every full weight name.
        folder: the folder of the checkpoint, for messages.
        base_prefix: prefix that is removed from the names.
    """

    def __init__(self, files: dict[str, Any], folder: Path, base_prefix: str) -> None:
        """Map the names of weights without `base_prefix` to their full names; old files say gamma and beta in norms.

        `files` holds the open safetensors file of every full name.
        """
        self.folder, self._files = folder, files
        self._full_names: dict[str, str] = {}
        modern = {".gamma": ".weight", ".beta": ".bias"}
        for full in files:
            name = full.removeprefix(base_prefix)
            name = re.sub(r"(?<=LayerNorm)\.(gamma|beta)$", lambda match: modern[match[0]], name)
            if name in self._full_names:
                raise UserError(
                    f"{folder} has the weight {name} twice, under the names {self._full_names[name]} and {full}: "
                    "remove one of them"
                )
            self._full_names[name] = full

    def __contains__(self, name: str) -> bool:
        """Whether a weight of this name, without the prefix of the base model, is stored."""
        return name in self._full_names

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all weights, without the prefix of the base model."""
        return iter(self._full_names)

    def __getitem__(self, name: str) -> Tensor:
        """Read a weight, whose name lacks the prefix of the base model, as float32."""
        full = self._full_names[name]
        try:
            weight = self._files[full].get_tensor(full)
        except SafetensorError as error:
            raise UserError(f"the weight {full} of {self.folder} cannot be read: {error}") from None
        if weight.dtype not in FLOAT_TYPES:
            dtype, *supported = (str(kind).removeprefix("torch.") for kind in (weight.dtype, *FLOAT_TYPES))
            raise UserError(
                f"the weight {full} of {self.folder} has the data type {dtype}, but only {', '.join(supported)} "
                "are supported"
            )
        return weight.float()

    def first_present(self, *names: str) -> str:
        """Return the first of these names that is stored; the first name if none is, to be reported as missing."""
        return next((name for name in names if name in self), names[0])

    def equal(self, first: str, second: str) -> bool:
        """Whether two weights are equal, or one of them is not stored."""
        return first == second or first not in self or second not in self or torch.equal(self[first], self[second])


@contextmanager
def open_weights(folder: Path, base_prefix: str) -> Iterator[StoredWeights]:
    """Open the weights of a checkpoint, one safetensors file or several (shards) with an index, while in use.

    `base_prefix`, such as "model.", is removed from their names.
    """
    with ExitStack() as stack:
        if (folder / SINGLE_FILE).exists():
            file = stack.enter_context(_open(folder / SINGLE_FILE))
            yield StoredWeights(dict.fromkeys(file.keys(), file), folder, base_prefix)
        elif (folder / INDEX_FILE).exists():
            shard_of = _read_index(folder)  # weight name → file name
            file_names = sorted(set(shard_of.values()))
            shards = {name: stack.enter_context(_open(folder / name)) for name in file_names}
            contents = {name: set(shard.keys()) for name, shard in shards.items()}
            if missing := sorted(weight for weight, name in shard_of.items() if weight not in contents[name]):
                raise UserError(
                    f"{folder / shard_of[missing[0]]} lacks the weight {missing[0]} that {INDEX_FILE} lists: get all "
                    "files of the checkpoint again"
                )
            if unlisted := sorted(weight for names in contents.values() for weight in names if weight not in shard_of):
                raise UserError(
                    f"{folder / INDEX_FILE} does not list the weight {unlisted[0]}, which one of the weight files "
                    "holds: get all files of the checkpoint again"
                )
            yield StoredWeights({weight: shards[name] for weight, name in shard_of.items()}, folder, base_prefix)
        elif any((folder / name).exists() for name in PICKLE_FILES):
            raise UserError(
                f"{folder} has its weights only in {PICKLE_FILES[0]}, a pickle file, which can execute any program "
                f"when it is loaded: if you trust it, load it with transformers and call save_pretrained, which "
                f"writes {SINGLE_FILE}"
            )
        else:
            raise UserError(f"{folder} has no weights: expected {SINGLE_FILE} or {INDEX_FILE}")


def _open(path: Path) -> Any:
    """Open a safetensors file; raise a UserError if it is missing or damaged."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise UserError(f"{path} is missing, but {INDEX_FILE} lists it: get all files of the checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _read_index(folder: Path) -> dict[str, str]:
    """Read the index file: name of every weight → name of the file (shard) that holds it."""
    path = folder / INDEX_FILE
    try:
        shard_of = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(shard_of, dict) or any(Path(str(name)).name != name for name in shard_of.values()):
            raise ValueError("weight_map must give a file in the same folder for every weight")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    return shard_of
