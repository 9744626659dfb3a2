"""Large language models: GPT-3, PaLM and LLaMA, decoders alone that differ in how a block is put together."""

from __future__ import annotations

from typing import Any

from dragoman.errors import UserError
from dragoman.models import DecoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initial import Normal
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.positions import Learned, Rotary
from dragoman.parts.stack import Parallel, PreNorm, Stack
from dragoman.parts.visibility import Causal, Window
from dragoman.systems.pretrained import ADAFACTOR
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary import Vocabulary


def gpt3(
    vocabulary: Vocabulary,
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    inner: int | None = None,
    window: int = 256,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    longest: int = 2048,
    tied: bool = True,
) -> DecoderOnly:
    """GPT-2 with attention to everything and to the last few words by turns (Brown et al. 2020, §2.1).

    The paper does not give the width of its bands; `window` counts the word itself.
    """
    if layers % 2:
        raise UserError(f"dense and banded layers of gpt3 come in pairs, but it has {layers}: choose an even number")
    dense, banded = (
        PreNorm(SelfAttention(heads, visibility=visibility, dropout=attention_dropout), LayerNorm(), dropout)
        for visibility in (Causal(), Window(window))
    )
    feed_forward = PreNorm(FeedForward(inner, "gelu-tanh"), LayerNorm(), dropout)
    block = (dense, feed_forward, banded, feed_forward)
    stack = Stack(block, layers // 2, Learned(longest), dropout, norm=LayerNorm())
    return DecoderOnly(width, vocabulary.target, stack, tied=tied, initial=Normal(0.02))


def palm(
    vocabulary: Vocabulary,
    *,
    width: int = 4096,
    layers: int = 32,
    heads: int = 16,
    head_width: int | None = None,
    inner: int | None = None,
    base: float = 10000.0,
    dropout: float = 0.0,
    tied: bool = True,
) -> DecoderOnly:
    """Attention and SwiGLU side by side, one key head, rotary positions, no biases (Chowdhery et al. 2022, §2).

    Embeddings of deviation 1/√D, scaled by √D when read, take the place of unit ones whose logits are scaled by 1/√D.
    """
    attention = SelfAttention(heads, 1, head_width, Causal(), Rotary(base), bias=False)
    feed_forward = FeedForward(inner, "silu", gated=True, bias=False)
    block = (Parallel((attention, feed_forward), LayerNorm(bias=False), dropout),)
    stack = Stack(block, layers, dropout=dropout, norm=LayerNorm(bias=False))
    return DecoderOnly(width, vocabulary.target, stack, Embedding(scaled=True), tied)


def llama(
    vocabulary: Vocabulary,
    *,
    width: int = 4096,
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    inner: int | None = None,
    base: float = 10000.0,
    epsilon: float = 1e-5,
    dropout: float = 0.0,
    tied: bool = False,
) -> DecoderOnly:
    """RMSNorm, rotary positions, SwiGLU, queries that share keys in groups, no biases (Touvron et al. 2023).

    `kv_heads` fewer than `heads` as in the second version's largest model. Inside it is 2/3 · 4D wide unless told,
    rounded up to a multiple of 256, of D/16 where that is less.
    """
    multiple = max(1, min(256, width // 16))
    inside = inner or -(-(8 * width // 3) // multiple) * multiple
    attention = SelfAttention(heads, kv_heads, None, Causal(), Rotary(base), bias=False)
    feed_forward = FeedForward(inside, "silu", gated=True, bias=False)
    block = tuple(PreNorm(part, RMSNorm(epsilon), dropout) for part in (attention, feed_forward))
    stack = Stack(block, layers, dropout=dropout, norm=RMSNorm(epsilon))
    return DecoderOnly(width, vocabulary.target, stack, tied=tied, initial=Normal(0.02))


#: AdamW with a cosine that ends at a tenth of the peak (Brown et al. 2020, §B; Touvron et al. 2023, §2.3)
ADAMW: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "cosine",
    "final_rate_factor": 0.1,
    "clip_norm": 1.0,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
    "label_smoothing": 0.0,
}

SYSTEMS: dict[str, System] = {
    "gpt3": System(
        gpt3,
        "Language Models are Few-Shot Learners",
        2020,
        {
            "tiny": {"width": 128, "layers": 4, "heads": 4, "window": 32},
            "small": {"width": 256, "layers": 4, "heads": 4, "window": 64},
            "base": {},
            "big": {"width": 12288, "layers": 96, "heads": 96},
        },
        0.4,
        paper_training=PaperTraining(
            ADAMW | {"learning_rate": 6e-4, "warmup_steps": 750},
            rates={"big": 6e-5},
            steps=520_000,
            differences="the paper counts tokens: 375 million of warm-up and 260 billion until the rate is a tenth, "
            "here in batches of half a million; it goes on at that rate for 40 billion; it does not name a dropout",
        ),
        recipe="modern",
    ),
    "palm": System(
        palm,
        "PaLM: Scaling Language Modeling with Pathways",
        2022,
        {
            "tiny": {"width": 128, "layers": 3, "heads": 4, "dropout": 0.1},
            "small": {"width": 256, "layers": 4, "heads": 4, "dropout": 0.1},
            "base": {},
            "big": {"width": 18432, "layers": 118, "heads": 48, "head_width": 256},
        },
        0.4,
        paper_training=PaperTraining(
            ADAFACTOR | {"momentum": 0.9, "clip_norm": 1.0, "label_smoothing": 0.0},
            {"dropout": 0.0},
            differences="second moments are factored into rows and columns, the paper's are not; left out: weight "
            "decay by the square of the rate, the auxiliary loss on log Z, and batches that grow",
        ),
        recipe="modern",
    ),
    "llama": System(
        llama,
        "LLaMA: Open and Efficient Foundation Language Models",
        2023,
        {
            "tiny": {"width": 128, "layers": 3, "heads": 4, "kv_heads": 2, "dropout": 0.1},
            "small": {"width": 256, "layers": 4, "heads": 4, "kv_heads": 2, "dropout": 0.1},
            "base": {},
            "big": {"width": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "inner": 28672},
        },
        0.4,
        paper_training=PaperTraining(
            ADAMW | {"learning_rate": 3e-4, "warmup_steps": 2000},
            {"dropout": 0.0},
            rates={"big": 1.5e-4},
            steps=250_000,
        ),
        recipe="modern",
    ),
}
