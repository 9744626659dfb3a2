"""GPT-2 and LLaMA: decoder-only language models."""

from __future__ import annotations

import re

from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface.conversion import Conversion, WeightTransform, transposed
from dragoman.interop.huggingface.hf_config import HFConfig
from dragoman.interop.huggingface.safetensors_weights import StoredWeights
from dragoman.models import DecoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.positions import InterpolatedRotary, Learned, Llama3Rotary, Rotary
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal
from dragoman.text.framing import Framing

OUTPUT_MATRIX = "lm_head.weight"

GPT2_MODULES = {
    "target_embedding": "wte",
    "decoder.position.table": "wpe",
    "decoder.layers.*.0.norm": "h.*.ln_1",
    "decoder.layers.*.0.body.project": "h.*.attn.c_attn",
    "decoder.layers.*.0.body.output": "h.*.attn.c_proj",
    "decoder.layers.*.1.norm": "h.*.ln_2",
    "decoder.layers.*.1.body.widen": "h.*.mlp.c_fc",
    "decoder.layers.*.1.body.narrow": "h.*.mlp.c_proj",
    "decoder.norm": "ln_f",
    "output": "lm_head",
}
LLAMA_MODULES = {
    "target_embedding": "embed_tokens",
    "decoder.layers.*.0.norm": "layers.*.input_layernorm",
    "decoder.layers.*.0.body.project": "layers.*.self_attn.{q_proj,k_proj,v_proj}",
    "decoder.layers.*.0.body.output": "layers.*.self_attn.o_proj",
    "decoder.layers.*.1.norm": "layers.*.post_attention_layernorm",
    "decoder.layers.*.1.body.widen": "layers.*.mlp.gate_proj",
    "decoder.layers.*.1.body.gate": "layers.*.mlp.up_proj",
    "decoder.layers.*.1.body.narrow": "layers.*.mlp.down_proj",
    "decoder.norm": "norm",
    "output": "lm_head",
}


