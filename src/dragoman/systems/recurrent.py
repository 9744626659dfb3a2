"""The recurrent encoder–decoders: Sutskever's, Cho's, Bahdanau's and Luong's."""

from __future__ import annotations

from typing import Any, Literal

from dragoman.errors import unknown_name
from dragoman.models import EncoderDecoder
from dragoman.parts.attention_scores import Additive, Concat, Dot, General, ScaledDot
from dragoman.parts.initialization import Glorot, Orthogonal
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.recurrent_context import (
    AttentionalReadout,
    AttentionContext,
    BackwardState,
    FixedContext,
    FromContext,
    FromLast,
    FromSummary,
    LastState,
    MaxoutReadout,
    NoContext,
    StateReadout,
)
from dragoman.parts.recurrent_decoder import RecurrentDecoder
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Stack
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary_sizes import VocabularySizes

ATTENTION_SCORES: dict[str, Spec] = {
    "dot": Dot(),
    "scaled-dot": ScaledDot(),
    "general": General(),
    "concat": Concat(),
    "additive": Additive(),
}


def _score(name: str) -> Spec:
    if name not in ATTENTION_SCORES:
        raise unknown_name("score", name, ATTENTION_SCORES)
    return ATTENTION_SCORES[name]


def sutskever(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 1000,
    layers: int = 4,
    dropout: float = 0.2,
    share_embeddings: bool = True,
    tie_output: bool = False,
) -> EncoderDecoder:
    """Deep LSTMs; the encoder reads the source reversed, its last state starts the decoder (Sutskever et al. 2014)."""
    decoder = RecurrentDecoder("lstm", layers, NoContext(), "after", "nothing", FromLast(), StateReadout(), dropout)
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("lstm", layers, "backward", dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
        initialization=Glorot(),
    )


def cho(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 1000,
    layers: int = 1,
    dropout: float = 0.2,
    share_embeddings: bool = True,
    tie_output: bool = False,
) -> EncoderDecoder:
    """GRUs; one vector c sums the source up and enters every step and the maxout output (Cho et al. 2014)."""
    decoder = RecurrentDecoder(
        "gru", layers, FixedContext(LastState()), "after", "context", FromContext(), MaxoutReadout(), dropout
    )
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("gru", layers, "forward", dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
        initialization=Orthogonal(),
    )


def bahdanau(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 1000,
    layers: int = 1,
    attention_score: str = "additive",
    dropout: float = 0.2,
    share_embeddings: bool = True,
    tie_output: bool = False,
) -> EncoderDecoder:
    """GRUs, a bidirectional encoder, additive attention asked by the previous state (Bahdanau et al. 2015)."""
    decoder = RecurrentDecoder(
        "gru",
        layers,
        AttentionContext(_score(attention_score)),
        "before",
        "context",
        FromSummary(BackwardState()),
        MaxoutReadout(),
        dropout,
    )
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("gru", layers, "both", dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
        initialization=Orthogonal(),
    )


def luong(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 1000,
    layers: int = 4,
    attention_score: str = "general",
    input_feeding: bool = True,
    encoder_direction: Literal["forward", "backward", "both"] = "backward",
    dropout: float = 0.2,
    share_embeddings: bool = True,
    tie_output: bool = False,
) -> EncoderDecoder:
    """LSTMs, the source reversed, attention asked by the current state, input feeding (Luong et al. 2015)."""
    feeds: Literal["output", "nothing"] = "output" if input_feeding else "nothing"
    decoder = RecurrentDecoder(
        "lstm",
        layers,
        AttentionContext(_score(attention_score)),
        "after",
        feeds,
        FromLast(),
        AttentionalReadout(),
        dropout,
    )
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("lstm", layers, encoder_direction, dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
        initialization=Glorot(),
    )


RNN_SIZES = {
    "tiny": {"model_dim": 128, "layers": 1, "tie_output": True},
    "small": {"model_dim": 256, "layers": 1, "tie_output": True},
    "base": {"model_dim": 512, "tie_output": True},
    "big": {"model_dim": 1000},
}

#: plain SGD, the loss divided by the number of sentences, the gradient's norm clipped at 5
SGD_TRAINING: dict[str, Any] = {
    "optimizer": "sgd",
    "schedule": "halving",
    "warmup_steps": 0,
    "clip_norm": 5.0,
    "label_smoothing": 0.0,
    "loss_normalization": "sentences",
}

#: Adadelta with ρ = 0.95 and ε = 10⁻⁶, the gradient's norm clipped at 1
ADADELTA_TRAINING: dict[str, Any] = {
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
        RNN_SIZES | {"tiny": {"model_dim": 128, "layers": 2, "tie_output": True}},
        1.0,
        paper_training=PaperTraining(
            SGD_TRAINING | {"learning_rate": 0.7, "halving_start_epoch": 5.0, "halving_interval": 0.5},
            {"dropout": 0.0},
            differences="batches have a number of tokens instead of 128 sentences; weights start as Glorot's instead "
            "of uniform in ±0.08",
        ),
        default_recipe="modern",
    ),
    "cho": System(
        cho,
        "Learning Phrase Representations using RNN Encoder–Decoder for Statistical Machine Translation",
        2014,
        RNN_SIZES,
        1.0,
        paper_training=PaperTraining(
            ADADELTA_TRAINING,
            {"dropout": 0.0},
            differences="batches have a number of tokens instead of 64 phrase pairs; the paper names no clipping, 1 is "
            "Bahdanau's",
        ),
        default_recipe="modern",
    ),
    "bahdanau": System(
        bahdanau,
        "Neural Machine Translation by Jointly Learning to Align and Translate",
        2015,
        RNN_SIZES,
        1.0,
        paper_training=PaperTraining(
            ADADELTA_TRAINING,
            {"dropout": 0.0},
            differences="batches have a number of tokens instead of 80 sentences",
        ),
        default_recipe="modern",
    ),
    "luong": System(
        luong,
        "Effective Approaches to Attention-based Neural Machine Translation",
        2015,
        RNN_SIZES,
        1.0,
        paper_training=PaperTraining(
            SGD_TRAINING | {"learning_rate": 1.0, "halving_start_epoch": 8.0, "halving_interval": 1.0},
            {"dropout": 0.2},
            differences="the paper's models with dropout, trained for 12 epochs; those without it start halving after "
            "5 of 10 epochs; batches have a number of tokens instead of 128 sentences; weights start as Glorot's "
            "instead of uniform in ±0.1",
        ),
        tuned_settings={"direction": "both"},
        default_recipe="modern",
    ),
}
