"""Encoder–decoders: Marian, BART, mBART and Pegasus, which share their modules, and T5 and mT5."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.errors import UserError
from dragoman.interop.huggingface.conversion import (
    EMBEDDING_TABLES,
    Conversion,
    find_embedding_tables,
    flattened,
    prefixed,
    without_first_rows,
)
from dragoman.interop.huggingface.hf_config import HFConfig
from dragoman.interop.huggingface.safetensors_weights import StoredWeights
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.positions import Learned, RelativeBias, Sinusoidal
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.text.framing import Framing

UNUSED_POSITION_ROWS = 2  # at the beginning of BART's position tables
SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class BartFamily:
    """The differences between the families."""

    system: str
    vocab_size: int
    pad: int
    eos: int
    decoder_start: int | None = None  # EOS if the configuration has no decoder_start_token_id
    bos_before_source: bool = False
    pre_norm: bool = False  # norms in the residual branches and at the end of each stack
    learned_positions: bool = True  # and a norm after the embeddings; sinusoids and no norm otherwise
    separate_vocabularies: bool = False  # source and target may have tables of their own


MARIAN = BartFamily(
    "transformer", 58101, pad=58100, eos=0, decoder_start=58100, learned_positions=False, separate_vocabularies=True
)
BART = BartFamily("bart", 50265, pad=1, eos=2, decoder_start=2, bos_before_source=True)
MBART = BartFamily("bart", 50265, pad=1, eos=2, pre_norm=True)
PEGASUS = BartFamily("transformer", 50265, pad=0, eos=1, decoder_start=0, pre_norm=True, learned_positions=False)

#: modules of a stack after `encoder.` or `decoder.`
BART_STACK_MODULES = {
    "position.table": "embed_positions",
    "input_norm": "layernorm_embedding",
    "norm": "layer_norm",
    "layers.*.0.body.project": "layers.*.self_attn.{q_proj,k_proj,v_proj}",
    "layers.*.0.body.output": "layers.*.self_attn.out_proj",
    "layers.*.0.norm": "layers.*.self_attn_layer_norm",
}
BART_MODULES = {
    **prefixed("encoder.", BART_STACK_MODULES),
    "encoder.layers.*.1.body.widen": "encoder.layers.*.fc1",
    "encoder.layers.*.1.body.narrow": "encoder.layers.*.fc2",
    "encoder.layers.*.1.norm": "encoder.layers.*.final_layer_norm",
    **prefixed("decoder.", BART_STACK_MODULES),
    "decoder.layers.*.1.body.query": "decoder.layers.*.encoder_attn.q_proj",
    "decoder.layers.*.1.body.project": "decoder.layers.*.encoder_attn.{k_proj,v_proj}",
    "decoder.layers.*.1.body.output": "decoder.layers.*.encoder_attn.out_proj",
    "decoder.layers.*.1.norm": "decoder.layers.*.encoder_attn_layer_norm",
    "decoder.layers.*.2.body.widen": "decoder.layers.*.fc1",
    "decoder.layers.*.2.body.narrow": "decoder.layers.*.fc2",
    "decoder.layers.*.2.norm": "decoder.layers.*.final_layer_norm",
    "output.bias": "final_logits_bias",
}


def convert_bart(family: BartFamily, hf: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a checkpoint of BART, mBART, Marian or Pegasus: our spec of the model, and where its weights are stored.

    `family` holds what differs between them; `hf` is config.json.
    """
    _check_bart_fields(hf, family)
    share = not family.separate_vocabularies or hf.boolean("share_encoder_decoder_embeddings", True)
    tie = hf.boolean("tie_word_embeddings", True)
    tables = find_embedding_tables(weights, share, tie)
    dim, vocab_size = hf.integer("d_model", 1024, "hidden_size"), hf.integer("vocab_size", family.vocab_size)
    target_vocab_size = hf.integer("decoder_vocab_size", vocab_size) if family.separate_vocabularies else vocab_size
    spec = EncoderDecoder(
        dim,
        vocab_size,
        vocab_size if share and tie else target_vocab_size,
        encoder=_bart_stack(hf, family, "encoder"),
        decoder=_bart_stack(hf, family, "decoder"),
        embedding=Embedding(scaled=hf.boolean("scale_embedding", False)),
        shared_embeddings=tables.shared,
        tied_embeddings=tables.tied,
        initialization=Normal(hf.number("init_std", 0.02)),
    )
    sinusoids = Sinusoidal(sines_first=True).build(dim)
    trim = without_first_rows(UNUSED_POSITION_ROWS)  # BART's position tables start with two unused rows
    return Conversion(
        family.system,
        spec,
        BART_MODULES | tables.modules,
        _bart_framing(hf, family),
        transforms={f"{side}.position.table": trim for side in SIDES} | {"output.bias": flattened},
        optional=frozenset({"output.bias"}),  # zeros if it is not stored
        unused=(*map(re.escape, EMBEDDING_TABLES), r"(en|de)coder\.version"),
        # stored sinusoids, which our model computes instead
        computed={} if family.learned_positions else {f"{side}.embed_positions.weight": sinusoids for side in SIDES},
    )


