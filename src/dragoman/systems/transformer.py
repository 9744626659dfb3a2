"""The Transformer."""

from __future__ import annotations

from typing import Any, Literal

from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import BatchNorm, LayerNorm, RMSNorm
from dragoman.parts.positions import Learned, NoPosition, Rotary, Sinusoidal
from dragoman.parts.relative_positions import ALiBi
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary_sizes import VocabularySizes


def transformer(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    pre_norm: bool = False,
    position_encoding: Literal["sinusoidal", "learned", "rotary", "alibi"] = "sinusoidal",
    max_positions: int = 1024,
    norm: Literal["layer", "rms", "batch"] = "layer",
    query_key_norm: bool = False,
    gated_ffn: bool = False,
    share_embeddings: bool = True,
    tie_output: bool = True,
) -> EncoderDecoder:
    """Self-attention and feed-forward layers alone, sinusoidal positions (Vaswani et al. 2017, table 3).

    `pre_norm` moves the normalisation into the branches (Xiong et al. 2020), which trains without a long warm-up;
    `position_encoding` may be learned, for up to `max_positions` tokens (Gehring et al. 2017), rotary, in queries and keys instead of
    the embeddings (Su et al. 2021), or alibi, in the scores (Press et al. 2022); `norm` may be RMSNorm (Zhang &
    Sennrich 2019) or batch normalisation (Ioffe & Szegedy 2015), and `query_key_norm` puts one into every head (Henry
    et al. 2020); `gated_ffn` feed-forward layers are SwiGLU (Shazeer 2020), two thirds as wide so that they cost the same.
    """
    normal: Spec = {"layer": LayerNorm(), "rms": RMSNorm(), "batch": BatchNorm()}[norm]
    final = normal if pre_norm else None

    def wrap(body: Spec) -> Spec:
        return PreNorm(body, normal, dropout) if pre_norm else PostNorm(body, normal, dropout)

    inside = Rotary() if position_encoding == "rotary" else NoPosition()
    outside: Spec = {
        "sinusoidal": Sinusoidal(),
        "learned": Learned(max_positions),
        "rotary": NoPosition(),
        "alibi": ALiBi(heads),
    }[position_encoding]

    def attention(visibility: Spec) -> Spec:
        part = SelfAttention(
            heads, visibility=visibility, position=inside, dropout=attention_dropout, qk_norm=inner_norm
        )
        return wrap(part)

    inner_norm = RMSNorm() if query_key_norm else None
    cross = wrap(CrossAttention(heads, dropout=attention_dropout, qk_norm=inner_norm))
    if gated_ffn:
        wide = ffn_dim or round_to_multiple(8 * model_dim / 3, 64)
        feed_forward = wrap(FeedForward(wide, "silu", gated=True, bias=False, dropout=activation_dropout))
    else:
        feed_forward = wrap(FeedForward(ffn_dim, dropout=activation_dropout))
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((attention(Full()), feed_forward), layers, outside, dropout, final),
        decoder=Stack((attention(Causal()), cross, feed_forward), decoder_layers or layers, outside, dropout, final),
        embedding=Embedding(scaled=True),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
        output_bias=False,
    )


def round_to_multiple(number: float, multiple: int) -> int:
    return max(multiple, multiple * round(number / multiple))


#: Adam with warm-up and inverse square root (Vaswani et al. 2017, §5.3 and §5.4)
TRANSFORMER_TRAINING: dict[str, Any] = {
    "optimizer": "adam",
    "schedule": "inverse-sqrt",
    "warmup_steps": 4000,
    "clip_norm": 0.0,
    "beta1": 0.9,
    "beta2": 0.98,
    "epsilon": 1e-9,
    "label_smoothing": 0.1,
}

SYSTEMS: dict[str, System] = {
    "transformer": System(
        transformer,
        "Attention Is All You Need",
        2017,
        {
            "tiny": {"model_dim": 128, "layers": 2, "heads": 4},
            "small": {"model_dim": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"model_dim": 1024, "heads": 16, "dropout": 0.3},
        },
        0.4,
        paper_training=PaperTraining(TRANSFORMER_TRAINING, noam_factor=1.0),
        tuned_settings={"pre_norm": True},
        default_recipe="modern",
        modern_settings={
            "norm": "rms",
            "positions": "rotary",
            "query_key_norm": True,
            "gated": True,
        },
    ),
}
