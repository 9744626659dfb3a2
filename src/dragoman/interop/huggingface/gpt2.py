"""GPT-2: a decoder alone, pre-norm, with learned positions."""

from __future__ import annotations

from torch import Tensor

from dragoman.interop.huggingface.conversion import Conversion, is_tied, names
from dragoman.interop.huggingface.hf_config import Settings
from dragoman.interop.huggingface.weights import Change, Origin, Stored, layer, turned
from dragoman.models import DecoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal
from dragoman.text.framing import Framing

TABLE, HEAD = "wte.weight", "lm_head.weight"


def gpt2(settings: Settings, stored: Stored) -> Conversion:
    settings.expect("is_decoder", False, True)
    settings.expect("add_cross_attention", False)
    width, depth = settings.whole("n_embd", 768, "hidden_size"), settings.whole("n_layer", 12, "num_hidden_layers")
    dropout, norm = settings.number("resid_pdrop", 0.1), LayerNorm(settings.number("layer_norm_epsilon", 1e-5))
    attention = SelfAttention(
        settings.whole("n_head", 12, "num_attention_heads"),
        visibility=Causal(),
        dropout=settings.number("attn_pdrop", 0.1),
        scale=None if settings.flag("scale_attn_weights", True) else 1.0,
    )
    feed_forward = FeedForward(
        settings.whole("n_inner", 4 * width), settings.activation("activation_function", "gelu_new")
    )
    stack = Stack(
        (PreNorm(attention, norm, dropout), PreNorm(feed_forward, norm, dropout)),
        depth,
        Learned(settings.whole("n_positions", 1024, "max_position_embeddings")),
        settings.number("embd_pdrop", 0.1),
        norm=norm,
    )
    spec = DecoderOnly(
        width,
        settings.whole("vocab_size", 50257),
        stack,
        tied_embeddings=is_tied(stored, settings.flag("tie_word_embeddings", True), TABLE, HEAD),
        initialization=Normal(settings.number("initializer_range", 0.02)),
    )
    origins = _origins(spec, settings.flag("scale_attn_by_inverse_layer_idx", False))
    masks = r"h\.\d+\.attn\.(masked_)?bias"
    return Conversion("gpt", spec, origins, _framing(settings), unused=(*names(HEAD), masks))


def _origins(spec: DecoderOnly, by_layer: bool) -> dict[str, Origin]:
    found = {"target_embedding.weight": Origin((TABLE,)), "decoder.position.table.weight": Origin(("wpe.weight",))}
    for i in range(spec.decoder.depth):
        ours, theirs = f"decoder.layers.{i}", f"h.{i}"
        query = _slower_queries(spec.dim, i + 1) if by_layer else turned
        found |= layer(f"{ours}.0.before", f"{theirs}.ln_1")
        found |= layer(f"{ours}.0.body.project", f"{theirs}.attn.c_attn", change=query)
        found |= layer(f"{ours}.0.body.output", f"{theirs}.attn.c_proj", change=turned)
        found |= layer(f"{ours}.1.before", f"{theirs}.ln_2")
        found |= layer(f"{ours}.1.body.widen", f"{theirs}.mlp.c_fc", change=turned)
        found |= layer(f"{ours}.1.body.narrow", f"{theirs}.mlp.c_proj", change=turned)
    found |= layer("decoder.norm", "ln_f")
    if not spec.tied_embeddings:
        found["output.weight"] = Origin((HEAD,))
    return found


def _slower_queries(width: int, divisor: int) -> Change:
    """Scores divided by the number of the layer are those of queries that are divided by it."""

    def change(weight: Tensor) -> Tensor:
        weight = turned(weight).clone()
        weight[:width] /= divisor
        return weight

    return change


def _framing(settings: Settings) -> Framing:
    end = settings.symbol("eos_token_id", 50256)
    return Framing(
        pad=settings.symbol("pad_token_id", end),
        bos=settings.symbol("bos_token_id", 50256),
        eos=end,
        source_prefix=(),
        source_suffix=(),
        suppressed=settings.banned(),
    )
