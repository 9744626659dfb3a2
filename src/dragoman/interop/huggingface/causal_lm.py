"""GPT-2, LLaMA, Mistral and Qwen2: decoder-only language models."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

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
from dragoman.parts.visibility import Causal, Visibility, Window
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


def convert_gpt2(config: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a GPT-2 checkpoint: our spec (description) of the model, and where its weights are stored.

    Fields of config.json are read with transformers' defaults; unsupported values (`config.expect`) raise an error.
    """
    config.expect("is_decoder", False, True)  # both values are accepted: the model is the same
    config.expect("add_cross_attention", False)
    dim = config.integer("n_embd", 768, alias="hidden_size")
    layers = config.integer("n_layer", 12, alias="num_hidden_layers")
    norm, dropout = LayerNorm(config.number("layer_norm_epsilon", 1e-5)), config.number("resid_pdrop", 0.1)
    attention = SelfAttention(
        config.integer("n_head", 12, alias="num_attention_heads"),
        visibility=Causal(),
        dropout=config.number("attn_pdrop", 0.1),
        scale=None if config.boolean("scale_attn_weights", True) else 1.0,  # None: 1/√E, E being the width of a head
    )
    feed_forward = FeedForward(config.integer("n_inner", 4 * dim), config.activation("activation_function", "gelu_new"))
    block = tuple(PreNorm(part, norm=norm, dropout=dropout) for part in (attention, feed_forward))
    position = Learned(config.integer("n_positions", 1024, alias="max_position_embeddings"))
    spec = DecoderOnly(
        dim,
        config.integer("vocab_size", 50257),
        Stack(block, depth=layers, position=position, dropout=config.number("embd_pdrop", 0.1), norm=norm),
        # not tied if another output matrix is stored, whatever config.json says
        tied_embeddings=config.boolean("tie_word_embeddings", True) and weights.equal("wte.weight", OUTPUT_MATRIX),
        initialization=Normal(config.number("initializer_range", 0.02)),
    )
    # the linear layers of GPT-2 store their matrices transposed
    transforms: dict[str, WeightTransform] = {module: transposed for module in GPT2_MODULES if ".body." in module}
    if config.boolean("scale_attn_by_inverse_layer_idx", False):
        transforms["decoder.layers.*.0.body.project"] = _divide_queries(dim)
    eos = config.token_id("eos_token_id", 50256)
    framing = _framing(config, pad=eos, bos=config.token_id("bos_token_id", 50256), eos=eos, source_prefix=())
    attention_masks = r"h\.\d+\.attn\.(masked_)?bias"  # buffers with names like those of biases
    unused = (re.escape(OUTPUT_MATRIX), attention_masks)  # accepted although nothing may read them
    return Conversion("gpt", spec, GPT2_MODULES, framing, transforms, unused=unused)


def _divide_queries(dim: int) -> WeightTransform:
    """Return a transform that divides the queries, and so the attention scores, by the layer's number (from 1).

    It transposes the matrix of queries, keys and values, too, which GPT-2 stores transposed. `dim` is the dimension of
    the model, and so of the queries.
    """

    def transform(weight: Tensor, layer: int) -> Tensor:
        """Transpose a matrix or bias, and divide its first `dim` rows, the queries; `layer` counts from 0."""
        weight = transposed(weight, layer).clone()  # rows: queries, keys, values
        weight[:dim] /= layer + 1
        return weight

    return transform


@dataclass(frozen=True)
class LlamaFamily:
    """Default values of config.json for LLaMA, Mistral or Qwen2, and the differences between these families.

    Attributes:
        optional_bias: config.json says whether attention and feed-forward layers have biases.
        input_bias: queries, keys and values have biases, the output of the attention has none.
        windows: names of fields that say in which layers a token sees only the last ones (sliding windows).
    """

    vocab_size: int
    ffn_dim: int
    kv_heads: int | None = None  # as many as heads
    bos: int | None = 1  # before a text; None: texts begin without one, whatever config.json says
    eos: int | None = 2
    optional_bias: bool = False
    input_bias: bool = False
    windows: frozenset[str] = frozenset()


