"""The fields of config.json that describe a model of ours: the inverse of the conversions of an import.

A description takes the sizes from the first layers of a model and need not be exact: it is converted as in an import,
and the model can be exported if that gives its spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.interop.huggingface.bert_families import BertFamily
from dragoman.interop.huggingface.causal_lm import LlamaFamily
from dragoman.interop.huggingface.hf_config import HF_ACTIVATIONS
from dragoman.interop.huggingface.seq2seq import BartFamily
from dragoman.interop.huggingface.t5 import T5Family
from dragoman.models import DecoderOnly, EncoderDecoder, EncoderOnly, ModelSpec
from dragoman.parts.attention import SelfAttention
from dragoman.parts.feedforward import Activation, FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.positions import InterpolatedRotary, Learned, Llama3Rotary, RelativeBias, Rotary
from dragoman.parts.spec import Spec, find_specs
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Window
from dragoman.text.framing import Framing

#: our names of activation functions → transformers'
ACTIVATION_NAMES = {ours: theirs for theirs, ours in reversed(HF_ACTIVATIONS.items())}
#: transformers' names of the embedding tables of an encoder–decoder, and of the output matrix
SHARED_TABLE, ENCODER_TABLE, DECODER_TABLE, HEAD_TABLE = (
    *("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    "lm_head.weight",
)


@dataclass(frozen=True)
class Description:
    """A model as a class of transformers has it: fields of config.json, and which weights are stored.

    Attributes:
        fields: fields of config.json by name.
        stored: names of the weights whose presence tells an import which tables are shared or tied.
        copies: names of further weights to store → the names of the weights whose values they repeat.
    """

    fields: dict[str, Any]
    stored: frozenset[str] = frozenset()
    copies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerSizes:
    """Attention, feed-forward network, dropout rate and norm of the first layer of a stack.

    `inner_dim` is the inner dimension of the feed-forward network.
    """

    attention: SelfAttention
    feed_forward: FeedForward
    inner_dim: int
    dropout: float
    norm: Spec

    @staticmethod
    def of(stack: Stack, dim: int) -> LayerSizes | None:
        """Return the sizes of a stack of layers in a model of dimension `dim`; None if it is no Transformer."""
        attention, feed_forward = (
            next(find_specs(stack, SelfAttention), None),
            next(find_specs(stack, FeedForward), None),
        )
        residual = next((part for part in stack.block if isinstance(part, PreNorm | PostNorm)), None)
        if attention is None or feed_forward is None or residual is None:
            return None
        inner_dim = feed_forward.inner_dim or 4 * dim
        return LayerSizes(attention, feed_forward, inner_dim, dropout=residual.dropout, norm=residual.norm)

    @property
    def activation(self) -> str:
        """Transformers' name of the activation function."""
        return activation_name(self.feed_forward.activation)

    @property
    def epsilon(self) -> float:
        """The constant ε of the norms, which is added to the variance; 1e-5 if they have none."""
        return self.norm.epsilon if isinstance(self.norm, LayerNorm | RMSNorm) else 1e-5


def activation_name(activation: Activation) -> str:
    """Return transformers' name of an activation function; ours if it has none."""
    return ACTIVATION_NAMES.get(activation, activation)


def _standard_deviation(spec: Any) -> float:
    """Return the standard deviation with which a model's weights are initialized; transformers' default if unknown."""
    return spec.initialization.std if isinstance(spec.initialization, Normal) else 0.02


def _position_count(stack: Stack, max_positions: int) -> int:
    """Return the number of rows of a stack's position table; `max_positions` if positions are computed, not learned."""
    return stack.position.max_length if isinstance(stack.position, Learned) else max_positions


def describe_bart(family: BartFamily, spec: ModelSpec, framing: Framing, max_positions: int) -> Description | None:
    """Describe an encoder–decoder as one of BART, mBART, M2M-100, Marian or Pegasus (`family`): fields of config.json.

    Return None if it is no Transformer. `max_positions` is the number of positions in config.json if they are computed,
    not learned. All describing functions have the same signature; this one does not need `framing`.
    """
    if not isinstance(spec, EncoderDecoder):
        return None
    encoder, decoder = (LayerSizes.of(stack, spec.dim) for stack in (spec.encoder, spec.decoder))
    if encoder is None or decoder is None:
        return None
    fields: dict[str, Any] = {
        "d_model": spec.dim,
        "vocab_size": spec.source_vocab_size,
        "encoder_layers": spec.encoder.depth,
        "decoder_layers": spec.decoder.depth,
        "encoder_attention_heads": encoder.attention.heads,
        "decoder_attention_heads": decoder.attention.heads,
        "encoder_ffn_dim": encoder.inner_dim,
        "decoder_ffn_dim": decoder.inner_dim,
        "activation_function": encoder.activation,
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention.dropout,
        "activation_dropout": encoder.feed_forward.dropout,
        "max_position_embeddings": _position_count(spec.encoder, max_positions),
        "scale_embedding": spec.embedding.scaled,
        "init_std": _standard_deviation(spec),
        "tie_word_embeddings": spec.tied_embeddings,
        "num_hidden_layers": spec.encoder.depth,
        "is_encoder_decoder": True,
    }
    one_table = spec.shared_embeddings and spec.tied_embeddings  # untied tables are stored separately
    if family.separate_vocabularies:
        fields |= {"share_encoder_decoder_embeddings": one_table, "decoder_vocab_size": spec.target_vocab_size}
    if one_table or (spec.tied_embeddings and not family.separate_vocabularies):
        return Description(fields, stored=frozenset({SHARED_TABLE}))
    stored = {ENCODER_TABLE, DECODER_TABLE} | (set() if spec.tied_embeddings else {HEAD_TABLE})
    # classes for a single vocabulary also store the table `shared.weight`: we write a copy of the encoder's table
    copies = {} if family.separate_vocabularies else {SHARED_TABLE: ENCODER_TABLE}  # new weight → weight it repeats
    return Description(fields, stored=frozenset(stored), copies=copies)


