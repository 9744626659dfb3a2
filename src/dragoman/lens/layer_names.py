"""Names of layers for readers, instead of the paths of modules: “encoder layer 2: self-attention”."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from dragoman.parts.mixer import Mixer
from dragoman.parts.stack import StackMixer


def stack_of(path: str) -> Literal["encoder", "decoder"]:
    """Return the stack to which a module belongs, by its path in the model, such as "encoder.layers.0.1".

    Modules outside of the encoder, such as all of a decoder-only model, count as "decoder".
    """
    return "encoder" if "encoder" in path.split(".") else "decoder"


def layer_name(model: nn.Module, path: str) -> str:
    """Return the name for readers of the module at `path`, such as “encoder layer 2: self-attention”.

    The number counts from 1; modules outside of layers have none. The last part is the attribute `title` of the module,
    if it has one.
    """
    parts = path.split(".")
    name: str = stack_of(path)
    for depth in range(len(parts)):  # of stacks within stacks, the innermost one numbers the layer
        stack = model.get_submodule(".".join(parts[:depth]))
        part_name = ".".join(parts[depth + 1 : depth + 3])  # such as "0.1" in "decoder.layers.0.1.body"
        if isinstance(stack, StackMixer) and (number := stack.layer_numbers().get(part_name)) is not None:
            name = f"{stack_of(path)} layer {number}"
    title = getattr(model.get_submodule(path), "title", None)
    return f"{name}: {title}" if title else name


def key_labels(model: nn.Module, path: str, tokens: Sequence[str]) -> tuple[str, ...]:
    """Return a label for each key of the attention layer at `path`, such as its token.

    `tokens` are those that the layer attends to. A layer may compute one key from several of them.
    """
    layer = model.get_submodule(path)
    assert isinstance(layer, Mixer)  # only mixers attend
    return tuple(layer.key_labels(tokens))
