"""Marian, BART and mBART: encoder–decoders of one build."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.interop.huggingface.conversion import Conversion, tables
from dragoman.interop.huggingface.hf_config import Settings
from dragoman.interop.huggingface.weights import Origin, Stored, layer, without_first
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import Activation, FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, Sinusoidal
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.text.framing import Framing

OFFSET = 2  # the first rows of BART's tables of positions, which no position uses


@dataclass(frozen=True)
class Build:
    """In what the three differ."""

    system: str
    pre_norm: bool  # and one more norm at the end of either stack
    input_norm: bool
    learned: bool  # positions
    start: int | None  # the decoder's first symbol where the configuration has none
    pad: int
    end: int


MARIAN = Build("transformer", pre_norm=False, input_norm=False, learned=False, start=58100, pad=58100, end=0)
BART = Build("bart", pre_norm=False, input_norm=True, learned=True, start=2, pad=1, end=2)
MBART = Build("bart", pre_norm=True, input_norm=True, learned=True, start=None, pad=1, end=2)


def marian(settings: Settings, stored: Stored) -> Conversion:
    share = settings.flag("share_encoder_decoder_embeddings", True)
    return _read(settings, stored, MARIAN, share)


def bart(settings: Settings, stored: Stored) -> Conversion:
    return _read(settings, stored, BART, share=True)


def mbart(settings: Settings, stored: Stored) -> Conversion:
    return _read(settings, stored, MBART, share=True)


def _read(settings: Settings, stored: Stored, build: Build, share: bool) -> Conversion:
    _expect(settings, build)
    width = settings.whole("d_model", 1024, "hidden_size")
    tie = settings.flag("tie_word_embeddings", True)
    table = tables(stored, share, tie)
    source_size = settings.whole("vocab_size", 58101 if build is MARIAN else 50265)
    target_size = settings.whole("decoder_vocab_size", source_size) if build is MARIAN else source_size
    spec = EncoderDecoder(
        width,
        source_size,
        source_size if share and tie else target_size,
        encoder=_stack(settings, build, "encoder"),
        decoder=_stack(settings, build, "decoder"),
        embedding=Embedding(scaled=settings.flag("scale_embedding", False)),
        shared_embeddings=table.shared,
        tied_embeddings=table.tied,
        initialization=Normal(settings.number("init_std", 0.02)),
    )
    origins = table.origins() | {
        "output.bias": Origin(("final_logits_bias",), lambda bias: bias.flatten(), optional=True),
        **_stack_origins("encoder", spec.encoder, build),
        **_stack_origins("decoder", spec.decoder, build),
    }
    sinusoids = Sinusoidal(sines_first=True).build(width)
    positions = {f"{side}.embed_positions.weight": sinusoids for side in ("encoder", "decoder")}
    return Conversion(
        build.system,
        spec,
        origins,
        _framing(settings, build),
        unused=(*table.twins, r"(en|de)coder\.version"),
        computed={} if build.learned else positions,
    )


def _expect(settings: Settings, build: Build) -> None:
    """What the configurations of older versions could choose, and what they must have chosen."""
    settings.expect("is_decoder", False)
    settings.expect("normalize_before", build.pre_norm)
    settings.expect("add_final_layer_norm", build.pre_norm)
    settings.expect("normalize_embedding", build.input_norm)
    settings.expect("static_position_embeddings", not build.learned)
    if build.learned:
        settings.expect("extra_pos_embeddings", OFFSET)
    settings.get("extra_pos_embeddings", None)  # sines have no table that it could be about
    settings.expect("add_bias_logits", False)
    settings.expect("do_blenderbot_90_layernorm", False)
    if build is not MARIAN:
        settings.expect("share_encoder_decoder_embeddings", True)


def _stack(settings: Settings, build: Build, side: str) -> Stack:
    dropout = settings.number("dropout", 0.1)
    looks = settings.number("attention_dropout", 0.0)
    activation: Activation = settings.activation("activation_function", "gelu")
    heads = settings.whole(f"{side}_attention_heads", 16, *(("num_attention_heads",) if side == "encoder" else ()))
    depth = settings.whole(f"{side}_layers", 12, *(("num_hidden_layers",) if side == "encoder" else ()))
    inner = settings.whole(f"{side}_ffn_dim", 4096)
    longest = settings.whole("max_position_embeddings", 1024)

    def wrap(body: Spec) -> Spec:
        return PreNorm(body, LayerNorm(), dropout) if build.pre_norm else PostNorm(body, LayerNorm(), dropout)

    decodes = side == "decoder"
    attention = wrap(SelfAttention(heads, visibility=Causal() if decodes else Full(), dropout=looks))
    cross = (wrap(CrossAttention(heads, dropout=looks)),) if decodes else ()
    feed_forward = wrap(FeedForward(inner, activation, dropout=settings.number("activation_dropout", 0.0)))
    return Stack(
        (attention, *cross, feed_forward),
        depth,
        Learned(longest) if build.learned else Sinusoidal(sines_first=True),
        dropout,
        norm=LayerNorm() if build.pre_norm else None,
        input_norm=LayerNorm() if build.input_norm else None,
    )


def _stack_origins(side: str, stack: Stack, build: Build) -> dict[str, Origin]:
    norm = "before" if build.pre_norm else "after"
    found: dict[str, Origin] = {}
    for i in range(stack.depth):
        ours, theirs = f"{side}.layers.{i}", f"{side}.layers.{i}"
        look = f"{theirs}.self_attn"
        found |= layer(f"{ours}.0.body.project", f"{look}.q_proj", f"{look}.k_proj", f"{look}.v_proj")
        found |= layer(f"{ours}.0.body.output", f"{look}.out_proj")
        found |= layer(f"{ours}.0.{norm}", f"{theirs}.self_attn_layer_norm")
        if side == "decoder":
            look = f"{theirs}.encoder_attn"
            found |= layer(f"{ours}.1.body.query", f"{look}.q_proj")
            found |= layer(f"{ours}.1.body.project", f"{look}.k_proj", f"{look}.v_proj")
            found |= layer(f"{ours}.1.body.output", f"{look}.out_proj")
            found |= layer(f"{ours}.1.{norm}", f"{theirs}.encoder_attn_layer_norm")
        last = len(stack.block) - 1
        found |= layer(f"{ours}.{last}.body.widen", f"{theirs}.fc1")
        found |= layer(f"{ours}.{last}.body.narrow", f"{theirs}.fc2")
        found |= layer(f"{ours}.{last}.{norm}", f"{theirs}.final_layer_norm")
    if build.learned:
        table = Origin((f"{side}.embed_positions.weight",), without_first(OFFSET))
        found[f"{side}.position.table.weight"] = table
    if build.input_norm:
        found |= layer(f"{side}.input_norm", f"{side}.layernorm_embedding")
    if build.pre_norm:
        found |= layer(f"{side}.norm", f"{side}.layer_norm")
    return found


def _framing(settings: Settings, build: Build) -> Framing:
    end = settings.symbol("eos_token_id", build.end)
    start = settings.symbol("decoder_start_token_id", build.start)
    first = settings.symbol("forced_bos_token_id", None)
    begin = settings.symbol("bos_token_id", 0)
    if settings.get("force_bos_token_to_be_generated", False) and first is None:
        first = begin
    return Framing(
        pad=settings.symbol("pad_token_id", build.pad),
        bos=end if start is None else start,
        eos=end,
        source_prefix=(begin,) if build is BART else (),
        source_suffix=(end,),
        forced_bos=() if first is None else (first,),
        suppressed=settings.banned(),
    )
