"""From a stack of Transformer layers to CTranslate2's specification of an encoder or decoder, filled with weights."""

from __future__ import annotations

from typing import Any, cast

import ctranslate2
import numpy as np
import torch
from ctranslate2 import specs
from ctranslate2.specs.common_spec import LayerNormSpec, LinearSpec
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.interop.ctranslate2.transformer_layers import (
    EXPORT_TO_ONNX,
    Sublayer,
    TransformerLayer,
    obstacle,
    transformer_layers,
)
from dragoman.parts.norm import BatchNorm, LayerNorm, RMSNorm
from dragoman.parts.positions import (
    ALiBi,
    InterpolatedRotary,
    Learned,
    NoPosition,
    Position,
    RelativeBias,
    Rotary,
    Shaw,
    Sinusoidal,
)
from dragoman.parts.spec import Spec, find_specs
from dragoman.parts.stack import Stack, StackMixer

#: our names of activations → CTranslate2's
CT2_ACTIVATIONS = {
    "relu": specs.Activation.RELU,
    "gelu": specs.Activation.GELU,
    "gelu-tanh": specs.Activation.GELUTanh,
    "quick-gelu": specs.Activation.GELUSigmoid,
    "silu": specs.Activation.SWISH,
    "tanh": specs.Activation.Tanh,
    "sigmoid": specs.Activation.Sigmoid,
}
#: ε that CTranslate2 uses for each kind of norm if the configuration sets none; one that is set holds for both kinds
DEFAULT_EPSILONS = {LayerNorm: 1e-5, RMSNorm: 1e-6}


def convert_encoder(spec: Stack, stack: StackMixer, max_positions: int, **options: Any) -> specs.TransformerEncoderSpec:
    """Return CTranslate2's encoder with the weights of a stack of layers, but without token embeddings.

    `max_positions` is the number of positions to store if the stack has no limit; `options` are further arguments of
    the specification.
    """
    layers = transformer_layers(spec, [module for _, module in stack.named_layers()], is_decoder=False)
    if isinstance(spec.position, ALiBi):
        raise obstacle(
            "ALiBi positions in an encoder", f"{EXPORT_TO_ONNX}, or set position_encoding to sinusoidal or rotary"
        )
    if layers[0].attention.parallel:  # as in all layers
        raise obstacle(
            "encoder layers whose attention and feed-forward network read the same input (Parallel)", EXPORT_TO_ONNX
        )
    encoder = _create(specs.TransformerEncoderSpec, _common_options(spec, layers) | options)
    _fill_stack(encoder, spec, stack, layers, max_positions)
    return encoder


def convert_decoder(
    spec: Stack, stack: StackMixer, max_positions: int, with_encoder: bool
) -> specs.TransformerDecoderSpec:
    """Return CTranslate2's decoder with the weights of a stack of layers, but without embeddings and output layer.

    `max_positions` is the number of positions to store if the stack has no limit; `with_encoder`: its layers attend to
    an encoder.
    """
    layers = transformer_layers(spec, [module for _, module in stack.named_layers()], is_decoder=True)
    if any((layer.cross_attention is not None) != with_encoder for layer in layers):
        raise obstacle("a decoder in which only some layers attend to the source", EXPORT_TO_ONNX)
    options = _common_options(spec, layers) | {"with_encoder_attention": with_encoder}
    if isinstance(spec.position, ALiBi):
        options["alibi"] = True
    if layers[0].attention.parallel:  # as in all layers: attention and feed-forward network read the same input
        options |= {"parallel_residual": True, "shared_layer_norm": True}
    decoder = _create(specs.TransformerDecoderSpec, options)
    _fill_stack(decoder, spec, stack, layers, max_positions)
    return decoder


def _create(spec_class: Any, options: dict[str, Any]) -> Any:
    """Create CTranslate2's specification of a stack; raise an error if the installed version lacks an option."""
    try:
        return spec_class(**options)
    except TypeError as error:
        raise UserError(
            f"this model needs options that CTranslate2 {ctranslate2.__version__} does not have ({error}): install a "
            "newer version with pip install --upgrade ctranslate2"
        ) from None


def norm_epsilon(spec: Spec) -> float | None:
    """Return ε of all norms in a spec; a UserError if they differ.

    None: each has CTranslate2's default, 1e-5 for layer norms and 1e-6 for RMS norms, so that both kinds may occur.
    """
    norms: list[LayerNorm | RMSNorm] = [*find_specs(spec, LayerNorm), *find_specs(spec, RMSNorm)]
    if all(norm.epsilon == DEFAULT_EPSILONS[type(norm)] for norm in norms):
        return None
    epsilons = {norm.epsilon for norm in norms}
    if len(epsilons) > 1:
        raise obstacle(f"norms with different ε ({', '.join(map(str, sorted(epsilons)))})", "use one ε for all norms")
    return epsilons.pop()


