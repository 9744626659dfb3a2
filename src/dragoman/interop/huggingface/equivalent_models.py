"""Equivalent models: other specs and weights that compute the same, so that a class of transformers can hold them.

A class of transformers has biases, scales or orders of dimensions that a model of ours may lack. A rewrite adds a bias
of zeros, moves a constant factor into a weight, or reorders the dimensions of all vectors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dragoman.models import ModelSpec
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Glorot
from dragoman.parts.positions import Sinusoidal
from dragoman.parts.spec import Spec, differences, find_specs, replace_everywhere, replace_parts, without_dropout
from dragoman.parts.stack import Stack

#: which dimension of a weight is that of the vectors between layers, by the end of its name
RESIDUAL_DIMENSIONS = {
    r"(_embedding|^output|\.(project|query|widen|gate))\.weight": 1,
    r"\.(output|narrow)\.(weight|bias)": 0,
    r"(\.before|\.after|norm)\.(weight|bias)": 0,
}


@dataclass
class ModelForm:
    """A model as a spec and its weights by name; without weights if only the spec matters."""

    spec: Any  # a ModelSpec; rewrites change its fields
    weights: dict[str, Tensor]

    def change(self, **fields: Any) -> None:
        """Give fields of the spec other values."""
        self.spec = replace(self.spec, **fields)

    def scale(self, name: str, factor: float, rows: slice = slice(None)) -> None:
        """Multiply rows of a weight (by default all), if there is one of this name."""
        if name in self.weights:
            self.weights[name] = self.weights[name].clone()
            self.weights[name][rows] *= factor


def rewrite(spec: ModelSpec, weights: dict[str, Tensor], target: ModelSpec) -> ModelForm:
    """Return a model that computes the same as `spec` with `weights`, and whose spec is closer or equal to `target`."""
    form = ModelForm(spec, dict(weights))
    for rewrite_step in REWRITES:
        rewrite_step(form, target)
    return form


def remaining_differences(form: ModelForm, target: ModelSpec) -> list[tuple[str, Any, Any]]:
    """Return where the spec of a rewritten model still differs from `target`, apart from training.

    A difference is the path of a field, such as "encoder.norm", its value in the model, and its value in `target`.
    """
    return list(differences(canonical(form.spec), canonical(target)))


def canonical(spec: Any) -> Any:
    """Return the spec with defaults made explicit, and without what matters in training only."""
    dim = spec.dim
    spec = replace_everywhere(without_dropout(spec), Stack, gradient_checkpointing=False)
    for kind in (SelfAttention, CrossAttention):
        spec = replace_parts(spec, kind, lambda part: _explicit_attention(part, dim))
    spec = replace_parts(spec, FeedForward, lambda part: replace(part, inner_dim=part.inner_dim or 4 * dim))
    return replace(spec, initialization=Glorot())  # the same for all: it matters in training only


def _explicit_attention(part: Any, dim: int) -> Spec:
    """Return the spec of an attention layer in a model of dimension `dim`, with defaults replaced by their values."""
    head_dim = part.head_dim or dim // part.heads
    is_default_scale = part.scale is not None and math.isclose(part.scale, head_dim**-0.5)
    return replace(
        part,
        kv_heads=part.kv_heads or part.heads,
        head_dim=head_dim,
        value_dim=part.value_dim or head_dim,
        output_bias=part.bias if part.output_bias is None else part.output_bias,
        scale=None if is_default_scale else part.scale,
    )


# ---- rewrites: each changes the form only where the target differs


def _only_target_has(target: ModelSpec, form: ModelForm, field: str) -> bool:
    """Whether a field that both specs have is set in `target`, and is 0, None or False in the model `form`."""
    return bool(getattr(target, field, None)) and getattr(form.spec, field, True) in (0, None, False)


def _add_zero_output_bias(form: ModelForm, target: ModelSpec) -> None:
    """Add a bias of zeros to the output layer, if only the spec `target` has a bias."""
    if _only_target_has(target, form, "output_bias"):
        form.change(output_bias=True)
        if "target_embedding.weight" in form.weights:
            table = form.weights["target_embedding.weight"]
            form.weights["output.bias"] = table.new_zeros(len(table))


def _add_zero_token_types(form: ModelForm, target: ModelSpec) -> None:
    """Add an embedding of zeros for the only type of tokens, if only the spec `target` has types of tokens."""
    if _only_target_has(target, form, "token_types"):
        form.change(token_types=1)
        if "source_embedding.weight" in form.weights:
            form.weights["types.weight"] = torch.zeros_like(form.weights["source_embedding.weight"][:1])


def _unshare_embeddings(form: ModelForm, target: ModelSpec) -> None:
    """Store the embedding table that source and target share twice, if the spec `target` has two tables."""
    if getattr(form.spec, "shared_embeddings", False) and not getattr(target, "shared_embeddings", True):
        form.change(shared_embeddings=False)
        if "target_embedding.weight" in form.weights:
            form.weights["source_embedding.weight"] = form.weights["target_embedding.weight"]


def _move_embedding_scale(form: ModelForm, target: ModelSpec) -> None:
    """Multiply embedding tables by √D, instead of embeddings when they are looked up, if `target` scales none.

    A tied output layer, which uses the same table, then divides by √D.
    """
    ours, theirs = getattr(form.spec, "embedding", None), getattr(target, "embedding", None)
    if ours is None or theirs is None or not ours.scaled or theirs.scaled:
        return
    if form.spec.tied_embeddings:
        if form.spec.output_scaled or not getattr(target, "output_scaled", False):
            return
        form.change(output_scaled=True)
    form.change(embedding=replace(ours, scaled=False))
    for name in ("source_embedding.weight", "target_embedding.weight"):
        form.scale(name, math.sqrt(ours.width or form.spec.dim))


def _move_attention_scale(form: ModelForm, target: ModelSpec) -> None:
    """Multiply the weights of queries by 1/√E, E being the dimension of a head, instead of the attention scores.

    It is done if the attention of `target` does not scale scores (scale 1).
    """
    kinds: tuple[tuple[type[Any], str], ...] = ((SelfAttention, "project"), (CrossAttention, "query"))
    for kind, name in kinds:
        ours, theirs = list(find_specs(form.spec, kind)), list(find_specs(target, kind))
        if not ours or any(part.scale is not None for part in ours) or {part.scale for part in theirs} != {1.0}:
            continue
        form.spec = replace_everywhere(form.spec, kind, scale=1.0)
        head_dim = ours[0].head_dim or form.spec.dim // ours[0].heads
        for weight in [w for w in form.weights if re.search(rf"\.{name}\.(weight|bias)$", w)]:
            # the first rows of `project` are queries in self-attention, but keys in cross-attention
            if name == "query" or weight.replace(f".{name}.", ".query.") not in form.weights:
                form.scale(weight, head_dim**-0.5, rows=slice(ours[0].heads * head_dim))


def _put_sines_first(form: ModelForm, target: ModelSpec) -> None:
    """Reorder the dimensions of all vectors, so that the sines of positions come before the cosines.

    It is done if they alternate in the model `form`, and `target` has all sines first.
    """
    alternating, sines_first = Sinusoidal(), Sinusoidal(sines_first=True)
    ours, theirs = ([stack.position for stack in find_specs(spec, Stack)] for spec in (form.spec, target))
    if set(ours) != {alternating} or set(theirs) != {sines_first}:
        return
    form.spec = replace_everywhere(form.spec, Stack, position=sines_first)
    order = torch.cat((torch.arange(0, form.spec.dim, 2), torch.arange(1, form.spec.dim, 2)))  # sines, cosines
    for name, weight in form.weights.items():
        for pattern, dimension in RESIDUAL_DIMENSIONS.items():  # dimension of a weight that reads or writes vectors
            if re.search(f"{pattern}$", name):
                form.weights[name] = weight.index_select(dimension, order.to(weight.device))


REWRITES: tuple[Callable[[ModelForm, ModelSpec], None], ...] = (
    _add_zero_output_bias,
    _add_zero_token_types,
    _unshare_embeddings,
    _move_embedding_scale,
    _move_attention_scale,
    _put_sines_first,
)
