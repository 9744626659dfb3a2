"""Names of layers for readers, instead of the paths of modules: “encoder layer 2: self-attention”."""

from __future__ import annotations

from typing import Literal

from torch import nn


def stack_of(path: str) -> Literal["encoder", "decoder"]:
    """Return the stack to which the module at this path of a model belongs."""
    return "encoder" if "encoder" in path.split(".") else "decoder"


def layer_name(model: nn.Module, path: str) -> str:
    """Return the name of the module at `path`: its stack, the number of its layer, and what it is, if it says so."""
    parts = path.split(".")
    numbers = [int(part) for part, before in zip(parts[1:], parts) if before == "layers" and part.isdigit()]
    name = f"{stack_of(path)} layer {numbers[0] + 1}" if numbers else stack_of(path)
    title = getattr(model.get_submodule(path), "title", None)
    return f"{name}: {title}" if title else name
