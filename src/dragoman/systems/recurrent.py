"""The recurrent encoder–decoders: Sutskever's, Cho's, Bahdanau's and Luong's."""

from __future__ import annotations

from typing import Any, Literal

from dragoman.errors import unknown_name
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
from dragoman.systems.system import PaperTraining, System
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
        raise unknown_name("score", name, SCORES)
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

#: plain SGD, the loss divided by the number of sentences, the gradient's norm clipped at 5
SGD: dict[str, Any] = {
    "optimizer": "sgd",
    "schedule": "halving",
    "warmup_steps": 0,
    "clip_norm": 5.0,
    "label_smoothing": 0.0,
    "loss_normalization": "sentences",
}

#: Adadelta with ρ = 0.95 and ε = 10⁻⁶, the gradient's norm clipped at 1
ADADELTA: dict[str, Any] = {
    "optimizer": "adadelta",
    "learning_rate": 1.0,
    "schedule": "constant",
    "warmup_steps": 0,
    "clip_norm": 1.0,
    "label_smoothing": 0.0,
    "loss_normalization": "sentences",
}

SYSTEMS: dict[str, System] = {
    "sutskever": System(
        sutskever,
        "Sequence to Sequence Learning with Neural Networks",
        2014,
        SIZES | {"tiny": {"width": 128, "layers": 2, "tied": True}},
        1.0,
        paper_training=PaperTraining(
            SGD | {"learning_rate": 0.7, "halving_start_epoch": 5.0, "halving_interval": 0.5},
            {"dropout": 0.0},
            differences="batches have a number of tokens instead of 128 sentences; weights start as Glorot's instead "
            "of uniform in ±0.08",
        ),
        recipe="modern",
    ),
    "cho": System(
        cho,
        "Learning Phrase Representations using RNN Encoder–Decoder for Statistical Machine Translation",
        2014,
        SIZES,
        1.0,
        paper_training=PaperTraining(
            ADADELTA,
            {"dropout": 0.0},
            differences="batches have a number of tokens instead of 64 phrase pairs; the paper names no clipping, 1 is "
            "Bahdanau's",
        ),
        recipe="modern",
    ),
    "bahdanau": System(
        bahdanau,
        "Neural Machine Translation by Jointly Learning to Align and Translate",
        2015,
        SIZES,
        1.0,
        paper_training=PaperTraining(
            ADADELTA,
            {"dropout": 0.0},
            differences="batches have a number of tokens instead of 80 sentences",
        ),
        recipe="modern",
    ),
    "luong": System(
        luong,
        "Effective Approaches to Attention-based Neural Machine Translation",
        2015,
        SIZES,
        1.0,
        paper_training=PaperTraining(
            SGD | {"learning_rate": 1.0, "halving_start_epoch": 8.0, "halving_interval": 1.0},
            {"dropout": 0.2},
            differences="the paper's models with dropout, trained for 12 epochs; those without it start halving after "
            "5 of 10 epochs; batches have a number of tokens instead of 128 sentences; weights start as Glorot's "
            "instead of uniform in ±0.1",
        ),
        tuned={"direction": "both"},
        recipe="modern",
    ),
}
