"""Large language models: GPT-3, PaLM and LLaMA, decoders alone that differ in how a block is put together."""

from __future__ import annotations

from typing import Any

from dragoman.errors import UserError
from dragoman.models import DecoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.positions import Learned, Rotary
from dragoman.parts.stack import Parallel, PreNorm, Stack
from dragoman.parts.visibility import Causal, Window
from dragoman.systems.pretrained import ADAFACTOR_TRAINING
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary_sizes import VocabularySizes


def gpt3(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    ffn_dim: int | None = None,
    attention_window: int = 256,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    max_positions: int = 2048,
    tie_output: bool = True,
) -> DecoderOnly:
    """GPT-2 with attention to everything and to the last few words by turns (Brown et al. 2020, §2.1).

    The paper does not give the width of its bands; `attention_window` counts the word itself.
    """
    if layers % 2:
        raise UserError(f"dense and banded layers of gpt3 come in pairs, but it has {layers}: choose an even number")
    dense, banded = (
        PreNorm(SelfAttention(heads, visibility=visibility, dropout=attention_dropout), LayerNorm(), dropout)
        for visibility in (Causal(), Window(attention_window))
    )
    feed_forward = PreNorm(FeedForward(ffn_dim, "gelu-tanh"), LayerNorm(), dropout)
    block = (dense, feed_forward, banded, feed_forward)
    stack = Stack(block, layers // 2, Learned(max_positions), dropout, norm=LayerNorm())
    return DecoderOnly(model_dim, vocabulary.target, stack, tied_embeddings=tie_output, initialization=Normal(0.02))


def palm(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 4096,
    layers: int = 32,
    heads: int = 16,
    head_dim: int | None = None,
    ffn_dim: int | None = None,
    rope_base: float = 10000.0,
    dropout: float = 0.0,
    tie_output: bool = True,
) -> DecoderOnly:
    """Attention and SwiGLU side by side, one key head, rotary positions, no biases (Chowdhery et al. 2022, §2).

    Embeddings of deviation 1/√D, scaled by √D when read, take the place of unit ones whose logits are scaled by 1/√D.
    """
    attention = SelfAttention(heads, 1, head_dim, Causal(), Rotary(rope_base), bias=False)
    feed_forward = FeedForward(ffn_dim, "silu", gated=True, bias=False)
    block = (Parallel((attention, feed_forward), LayerNorm(bias=False), dropout),)
    stack = Stack(block, layers, dropout=dropout, norm=LayerNorm(bias=False))
    return DecoderOnly(model_dim, vocabulary.target, stack, Embedding(scaled=True), tie_output)


def llama(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 4096,
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    ffn_dim: int | None = None,
    rope_base: float = 10000.0,
    norm_eps: float = 1e-5,
    dropout: float = 0.0,
    tie_output: bool = False,
) -> DecoderOnly:
    """RMSNorm, rotary positions, SwiGLU, queries that share keys in groups, no biases (Touvron et al. 2023).

    `kv_heads` fewer than `heads` as in the second version's largest model. Inside it is 2/3 · 4D wide unless told,
    rounded up to a multiple of 256, of D/16 where that is less.
    """
    multiple = max(1, min(256, model_dim // 16))
    inside = ffn_dim or -(-(8 * model_dim // 3) // multiple) * multiple
    attention = SelfAttention(heads, kv_heads, None, Causal(), Rotary(rope_base), bias=False)
    feed_forward = FeedForward(inside, "silu", gated=True, bias=False)
    block = tuple(PreNorm(part, RMSNorm(norm_eps), dropout) for part in (attention, feed_forward))
    stack = Stack(block, layers, dropout=dropout, norm=RMSNorm(norm_eps))
    return DecoderOnly(model_dim, vocabulary.target, stack, tied_embeddings=tie_output, initialization=Normal(0.02))


#: AdamW with a cosine that ends at a tenth of the peak (Brown et al. 2020, §B; Touvron et al. 2023, §2.3)
LLM_TRAINING: dict[str, Any] = {
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
            "tiny": {"model_dim": 128, "layers": 4, "heads": 4, "attention_window": 32},
            "small": {"model_dim": 256, "layers": 4, "heads": 4, "attention_window": 64},
            "base": {},
            "big": {"model_dim": 12288, "layers": 96, "heads": 96},
        },
        0.4,
        paper_training=PaperTraining(
            LLM_TRAINING | {"learning_rate": 6e-4, "warmup_steps": 750},
            learning_rates={"big": 6e-5},
            total_steps=520_000,
            differences="the paper counts tokens: 375 million of warm-up and 260 billion until the rate is a tenth, "
            "here in batches of half a million; it goes on at that rate for 40 billion; it does not name a dropout",
        ),
        default_recipe="modern",
    ),
    "palm": System(
        palm,
        "PaLM: Scaling Language Modeling with Pathways",
        2022,
        {
            "tiny": {"model_dim": 128, "layers": 3, "heads": 4, "dropout": 0.1},
            "small": {"model_dim": 256, "layers": 4, "heads": 4, "dropout": 0.1},
            "base": {},
            "big": {"model_dim": 18432, "layers": 118, "heads": 48, "head_dim": 256},
        },
        0.4,
        paper_training=PaperTraining(
            ADAFACTOR_TRAINING | {"momentum": 0.9, "clip_norm": 1.0, "label_smoothing": 0.0},
            {"dropout": 0.0},
            differences="second moments are factored into rows and columns, the paper's are not; left out: weight "
            "decay by the square of the rate, the auxiliary loss on log Z, and batches that grow",
        ),
        default_recipe="modern",
    ),
    "llama": System(
        llama,
        "LLaMA: Open and Efficient Foundation Language Models",
        2023,
        {
            "tiny": {"model_dim": 128, "layers": 3, "heads": 4, "kv_heads": 2, "dropout": 0.1},
            "small": {"model_dim": 256, "layers": 4, "heads": 4, "kv_heads": 2, "dropout": 0.1},
            "base": {},
            "big": {"model_dim": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "ffn_dim": 28672},
        },
        0.4,
        paper_training=PaperTraining(
            LLM_TRAINING | {"learning_rate": 3e-4, "warmup_steps": 2000},
            {"dropout": 0.0},
            learning_rates={"big": 1.5e-4},
            total_steps=250_000,
        ),
        default_recipe="modern",
    ),
}
