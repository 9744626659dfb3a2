"""Transformers with other positions: Shaw's relative ones and rotary ones."""

from __future__ import annotations

from typing import Any

from dragoman.models import EncoderDecoder
from dragoman.parts.attention import SelfAttention
from dragoman.parts.positions import NoPosition, Rotary
from dragoman.parts.relative_positions import Shaw
from dragoman.parts.spec import replace_everywhere
from dragoman.parts.stack import Stack
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import TRANSFORMER_TRAINING, transformer
from dragoman.systems.vocabulary_sizes import VocabularySizes


def shaw(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    ffn_dim: int | None = None,
    max_distance: int = 16,
    relative_values: bool = True,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    pre_norm: bool = False,
    share_embeddings: bool = True,
    tie_output: bool = True,
) -> EncoderDecoder:
    """Transformer with relative positions in keys and values in place of sinusoids (Shaw et al. 2018).

    Distances beyond `max_distance` count as `max_distance`; without `relative_values` they enter the keys alone.
    """
    absolute = transformer(
        vocabulary,
        model_dim=model_dim,
        layers=layers,
        decoder_layers=decoder_layers,
        heads=heads,
        ffn_dim=ffn_dim,
        dropout=dropout,
        attention_dropout=attention_dropout,
        pre_norm=pre_norm,
        share_embeddings=share_embeddings,
        tie_output=tie_output,
    )
    relative = replace_everywhere(absolute, SelfAttention, position=Shaw(max_distance, relative_values))
    return replace_everywhere(relative, Stack, position=NoPosition())


def roformer(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    ffn_dim: int | None = None,
    rope_base: float = 10000.0,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    pre_norm: bool = False,
    share_embeddings: bool = True,
    tie_output: bool = True,
) -> EncoderDecoder:
    """Transformer with rotary positions in place of sinusoids (Su et al. 2021, §4.1).

    The angles of a head are position / base^{2i/E}.
    """
    absolute = transformer(
        vocabulary,
        model_dim=model_dim,
        layers=layers,
        decoder_layers=decoder_layers,
        heads=heads,
        ffn_dim=ffn_dim,
        dropout=dropout,
        attention_dropout=attention_dropout,
        pre_norm=pre_norm,
        share_embeddings=share_embeddings,
        tie_output=tie_output,
    )
    rotary = replace_everywhere(absolute, SelfAttention, position=Rotary(rope_base))
    return replace_everywhere(rotary, Stack, position=NoPosition())


TRANSFORMER_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"model_dim": 128, "layers": 2, "heads": 4},
    "small": {"model_dim": 256, "layers": 3, "heads": 4},
    "base": {},
    "big": {"model_dim": 1024, "heads": 16, "dropout": 0.3},
}

SYSTEMS: dict[str, System] = {
    "shaw": System(
        shaw,
        "Self-Attention with Relative Position Representations",
        2018,
        TRANSFORMER_SIZES | {"big": {"model_dim": 1024, "heads": 16, "max_distance": 8, "dropout": 0.3}},
        0.4,
        paper_training=PaperTraining(TRANSFORMER_TRAINING, noam_factor=1.0),
        tuned_settings={"pre_norm": True},
        default_recipe="modern",
    ),
    "roformer": System(
        roformer,
        "RoFormer: Enhanced Transformer with Rotary Position Embedding",
        2021,
        TRANSFORMER_SIZES,
        0.4,
        paper_training=PaperTraining(
            TRANSFORMER_TRAINING | {"learning_rate": 5e-4},
            differences="the paper does not name the length of its warm-up: 4,000 steps are the Transformer's",
        ),
        tuned_settings={"pre_norm": True},
        default_recipe="modern",
    ),
}