def _check_bart_fields(hf: HFConfig, family: BartFamily) -> None:
    """Raise an error if a field of config.json, present in older ones, contradicts what the family computes."""
    hf.expect("is_decoder", False)
    hf.expect("add_bias_logits", False)
    hf.expect("do_blenderbot_90_layernorm", False)
    hf.expect("normalize_before", family.pre_norm)
    hf.expect("add_final_layer_norm", family.pre_norm)
    hf.expect("normalize_embedding", family.learned_positions)
    hf.expect("static_position_embeddings", not family.learned_positions)
    if family.learned_positions:
        hf.expect("extra_pos_embeddings", UNUSED_POSITION_ROWS)
    else:
        hf.ignore("extra_pos_embeddings")
    if not family.separate_vocabularies:
        hf.expect("share_encoder_decoder_embeddings", True)


def _bart_stack(hf: HFConfig, family: BartFamily, side: str) -> Stack:
    """Return the spec of the encoder's or the decoder's layers; `side` is "encoder" or "decoder"."""
    encoder = side == "encoder"
    dropout, attention_dropout = hf.number("dropout", 0.1), hf.number("attention_dropout", 0.0)
    heads = hf.integer(f"{side}_attention_heads", 16, *(["num_attention_heads"] if encoder else []))
    depth = hf.integer(f"{side}_layers", 12, *(["num_hidden_layers"] if encoder else []))
    parts: list[Spec] = [SelfAttention(heads, visibility=Full() if encoder else Causal(), dropout=attention_dropout)]
    if not encoder:
        parts.append(CrossAttention(heads, dropout=attention_dropout))
    ffn_dim, activation = hf.integer(f"{side}_ffn_dim", 4096), hf.activation("activation_function", "gelu")
    parts.append(FeedForward(ffn_dim, activation, dropout=hf.number("activation_dropout", 0.0)))
    residual = PreNorm if family.pre_norm else PostNorm
    max_positions = hf.integer("max_position_embeddings", 1024)
    return Stack(
        tuple(residual(part, LayerNorm(), dropout) for part in parts),
        depth,
        Learned(max_positions) if family.learned_positions else Sinusoidal(sines_first=True),
        dropout,
        norm=LayerNorm() if family.pre_norm else None,
        input_norm=LayerNorm() if family.learned_positions else None,
    )


def _bart_framing(hf: HFConfig, family: BartFamily) -> Framing:
    """Return the framing (special tokens around source and target) of the family.

    mBART decoders start with EOS, or with a forced language code.
    """
    bos, eos = hf.token_id("bos_token_id", 0), hf.token_id("eos_token_id", family.eos)
    start = hf.token_id("decoder_start_token_id", family.decoder_start)
    forced = hf.token_id("forced_bos_token_id", None)
    if hf.get("force_bos_token_to_be_generated", False) and forced is None:
        forced = bos
    return Framing(
        pad=hf.token_id("pad_token_id", family.pad),
        bos=eos if start is None else start,
        eos=eos,
        source_prefix=(bos,) if family.bos_before_source else (),
        source_suffix=(eos,),
        forced_bos=() if forced is None else (forced,),
        suppressed=hf.suppressed_tokens(),
    )


@dataclass(frozen=True)
class T5Family:
    """Default values of the configuration."""

    vocab_size: int
    ffn_dim: int
    layers: int
    heads: int
    feed_forward_proj: str


T5 = T5Family(32128, 2048, 6, 8, "relu")
MT5 = T5Family(250112, 1024, 8, 6, "gated-gelu")

