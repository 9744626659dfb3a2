"""The standard Transformer layers that CTranslate2 computes, recognized in the spec of a stack.

Everything else is an obstacle, which an error names together with a setting that avoids it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from dragoman.errors import UserError
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Parallel, PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full

EXPORT_TO_ONNX = "export it with --to onnx"  # advice in messages


def obstacle(what: str, advice: str) -> UserError:
    """Return the error for `what` CTranslate2 cannot compute; `advice` says what to do or to train instead."""
    return UserError(f"this model cannot be exported to CTranslate2, which does not support {what}: {advice}")


@dataclass(frozen=True)
class Sublayer:
    """A part of a Transformer layer with its residual connection.

    Attributes:
        spec: the spec of the part: self-attention, cross-attention or feed-forward network
        body: its module
        norm: the module of its norm
        pre_norm: whether the norm comes before the part, not after the residual connection
        parallel: whether it reads the same input as the other part of its layer, through a norm that both share
    """

    spec: Any
    body: Any
    norm: nn.Module
    pre_norm: bool
    parallel: bool = False


@dataclass(frozen=True)
class TransformerLayer:
    """Self-attention, cross-attention (in the decoder of an encoder–decoder) and feed-forward network."""

    attention: Sublayer
    cross_attention: Sublayer | None
    feed_forward: Sublayer


def transformer_layers(spec: Stack, modules: list[nn.Module], is_decoder: bool) -> list[TransformerLayer]:
    """Return the layers of a stack; raise an error if they are not layers of a Transformer that CTranslate2 computes.

    `modules` are those of the stack's parts, in order. A decoder must be causal, and an encoder must see all tokens.
    All layers must have their norms in the same place, and attention parallel to the feed-forward network in all or
    none.
    """
    parts = [part for _ in range(spec.depth) for part in spec.block]
    sublayers = [sublayer for part, module in zip(parts, modules, strict=True) for sublayer in _sublayers(part, module)]
    if len({(sublayer.pre_norm, sublayer.parallel) for sublayer in sublayers}) > 1:
        raise obstacle("norms in different places of its layers", f"{EXPORT_TO_ONNX}, or use PreNorm in all layers")
    for sublayer in sublayers:
        _check_supported(sublayer.spec, is_decoder)
    return list(_group_into_layers(sublayers))


def _sublayers(part: Spec, module: Any) -> Iterator[Sublayer]:
    """Yield the sublayers of a part of a stack: one, or all that are parallel; `module` is what the part builds."""
    match part:
        case PreNorm(body):
            yield Sublayer(spec=body, body=module.body, norm=module.before, pre_norm=True)
        case PostNorm(body):
            yield Sublayer(spec=body, body=module.body, norm=module.after, pre_norm=False)
        case Parallel(bodies):
            for body, child in zip(bodies, module.bodies, strict=True):
                yield Sublayer(spec=body, body=child, norm=module.norm, pre_norm=True, parallel=True)
        case _:
            raise _unsupported_part(part)


def _unsupported_part(part: Spec) -> UserError:
    """Return the error for a part of a stack that no Transformer layer has, such as a recurrent network."""
    return obstacle(
        f"the part {type(part).__name__}",
        f"{EXPORT_TO_ONNX}, or train a Transformer, such as the system transformer, t5, gpt or llama",
    )


def _check_supported(part: Spec, is_decoder: bool) -> None:
    """Raise an error unless CTranslate2 computes this part of a layer.

    Self-attention must be causal in a decoder, and must see all tokens in an encoder.
    """
    match part:
        case SelfAttention(visibility=visibility, projections=projections, rotary_values=rotary_values):
            if not isinstance(visibility, Causal if is_decoder else Full):
                raise obstacle(
                    f"the attention mask {type(visibility).__name__}",
                    f"{EXPORT_TO_ONNX}, or train a system whose attention is causal, such as gpt",
                )
            if not projections:
                raise obstacle("self-attention without projections", "set self_attention_projections to true")
            if rotary_values:
                raise obstacle("rotary positions in values", EXPORT_TO_ONNX)
        case CrossAttention() | FeedForward():
            pass
        case _:
            raise _unsupported_part(part)
    if isinstance(part, SelfAttention | CrossAttention) and part.value_dim not in (None, part.head_dim):
        raise obstacle("values of another dimension than keys (value_dim)", "leave out value_dim")


def _group_into_layers(sublayers: list[Sublayer]) -> Iterator[TransformerLayer]:
    """Yield the Transformer layers of a stack, each of which ends with a feed-forward network.

    Raise an error if there are no sublayers, or some after the last feed-forward network.
    """
    group: list[Sublayer] = []
    for sublayer in sublayers:
        group.append(sublayer)
        if isinstance(sublayer.spec, FeedForward):
            yield _layer(group)
            group = []
    if group or not sublayers:
        raise _wrong_order()


def _layer(group: list[Sublayer]) -> TransformerLayer:
    """Return a Transformer layer: self-attention, optional cross-attention, feed-forward network; else an error."""
    match [sublayer.spec for sublayer in group]:
        case [SelfAttention(), FeedForward()]:
            return TransformerLayer(attention=group[0], cross_attention=None, feed_forward=group[1])
        case [SelfAttention(), CrossAttention(), FeedForward()]:
            return TransformerLayer(attention=group[0], cross_attention=group[1], feed_forward=group[2])
    raise _wrong_order()


def _wrong_order() -> UserError:
    """Return the error for parts in an order that is not that of a Transformer."""
    return obstacle(
        "layers other than self-attention, then cross-attention, then a feed-forward network",
        f"{EXPORT_TO_ONNX}, or train a Transformer",
    )