def _common_options(spec: Stack, layers: list[TransformerLayer]) -> dict[str, Any]:
    """Return the arguments that CTranslate2's encoder and decoder specifications share: sizes, norms, positions.

    Raise an error (`obstacle`) for what CTranslate2 cannot compute.
    """
    attention, feed_forward = _same_in_all_layers(layers)
    if (activation := CT2_ACTIVATIONS.get(feed_forward.activation)) is None:
        raise obstacle(
            f"the activation {feed_forward.activation}", f"use one of {', '.join(CT2_ACTIVATIONS)}, or {EXPORT_TO_ONNX}"
        )
    if any(find_specs(spec, BatchNorm)):
        raise obstacle("batch normalization", f"{EXPORT_TO_ONNX}, or set norm to layer or rms")
    if spec.input_dim is not None:
        raise obstacle(
            "embeddings of another dimension than the layers, or concatenated positions",
            f"{EXPORT_TO_ONNX}, or leave out embedding_dim or position_dim",
        )
    pre_norm = layers[0].attention.pre_norm
    if spec.norm is not None and not pre_norm:
        raise obstacle(
            "a norm at the end of a stack whose layers end with norms (PostNorm)", "leave out the norm of the stack"
        )
    heads, kv_heads = attention.heads, attention.kv_heads
    options = {
        "num_layers": len(layers),
        "num_heads": heads,
        "pre_norm": pre_norm,
        "no_final_norm": spec.norm is None,
        "activation": activation,
        "layernorm_embedding": spec.input_norm is not None,
        "ffn_glu": feed_forward.gated,
    }
    optional = {  # only passed on where a model needs them, since older versions of CTranslate2 do not know them
        "num_heads_kv": kv_heads if kv_heads != heads else None,
        "head_dim": attention.head_dim,
        "qk_norm": None if attention.qk_norm is None else True,
    }
    needed = {name: value for name, value in optional.items() if value is not None}
    return options | needed | _position_options(spec, attention.position)


def _same_in_all_layers(layers: list[TransformerLayer]) -> tuple[Any, Any]:
    """Return the specs of self-attention and feed-forward network; raise an error if not all layers have the same.

    Cross-attention needs the same number and dimension of heads as self-attention, and no norms of queries and keys.
    """
    attention, feed_forward = layers[0].attention.spec, layers[0].feed_forward.spec
    for layer in layers:
        if layer.attention.spec != attention or layer.feed_forward.spec != feed_forward:
            raise obstacle("layers that differ from each other", f"{EXPORT_TO_ONNX}, or use equal layers")
        if (cross := layer.cross_attention) is None:
            continue
        if cross.spec.qk_norm is not None:  # CTranslate2 normalizes the queries of all heads together
            raise obstacle(
                "norms of queries in cross-attention",
                f"{EXPORT_TO_ONNX}, or train with --set system.settings.query_key_norm=false",
            )
        names = ("heads", "kv_heads", "head_dim", "qk_norm")
        if any(getattr(cross.spec, name) != getattr(attention, name) for name in names):
            raise obstacle(
                "other heads or norms in cross-attention than in self-attention",
                f"{EXPORT_TO_ONNX}, or set {', '.join(names)} to the same in both",
            )
    return attention, feed_forward


def _position_options(spec: Stack, in_attention: Spec) -> dict[str, Any]:
    """Return the arguments of CTranslate2's specification for the positions of a stack.

    `spec.position` is added to embeddings or is a bias of the scores of all layers; `in_attention` are the positions
    of each attention layer. Raise an error for positions that CTranslate2 does not have.
    """
    rotary = {"rotary_dim": 0, "rotary_interleave": False}  # 0: all dimensions of a head are rotated
    match (spec.position, in_attention):
        case (NoPosition() | Sinusoidal() | Learned() | ALiBi(), NoPosition()):
            return {}
        case (NoPosition(), Rotary(base)):
            return rotary | {"rotary_base": base}
        case (NoPosition(), InterpolatedRotary(base, factor)):
            scaling = {"rotary_scaling_type": specs.RotaryScalingType.Linear, "rotary_scaling_factor": factor}
            return rotary | {"rotary_base": base} | scaling
        case (NoPosition(), Shaw()):
            return {"relative_position": True}
        case (RelativeBias(), NoPosition()) | (NoPosition(), RelativeBias()):
            return {"relative_attention_bias": True}
    names = [type(position).__name__ for position in (spec.position, in_attention)]
    used = " and ".join(name for name in names if name != "NoPosition")
    raise obstacle(
        f"the positions {used}",
        f"{EXPORT_TO_ONNX}, or use sinusoidal, learned, rotary or Shaw's positions, or T5's relative biases",
    )


