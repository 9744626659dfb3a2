"""Memory-compressed attention for very long sequences."""

from __future__ import annotations

from dragoman.models import DecoderOnly
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.long_attention import CompressedAttention, LocalAttention
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Sinusoidal
from dragoman.parts.stack import PostNorm, Stack
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import TRANSFORMER_TRAINING
from dragoman.systems.vocabulary_sizes import VocabularySizes


def transformer_dmca(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 5,
    heads: int = 8,
    ffn_dim: int | None = None,
    block_size: int = 256,
    kernel_size: int = 3,
    stride: int = 3,
    dropout: float = 0.1,
    tie_output: bool = True,
) -> DecoderOnly:
    """Decoder for very long sources, local and memory-compressed attention by turns (Liu et al. 2018, §4.2.4).

    Odd layers look within `block_size` tokens, even ones at everything before through keys and values that a convolution of
    `kernel_size` tokens makes `stride` times fewer. The mixture of experts that some of the paper's models have is left out.
    """
    local, compressed = LocalAttention(heads, block_size), CompressedAttention(heads, kernel_size, stride)
    feed_forward = PostNorm(FeedForward(ffn_dim), LayerNorm(), dropout)
    turns = [PostNorm((local, compressed)[layer % 2], LayerNorm(), dropout) for layer in range(layers)]
    parts = tuple(part for attention in turns for part in (attention, feed_forward))
    return DecoderOnly(
        model_dim, vocabulary.target, Stack(parts, 1, Sinusoidal(), dropout), Embedding(scaled=True), tie_output
    )


SYSTEMS: dict[str, System] = {
    "transformer-dmca": System(
        transformer_dmca,
        "Generating Wikipedia by Summarizing Long Sequences",
        2018,
        {
            "tiny": {"model_dim": 128, "layers": 3, "heads": 4},
            "small": {"model_dim": 256, "layers": 4, "heads": 4},
            "base": {},
            "big": {"model_dim": 1024, "heads": 16},
        },
        0.4,
        {"pairs": ("one-sequence", {})},
        paper_training=PaperTraining(TRANSFORMER_TRAINING, noam_factor=1.0),
        default_recipe="modern",
    ),
}
