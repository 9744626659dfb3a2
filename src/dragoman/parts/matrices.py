"""Hidden matrices: which weights of a model are maps inside it, and which of them are several maps in one."""

from __future__ import annotations

from torch import nn

from dragoman.parts.embedding import OutputLayer, TokenEmbedding
from dragoman.parts.mixer import Mixer


def hidden_matrices(model: nn.Module) -> dict[nn.Parameter, tuple[int, ...]]:
    """The matrices of all mixers, each with the rows of those that are stacked in it.

    A module that keeps several matrices one above the other in a weight says so in its `blocks`, {weight: rows of
    each}; the weight's name is told from the module on. Tables of vectors (of tokens, of distances), output layers, and
    matrices of one row or column, which are vectors, are no matrices here.
    """
    tables = {
        weight
        for module in model.modules()
        if isinstance(module, (nn.Embedding, TokenEmbedding, OutputLayer))
        for weight in module.parameters(recurse=False)
    }
    found = {
        weight: (weight.shape[0],)
        for module in model.modules()
        if isinstance(module, Mixer)
        for weight in module.parameters()
        if weight.dim() == 2 and min(weight.shape) > 1 and weight not in tables
    }
    blocks = {
        module.get_parameter(name): rows
        for module in model.modules()
        for name, rows in getattr(module, "blocks", {}).items()
    }
    return {weight: blocks.get(weight, whole) for weight, whole in found.items()}
