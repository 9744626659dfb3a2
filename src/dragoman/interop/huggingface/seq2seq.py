"""Encoder–decoders: Marian, BART, mBART, M2M-100 and Pegasus, which share their modules."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, Sinusoidal
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.text.framing import Framing

UNUSED_POSITION_ROWS = 2  # at the beginning of BART's position tables
SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class BartFamily:
    """The differences between the families of encoder–decoders: BART, mBART, M2M-100, Marian and Pegasus.

    Sizes, token ids and the last three fields are defaults for what config.json does not say.
    """

    system: str  # our most similar system
    vocab_size: int
    pad: int
    eos: int
    decoder_start: int | None = None  # EOS if the configuration has no decoder_start_token_id
    bos_before_source: bool = False
    pre_norm: bool = False  # norms in the residual branches and at the end of each stack
    learned_positions: bool = True  # and a norm after the embeddings; sinusoids and no norm otherwise
    fairseq_positions: bool = False  # sinusoids that begin at PAD + 1, with frequencies up to 1/10000
    separate_vocabularies: bool = False  # source and target may have tables of their own
    output_bias: bool = True
    scale_embedding: bool = False  # embeddings are multiplied by √D
    activation: str = "gelu"
    attention_dropout: float = 0.0


MARIAN = BartFamily(
    "transformer", 58101, pad=58100, eos=0, decoder_start=58100, learned_positions=False, separate_vocabularies=True
)
BART = BartFamily("bart", 50265, pad=1, eos=2, decoder_start=2, bos_before_source=True)
MBART = BartFamily("bart", 50265, pad=1, eos=2, pre_norm=True)
PEGASUS = BartFamily("transformer", 50265, pad=0, eos=1, decoder_start=0, pre_norm=True, learned_positions=False)
M2M100 = BartFamily(
    *("transformer", 128112, 1, 2, 2),  # system, vocab_size, pad, eos, decoder_start
    pre_norm=True,
    learned_positions=False,
    fairseq_positions=True,
    output_bias=False,
    scale_embedding=True,
    activation="relu",
    attention_dropout=0.1,
)

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


def convert_bart(family: BartFamily, config: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a checkpoint of BART, mBART, M2M-100, Marian or Pegasus: our spec of the model, and its stored weights.

    `family` holds what differs between them. Fields of config.json are read with transformers' defaults.
    """
    _check_bart_fields(config, family)
    share = not family.separate_vocabularies or config.boolean("share_encoder_decoder_embeddings", True)
    tie = config.boolean("tie_word_embeddings", True)
    tables = find_embedding_tables(weights, share=share, tie=tie)  # names of the tables, and which are equal
    dim, vocab_size = (
        config.integer("d_model", 1024, alias="hidden_size"),
        config.integer("vocab_size", family.vocab_size),
    )
    target_vocab_size = config.integer("decoder_vocab_size", vocab_size) if family.separate_vocabularies else vocab_size
    spec = EncoderDecoder(
        dim,
        vocab_size,
        vocab_size if share and tie else target_vocab_size,  # as many as the source with a single table
        encoder=_bart_stack(config, family, "encoder"),
        decoder=_bart_stack(config, family, "decoder"),
        embedding=Embedding(scaled=config.boolean("scale_embedding", family.scale_embedding)),
        shared_embeddings=tables.shared,
        tied_embeddings=tables.tied,
        output_bias=family.output_bias,
        initialization=Normal(config.number("init_std", 0.02)),
    )
    sinusoids = _sinusoids(config, family).build(dim)
    without_unused_rows = without_first_rows(UNUSED_POSITION_ROWS)  # BART's position tables start with two unused rows
    return Conversion(
        family.system,
        spec,
        BART_MODULES | tables.modules,
        _bart_framing(config, family),
        transforms={f"{side}.position.table": without_unused_rows for side in SIDES} | {"output.bias": flattened},
        optional=frozenset({"output.bias"}),  # zeros if it is not stored
        # old M2M-100 files hold sinusoids that no version reads
        unused=(*map(re.escape, EMBEDDING_TABLES), r"(en|de)coder\.(version|embed_positions\.weights)"),
        # stored sinusoids, which our model computes instead
        computed={} if family.learned_positions else {f"{side}.embed_positions.weight": sinusoids for side in SIDES},
    )


