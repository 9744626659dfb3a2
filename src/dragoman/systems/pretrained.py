"""Encoder–decoders made to be pretrained: T5 and BART."""

from __future__ import annotations

from typing import Any

from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.positions import Learned
from dragoman.parts.relative_positions import RelativeBias
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.systems.encoders import ROBERTA_TRAINING
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary_sizes import VocabularySizes


def t5(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 12,
    decoder_layers: int | None = None,
    heads: int = 12,
    ffn_dim: int | None = None,
    position_buckets: int = 32,
    max_distance: int = 128,
    gated_ffn: bool = False,
    sentinels: int | None = 100,
    dropout: float = 0.1,
    share_embeddings: bool = True,
    tie_output: bool = True,
) -> EncoderDecoder:
    """Transformer with a relative bias in place of positions, RMSNorm in the branches, no biases (Raffel et al. 2020).

    Either stack has one table of biases for `position_buckets` of distances up to `max_distance`. `gated_ffn`: a gated GELU in place of
    ReLU, and `tie_output` false an output matrix of its own, as in version 1.1. `sentinels` are tokens past the vocabulary,
    which stand for the spans that are cut out of a text (§3.1.4). What the paper puts into the first weights, queries
    smaller by 1/√E and embeddings larger by √D with logits scaled back, is written out here as the scale of scores and
    embeddings: the same functions, which learn better with Adam than with weights of such different sizes.
    """
    norm, more = RMSNorm(), sentinels or 0

    def wrap(body: Spec) -> Spec:
        return PreNorm(body, norm, dropout)

    def bias(both_ways: bool) -> Spec:
        return RelativeBias(heads, position_buckets, max_distance, both_ways)

    encoder = wrap(SelfAttention(heads, visibility=Full(), bias=False, dropout=dropout))
    decoder = wrap(SelfAttention(heads, visibility=Causal(), bias=False, dropout=dropout))
    cross = wrap(CrossAttention(heads, bias=False, dropout=dropout))
    feed_forward = wrap(
        FeedForward(ffn_dim, "gelu-tanh" if gated_ffn else "relu", gated_ffn, bias=False, dropout=dropout)
    )
    return EncoderDecoder(
        model_dim,
        vocabulary.source + more,
        vocabulary.target + more,
        encoder=Stack((encoder, feed_forward), layers, bias(True), dropout, norm),
        decoder=Stack((decoder, cross, feed_forward), decoder_layers or layers, bias(False), dropout, norm),
        embedding=Embedding(scaled=True),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
        output_bias=False,
    )


def bart(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 12,
    ffn_dim: int | None = None,
    max_positions: int = 1024,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    pre_norm: bool = False,
    share_embeddings: bool = True,
    tie_output: bool = True,
) -> EncoderDecoder:
    """Transformer with GELU and learned positions, its embeddings normalised (Lewis et al. 2020, §2.1).

    `pre_norm` moves the normalisation into the branches, as in the multilingual one (Liu et al. 2020).
    """
    final = LayerNorm() if pre_norm else None

    def wrap(body: Spec) -> Spec:
        return PreNorm(body, LayerNorm(), dropout) if pre_norm else PostNorm(body, LayerNorm(), dropout)

    def stack(block: tuple[Spec, ...], depth: int) -> Stack:
        return Stack(block, depth, Learned(max_positions), dropout, final, input_norm=LayerNorm())

    encoder = wrap(SelfAttention(heads, visibility=Full(), dropout=attention_dropout))
    decoder = wrap(SelfAttention(heads, visibility=Causal(), dropout=attention_dropout))
    cross = wrap(CrossAttention(heads, dropout=attention_dropout))
    feed_forward = wrap(FeedForward(ffn_dim, "gelu", dropout=activation_dropout))
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=stack((encoder, feed_forward), layers),
        decoder=stack((decoder, cross, feed_forward), decoder_layers or layers),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
        initialization=Normal(0.02),
    )


#: Adafactor at 1/√max(step, 10,000): a constant rate of 0.01, then the inverse square root
ADAFACTOR_TRAINING: dict[str, Any] = {
    "optimizer": "adafactor",
    "learning_rate": 0.01,
    "schedule": "inverse-sqrt",
    "warmup_steps": 10_000,
    "warmup_start_factor": 1.0,
    "clip_norm": 0.0,
}

SYSTEMS: dict[str, System] = {
    "t5": System(
        t5,
        "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        2020,
        {
            "tiny": {"model_dim": 128, "layers": 2, "heads": 4},
            "small": {"model_dim": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"model_dim": 1024, "layers": 24, "heads": 16},
        },
        0.4,
        {"text": ("spans", {})},
        paper_training=PaperTraining(
            ADAFACTOR_TRAINING | {"label_smoothing": 0.0},
            {"dropout": 0.1},
            differences="the paper's pretraining (§3.1.2), also for pairs; it fine-tunes with a constant rate of 0.001",
        ),
        default_recipe="modern",
    ),
    "bart": System(
        bart,
        "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation, Translation, and "
        "Comprehension",
        2020,
        {
            "tiny": {"model_dim": 128, "layers": 2, "heads": 4},
            "small": {"model_dim": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"model_dim": 1024, "layers": 12, "heads": 16},
        },
        0.4,
        {"text": ("denoising", {})},
        paper_training=PaperTraining(
            ROBERTA_TRAINING,
            {"dropout": 0.1},
            learning_rates={"big": 4e-4},
            total_steps=500_000,
            differences="the paper refers to RoBERTa for its pretraining, whose values these are; dropout stays on in "
            "the last tenth of the steps",
        ),
        tuned_settings={"pre_norm": True},
        default_recipe="modern",
    ),
}
