"""Transformers with other positions: Shaw's relative ones and rotary ones."""

from __future__ import annotations

from typing import Any

from dragoman.models import EncoderDecoder
from dragoman.parts.attention import SelfAttention
from dragoman.parts.positions import NoPosition, Rotary
from dragoman.parts.relative import Shaw
from dragoman.parts.spec import replace_everywhere
from dragoman.parts.stack import Stack
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import TRAINING, transformer
from dragoman.systems.vocabulary import Vocabulary


def shaw(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    inner: int | None = None,
    clip: int = 16,
    values: bool = True,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    pre_norm: bool = False,
    shared: bool = True,
    tied: bool = True,
) -> EncoderDecoder:
    """Transformer with relative positions in keys and values in place of sinusoids (Shaw et al. 2018).

    Distances beyond `clip` count as `clip`; without `values` they enter the keys alone.
    """
    absolute = transformer(
        vocabulary,
        width=width,
        layers=layers,
        decoder_layers=decoder_layers,
        heads=heads,
        inner=inner,
        dropout=dropout,
        attention_dropout=attention_dropout,
        pre_norm=pre_norm,
        shared=shared,
        tied=tied,
    )
    relative = replace_everywhere(absolute, SelfAttention, position=Shaw(clip, values))
    return replace_everywhere(relative, Stack, position=NoPosition())


def roformer(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    inner: int | None = None,
    base: float = 10000.0,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    pre_norm: bool = False,
    shared: bool = True,
    tied: bool = True,
) -> EncoderDecoder:
    """Transformer with rotary positions in place of sinusoids (Su et al. 2021, §4.1).

    The angles of a head are position / base^{2i/E}.
    """
    absolute = transformer(
        vocabulary,
        width=width,
        layers=layers,
        decoder_layers=decoder_layers,
        heads=heads,
        inner=inner,
        dropout=dropout,
        attention_dropout=attention_dropout,
        pre_norm=pre_norm,
        shared=shared,
        tied=tied,
    )
    rotary = replace_everywhere(absolute, SelfAttention, position=Rotary(base))
    return replace_everywhere(rotary, Stack, position=NoPosition())


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "layers": 2, "heads": 4},
    "small": {"width": 256, "layers": 3, "heads": 4},
    "base": {},
    "big": {"width": 1024, "heads": 16, "dropout": 0.3},
}

SYSTEMS: dict[str, System] = {
    "shaw": System(
        shaw,
        "Self-Attention with Relative Position Representations",
        2018,
        SIZES | {"big": {"width": 1024, "heads": 16, "clip": 8, "dropout": 0.3}},
        0.4,
        paper_training=PaperTraining(TRAINING, noam=1.0),
        tuned={"pre_norm": True},
        recipe="modern",
    ),
    "roformer": System(
        roformer,
        "RoFormer: Enhanced Transformer with Rotary Position Embedding",
        2021,
        SIZES,
        0.4,
        paper_training=PaperTraining(
            TRAINING | {"learning_rate": 5e-4},
            differences="the paper does not name the length of its warm-up: 4,000 steps are the Transformer's",
        ),
        tuned={"pre_norm": True},
        recipe="modern",
    ),
}
