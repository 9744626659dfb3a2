"""Memory-compressed attention for very long sequences."""

from __future__ import annotations

from dragoman.models import DecoderOnly
from dragoman.parts.compressed import CompressedAttention, LocalAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Sinusoidal
from dragoman.parts.stack import PostNorm, Stack
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import TRAINING
from dragoman.systems.vocabulary import Vocabulary


def transformer_dmca(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 5,
    heads: int = 8,
    inner: int | None = None,
    block: int = 256,
    kernel: int = 3,
    stride: int = 3,
    dropout: float = 0.1,
    tied: bool = True,
) -> DecoderOnly:
    """Decoder for very long sources, local and memory-compressed attention by turns (Liu et al. 2018, §4.2.4).

    Odd layers look within `block` tokens, even ones at everything before through keys and values that a convolution of
    `kernel` tokens makes `stride` times fewer. The mixture of experts that some of the paper's models have is left out.
    """
    local, compressed = LocalAttention(heads, block), CompressedAttention(heads, kernel, stride)
    feed_forward = PostNorm(FeedForward(inner), LayerNorm(), dropout)
    turns = [PostNorm((local, compressed)[layer % 2], LayerNorm(), dropout) for layer in range(layers)]
    parts = tuple(part for attention in turns for part in (attention, feed_forward))
    return DecoderOnly(width, vocabulary.target, Stack(parts, 1, Sinusoidal(), dropout), Embedding(scaled=True), tied)


SYSTEMS: dict[str, System] = {
    "transformer-dmca": System(
        transformer_dmca,
        "Generating Wikipedia by Summarizing Long Sequences",
        2018,
        {
            "tiny": {"width": 128, "layers": 3, "heads": 4},
            "small": {"width": 256, "layers": 4, "heads": 4},
            "base": {},
            "big": {"width": 1024, "heads": 16},
        },
        0.4,
        {"pairs": ("one-sequence", {})},
        paper_training=PaperTraining(TRAINING, noam=1.0),
        recipe="modern",
    ),
}
