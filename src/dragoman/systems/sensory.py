"""Images and speech as sources: the Transformer's blocks over patches or frames instead of words."""

from __future__ import annotations

from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, Sinusoidal
from dragoman.parts.sensory import Frames, Patches
from dragoman.parts.spec import Spec, replace_everywhere
from dragoman.parts.stack import PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import TRAINING
from dragoman.systems.vocabulary import Vocabulary


def vision(
    vocabulary: Vocabulary,
    *,
    features: int = 768,
    width: int = 768,
    layers: int = 12,
    decoder_layers: int | None = None,
    heads: int = 12,
    inner: int | None = None,
    dropout: float = 0.1,
    longest: int = 1024,
    tied: bool = True,
) -> EncoderDecoder:
    """Transformer over the patches of an image, which a decoder puts into words (Dosovitskiy et al. 2021, table 1).

    `features` are the numbers of a patch, 16 × 16 pixels of three colours in the paper; `longest` is how many patches
    have a learned position. The paper classifies images: the decoder is the Transformer's, of the same blocks.
    """
    encoder, decoder = _stacks(layers, decoder_layers, heads, inner, dropout, Learned(longest))
    model = _model(vocabulary, width, Patches(features), encoder, decoder, tied)
    return replace_everywhere(model, FeedForward, activation="gelu")


def speech(
    vocabulary: Vocabulary,
    *,
    features: int = 80,
    stride: int = 4,
    width: int = 256,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 4,
    inner: int | None = None,
    dropout: float = 0.1,
    tied: bool = True,
) -> EncoderDecoder:
    """Transformer over acoustic frames, which convolutions have made fewer, to words (Dong et al. 2018, §3).

    `features` are the numbers of a frame, those of a filter bank; `stride` frames become one. The paper's attention
    over time and frequency is left out.
    """
    encoder, decoder = _stacks(layers, decoder_layers, heads, inner, dropout, Sinusoidal())
    return _model(vocabulary, width, Frames(features, stride), encoder, decoder, tied)


def _stacks(
    layers: int, decoder_layers: int | None, heads: int, inner: int | None, dropout: float, position: Spec
) -> tuple[Stack, Stack]:
    """Blocks that normalise first; the words have sinusoidal positions."""

    def wrap(body: Spec) -> Spec:
        return PreNorm(body, LayerNorm(), dropout)

    feed_forward = wrap(FeedForward(inner))
    reads = (wrap(SelfAttention(heads, visibility=Full())), feed_forward)
    writes = (wrap(SelfAttention(heads, visibility=Causal())), wrap(CrossAttention(heads)), feed_forward)
    return (
        Stack(reads, layers, position, dropout, LayerNorm()),
        Stack(writes, decoder_layers or layers, Sinusoidal(), dropout, LayerNorm()),
    )


def _model(
    vocabulary: Vocabulary, width: int, source: Patches | Frames, encoder: Stack, decoder: Stack, tied: bool
) -> EncoderDecoder:
    return EncoderDecoder(
        width,
        source_vocabulary=0,
        target_vocabulary=vocabulary.target,
        encoder=encoder,
        decoder=decoder,
        embedding=Embedding(scaled=True),
        tied=tied,
        output_bias=False,
        input=source,
    )


SYSTEMS: dict[str, System] = {
    "speech": System(
        speech,
        "Speech-Transformer: A No-Recurrence Sequence-to-Sequence Model for Speech Recognition",
        2018,
        {
            "tiny": {"width": 128, "layers": 2},
            "small": {"layers": 3},
            "base": {},
            "big": {"layers": 12, "decoder_layers": 6, "inner": 2048},
        },
        0.4,
        paper_training=PaperTraining(
            TRAINING | {"warmup_steps": 25_000},
            {"dropout": 0.1},
            noam=10.0,
            differences="the paper lowers the factor of 10 to 1 when the model has converged",
        ),
    ),
    "vision": System(
        vision,
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        2021,
        {
            "tiny": {"width": 128, "layers": 2, "heads": 4},
            "small": {"width": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"width": 1024, "layers": 24, "heads": 16},
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
            rates={"big": 6e-4},
            steps=518_000,
            differences="the paper's pretraining of a classifier (§4.1, table 3); the decoder is ours",
        ),
    ),
}
