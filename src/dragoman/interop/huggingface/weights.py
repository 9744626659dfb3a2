"""The weights of a checkpoint: its safetensors files, and the table of what becomes of each.

Weights are named as in the file, without the name of the base model (`bert.`, `model.` …) that some begin with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dragoman.errors import UserError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
Change = Callable[[Tensor], Tensor]


def unchanged(weight: Tensor) -> Tensor:
    return weight


def turned(weight: Tensor) -> Tensor:
    """A matrix that maps rows to columns, the other way round; a vector as it is."""
    return weight.T if weight.dim() == 2 else weight


def without_first(rows: int) -> Change:
    return lambda weight: weight[rows:]


@dataclass(frozen=True)
class Origin:
    """Where a weight of ours comes from: these of theirs, one below the other, then changed."""

    names: tuple[str, ...]
    change: Change = unchanged
    optional: bool = False  # zeros where it is not there


def layer(ours: str, *theirs: str, bias: bool = True, change: Change = unchanged) -> dict[str, Origin]:
    """A matrix and its bias, or a norm; several of theirs are one in ours."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return {f"{ours}.{kind}": Origin(tuple(f"{name}.{kind}" for name in theirs), change) for kind in kinds}


class Stored:
    """The weights in a checkpoint's files, read when they are asked for."""

    def __init__(self, files: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        self._files = files  # by the full name of each weight
        self._full: dict[str, str] = {}

    def strip(self, base: str) -> None:
        """Leave out the base model's name at the beginning, and write norms as they are written today."""
        old = {".gamma": ".weight", ".beta": ".bias"}
        for full in self._files:
            name = re.sub(r"(?<=LayerNorm)\.(gamma|beta)$", lambda found: old[found[0]], full.removeprefix(base))
            if name in self._full:
                raise UserError(f"{self.folder} has the weight {name} twice, as {self._full[name]} and as {full}")
            self._full[name] = full

    def __contains__(self, name: str) -> bool:
        return name in self._full

    def __iter__(self) -> Iterator[str]:
        return iter(self._full)

    def __getitem__(self, name: str) -> Tensor:
        full = self._full[name]
        try:
            weight = self._files[full].get_tensor(full)
        except SafetensorError as error:
            raise UserError(f"the weight {full} of {self.folder} cannot be read: {error}") from None
        if weight.dtype not in FLOATS:
            kind, *known = (str(one).removeprefix("torch.") for one in (weight.dtype, *FLOATS))
            raise UserError(f"the weight {full} of {self.folder} is of type {kind}: known are {', '.join(known)}")
        return weight.float()

    def first(self, *names: str) -> str:
        """The first of these that is there; the first of all where none is, which will then be missed."""
        return next((name for name in names if name in self), names[0])

    def same(self, one: str, other: str) -> bool:
        """Are two weights one and the same? What is not there can differ from nothing."""
        return one == other or one not in self or other not in self or torch.equal(self[one], self[other])


@contextmanager
def opened(folder: Path) -> Iterator[Stored]:
    """The checkpoint's weights, from one file or from several."""
    with ExitStack() as stack:
        if (folder / SINGLE).exists():
            file = stack.enter_context(_open(folder / SINGLE))
            yield Stored(dict.fromkeys(file.keys(), file), folder)
        elif (folder / INDEX).exists():
            place = _index(folder)
            shards = {name: stack.enter_context(_open(folder / name)) for name in sorted(set(place.values()))}
            held = {name: set(file.keys()) for name, file in shards.items()}
            if lost := sorted(weight for weight, name in place.items() if weight not in held[name]):
                raise UserError(f"{folder / place[lost[0]]} lacks the weight {lost[0]} that {INDEX} promises")
            if loose := sorted(weight for names in held.values() for weight in names if weight not in place):
                raise UserError(f"{folder / INDEX} does not name the weight {loose[0]} that one of its files holds")
            yield Stored({weight: shards[name] for weight, name in place.items()}, folder)
        elif any((folder / name).exists() for name in PICKLED):
            raise UserError(
                f"{folder} has its weights in {PICKLED[0]} alone, which would have to be unpickled and could run any "
                "program: where you trust it, load it with transformers and write it anew with save_pretrained, which "
                f"makes {SINGLE}"
            )
        else:
            raise UserError(f"{folder} has no weights: neither {SINGLE} nor {INDEX} is there")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise UserError(f"{path} is missing, though {INDEX} names it: get all files of the checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _index(folder: Path) -> dict[str, str]:
    """The file of every weight."""
    path = folder / INDEX
    try:
        place = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(place, dict) or any(Path(str(name)).name != name for name in place.values()):
            raise ValueError("its weight_map must give every weight a file beside it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    return place


def gathered(
    stored: Stored, origins: Mapping[str, Origin], shapes: Mapping[str, torch.Size], unused: tuple[str, ...]
) -> dict[str, Tensor]:
    """Every weight of ours; what is missing, left over or of another shape is an error that names it.

    `unused` are patterns of weights that take no part in what is computed.
    """
    assert origins.keys() == shapes.keys(), origins.keys() ^ shapes.keys()
    weights, missing, misshapen, taken = {}, [], [], set()
    for ours, origin in origins.items():
        absent = [name for name in origin.names if name not in stored]
        if absent and origin.optional:
            weights[ours] = torch.zeros(shapes[ours])
            continue
        missing += absent
        taken |= set(origin.names)
        if absent:
            continue
        theirs = [stored[name] for name in origin.names]
        try:
            weights[ours] = origin.change(torch.cat(theirs)).contiguous()
        except (RuntimeError, IndexError):
            weights[ours] = torch.empty(0, 0)
        if weights[ours].shape != shapes[ours]:
            found = " and ".join(f"{name} of {list(weight.shape)}" for name, weight in zip(origin.names, theirs))
            misshapen.append(f"{found} where {list(shapes[ours])} is wanted")
    surplus = [name for name in stored if name not in taken and not any(re.fullmatch(p, name) for p in unused)]
    complaints = [
        f"{len(some)} {what}, such as {some[0]}"
        for what, some in (("missing", missing), ("left over", surplus), ("of another shape", misshapen))
        if some
    ]
    if complaints:
        raise UserError(f"the weights in {stored.folder} do not fit its config.json: {'; '.join(complaints)}")
    return weights