#: modules of a stack after `encoder.` or `decoder.`
T5_STACK_MODULES = {
    "position.table": "block.0.layer.0.SelfAttention.relative_attention_bias",
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


def convert_t5(family: T5Family, hf: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a checkpoint of T5 or mT5: our spec of the model, and where its weights are stored.

    `family` holds the defaults of T5 or mT5; `hf` is config.json.
    """
    tie = hf.boolean("tie_word_embeddings", True)
    if family is MT5:
        hf.expect("scale_decoder_outputs", False)
        output_scaled = False
    else:  # version 1.0, whose output is tied, scales what the output layer reads
        output_scaled = hf.boolean("scale_decoder_outputs", tie)
    hf.expect("is_decoder", False)
    hf.ignore("n_positions")  # positions are relative
    vocab_size = hf.integer("vocab_size", family.vocab_size)
    layers = hf.integer("num_layers", family.layers, "num_hidden_layers")
    feed_forward = _t5_feed_forward(hf, family)
    # the output is tied unless its matrix is stored, whatever tie_word_embeddings says
    tables = find_embedding_tables(weights, share=True, tie=True)
    spec = EncoderDecoder(
        hf.integer("d_model", 512, "hidden_size"),
        vocab_size,
        vocab_size,
        encoder=_t5_stack(hf, family, feed_forward, layers, encoder=True),
        decoder=_t5_stack(hf, family, feed_forward, hf.integer("num_decoder_layers", layers), encoder=False),
        shared_embeddings=tables.shared,
        tied_embeddings=tables.tied,
        output_bias=False,
        output_scaled=output_scaled,
    )
    modules = T5_MODULES | tables.modules
    for side, number in (("encoder", 1), ("decoder", 2)):  # the number of the feed-forward part in a layer
        dense = f"{side}.block.*.layer.{number}.DenseReluDense"
        modules[f"{side}.layers.*.{number}.body.widen"] = f"{dense}.wi_0" if feed_forward.gated else f"{dense}.wi"
        modules[f"{side}.layers.*.{number}.body.gate"] = f"{dense}.wi_1"
    unused = (*map(re.escape, EMBEDDING_TABLES), UNUSED_BIAS)
    return Conversion("t5", spec, modules, _t5_framing(hf), unused=unused)


def _t5_feed_forward(hf: HFConfig, family: T5Family) -> FeedForward:
    """Return the feed-forward layer. `feed_forward_proj` is its activation, such as relu or gated-gelu.

    The fields `dense_act_fn` and `is_gated_act` of config.json override it.
    """
    kind = str(hf.get("feed_forward_proj", family.feed_forward_proj))
    gate, _, activation = kind.rpartition("-")
    if gate not in ("", "gated"):
        raise UserError(
            f"{hf.path}: feed_forward_proj must be an activation, such as relu or gated-gelu, but is {kind!r}"
        )
    # in gated-gelu, GELU means the approximation by tanh
    activation = hf.get("dense_act_fn", "gelu_new" if kind == "gated-gelu" else activation)
    return FeedForward(
        hf.integer("d_ff", family.ffn_dim),
        hf.supported_activation("feed_forward_proj", activation),
        gated=hf.boolean("is_gated_act", bool(gate)),
        bias=False,
        dropout=hf.number("dropout_rate", 0.1),
    )


def _t5_stack(hf: HFConfig, family: T5Family, feed_forward: FeedForward, depth: int, encoder: bool) -> Stack:
    """Return the spec of `depth` layers of the `encoder` or (False) decoder, with relative position biases."""
    heads = hf.integer("num_heads", family.heads, "num_attention_heads")
    head_dim, dropout = hf.integer("d_kv", 64, "head_dim"), hf.number("dropout_rate", 0.1)
    norm = RMSNorm(hf.number("layer_norm_epsilon", 1e-6))
    visibility = Full() if encoder else Causal()
    parts: list[Spec] = [
        SelfAttention(heads, head_dim=head_dim, visibility=visibility, bias=False, dropout=dropout, scale=1.0)
    ]
    if not encoder:
        parts.append(CrossAttention(heads, head_dim=head_dim, bias=False, dropout=dropout, scale=1.0))
    bias = RelativeBias(
        heads,
        hf.integer("relative_attention_num_buckets", 32),
        hf.integer("relative_attention_max_distance", 128),
        bidirectional=encoder,
    )
    block = tuple(PreNorm(part, norm, dropout) for part in (*parts, feed_forward))
    return Stack(block, depth, bias, dropout, norm=norm)


def _t5_framing(hf: HFConfig) -> Framing:
    """Return the framing (special tokens): sources end with EOS; targets start with the padding token."""
    pad, eos = hf.token_id("pad_token_id", 0), hf.token_id("eos_token_id", 1)
    bos = hf.token_id("decoder_start_token_id", pad)
    return Framing(pad, bos, eos, source_prefix=(), source_suffix=(eos,), suppressed=hf.suppressed_tokens())