LLAMA = LlamaFamily(32000, 11008, optional_bias=True)
MISTRAL = LlamaFamily(32000, 14336, kv_heads=8, windows=frozenset({"sliding_window"}))
QWEN2 = LlamaFamily(
    151936,
    22016,
    kv_heads=32,
    bos=None,
    eos=None,
    input_bias=True,
    windows=frozenset({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}),
)
SLIDING_WINDOW, MAX_WINDOW_LAYERS = 4096, 28  # defaults of Mistral and Qwen2


def convert_llama(family: LlamaFamily, config: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a checkpoint of LLaMA, Mistral or Qwen2: our spec of the model, and where its weights are stored.

    Fields of config.json are read with transformers' defaults; unsupported values (`config.expect`) raise an error.
    """
    config.expect("is_decoder", False, True)  # both values are accepted: the model is the same
    dim, heads = config.integer("hidden_size", 4096), config.integer("num_attention_heads", 32)
    norm = RMSNorm(config.number("rms_norm_eps", 1e-6))
    bias = config.boolean("attention_bias", False) if family.optional_bias else family.input_bias
    attention = SelfAttention(
        heads,
        kv_heads=config.integer("num_key_value_heads", family.kv_heads or heads),
        head_dim=config.integer("head_dim", dim // heads),
        position=_rotary(config),
        bias=bias,
        dropout=config.number("attention_dropout", 0.0),
        output_bias=False if family.input_bias else None,  # None: as `bias`
    )
    feed_forward = FeedForward(
        config.integer("intermediate_size", family.ffn_dim),
        config.activation("hidden_act", "silu"),
        gated=True,
        bias=family.optional_bias and config.boolean("mlp_bias", False),
    )
    masks = _attention_masks(family, config)
    layers = [
        (PreNorm(replace(attention, visibility=mask), norm=norm), PreNorm(feed_forward, norm=norm)) for mask in masks
    ]
    if len(set(masks)) == 1:
        modules, stack = LLAMA_MODULES, Stack(layers[0], depth=len(layers), norm=norm)
    else:  # a stack repeats one block, which holds all layers if they differ
        modules = _modules_of_one_block(len(layers))
        stack = Stack(tuple(part for layer in layers for part in layer), norm=norm)
    spec = DecoderOnly(
        dim,
        config.integer("vocab_size", family.vocab_size),
        stack,
        # not tied if another output matrix is stored, whatever config.json says
        tied_embeddings=config.boolean("tie_word_embeddings", False)
        and weights.equal("embed_tokens.weight", OUTPUT_MATRIX),
        initialization=Normal(config.number("initializer_range", 0.02)),
    )
    unused = (re.escape(OUTPUT_MATRIX), r".*rotary_emb\.inv_freq")
    return Conversion("llama", spec, modules, _llama_framing(family, config), unused=unused)


def _attention_masks(family: LlamaFamily, config: HFConfig) -> list[Visibility]:
    """Return the attention mask of every layer: causal, or a window of the last `sliding_window` tokens.

    Mistral has windows in all layers unless `sliding_window` is null; Qwen2, if `use_sliding_window` is true, in those
    from number `max_window_layers` on, or as `layer_types` says.
    """
    layers = config.integer("num_hidden_layers", 32)
    if "sliding_window" not in family.windows:
        return [Causal()] * layers
    has_window = config.values.get("sliding_window", SLIDING_WINDOW) is not None  # null: no window; missing: default
    window = Window(config.integer("sliding_window", SLIDING_WINDOW))
    first_with_window = 0  # number of a layer
    if "use_sliding_window" in family.windows:
        has_window = config.boolean("use_sliding_window", False) and has_window
        first_with_window = config.get("max_window_layers", MAX_WINDOW_LAYERS)
        if not isinstance(first_with_window, int) or isinstance(first_with_window, bool) or first_with_window < 0:
            raise UserError(
                f"{config.path}: max_window_layers (the number of the first layer with a sliding window) must be a "
                f"whole number of at least 0, but is {first_with_window!r}: correct it"
            )
    by_type = {"full_attention": Causal(), "sliding_attention": window if has_window else Causal()}
    default = [
        "sliding_attention" if has_window and layer >= first_with_window else "full_attention"
        for layer in range(layers)
    ]
    types = config.get("layer_types", default) if "layer_types" in family.windows else default
    if not isinstance(types, list) or len(types) != layers or not set(types) <= by_type.keys():
        raise UserError(
            f"{config.path}: layer_types must list full_attention or sliding_attention for each of the {layers} "
            f"layers, but is {types!r}: correct it"
        )
    return [by_type[layer_type] for layer_type in types]


def _modules_of_one_block(layers: int) -> dict[str, str]:
    """Return our module names → those of LLaMA, for a stack of one block that holds all `layers` layers.

    The parts 2n and 2n + 1 of the block are attention and feed-forward network of layer n: part 0 of layer 3,
    "decoder.layers.*.0.body" in LLAMA_MODULES, becomes "decoder.layers.*.6.body".
    """
    modules: dict[str, str] = {}
    for ours, theirs in LLAMA_MODULES.items():
        if "*" not in ours:
            modules[ours] = theirs
            continue
        prefix, part, suffix = re.split(r"\*\.(\d)", ours)
        for layer in range(layers):
            modules[f"{prefix}*.{2 * layer + int(part)}{suffix}"] = theirs.replace("*", str(layer))
    return modules


def _llama_framing(family: LlamaFamily, config: HFConfig) -> Framing:
    """Return the framing (special tokens): texts begin with BOS, unless the family has none; EOS must be known."""
    eos = config.token_id("eos_token_id", family.eos)
    if eos is None:
        raise UserError(f"{config.path} has no eos_token_id, the token that ends a text: add its id")
    # a family without BOS may lack its id: then EOS stands for it
    bos = config.token_id("bos_token_id", eos if family.bos is None else family.bos)
    return _framing(config, pad=eos, bos=bos, eos=eos, source_prefix=() if family.bos is None else (bos,))


def _rotary(config: HFConfig) -> Spec:
    """Return our description of the rotary positions in config.json: default, linear or llama3.

    `rope_parameters` holds `rope_type` and `rope_theta`; in older configurations, `rope_scaling` holds the type, and
    `rope_theta` is a field of config.json itself. Unsupported and unknown fields raise an error. `original_length` is
    the number of positions of the training before llama3 extended it, by default all.
    """
    scaling = config.get("rope_scaling", None)
    values = scaling or config.get("rope_parameters", None) or {}
    if not isinstance(values, dict):
        raise UserError(
            f"{config.path}: rope_parameters (formerly rope_scaling) must be a JSON object, but is {values!r}: correct "
            "it"
        )
    rope = HFConfig(values, generation={}, path=config.path)
    config.expect("partial_rotary_factor", 1.0)
    rope.expect("partial_rotary_factor", 1.0)
    config.ignore("max_sequence_length")  # length of the training texts: rotary positions have no limit
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = rope.number("rope_theta", config.number("rope_theta", 10000.0))
    max_positions = config.integer("max_position_embeddings", 2048)
    original_length = rope.integer("original_max_position_embeddings", max_positions)
    original_length = config.integer("original_max_position_embeddings", original_length)  # where some files have it

    def required(name: str) -> float:
        """Return the number in the field `name`, without which this type of rotary positions is an error."""
        if rope.get(name, None) is None:
            raise UserError(
                f"{config.path}: rotary positions of type {kind} need the field {name}, which is missing: add it"
            )
        return rope.number(name, default=None)  # None: without a default

    position: Spec
    if kind == "default":
        position = Rotary(base)
    elif kind == "linear":
        position = InterpolatedRotary(base, factor=required("factor"))
    elif kind == "llama3":
        low, high = required("low_freq_factor"), required("high_freq_factor")
        position = Llama3Rotary(
            base,
            factor=required("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_length=original_length,
        )
    else:
        raise config.unsupported("rope_type", kind, "supported are default, linear, llama3")
    rope.refuse_unread()  # fields that may change the positions in an unknown way
    return position


def _framing(config: HFConfig, pad: int, bos: int, eos: int, source_prefix: tuple[int, ...]) -> Framing:
    """Return the framing (special tokens around a text): texts begin with `source_prefix` and have no suffix.

    `pad`, `bos` and `eos` are token ids; `pad` is used unless the configuration has a padding token.
    """
    pad = config.token_id("pad_token_id", pad)
    return Framing(pad, bos, eos, source_prefix=source_prefix, source_suffix=(), suppressed=config.suppressed_tokens())
