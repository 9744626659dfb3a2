"""Encoder–decoders: T5, mT5 and UMT5."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.errors import UserError
from dragoman.interop.huggingface.conversion import EMBEDDING_TABLES, Conversion, find_embedding_tables, prefixed
from dragoman.interop.huggingface.hf_config import HFConfig
from dragoman.interop.huggingface.safetensors_weights import StoredWeights
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import RMSNorm
from dragoman.parts.positions import NoPosition, RelativeBias
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.text.framing import Framing


@dataclass(frozen=True)
class T5Family:
    """Default values of config.json for T5, mT5 and UMT5, and the differences between these families."""

    vocab_size: int
    ffn_dim: int
    layers: int
    heads: int
    feed_forward_proj: str
    bias_in_each_layer: bool = False  # each layer has its own position biases; otherwise all share those of the first
    #: vectors are multiplied by 1/√D before the output layer; None: as config.json says, or else if it is tied
    scales_output: bool | None = None


T5 = T5Family(32128, 2048, 6, 8, "relu")
MT5 = T5Family(250112, 1024, 8, 6, "gated-gelu", scales_output=False)
UMT5 = T5Family(250112, 1024, 8, 6, "gated-gelu", bias_in_each_layer=True)

#: modules of a stack after `encoder.` or `decoder.`
T5_STACK_MODULES = {
    "position.table": "block.0.layer.0.SelfAttention.relative_attention_bias",
    "layers.*.0.body.position.table": "block.*.layer.0.SelfAttention.relative_attention_bias",
    "layers.*.0.norm": "block.*.layer.0.layer_norm",
    "layers.*.0.body.project": "block.*.layer.0.SelfAttention.{q,k,v}",
    "layers.*.0.body.output": "block.*.layer.0.SelfAttention.o",
    "layers.*.1.norm": "block.*.layer.1.layer_norm",
    "norm": "final_layer_norm",
}
T5_MODULES = {
    **prefixed("encoder.", T5_STACK_MODULES),
    "encoder.layers.*.1.body.narrow": "encoder.block.*.layer.1.DenseReluDense.wo",
    **prefixed("decoder.", T5_STACK_MODULES),
    "decoder.layers.*.1.body.query": "decoder.block.*.layer.1.EncDecAttention.q",
    "decoder.layers.*.1.body.project": "decoder.block.*.layer.1.EncDecAttention.{k,v}",
    "decoder.layers.*.1.body.output": "decoder.block.*.layer.1.EncDecAttention.o",
    "decoder.layers.*.2.norm": "decoder.block.*.layer.2.layer_norm",
    "decoder.layers.*.2.body.narrow": "decoder.block.*.layer.2.DenseReluDense.wo",
}
#: an old version stored a bias of the cross-attention, which no version uses
UNUSED_BIAS = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"


def convert_t5(family: T5Family, config: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a checkpoint of T5, mT5 or UMT5: our spec (description) of the model, and where its weights are stored.

    `family` holds what differs between them. Fields of config.json are read with transformers' defaults.
    """
    tie = config.boolean("tie_word_embeddings", True)
    if family.scales_output is None:  # T5 1.0, whose output layer is tied, multiplies the layer's input by 1/√D
        output_scaled = config.boolean("scale_decoder_outputs", tie)
    else:
        config.expect("scale_decoder_outputs", family.scales_output)
        output_scaled = family.scales_output
    config.expect("is_decoder", False)
    config.ignore("n_positions")  # positions are relative
    vocab_size = config.integer("vocab_size", family.vocab_size)
    layers = config.integer("num_layers", family.layers, alias="num_hidden_layers")
    feed_forward = _t5_feed_forward(config, family)
    # the output layer is tied unless another matrix is stored for it, whatever tie_word_embeddings says
    tables = find_embedding_tables(weights, share=True, tie=True)
    spec = EncoderDecoder(
        config.integer("d_model", 512, alias="hidden_size"),
        vocab_size,
        vocab_size,
        encoder=_t5_stack(config, family, feed_forward, layers, encoder=True),
        decoder=_t5_stack(config, family, feed_forward, config.integer("num_decoder_layers", layers), encoder=False),
        shared_embeddings=tables.shared,
        tied_embeddings=tables.tied,
        output_bias=False,
        output_scaled=output_scaled,
    )
    modules = T5_MODULES | tables.modules
    for side, number in (("encoder", 1), ("decoder", 2)):  # the number of the feed-forward part in a layer
        dense = f"{side}.block.*.layer.{number}.DenseReluDense"
        modules[f"{side}.layers.*.{number}.body.widen"] = f"{dense}.wi_0" if feed_forward.gated else f"{dense}.wi"
        modules[f"{side}.layers.*.{number}.body.gate"] = f"{dense}.wi_1"  # not used by a model without a gate
    unused = (*map(re.escape, EMBEDDING_TABLES), UNUSED_BIAS)
    return Conversion("t5", spec, modules, _t5_framing(config), unused=unused)