def _check_bart_fields(config: HFConfig, family: BartFamily) -> None:
    """Raise an error if a field of config.json contradicts what the family computes.

    Newer files lack most of these fields: a missing field has the expected value.
    """
    config.expect("is_decoder", False)
    config.expect("add_bias_logits", False)
    config.expect("do_blenderbot_90_layernorm", False)
    config.expect("normalize_before", family.pre_norm)
    config.expect("add_final_layer_norm", family.pre_norm)
    config.expect("normalize_embedding", family.learned_positions)
    config.expect("static_position_embeddings", not family.learned_positions)
    if family.learned_positions:
        config.expect("extra_pos_embeddings", UNUSED_POSITION_ROWS)
    else:
        config.ignore("extra_pos_embeddings")
    if not family.separate_vocabularies:
        config.expect("share_encoder_decoder_embeddings", True)


def _bart_stack(config: HFConfig, family: BartFamily, side: str) -> Stack:
    """Return the spec of the encoder's or the decoder's layers; `side` is "encoder" or "decoder".

    Families with norms before the layers have one after the last, families with learned positions one before the first.
    """
    encoder = side == "encoder"
    dropout, attention_dropout = (
        config.number("dropout", 0.1),
        config.number("attention_dropout", family.attention_dropout),
    )
    heads = config.integer(f"{side}_attention_heads", 16, alias="num_attention_heads" if encoder else None)
    depth = config.integer(f"{side}_layers", 12, alias="num_hidden_layers" if encoder else None)
    parts: list[Spec] = [SelfAttention(heads, visibility=Full() if encoder else Causal(), dropout=attention_dropout)]
    if not encoder:
        parts.append(CrossAttention(heads, dropout=attention_dropout))
    ffn_dim, activation = (
        config.integer(f"{side}_ffn_dim", 4096),
        config.activation("activation_function", family.activation),
    )
    parts.append(FeedForward(ffn_dim, activation=activation, dropout=config.number("activation_dropout", 0.0)))
    residual = PreNorm if family.pre_norm else PostNorm
    max_positions = config.integer("max_position_embeddings", 1024)
    return Stack(
        tuple(residual(part, norm=LayerNorm(), dropout=dropout) for part in parts),
        depth=depth,
        position=Learned(max_positions) if family.learned_positions else _sinusoids(config, family),
        dropout=dropout,
        norm=LayerNorm() if family.pre_norm else None,
        input_norm=LayerNorm() if family.learned_positions else None,
    )


def _sinusoids(config: HFConfig, family: BartFamily) -> Sinusoidal:
    """Return the sinusoidal positions of a family, with all sines before all cosines.

    As in fairseq, those of some families begin at the id of the padding token + 1 instead of 0, and have frequencies
    down to exactly 1/10000 (`full_range`).
    """
    if not family.fairseq_positions:
        return Sinusoidal(sines_first=True)
    first = config.token_id("pad_token_id", family.pad) + 1
    return Sinusoidal(sines_first=True, first_position=first, full_range=True)


def _bart_framing(config: HFConfig, family: BartFamily) -> Framing:
    """Return the framing (special tokens around source and target) of the family.

    Without `decoder_start_token_id`, the decoder starts with that of the family or, if it has none (mBART), with EOS.
    A forced BOS is the first token that is generated, such as a language code.
    """
    bos, eos = config.token_id("bos_token_id", 0), config.token_id("eos_token_id", family.eos)
    start = config.token_id("decoder_start_token_id", family.decoder_start)
    forced = config.token_id("forced_bos_token_id", None)
    if config.get("force_bos_token_to_be_generated", False) and forced is None:  # the older field
        forced = bos
    return Framing(
        pad=config.token_id("pad_token_id", family.pad),
        bos=eos if start is None else start,
        eos=eos,
        source_prefix=(bos,) if family.bos_before_source else (),
        source_suffix=(eos,),
        forced_bos=() if forced is None else (forced,),
        suppressed=config.suppressed_tokens(),
    )
