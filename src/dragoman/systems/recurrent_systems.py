"""Recurrent encoder–decoders: Sutskever, Cho, Bahdanau, Luong, GNMT and Deep-Att."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from dragoman.errors import unknown_name
from dragoman.models import EncoderDecoder
from dragoman.parts.attention_scores import Additive, Concat, Dot, General, ScaledDot
from dragoman.parts.fast_forward import FastForwardDecoder, FastForwardEncoder
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
    FromZero,
    LastState,
    MaxoutReadout,
    NoContext,
    StateReadout,
)
from dragoman.parts.recurrent_decoder import RecurrentDecoder
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Residual, Stack
from dragoman.systems.system import PaperTraining, System, VocabularySizes

ATTENTION_SCORES: dict[str, Spec] = {
    "dot": Dot(),
    "scaled-dot": ScaledDot(),
    "general": General(),
    "concat": Concat(),
    "additive": Additive(),
}


def _attention(score: str) -> AttentionContext:
    if score not in ATTENTION_SCORES:
        raise unknown_name("attention_score", score, ATTENTION_SCORES)
    return AttentionContext(ATTENTION_SCORES[score])


def sutskever(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 1000,
    layers: int = 4,
    dropout: float = 0.2,
    share_embeddings: bool = True,
    tie_output: bool = False,
) -> EncoderDecoder:
    """Deep LSTMs; the final state of the encoder, which reads backward, starts the decoder (Sutskever et al. 2014)."""
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
    """GRUs; one context vector of the source enters every decoder step and the maxout output (Cho et al. 2014)."""
    context, readout = FixedContext(LastState()), MaxoutReadout()
    decoder = RecurrentDecoder("gru", layers, context, "after", "context", FromContext(), readout, dropout)
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
    """GRUs, a bidirectional encoder, additive attention with the previous state as query (Bahdanau et al. 2015)."""
    context, start = _attention(attention_score), FromSummary(BackwardState())
    decoder = RecurrentDecoder("gru", layers, context, "before", "context", start, MaxoutReadout(), dropout)
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
    """LSTMs, a backward encoder, attention with the current state as query, input feeding (Luong et al. 2015)."""
    feedback: Literal["output", "nothing"] = "output" if input_feeding else "nothing"
    context, readout = _attention(attention_score), AttentionalReadout()
    decoder = RecurrentDecoder("lstm", layers, context, "after", feedback, FromLast(), readout, dropout)
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


def gnmt(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 1024,
    layers: int = 8,
    dropout: float = 0.2,
    share_embeddings: bool = True,
    tie_output: bool = False,
) -> EncoderDecoder:
    """Deep residual LSTMs; the bottom decoder layer computes the attention for all layers (Wu et al. 2016).

    The bottom encoder layer is bidirectional, with half of the dimension per direction. Layers from the third on
    compute x + LSTM(x). The previous output of the bottom decoder layer is the query; the context enters every layer.
    Dropout is applied to the input of every layer. The decoder starts from zeros.
    """

    def upper_layers(attention_context: bool) -> tuple[Spec, ...]:
        layer = Recurrent("lstm", attention_context=attention_context, input_dropout=dropout)
        return (layer, *[Residual(layer)] * (layers - 2))[: layers - 1]

    bottom = RecurrentDecoder("lstm", 1, AttentionContext(Additive()), "before", "context", FromZero())
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("lstm", 1, "both"), *upper_layers(attention_context=False)), dropout=dropout),
        decoder=Stack((bottom, *upper_layers(attention_context=True)), dropout=dropout),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
    )


def deep_att(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 9,
    decoder_layers: int | None = None,
    dropout: float = 0.1,
    share_embeddings: bool = True,
    tie_output: bool = False,
) -> EncoderDecoder:
    """Deep LSTMs with fast-forward connections, two columns of alternating direction, attention (Zhou et al. 2016).

    Embeddings and context have the dimension of the model, 512; the paper's have 256 and 1280.
    """
    decoder = FastForwardDecoder(decoder_layers or layers, AttentionContext(Additive()), dropout)
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((FastForwardEncoder(layers, dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
    )


RNN_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"model_dim": 128, "layers": 1, "tie_output": True},
    "small": {"model_dim": 256, "layers": 1, "tie_output": True},
    "base": {"model_dim": 512, "tie_output": True},
    "big": {"model_dim": 1000},
}

#: SGD; the loss is divided by the number of sentences, and the norm of the gradient is clipped at 5
SGD_TRAINING = PaperTraining("sgd", "halving", clip_norm=5.0, label_smoothing=0.0, loss_normalization="sentences")

#: Adadelta with ρ = 0.95 and ε = 10⁻⁶; the norm of the gradient is clipped at 1
ADADELTA_TRAINING = PaperTraining(
    "adadelta",
    "constant",
    learning_rate=1.0,
    clip_norm=1.0,
    label_smoothing=0.0,
    loss_normalization="sentences",
    system_settings={"dropout": 0.0},
)

RECURRENT_SYSTEMS = {
    "sutskever": System(
        sutskever,
        "Sequence to Sequence Learning with Neural Networks",
        2014,
        RNN_SIZES | {"tiny": {"model_dim": 128, "layers": 2, "tie_output": True}},
        replace(
            SGD_TRAINING,
            learning_rate=0.7,
            halving_start_epoch=5.0,
            halving_interval=0.5,
            system_settings={"dropout": 0.0},
            differences="batches have a number of tokens instead of 128 sentences; weights are initialized as Glorot's "
            "instead of uniform in ±0.08",
        ),
        base_learning_rate=1.0,
    ),
    "cho": System(
        cho,
        "Learning Phrase Representations using RNN Encoder–Decoder for Statistical Machine Translation",
        2014,
        RNN_SIZES,
        replace(
            ADADELTA_TRAINING,
            differences="batches have a number of tokens instead of 64 phrase pairs; the paper does not mention "
            "clipping, 1 is Bahdanau's",
        ),
        base_learning_rate=1.0,
    ),
    "bahdanau": System(
        bahdanau,
        "Neural Machine Translation by Jointly Learning to Align and Translate",
        2015,
        RNN_SIZES,
        replace(ADADELTA_TRAINING, differences="batches have a number of tokens instead of 80 sentences"),
        base_learning_rate=1.0,
    ),
    "luong": System(
        luong,
        "Effective Approaches to Attention-based Neural Machine Translation",
        2015,
        RNN_SIZES,
        replace(
            SGD_TRAINING,
            learning_rate=1.0,
            halving_start_epoch=8.0,
            halving_interval=1.0,
            system_settings={"dropout": 0.2},
            differences="the paper's models with dropout, trained for 12 epochs; those without it start halving after "
            "5 of 10 epochs; batches have a number of tokens instead of 128 sentences; weights are initialized as "
            "Glorot's instead of uniform in ±0.1",
        ),
        base_learning_rate=1.0,
        tuned_settings={"encoder_direction": "both"},
    ),
    "gnmt": System(
        gnmt,
        "Google's Neural Machine Translation System: Bridging the Gap between Human and Machine Translation",
        2016,
        {
            "tiny": {"model_dim": 128, "layers": 3, "tie_output": True},
            "small": {"model_dim": 256, "layers": 4, "tie_output": True},
            "base": {"model_dim": 512, "tie_output": True},
            "big": {},
        },
        PaperTraining(
            "adam",
            "constant",
            learning_rate=2e-4,
            clip_norm=5.0,
            label_smoothing=0.0,
            loss_normalization="sentences",
            beta2=0.999,
            epsilon=1e-8,
            system_settings={"dropout": 0.2},
            differences="the paper's first 60,000 steps; it continues with SGD at a rate of 0.5, halved from 1.2 "
            "million steps on, which is a second run: --start-from RUN --set training.optimizer=sgd --set "
            "training.learning_rate=0.5 --set training.schedule=halving",
        ),
        base_learning_rate=1.0,
    ),
    "deep-att": System(
        deep_att,
        "Deep Recurrent Models with Fast-Forward Connections for Neural Machine Translation",
        2016,
        {
            "tiny": {"model_dim": 128, "layers": 2, "decoder_layers": 1, "tie_output": True},
            "small": {"model_dim": 256, "layers": 3, "decoder_layers": 2, "tie_output": True},
            "base": {"layers": 5, "decoder_layers": 3, "tie_output": True},
            "big": {"decoder_layers": 7},
        },
        replace(
            SGD_TRAINING,
            schedule="plateau",
            learning_rate=1.0,
            plateau_factor=0.5,
            system_settings={"dropout": 0.1},
            differences="the paper's SGD with strong L2 regularization and one rate for each kind of layer is replaced "
            "by plain SGD with Luong's rate and clipping, the rate halved when validation does not improve",
        ),
        base_learning_rate=1.0,
    ),
}