def _t5_feed_forward(config: HFConfig, family: T5Family) -> FeedForward:
    """Return the spec of the feed-forward layers, whose activation is the field `feed_forward_proj`.

    It is a name such as relu or gated-gelu. The fields `dense_act_fn` and `is_gated_act` of config.json override it.
    """
    kind = str(config.get("feed_forward_proj", family.feed_forward_proj))
    gate, _, activation = kind.rpartition("-")
    if gate not in ("", "gated"):
        raise UserError(
            f"{config.path}: feed_forward_proj must be an activation, such as relu, or gated- and an activation, such "
            f"as gated-gelu, but is {kind!r}: correct it"
        )
    # in gated-gelu, GELU means the approximation by tanh
    activation = config.get("dense_act_fn", "gelu_new" if kind == "gated-gelu" else activation)
    return FeedForward(
        config.integer("d_ff", family.ffn_dim),
        activation=config.supported_activation("feed_forward_proj", activation),
        gated=config.boolean("is_gated_act", bool(gate)),
        bias=False,
        dropout=config.number("dropout_rate", 0.1),
    )


def _t5_stack(config: HFConfig, family: T5Family, feed_forward: FeedForward, depth: int, encoder: bool) -> Stack:
    """Return the spec of the `depth` layers of the encoder (`encoder` is True) or of the decoder.

    Relative position biases are added to the scores of self-attention, in each layer its own or in all the same.
    """
    heads = config.integer("num_heads", family.heads, alias="num_attention_heads")
    head_dim, dropout = config.integer("d_kv", 64, alias="head_dim"), config.number("dropout_rate", 0.1)
    norm = RMSNorm(config.number("layer_norm_epsilon", 1e-6))
    bias = RelativeBias(
        heads,
        buckets=config.integer("relative_attention_num_buckets", 32),
        max_distance=config.integer("relative_attention_max_distance", 128),
        bidirectional=encoder,
    )
    layer_position, stack_position = (bias, NoPosition()) if family.bias_in_each_layer else (NoPosition(), bias)
    parts: list[Spec] = [
        SelfAttention(
            heads,
            head_dim=head_dim,
            visibility=Full() if encoder else Causal(),
            position=layer_position,
            bias=False,
            dropout=dropout,
            scale=1.0,  # T5 does not divide attention scores by √E
        )
    ]
    if not encoder:
        parts.append(CrossAttention(heads, head_dim=head_dim, bias=False, dropout=dropout, scale=1.0))
    block = tuple(PreNorm(part, norm=norm, dropout=dropout) for part in (*parts, feed_forward))
    return Stack(block, depth=depth, position=stack_position, dropout=dropout, norm=norm)


def _t5_framing(config: HFConfig) -> Framing:
    """Return the framing (special tokens): sources end with EOS; targets start with the padding token."""
    pad, eos = config.token_id("pad_token_id", 0), config.token_id("eos_token_id", 1)
    bos = config.token_id("decoder_start_token_id", pad)
    return Framing(pad, bos, eos, source_prefix=(), source_suffix=(eos,), suppressed=config.suppressed_tokens())
