"""The recurrent encoder–decoders: Sutskever's, Cho's, Bahdanau's and Luong's."""

from __future__ import annotations

from typing import Literal

from dragoman.errors import unknown
from dragoman.models import EncoderDecoder
from dragoman.parts.initial import Glorot, Orthogonal
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.recurrent_context import (
    Attention,
    Attentional,
    BackwardState,
    Fixed,
    FromContext,
    FromLast,
    FromSummary,
    LastState,
    Maxout,
    NoContext,
    Plain,
)
from dragoman.parts.recurrent_decoder import RecurrentDecoder
from dragoman.parts.score import Additive, Concat, Dot, General, ScaledDot
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Stack
from dragoman.systems.system import System
from dragoman.systems.vocabulary import Vocabulary

SCORES: dict[str, Spec] = {
    "dot": Dot(),
    "scaled-dot": ScaledDot(),
    "general": General(),
    "concat": Concat(),
    "additive": Additive(),
}


def _score(name: str) -> Spec:
    if name not in SCORES:
        raise unknown("score", name, SCORES)
    return SCORES[name]


def sutskever(
    vocabulary: Vocabulary,
    *,
    width: int = 1000,
    layers: int = 4,
    dropout: float = 0.2,
    shared: bool = True,
    tied: bool = False,
) -> EncoderDecoder:
    """Deep LSTMs; the encoder reads the source reversed, its last state starts the decoder (Sutskever et al. 2014)."""
    decoder = RecurrentDecoder("lstm", layers, NoContext(), "after", "nothing", FromLast(), Plain(), dropout)
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("lstm", layers, "backward", dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared=vocabulary.joint and shared,
        tied=tied,
        initial=Glorot(),
    )


def cho(
    vocabulary: Vocabulary,
    *,
    width: int = 1000,
    layers: int = 1,
    dropout: float = 0.2,
    shared: bool = True,
    tied: bool = False,
) -> EncoderDecoder:
    """GRUs; one vector c sums the source up and enters every step and the maxout output (Cho et al. 2014)."""
    decoder = RecurrentDecoder("gru", layers, Fixed(LastState()), "after", "context", FromContext(), Maxout(), dropout)
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("gru", layers, "forward", dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared=vocabulary.joint and shared,
        tied=tied,
        initial=Orthogonal(),
    )


def bahdanau(
    vocabulary: Vocabulary,
    *,
    width: int = 1000,
    layers: int = 1,
    score: str = "additive",
    dropout: float = 0.2,
    shared: bool = True,
    tied: bool = False,
) -> EncoderDecoder:
    """GRUs, a bidirectional encoder, additive attention asked by the previous state (Bahdanau et al. 2015)."""
    decoder = RecurrentDecoder(
        "gru", layers, Attention(_score(score)), "before", "context", FromSummary(BackwardState()), Maxout(), dropout
    )
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("gru", layers, "both", dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared=vocabulary.joint and shared,
        tied=tied,
        initial=Orthogonal(),
    )


def luong(
    vocabulary: Vocabulary,
    *,
    width: int = 1000,
    layers: int = 4,
    score: str = "general",
    input_feeding: bool = True,
    direction: Literal["forward", "backward", "both"] = "backward",
    dropout: float = 0.2,
    shared: bool = True,
    tied: bool = False,
) -> EncoderDecoder:
    """LSTMs, the source reversed, attention asked by the current state, input feeding (Luong et al. 2015)."""
    feeds: Literal["output", "nothing"] = "output" if input_feeding else "nothing"
    decoder = RecurrentDecoder(
        "lstm", layers, Attention(_score(score)), "after", feeds, FromLast(), Attentional(), dropout
    )
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("lstm", layers, direction, dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared=vocabulary.joint and shared,
        tied=tied,
        initial=Glorot(),
    )


SIZES = {
    "tiny": {"width": 128, "layers": 1, "tied": True},
    "small": {"width": 256, "layers": 1, "tied": True},
    "base": {"width": 512, "tied": True},
    "big": {"width": 1000},
}

#: plain SGD, the rate halved every so often once it has been held for some epochs, the gradient's norm clipped at 5
DESCENT = {"optimizer": "sgd", "schedule": "halving", "warmup": 0, "clip": 5.0, "hold": 5.0, "label_smoothing": 0.0}

#: Adadelta, the gradient's norm clipped at 1
ADADELTA = {
    "optimizer": "adadelta",
    "schedule": "constant",
    "warmup": 0,
    "clip": 1.0,
    "label_smoothing": 0.0,
    "learning_rate": 1.0,
}

SYSTEMS: dict[str, System] = {
    "sutskever": System(
        sutskever,
        "Sequence to Sequence Learning with Neural Networks",
        2014,
        SIZES | {"tiny": {"width": 128, "layers": 2, "tied": True}},
        1.0,
        paper_training=DESCENT | {"learning_rate": 0.7, "halve_every": 0.5},
    ),
    "cho": System(
        cho,
        "Learning Phrase Representations using RNN Encoder–Decoder for Statistical Machine Translation",
        2014,
        SIZES,
        1.0,
        paper_training=ADADELTA,
    ),
    "bahdanau": System(
        bahdanau,
        "Neural Machine Translation by Jointly Learning to Align and Translate",
        2015,
        SIZES,
        1.0,
        paper_training=ADADELTA,
    ),
    "luong": System(
        luong,
        "Effective Approaches to Attention-based Neural Machine Translation",
        2015,
        SIZES,
        1.0,
        paper_training=DESCENT | {"learning_rate": 1.0, "halve_every": 1.0},
    ),
}
