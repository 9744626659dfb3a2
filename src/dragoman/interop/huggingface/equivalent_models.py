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

#: which dimension of a weight is that of the vectors between layers (residual stream), by the end of its name
RESIDUAL_DIMENSIONS = {
    r"(_embedding|^output|\.(project|query|widen|gate))\.weight": 1,
    r"\.(output|narrow)\.(weight|bias)": 0,
    r"(\.before|\.after|norm)\.(weight|bias)": 0,
}


@dataclass
class SpecAndWeights:
    """A model as its spec and its weights by name; the weights are empty if only the spec matters."""

    spec: Any  # a ModelSpec; `REWRITES` change its fields
    weights: dict[str, Tensor]

    def change(self, **fields: Any) -> None:
        """Give fields of the spec other values; the weights stay as they are."""
        self.spec = replace(self.spec, **fields)

    def scale(self, name: str, factor: float, rows: slice = slice(None)) -> None:
        """Multiply rows of a weight (by default all) by a factor; do nothing if there is no weight of this name."""
        if name in self.weights:  # a copy is scaled, since the original belongs to the model
            self.weights[name] = self.weights[name].clone()
            self.weights[name][rows] *= factor


def rewrite(spec: ModelSpec, weights: dict[str, Tensor], target_spec: ModelSpec) -> SpecAndWeights:
    """Return a model that computes the same as `spec` with `weights`, with a spec that is more like `target_spec`.

    `target_spec` is the model that a class of transformers holds. `weights` are empty if only the spec matters.
    """
    model = SpecAndWeights(spec, dict(weights))
    for rewrite_step in REWRITES:
        rewrite_step(model, target_spec)
    return model


def remaining_differences(model: SpecAndWeights, target_spec: ModelSpec) -> list[tuple[str, Any, Any]]:
    """Return where the spec of a rewritten model still differs from `target_spec`, apart from what matters in training.

    A difference is the path of a field, such as "encoder.norm", its value in the model, and its value in `target_spec`.
    """
    return list(differences(canonical(model.spec), canonical(target_spec)))


def canonical(spec: Any) -> Any:
    """Return the spec of a model with defaults made explicit, and without what matters in training only.

    Specs that compute the same become easier to compare: what differs afterwards does matter.
    """
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
        scale=None if is_default_scale else part.scale,  # None: 1/√E
    )


# ---- rewrites: each changes the model only where the target spec, of a class of transformers, differs


def _is_set_only_in_target(field: str, model: SpecAndWeights, target_spec: ModelSpec) -> bool:
    """Whether a field that both specs have is set in `target_spec`, and is 0, None or False in the model's spec."""
    # the defaults of getattr make the result False if one of the specs lacks the field
    return bool(getattr(target_spec, field, None)) and getattr(model.spec, field, True) in (0, None, False)


def _add_zero_output_bias(model: SpecAndWeights, target_spec: ModelSpec) -> None:
    """Add a bias of zeros to the output layer, if only `target_spec` has an output bias."""
    if _is_set_only_in_target("output_bias", model, target_spec):
        model.change(output_bias=True)
        if "target_embedding.weight" in model.weights:  # the weights are empty if only the spec matters
            table = model.weights["target_embedding.weight"]
            model.weights["output.bias"] = table.new_zeros(len(table))


def _add_zero_token_types(model: SpecAndWeights, target_spec: ModelSpec) -> None:
    """Give all tokens one token type (segment), whose embedding is zero, if only `target_spec` has token types.

    An export to BERT needs it, for example. The embedding is added to those of tokens, so that nothing changes.
    """
    if _is_set_only_in_target("token_types", model, target_spec):
        model.change(token_types=1)
        if "source_embedding.weight" in model.weights:  # the weights are empty if only the spec matters
            model.weights["types.weight"] = torch.zeros_like(model.weights["source_embedding.weight"][:1])  # 1 D