def convert_gpt2(hf: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a GPT-2 checkpoint: our spec (description) of the model, and where its weights are stored.

    Fields of config.json are read with transformers' defaults; unsupported values (`hf.expect`) raise an error.
    """
    hf.expect("is_decoder", False, True)
    hf.expect("add_cross_attention", False)
    dim, layers = hf.integer("n_embd", 768, "hidden_size"), hf.integer("n_layer", 12, "num_hidden_layers")
    norm, dropout = LayerNorm(hf.number("layer_norm_epsilon", 1e-5)), hf.number("resid_pdrop", 0.1)
    attention = SelfAttention(
        hf.integer("n_head", 12, "num_attention_heads"),
        visibility=Causal(),
        dropout=hf.number("attn_pdrop", 0.1),
        scale=None if hf.boolean("scale_attn_weights", True) else 1.0,
    )
    feed_forward = FeedForward(hf.integer("n_inner", 4 * dim), hf.activation("activation_function", "gelu_new"))
    block = tuple(PreNorm(part, norm, dropout) for part in (attention, feed_forward))
    position = Learned(hf.integer("n_positions", 1024, "max_position_embeddings"))
    spec = DecoderOnly(
        dim,
        hf.integer("vocab_size", 50257),
        Stack(block, layers, position, hf.number("embd_pdrop", 0.1), norm=norm),
        tied_embeddings=hf.boolean("tie_word_embeddings", True) and weights.equal("wte.weight", OUTPUT_MATRIX),
        initialization=Normal(hf.number("initializer_range", 0.02)),
    )
    # the linear layers of GPT-2 store their matrices transposed
    transforms: dict[str, WeightTransform] = {module: transposed for module in GPT2_MODULES if ".body." in module}
    if hf.boolean("scale_attn_by_inverse_layer_idx", False):
        transforms["decoder.layers.*.0.body.project"] = _divide_queries(dim)
    eos = hf.token_id("eos_token_id", 50256)
    framing = _framing(hf, pad=eos, bos=hf.token_id("bos_token_id", 50256), eos=eos, source_prefix=())
    attention_masks = r"h\.\d+\.attn\.(masked_)?bias"
    unused = (re.escape(OUTPUT_MATRIX), attention_masks)
    return Conversion("gpt", spec, GPT2_MODULES, framing, transforms, unused=unused)


def _divide_queries(dim: int) -> WeightTransform:
    """Return a transform that divides the queries, and so the attention scores, by the number of the layer from 1."""

    def transform(weight: Tensor, layer: int) -> Tensor:
        """Divide the queries, the first `dim` rows of the transposed matrix or bias, by the layer's number from 1."""
        weight = transposed(weight, layer).clone()  # rows: queries, keys, values
        weight[:dim] /= layer + 1
        return weight

    return transform


def convert_llama(hf: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a LLaMA checkpoint: our spec (description) of the model, and where its weights are stored.

    Fields of config.json are read with transformers' defaults; unsupported values (`hf.expect`) raise an error.
    """
    hf.expect("is_decoder", False, True)
    dim, heads = hf.integer("hidden_size", 4096), hf.integer("num_attention_heads", 32)
    norm = RMSNorm(hf.number("rms_norm_eps", 1e-6))
    attention = SelfAttention(
        heads,
        kv_heads=hf.integer("num_key_value_heads", heads),
        head_dim=hf.integer("head_dim", dim // heads),
        visibility=Causal(),
        position=_rotary(hf),
        bias=hf.boolean("attention_bias", False),
        dropout=hf.number("attention_dropout", 0.0),
    )
    feed_forward = FeedForward(
        hf.integer("intermediate_size", 11008),
        hf.activation("hidden_act", "silu"),
        gated=True,
        bias=hf.boolean("mlp_bias", False),
    )
    block = (PreNorm(attention, norm), PreNorm(feed_forward, norm))
    spec = DecoderOnly(
        dim,
        hf.integer("vocab_size", 32000),
        Stack(block, hf.integer("num_hidden_layers", 32), norm=norm),
        tied_embeddings=hf.boolean("tie_word_embeddings", False)
        and weights.equal("embed_tokens.weight", OUTPUT_MATRIX),
        initialization=Normal(hf.number("initializer_range", 0.02)),
    )
    bos, eos = hf.token_id("bos_token_id", 1), hf.token_id("eos_token_id", 2)
    framing = _framing(hf, pad=eos, bos=bos, eos=eos, source_prefix=(bos,))
    unused = (re.escape(OUTPUT_MATRIX), r".*rotary_emb\.inv_freq")
    return Conversion("llama", spec, LLAMA_MODULES, framing, unused=unused)


def _rotary(hf: HFConfig) -> Spec:
    """Return our description of the rotary positions in config.json: default, linear or llama3.

    The fields are `rope_parameters` with `rope_type`; in older configurations `rope_scaling`, `type` and `rope_theta`.
    Unsupported and unknown fields raise an error.
    """
    scaling = hf.get("rope_scaling", None)
    values = scaling or hf.get("rope_parameters", None) or {}
    if not isinstance(values, dict):
        raise UserError(f"{hf.path}: rope_parameters must be a JSON object, but is {values!r}")
    rope = HFConfig(values, generation={}, path=hf.path)
    hf.expect("partial_rotary_factor", 1.0)
    rope.expect("partial_rotary_factor", 1.0)
    hf.ignore("max_sequence_length")  # of its training: rotary positions have no limit
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = rope.number("rope_theta", hf.number("rope_theta", 10000.0))
    max_positions = hf.integer("max_position_embeddings", 2048)
    original_length = rope.integer("original_max_position_embeddings", max_positions)
    original_length = hf.integer("original_max_position_embeddings", original_length)

    def required(name: str) -> float:
        """Return a number that this type of rotary positions needs."""
        if rope.get(name, None) is None:
            raise UserError(f"{hf.path}: rotary positions of type {kind} need the field {name}, which is missing")
        return rope.number(name, None)

    position: Spec
    if kind == "default":
        position = Rotary(base)
    elif kind == "linear":
        position = InterpolatedRotary(base, required("factor"))
    elif kind == "llama3":
        low, high = required("low_freq_factor"), required("high_freq_factor")
        position = Llama3Rotary(base, required("factor"), low, high, original_length)
    else:
        raise hf.unsupported("rope_type", kind, "supported are default, linear, llama3")
    rope.refuse_unread()
    return position


def _framing(hf: HFConfig, pad: int, bos: int, eos: int, source_prefix: tuple[int, ...]) -> Framing:
    """Return the framing (special tokens around a text): texts begin with `source_prefix` and have no suffix.

    `pad`, `bos` and `eos` are token ids; `pad` is used unless the configuration has a padding token.
    """
    pad = hf.token_id("pad_token_id", pad)
    return Framing(pad, bos, eos, source_prefix=source_prefix, source_suffix=(), suppressed=hf.suppressed_tokens())
