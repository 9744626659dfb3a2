"""Deep recurrent systems: GNMT and Deep-Att."""

from __future__ import annotations

from dragoman.models import EncoderDecoder
from dragoman.parts.fast_forward import FastForwardDecoder, FastForwardEncoder
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.recurrent_context import Attention, FromZero
from dragoman.parts.recurrent_decoder import RecurrentDecoder
from dragoman.parts.score import Additive
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Residual, Stack
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary import Vocabulary


def gnmt(
    vocabulary: Vocabulary,
    *,
    width: int = 1024,
    layers: int = 8,
    dropout: float = 0.2,
    shared: bool = True,
    tied: bool = False,
) -> EncoderDecoder:
    """Deep LSTMs with residual connections, attention asked by the bottom decoder layer alone (Wu et al. 2016).

    The encoder's bottom layer reads both ways, half of the width each; from the third layer up x + LSTM(x). The bottom
    decoder layer's last output asks for the context, which enters every layer. Dropout is on what enters a layer. The
    decoder starts from zero.
    """

    def upper(context: bool) -> tuple[Spec, ...]:
        layer = Recurrent("lstm", context=context, input_dropout=dropout)
        return (layer, *[Residual(layer)] * (layers - 2))[: layers - 1]

    bottom = RecurrentDecoder("lstm", 1, Attention(Additive()), "before", "context", FromZero())
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("lstm", 1, "both"), *upper(context=False)), dropout=dropout),
        decoder=Stack((bottom, *upper(context=True)), dropout=dropout),
        shared=vocabulary.joint and shared,
        tied=tied,
    )


def deep_att(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 9,
    decoder_layers: int | None = None,
    dropout: float = 0.1,
    shared: bool = True,
    tied: bool = False,
) -> EncoderDecoder:
    """Deep LSTMs with fast-forward connections, two columns of turning direction, attention (Zhou et al. 2016).

    Embeddings and context have the width of the model, 512, where the paper's have 256 and 1280.
    """
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((FastForwardEncoder(layers, dropout),), dropout=dropout),
        decoder=Stack((FastForwardDecoder(decoder_layers or layers, Attention(Additive()), dropout),), dropout=dropout),
        shared=vocabulary.joint and shared,
        tied=tied,
    )


SYSTEMS: dict[str, System] = {
    "gnmt": System(
        gnmt,
        "Google's Neural Machine Translation System: Bridging the Gap between Human and Machine Translation",
        2016,
        {
            "tiny": {"width": 128, "layers": 3, "tied": True},
            "small": {"width": 256, "layers": 4, "tied": True},
            "base": {"width": 512, "tied": True},
            "big": {},
        },
        1.0,
        paper_training=PaperTraining(
            {
                "optimizer": "adam",
                "learning_rate": 2e-4,
                "schedule": "constant",
                "warmup_steps": 0,
                "clip_norm": 5.0,
                "beta2": 0.999,
                "epsilon": 1e-8,
                "label_smoothing": 0.0,
                "loss_normalization": "sentences",
            },
            {"dropout": 0.2},
            differences="the paper's first 60,000 steps; it goes on with SGD at a rate of 0.5, halved from 1.2 million "
            "steps on, which is a second run: --start-from RUN --set training.optimizer=sgd --set "
            "training.learning_rate=0.5 --set training.schedule=halving",
        ),
        recipe="modern",
    ),
    "deep-att": System(
        deep_att,
        "Deep Recurrent Models with Fast-Forward Connections for Neural Machine Translation",
        2016,
        {
            "tiny": {"width": 128, "layers": 2, "decoder_layers": 1, "tied": True},
            "small": {"width": 256, "layers": 3, "decoder_layers": 2, "tied": True},
            "base": {"layers": 5, "decoder_layers": 3, "tied": True},
            "big": {"decoder_layers": 7},
        },
        1.0,
        paper_training=PaperTraining(
            {
                "optimizer": "sgd",
                "learning_rate": 1.0,
                "schedule": "plateau",
                "plateau_factor": 0.5,
                "warmup_steps": 0,
                "clip_norm": 5.0,
                "label_smoothing": 0.0,
                "loss_normalization": "sentences",
            },
            {"dropout": 0.1},
            differences="the paper's SGD with strong L2 regularisation and one rate for each kind of layer is replaced "
            "by plain SGD with Luong's rate and clipping, the rate halved when validation does not improve",
        ),
        recipe="modern",
    ),
}