def _unshare_embeddings(model: SpecAndWeights, target_spec: ModelSpec) -> None:
    """Store the embedding table that source and target share twice, if `target_spec` has two tables."""
    if getattr(model.spec, "shared_embeddings", False) and not getattr(target_spec, "shared_embeddings", True):
        model.change(shared_embeddings=False)
        if "target_embedding.weight" in model.weights:  # the weights are empty if only the spec matters
            model.weights["source_embedding.weight"] = model.weights["target_embedding.weight"]


def _move_embedding_scale(model: SpecAndWeights, target_spec: ModelSpec) -> None:
    """Multiply embedding tables by √D, instead of embeddings when they are looked up, if `target_spec` scales none.

    D is the width of the embeddings. A tied output layer, which uses the same table, then divides by √D; nothing is
    done if `target_spec` has no layer that divides.
    """
    ours, theirs = getattr(model.spec, "embedding", None), getattr(target_spec, "embedding", None)
    if ours is None or theirs is None or not ours.scaled or theirs.scaled:
        return
    if model.spec.tied_embeddings:
        if model.spec.output_scaled or not getattr(target_spec, "output_scaled", False):
            return
        model.change(output_scaled=True)
    model.change(embedding=replace(ours, scaled=False))
    for name in ("source_embedding.weight", "target_embedding.weight"):
        model.scale(name, math.sqrt(ours.width or model.spec.dim))


def _move_attention_scale(model: SpecAndWeights, target_spec: ModelSpec) -> None:
    """Multiply the weights of queries by 1/√E, E being the dimension of a head, instead of the attention scores.

    It is done if attention scores are not scaled in `target_spec` (scale 1, as in T5), but by the default in `model`.
    """
    # kinds of attention, and the name of the projection that computes their queries
    kinds: tuple[tuple[type[Any], str], ...] = ((SelfAttention, "project"), (CrossAttention, "query"))
    for kind, name in kinds:
        ours, theirs = list(find_specs(model.spec, kind)), list(find_specs(target_spec, kind))
        if not ours or any(part.scale is not None for part in ours) or {part.scale for part in theirs} != {1.0}:
            continue
        model.spec = replace_everywhere(model.spec, kind, scale=1.0)
        head_dim = ours[0].head_dim or model.spec.dim // ours[0].heads
        for weight in [w for w in model.weights if re.search(rf"\.{name}\.(weight|bias)$", w)]:
            # the first rows of `project` are queries in self-attention, but keys in cross-attention
            if name == "query" or weight.replace(f".{name}.", ".query.") not in model.weights:
                model.scale(weight, head_dim**-0.5, rows=slice(ours[0].heads * head_dim))


def _put_sines_first(model: SpecAndWeights, target_spec: ModelSpec) -> None:
    """Reorder the dimensions of all vectors, so that the sines of positions come before the cosines.

    It is done if they alternate in `model`, and `target_spec` has all sines first.
    """
    alternating, sines_first = Sinusoidal(), Sinusoidal(sines_first=True)
    ours, theirs = ([stack.position for stack in find_specs(spec, Stack)] for spec in (model.spec, target_spec))
    if set(ours) != {alternating} or set(theirs) != {sines_first}:
        return
    model.spec = replace_everywhere(model.spec, Stack, position=sines_first)
    order = torch.cat((torch.arange(0, model.spec.dim, 2), torch.arange(1, model.spec.dim, 2)))  # sines, cosines
    for name, weight in model.weights.items():
        for pattern, dimension in RESIDUAL_DIMENSIONS.items():  # dimension of a weight that reads or writes vectors
            if re.search(f"{pattern}$", name):
                model.weights[name] = weight.index_select(dimension, order.to(weight.device))


REWRITES: tuple[Callable[[SpecAndWeights, ModelSpec], None], ...] = (
    _add_zero_output_bias,
    _add_zero_token_types,
    _unshare_embeddings,
    _move_embedding_scale,
    _move_attention_scale,
    _put_sines_first,
)
