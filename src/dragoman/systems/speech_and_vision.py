"""Images and speech as sources: the Transformer's blocks over patches or frames instead of words."""

from __future__ import annotations

from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feature_embedding import Frames, Patches
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, Sinusoidal
from dragoman.parts.spec import Spec, replace_everywhere
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import TRANSFORMER_TRAINING
from dragoman.systems.vocabulary_sizes import VocabularySizes


def vision(
    vocabulary: VocabularySizes,
    *,
    feature_dim: int = 768,
    model_dim: int = 768,
    layers: int = 12,
    decoder_layers: int | None = None,
    heads: int = 12,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    max_positions: int = 1024,
    tie_output: bool = True,
) -> EncoderDecoder:
    """Transformer over the patches of an image, which a decoder puts into words (Dosovitskiy et al. 2021, table 1).

    `feature_dim` are the numbers of a patch, 16 × 16 pixels of three colours in the paper; `max_positions` is how many patches
    have a learned position. The paper classifies images: the decoder is the Transformer's, of the same blocks.
    """
    encoder, decoder = _stacks(layers, decoder_layers, heads, ffn_dim, dropout, Learned(max_positions))
    model = _model(vocabulary, model_dim, Patches(feature_dim), encoder, decoder, tie_output)
    return replace_everywhere(model, FeedForward, activation="gelu")


def speech(
    vocabulary: VocabularySizes,
    *,
    feature_dim: int = 80,
    stride: int = 4,
    model_dim: int = 256,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 4,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    tie_output: bool = True,
) -> EncoderDecoder:
    """Transformer over acoustic frames, which convolutions have made fewer, to words (Dong et al. 2018, §3).

    `feature_dim` are the numbers of a frame, those of a filter bank; `stride` frames become one. The paper's attention
    over time and frequency is left out.
    """
    encoder, decoder = _stacks(layers, decoder_layers, heads, ffn_dim, dropout, Sinusoidal())
    return _model(vocabulary, model_dim, Frames(feature_dim, stride), encoder, decoder, tie_output)


def _stacks(
    layers: int, decoder_layers: int | None, heads: int, ffn_dim: int | None, dropout: float, position: Spec
) -> tuple[Stack, Stack]:
    """Blocks that normalise first; the words have sinusoidal positions."""

    def wrap(body: Spec) -> Spec:
        return PreNorm(body, LayerNorm(), dropout)

    feed_forward = wrap(FeedForward(ffn_dim))
    reads = (wrap(SelfAttention(heads, visibility=Full())), feed_forward)
    writes = (wrap(SelfAttention(heads, visibility=Causal())), wrap(CrossAttention(heads)), feed_forward)
    return (
        Stack(reads, layers, position, dropout, LayerNorm()),
        Stack(writes, decoder_layers or layers, Sinusoidal(), dropout, LayerNorm()),
    )


def _model(
    vocabulary: VocabularySizes,
    model_dim: int,
    source: Patches | Frames,
    encoder: Stack,
    decoder: Stack,
    tie_output: bool,
) -> EncoderDecoder:
    return EncoderDecoder(
        model_dim,
        source_vocab_size=0,
        target_vocab_size=vocabulary.target,
        encoder=encoder,
        decoder=decoder,
        embedding=Embedding(scaled=True),
        tied_embeddings=tie_output,
        output_bias=False,
        input=source,
    )


SYSTEMS: dict[str, System] = {
    "speech": System(
        speech,
        "Speech-Transformer: A No-Recurrence Sequence-to-Sequence Model for Speech Recognition",
        2018,
        {
            "tiny": {"model_dim": 128, "layers": 2},
            "small": {"layers": 3},
            "base": {},
            "big": {"layers": 12, "decoder_layers": 6, "ffn_dim": 2048},
        },
        0.4,
        paper_training=PaperTraining(
            TRANSFORMER_TRAINING | {"warmup_steps": 25_000},
            {"dropout": 0.1},
            noam_factor=10.0,
            differences="the paper lowers the factor of 10 to 1 when the model has converged",
        ),
    ),
    "vision": System(
        vision,
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        2021,
        {
            "tiny": {"model_dim": 128, "layers": 2, "heads": 4},
            "small": {"model_dim": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"model_dim": 1024, "layers": 24, "heads": 16},
        },
        0.4,
        paper_training=PaperTraining(
            {
                "optimizer": "adamw",
                "learning_rate": 8e-4,
                "schedule": "linear",
                "warmup_steps": 10_000,
                "clip_norm": 1.0,
                "beta2": 0.999,
                "epsilon": 1e-8,
                "weight_decay": 0.1,
                "label_smoothing": 0.0,
            },
            {"dropout": 0.0},
            learning_rates={"big": 6e-4},
            total_steps=518_000,
            differences="the paper's pretraining of a classifier (§4.1, table 3); the decoder is ours",
        ),
    ),
}