def describe_t5(family: T5Family, spec: ModelSpec, framing: Framing, max_positions: int) -> Description | None:
    """Describe an encoder–decoder as T5, mT5 or UMT5 (`family`): fields of config.json.

    Return None if it is no Transformer with relative position biases. All describing functions have the same signature;
    this one needs neither `framing` nor `max_positions`.
    """
    if not isinstance(spec, EncoderDecoder):
        return None
    encoder, bias = LayerSizes.of(spec.encoder, spec.dim), next(find_specs(spec.encoder, RelativeBias), None)
    if encoder is None or bias is None:
        return None
    activation, gated = encoder.activation, encoder.feed_forward.gated
    if gated:  # in gated-gelu, GELU means the approximation by tanh
        activation = "gated-gelu" if activation == activation_name("gelu-tanh") else f"gated-{activation}"
    fields = {
        "d_model": spec.dim,
        "d_kv": encoder.attention.head_dim or spec.dim // encoder.attention.heads,
        "d_ff": encoder.inner_dim,
        "num_layers": spec.encoder.depth,
        "num_decoder_layers": spec.decoder.depth,
        "num_heads": encoder.attention.heads,
        "vocab_size": spec.source_vocab_size,
        "relative_attention_num_buckets": bias.buckets,
        "relative_attention_max_distance": bias.max_distance,
        "dropout_rate": encoder.dropout,
        "layer_norm_epsilon": encoder.epsilon,
        "feed_forward_proj": activation,
        "tie_word_embeddings": spec.tied_embeddings,
        "is_encoder_decoder": True,
        # transformers sizes its cache by the number of encoder layers, which a deeper or shallower decoder does not fit
        "use_cache": spec.encoder.depth == spec.decoder.depth,
    }
    if family.scales_output is None:  # config.json says whether the output layer's input is multiplied by 1/√D
        # also if scaled embeddings are written as a table times √D, which the tied output layer uses, too
        fields["scale_decoder_outputs"] = spec.output_scaled or (spec.tied_embeddings and spec.embedding.scaled)
    return Description(fields, stored=frozenset({SHARED_TABLE} | (set() if spec.tied_embeddings else {HEAD_TABLE})))


def describe_encoder(family: BertFamily, spec: ModelSpec, framing: Framing, max_positions: int) -> Description | None:
    """Describe an encoder as one of BERT, RoBERTa, ELECTRA or RoFormer (`family`): fields of config.json.

    They are the same with all output layers. Return None if it is no Transformer encoder. `max_positions` is the number
    of positions in config.json if they are computed, not learned.
    """
    if not isinstance(spec, EncoderOnly):
        return None
    encoder = LayerSizes.of(spec.encoder, spec.dim)
    if encoder is None:
        return None
    # RoBERTa numbers positions from the padding token's id + 1
    unused_positions = framing.pad + 1 if family.positions_after_padding else 0
    bert_fields = {
        "hidden_size": spec.dim,
        "num_hidden_layers": spec.encoder.depth,
        "num_attention_heads": encoder.attention.heads,
        "intermediate_size": encoder.inner_dim,
        "hidden_act": encoder.activation,
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention.dropout,
        "max_position_embeddings": _position_count(spec.encoder, max_positions) + unused_positions,
        "vocab_size": spec.vocab_size,
        "initializer_range": _standard_deviation(spec),
        "tie_word_embeddings": spec.tied_embeddings,
    }
    fields: dict[str, Any] = {family.field_name(name): value for name, value in bert_fields.items()}
    if family.token_types:
        fields["type_vocab_size"] = max(1, spec.token_types)
    if family.norm_eps is None:
        fields["layer_norm_eps"] = encoder.epsilon
    if family.rotary:
        fields["rotary_value"] = encoder.attention.rotary_values
    if family.separate_embedding_size:
        fields["embedding_size"] = spec.embedding.width or spec.dim
    if spec.tied_embeddings:
        return Description(fields, stored=frozenset({family.output_bias}))
    output_bias = f"{family.output}.bias"
    # BERT stores the bias of the output layer under two names
    copies = {family.output_bias: output_bias} if family.output_bias != output_bias else {}
    return Description(fields, stored=frozenset({f"{family.output}.weight", output_bias}), copies=copies)


