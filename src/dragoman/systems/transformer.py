"""The Transformer."""

from __future__ import annotations

from typing import Any, Literal

from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import BatchNorm, LayerNorm, RMSNorm
from dragoman.parts.positions import Learned, NoPosition, Rotary, Sinusoidal
from dragoman.parts.relative import ALiBi
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary import Vocabulary


def transformer(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    inner: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    inner_dropout: float = 0.0,
    pre_norm: bool = False,
    positions: Literal["sinusoidal", "learned", "rotary", "alibi"] = "sinusoidal",
    longest: int = 1024,
    norm: Literal["layer", "rms", "batch"] = "layer",
    query_key_norm: bool = False,
    gated: bool = False,
    shared: bool = True,
    tied: bool = True,
) -> EncoderDecoder:
    """Self-attention and feed-forward layers alone, sinusoidal positions (Vaswani et al. 2017, table 3).

    `pre_norm` moves the normalisation into the branches (Xiong et al. 2020), which trains without a long warm-up;
    `positions` may be learned, for up to `longest` tokens (Gehring et al. 2017), rotary, in queries and keys instead of
    the embeddings (Su et al. 2021), or alibi, in the scores (Press et al. 2022); `norm` may be RMSNorm (Zhang &
    Sennrich 2019) or batch normalisation (Ioffe & Szegedy 2015), and `query_key_norm` puts one into every head (Henry
    et al. 2020); `gated` feed-forward layers are SwiGLU (Shazeer 2020), two thirds as wide so that they cost the same.
    """
    normal: Spec = {"layer": LayerNorm(), "rms": RMSNorm(), "batch": BatchNorm()}[norm]
    final = normal if pre_norm else None

    def wrap(body: Spec) -> Spec:
        return PreNorm(body, normal, dropout) if pre_norm else PostNorm(body, normal, dropout)

    inside = Rotary() if positions == "rotary" else NoPosition()
    outside: Spec = {
        "sinusoidal": Sinusoidal(),
        "learned": Learned(longest),
        "rotary": NoPosition(),
        "alibi": ALiBi(heads),
    }[positions]

    def attention(visibility: Spec) -> Spec:
        part = SelfAttention(heads, visibility=visibility, position=inside, dropout=attention_dropout, norm=inner_norm)
        return wrap(part)

    inner_norm = RMSNorm() if query_key_norm else None
    cross = wrap(CrossAttention(heads, dropout=attention_dropout, norm=inner_norm))
    if gated:
        wide = inner or round_to(8 * width / 3, 64)
        feed_forward = wrap(FeedForward(wide, "silu", gated=True, bias=False, dropout=inner_dropout))
    else:
        feed_forward = wrap(FeedForward(inner, dropout=inner_dropout))
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((attention(Full()), feed_forward), layers, outside, dropout, final),
        decoder=Stack((attention(Causal()), cross, feed_forward), decoder_layers or layers, outside, dropout, final),
        embedding=Embedding(scaled=True),
        shared=vocabulary.joint and shared,
        tied=tied,
        output_bias=False,
    )


def round_to(number: float, multiple: int) -> int:
    return max(multiple, multiple * round(number / multiple))


#: Adam with warm-up and inverse square root (Vaswani et al. 2017, §5.3 and §5.4)
TRAINING: dict[str, Any] = {
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
            "tiny": {"width": 128, "layers": 2, "heads": 4},
            "small": {"width": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"width": 1024, "heads": 16, "dropout": 0.3},
        },
        0.4,
        paper_training=PaperTraining(TRAINING, noam=1.0),
        tuned={"pre_norm": True},
        recipe="modern",
        modern={
            "norm": "rms",
            "positions": "rotary",
            "query_key_norm": True,
            "gated": True,
        },
    ),
}
