"""LLaMA: a decoder alone with RMSNorm, rotary positions, grouped queries and a gated feed-forward network."""

from __future__ import annotations

from typing import Any

from dragoman.errors import UserError
from dragoman.interop.huggingface.conversion import Conversion, is_tied, names
from dragoman.interop.huggingface.hf_config import Settings
from dragoman.interop.huggingface.weights import Origin, Stored, layer
from dragoman.models import DecoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import RMSNorm
from dragoman.parts.positions import InterpolatedRotary, Llama3Rotary, Rotary
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal
from dragoman.text.framing import Framing

TABLE, HEAD = "embed_tokens.weight", "lm_head.weight"


def llama(settings: Settings, stored: Stored) -> Conversion:
    settings.expect("is_decoder", False, True)
    width, heads = settings.whole("hidden_size", 4096), settings.whole("num_attention_heads", 32)
    norm = RMSNorm(settings.number("rms_norm_eps", 1e-6))
    attention = SelfAttention(
        heads,
        settings.whole("num_key_value_heads", heads),
        settings.whole("head_dim", width // heads),
        Causal(),
        _rotary(settings),
        settings.flag("attention_bias", False),
        settings.number("attention_dropout", 0.0),
    )
    feed_forward = FeedForward(
        settings.whole("intermediate_size", 11008),
        settings.activation("hidden_act", "silu"),
        gated=True,
        bias=settings.flag("mlp_bias", False),
    )
    stack = Stack(
        (PreNorm(attention, norm), PreNorm(feed_forward, norm)), settings.whole("num_hidden_layers", 32), norm=norm
    )
    spec = DecoderOnly(
        width,
        settings.whole("vocab_size", 32000),
        stack,
        tied_embeddings=is_tied(stored, settings.flag("tie_word_embeddings", False), TABLE, HEAD),
        initialization=Normal(settings.number("initializer_range", 0.02)),
    )
    origins = _origins(spec, attention.bias, feed_forward.bias)
    return Conversion("llama", spec, origins, _framing(settings), unused=(*names(HEAD), r".*rotary_emb\.inv_freq"))


def _rotary(settings: Settings) -> Spec:
    """Rotary positions by their `rope_type`; older configurations say `rope_scaling`, `type` and `rope_theta`."""
    scaling = settings.get("rope_scaling", None)
    rope = scaling or settings.get("rope_parameters", None) or {}
    longest = settings.whole("max_position_embeddings", 2048)
    settings.get("max_sequence_length", None)  # what it was trained with; the angles have no limit
    outside = settings.number("rope_theta", 10000.0)
    settings.expect("partial_rotary_factor", 1.0)
    if not isinstance(rope, dict):
        raise UserError(f"{settings.path}: rope_parameters must hold names and values, but is {rope!r}")
    inside = Settings({name: value for name, value in rope.items() if value is not None}, {}, settings.path)
    kind = inside.get("rope_type", inside.get("type", "default"))
    base = inside.number("rope_theta", outside)
    inside.expect("partial_rotary_factor", 1.0)
    trained = inside.whole("original_max_position_embeddings", longest)
    trained = settings.whole("original_max_position_embeddings", trained)  # said outside, it counts more
    position: Spec
    if kind == "default":
        position = Rotary(base)
    elif kind == "linear":
        position = InterpolatedRotary(base, _given(inside, "factor"))
    elif kind == "llama3":
        slow, fast = _given(inside, "low_freq_factor"), _given(inside, "high_freq_factor")
        position = Llama3Rotary(base, _given(inside, "factor"), slow, fast, trained)
    else:
        raise settings.refusal("rope_type", kind, "known are default, linear, llama3")
    inside.refuse_the_rest()
    return position


def _given(rope: Settings, name: str) -> float:
    value: Any = rope.get(name, None)
    if value is None:
        raise UserError(f"{rope.path}: the rotary positions of this kind need a {name}, but have none")
    return rope.number(name, value)


def _origins(spec: DecoderOnly, attention_bias: bool, inner_bias: bool) -> dict[str, Origin]:
    found = {"target_embedding.weight": Origin((TABLE,))}
    for i in range(spec.decoder.depth):
        ours, theirs = f"decoder.layers.{i}", f"layers.{i}"
        look, inner = f"{theirs}.self_attn", f"{theirs}.mlp"
        queries = (f"{look}.q_proj", f"{look}.k_proj", f"{look}.v_proj")
        found |= layer(f"{ours}.0.before", f"{theirs}.input_layernorm", bias=False)
        found |= layer(f"{ours}.0.body.project", *queries, bias=attention_bias)
        found |= layer(f"{ours}.0.body.output", f"{look}.o_proj", bias=attention_bias)
        found |= layer(f"{ours}.1.before", f"{theirs}.post_attention_layernorm", bias=False)
        found |= layer(f"{ours}.1.body.widen", f"{inner}.gate_proj", bias=inner_bias)
        found |= layer(f"{ours}.1.body.gate", f"{inner}.up_proj", bias=inner_bias)
        found |= layer(f"{ours}.1.body.narrow", f"{inner}.down_proj", bias=inner_bias)
    found |= layer("decoder.norm", "norm", bias=False)
    if not spec.tied_embeddings:
        found["output.weight"] = Origin((HEAD,))
    return found


def _framing(settings: Settings) -> Framing:
    begin, end = settings.symbol("bos_token_id", 1), settings.symbol("eos_token_id", 2)
    pad = settings.symbol("pad_token_id", end)
    return Framing(pad, begin, end, source_prefix=(begin,), source_suffix=(), suppressed=settings.banned())