def describe_gpt2(spec: ModelSpec, framing: Framing, max_positions: int) -> Description | None:
    """Describe a decoder as GPT-2: fields of config.json; None if it is no Transformer decoder.

    `max_positions` is the number of positions in config.json if they are computed, not learned. All describing
    functions have the same signature; this one does not need `framing`.
    """
    if not isinstance(spec, DecoderOnly) or (layer := LayerSizes.of(spec.decoder, spec.dim)) is None:
        return None
    fields = {
        "n_embd": spec.dim,
        "n_layer": spec.decoder.depth,
        "n_head": layer.attention.heads,
        "n_inner": layer.inner_dim,
        "n_positions": _position_count(spec.decoder, max_positions),
        "vocab_size": spec.vocab_size,
        "activation_function": layer.activation,
        "resid_pdrop": layer.dropout,
        "embd_pdrop": spec.decoder.dropout,
        "attn_pdrop": layer.attention.dropout,
        "layer_norm_epsilon": layer.epsilon,
        "scale_attn_weights": layer.attention.scale is None,  # None: 1/√E, E being the width of a head
        "initializer_range": _standard_deviation(spec),
        "tie_word_embeddings": spec.tied_embeddings,
    }
    # names whose presence tells an import that the output matrix is not tied to the embedding table
    stored = () if spec.tied_embeddings else (HEAD_TABLE, "wte.weight")
    return Description(fields, stored=frozenset(stored))


def describe_llama(family: LlamaFamily, spec: ModelSpec, framing: Framing, max_positions: int) -> Description | None:
    """Describe a decoder as LLaMA, Mistral or Qwen2 (`family`): fields of config.json; None if it is no such decoder.

    `max_positions` is a field of config.json, although rotary positions have no limit. All describing functions have
    the same signature; this one does not need `framing`.
    """
    if not isinstance(spec, DecoderOnly) or (layer := LayerSizes.of(spec.decoder, spec.dim)) is None:
        return None
    attention = layer.attention
    fields = {
        "hidden_size": spec.dim,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads or attention.heads,
        "head_dim": attention.head_dim or spec.dim // attention.heads,
        "intermediate_size": layer.inner_dim,
        "hidden_act": layer.activation,
        "attention_dropout": attention.dropout,
        "rms_norm_eps": layer.epsilon,
        "max_position_embeddings": max_positions,
        "vocab_size": spec.vocab_size,
        "initializer_range": _standard_deviation(spec),
        "tie_word_embeddings": spec.tied_embeddings,
        **_describe_rotary(attention.position),
        **_describe_windows(family, list(find_specs(spec.decoder, SelfAttention)), spec.decoder.depth),
    }
    if family.optional_bias:
        fields |= {"attention_bias": attention.bias, "mlp_bias": layer.feed_forward.bias}
    # names whose presence tells an import that the output matrix is not tied to the embedding table
    stored = () if spec.tied_embeddings else (HEAD_TABLE, "embed_tokens.weight")
    return Description(fields, stored=frozenset(stored))


def _describe_windows(family: LlamaFamily, attentions: list[SelfAttention], depth: int) -> dict[str, Any]:
    """Return the fields of config.json for the number of layers and for attention to a window of the last tokens.

    `attentions` are the attention layers of a block, which is repeated `depth` times. Layers that differ from each
    other form one block, which contains all of them.
    """
    if not family.windows:
        return {"num_hidden_layers": depth}
    window_sizes: list[int | None] = []  # of each layer; None: it sees all earlier tokens
    for attention in attentions * depth:
        window_sizes.append(attention.visibility.size if isinstance(attention.visibility, Window) else None)
    fields: dict[str, Any] = {"num_hidden_layers": len(window_sizes)}
    # config.json has one size for all layers with a window; other sizes remain as differences of the model
    fields["sliding_window"] = max(filter(None, window_sizes), default=None)
    if "layer_types" in family.windows:
        fields["use_sliding_window"] = any(window_sizes)
        fields["layer_types"] = ["full_attention" if size is None else "sliding_attention" for size in window_sizes]
    return fields


def _describe_rotary(position: Spec) -> dict[str, Any]:
    """Return the fields of config.json for rotary positions, under the names that all versions of transformers read.

    There are none if `position`, our description of the positions of an attention layer, is not rotary.
    """
    if isinstance(position, InterpolatedRotary):
        scaling = {"rope_type": "linear", "factor": position.factor}
    elif isinstance(position, Llama3Rotary):
        scaling = {
            "rope_type": "llama3",
            "factor": position.factor,
            "low_freq_factor": position.low_freq_factor,
            "high_freq_factor": position.high_freq_factor,
            "original_max_position_embeddings": position.original_max_length,
        }
    else:
        return {"rope_theta": position.base} if isinstance(position, Rotary) else {}
    return {"rope_theta": position.base, "rope_scaling": scaling}
