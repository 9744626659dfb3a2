"""T5 and mT5: encoder–decoders with a relative bias that the layers of a stack share."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.errors import UserError
from dragoman.interop.huggingface.conversion import Conversion, tables
from dragoman.interop.huggingface.hf_config import Settings
from dragoman.interop.huggingface.weights import Origin, Stored, layer
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import RMSNorm
from dragoman.parts.relative_positions import RelativeBias
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.text.framing import Framing


@dataclass(frozen=True)
class Build:
    """A family's defaults, for what its configuration does not say."""

    vocabulary: int
    inner: int
    layers: int
    heads: int
    feed_forward: str


T5 = Build(32128, 2048, 6, 8, "relu")
MT5 = Build(250112, 1024, 8, 6, "gated-gelu")


def t5(settings: Settings, stored: Stored) -> Conversion:
    """The output is tied wherever no matrix of its own is stored, whatever the configuration says of it.

    `tie_word_embeddings` decides instead whether the output layer's input is scaled, as in version 1.0.
    """
    tied = settings.flag("tie_word_embeddings", True)
    return _read(settings, stored, T5, settings.flag("scale_decoder_outputs", tied))


def mt5(settings: Settings, stored: Stored) -> Conversion:
    settings.flag("tie_word_embeddings", True)
    settings.expect("scale_decoder_outputs", False)
    return _read(settings, stored, MT5, scaled=False)


def _read(settings: Settings, stored: Stored, build: Build, scaled: bool) -> Conversion:
    settings.expect("is_decoder", False)
    settings.get("n_positions", None)  # of no meaning where positions are relative
    vocabulary = settings.whole("vocab_size", build.vocabulary)
    heads = settings.whole("num_heads", build.heads, "num_attention_heads")
    layers = settings.whole("num_layers", build.layers, "num_hidden_layers")
    table = tables(stored, share=True, tie=True)
    feed_forward = _feed_forward(settings, settings.whole("d_ff", build.inner), build.feed_forward)
    spec = EncoderDecoder(
        settings.whole("d_model", 512, "hidden_size"),
        vocabulary,
        vocabulary,
        encoder=_stack(settings, feed_forward, heads, layers, decodes=False),
        decoder=_stack(settings, feed_forward, heads, settings.whole("num_decoder_layers", layers), decodes=True),
        shared_embeddings=table.shared,
        tied_embeddings=table.tied,
        output_bias=False,
        output_scaled=scaled,
    )
    origins = table.origins()
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        origins |= _stack_origins(side, stack, feed_forward.gated)
    # an old version gave the attention to the source a bias, and never used it
    unused = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    return Conversion("t5", spec, origins, _framing(settings), unused=(*table.twins, unused))


def _feed_forward(settings: Settings, inner: int, kind: str) -> FeedForward:
    """`gated-gelu` means the approximation by tanh; what is said apart of the name holds."""
    kind = settings.get("feed_forward_proj", kind)
    gate, _, activation = str(kind).rpartition("-")
    if gate not in ("", "gated"):
        raise UserError(f"{settings.path}: feed_forward_proj must be such as relu or gated-gelu, but is {kind!r}")
    activation = settings.get("dense_act_fn", "gelu_new" if kind == "gated-gelu" else activation)
    return FeedForward(
        inner,
        settings.activation_called("feed_forward_proj", activation),
        gated=settings.flag("is_gated_act", bool(gate)),
        bias=False,
        dropout=settings.number("dropout_rate", 0.1),
    )


def _stack(settings: Settings, feed_forward: FeedForward, heads: int, layers: int, decodes: bool) -> Stack:
    width, dropout = settings.whole("d_kv", 64, "head_dim"), settings.number("dropout_rate", 0.1)
    norm = RMSNorm(settings.number("layer_norm_epsilon", 1e-6))
    looks = {"width": width, "bias": False, "dropout": dropout, "scale": 1.0}

    def wrap(body: Spec) -> Spec:
        return PreNorm(body, norm, dropout)

    attention = wrap(SelfAttention(heads, visibility=Causal() if decodes else Full(), **looks))  # type: ignore[arg-type]
    cross = (wrap(CrossAttention(heads, **looks)),) if decodes else ()  # type: ignore[arg-type]
    bias = RelativeBias(
        heads,
        settings.whole("relative_attention_num_buckets", 32),
        settings.whole("relative_attention_max_distance", 128),
        bidirectional=not decodes,
    )
    return Stack((attention, *cross, wrap(feed_forward)), layers, bias, dropout, norm=norm)


def _stack_origins(side: str, stack: Stack, gated: bool) -> dict[str, Origin]:
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found = {f"{side}.position.table.weight": Origin((bias,))}
    for i in range(stack.depth):
        last = len(stack.block) - 1
        for j in range(len(stack.block)):
            found |= layer(f"{side}.layers.{i}.{j}.before", f"{side}.block.{i}.layer.{j}.layer_norm", bias=False)
        ours, theirs = f"{side}.layers.{i}.0.body", f"{side}.block.{i}.layer.0.SelfAttention"
        found |= layer(f"{ours}.project", f"{theirs}.q", f"{theirs}.k", f"{theirs}.v", bias=False)
        found |= layer(f"{ours}.output", f"{theirs}.o", bias=False)
        if side == "decoder":
            ours, theirs = f"{side}.layers.{i}.1.body", f"{side}.block.{i}.layer.1.EncDecAttention"
            found |= layer(f"{ours}.query", f"{theirs}.q", bias=False)
            found |= layer(f"{ours}.project", f"{theirs}.k", f"{theirs}.v", bias=False)
            found |= layer(f"{ours}.output", f"{theirs}.o", bias=False)
        ours, theirs = f"{side}.layers.{i}.{last}.body", f"{side}.block.{i}.layer.{last}.DenseReluDense"
        found |= layer(f"{ours}.widen", f"{theirs}.wi_0" if gated else f"{theirs}.wi", bias=False)
        if gated:
            found |= layer(f"{ours}.gate", f"{theirs}.wi_1", bias=False)
        found |= layer(f"{ours}.narrow", f"{theirs}.wo", bias=False)
    return found | layer(f"{side}.norm", f"{side}.final_layer_norm", bias=False)


def _framing(settings: Settings) -> Framing:
    pad, end = settings.symbol("pad_token_id", 0), settings.symbol("eos_token_id", 1)
    start = settings.symbol("decoder_start_token_id", pad)
    return Framing(pad, start, end, source_prefix=(), source_suffix=(end,), suppressed=settings.banned())