def _fill_stack(
    target: Any, spec: Stack, stack: StackMixer, layers: list[TransformerLayer], max_positions: int
) -> None:
    """Copy the weights of a stack into CTranslate2's encoder or decoder specification `target`.

    `max_positions` is the number of positions to store if the stack has no limit.
    """
    if "position_encodings" in vars(target):  # positions are added to embeddings
        weight = layers[0].feed_forward.body.narrow.weight  # D × inner dimension
        target.position_encodings.encodings = position_table(stack.position, len(weight), max_positions, weight.device)
    if spec.norm is not None:
        target.layer_norm = norm_spec(stack.norm)
    if spec.input_norm is not None:
        target.layernorm_embedding = norm_spec(stack.input_norm)
    for layer_spec, layer in zip(target.layer, layers, strict=True):  # CTranslate2's layer, ours
        _fill_attention(layer_spec.self_attention, layer.attention)
        _fill_positions(layer_spec.self_attention, layer.attention.body.position, stack)
        set_linear(layer_spec.self_attention.linear[0], layer.attention.body.project)  # queries, keys, values
        if layer.cross_attention is not None:
            _fill_attention(layer_spec.attention, layer.cross_attention)  # `attention`: cross-attention
            set_linear(layer_spec.attention.linear[0], layer.cross_attention.body.query)
            set_linear(layer_spec.attention.linear[1], layer.cross_attention.body.project)  # keys and values
        feed_forward = layer.feed_forward.body
        set_linear(layer_spec.ffn.linear_0, feed_forward.widen)
        set_linear(layer_spec.ffn.linear_1, feed_forward.narrow)
        if feed_forward.gate is not None:
            set_linear(layer_spec.ffn.linear_0_noact, feed_forward.gate)
        if layer.attention.parallel:  # one norm for attention and feed-forward network
            layer_spec.shared_layer_norm = norm_spec(layer.attention.norm)
        else:
            layer_spec.ffn.layer_norm = norm_spec(layer.feed_forward.norm)


def _fill_attention(target: Any, layer: Sublayer) -> None:
    """Copy the output projection, norms and scale of our attention `layer` into CTranslate2's, `target`.

    If the attention is `parallel` to the feed-forward network, the layer holds their common norm.
    """
    set_linear(target.linear[-1], layer.body.output)
    if not layer.parallel:
        target.layer_norm = norm_spec(layer.norm)
    if layer.spec.scale is not None:
        target.queries_scale = layer.spec.scale
    if layer.spec.qk_norm is not None:
        target.q_norm, target.k_norm = norm_spec(layer.body.query_norm), norm_spec(layer.body.key_norm)


def _fill_positions(target: Any, in_attention: Any, stack: StackMixer) -> None:
    """Copy the tables of relative positions into `target`, CTranslate2's specification of a self-attention layer.

    `in_attention` is the module for positions in our attention layer. It holds Shaw's vectors of distances, or T5's
    biases unless the `stack` holds them for all layers.
    """
    if "relative_position_keys" in vars(target):
        keys, values = in_attention.distance_vectors(), in_attention.value_distance_vectors()
        target.relative_position_keys = float32_copy(keys)
        # CTranslate2 always adds vectors to the values: zeros if our model has none
        target.relative_position_values = float32_copy(torch.zeros_like(keys) if values is None else values)
    if "relative_attention_bias" in vars(target):
        bias = cast(Any, stack.position if stack.position.has_score_bias else in_attention)
        target.relative_attention_bias = float32_copy(bias.table.weight)
        target.relative_attention_max_distance = np.int32(bias.max_distance)


def position_table(position: Position, dim: int, max_positions: int, device: torch.device) -> Tensor:
    """Return the vectors of positions that are added to embeddings, N D; zeros if `position` adds none.

    N is the limit of `position`, or `max_positions` if it has none; D is `dim`.
    """
    length = position.max_length or max_positions
    encoding = position.encoding(torch.arange(length, device=device))
    return torch.zeros(length, dim) if encoding is None else float32_copy(encoding)


def norm_spec(norm: Any) -> LayerNormSpec:
    """Return CTranslate2's norm with the weights of ours: RMS norm has no bias; a layer norm without one gets zeros."""
    is_rms = isinstance(norm, nn.RMSNorm)
    spec = LayerNormSpec(rms_norm=is_rms)
    spec.gamma = float32_copy(norm.weight)
    if not is_rms:
        spec.beta = torch.zeros_like(spec.gamma) if norm.bias is None else float32_copy(norm.bias)
    return spec


def set_linear(spec: LinearSpec, layer: Any) -> None:
    """Copy weight and bias of our linear `layer` into CTranslate2's specification `spec`."""
    spec.weight = float32_copy(layer.weight)
    if layer.bias is not None:
        spec.bias = float32_copy(layer.bias)


def float32_copy(weight: Tensor) -> Tensor:
    """Return a copy of a weight in float32 on the CPU: CTranslate2 quantizes weights in place."""
    return weight.detach().to("cpu", torch.float32, copy=True)
