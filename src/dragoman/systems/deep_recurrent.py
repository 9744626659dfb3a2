"""Deep recurrent systems: GNMT and Deep-Att."""

from __future__ import annotations

from dragoman.models import EncoderDecoder
from dragoman.parts.attention_scores import Additive
from dragoman.parts.fast_forward import FastForwardDecoder, FastForwardEncoder
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.recurrent_context import AttentionContext, FromZero
from dragoman.parts.recurrent_decoder import RecurrentDecoder
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Residual, Stack
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary_sizes import VocabularySizes


def gnmt(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 1024,
    layers: int = 8,
    dropout: float = 0.2,
    share_embeddings: bool = True,
    tie_output: bool = False,
) -> EncoderDecoder:
    """Deep LSTMs with residual connections, attention asked by the bottom decoder layer alone (Wu et al. 2016).

    The encoder's bottom layer reads both ways, half of the width each; from the third layer up x + LSTM(x). The bottom
    decoder layer's last output asks for the context, which enters every layer. Dropout is on what enters a layer. The
    decoder starts from zero.
    """

    def upper(context: bool) -> tuple[Spec, ...]:
        layer = Recurrent("lstm", attention_context=context, input_dropout=dropout)
        return (layer, *[Residual(layer)] * (layers - 2))[: layers - 1]

    bottom = RecurrentDecoder("lstm", 1, AttentionContext(Additive()), "before", "context", FromZero())
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((Recurrent("lstm", 1, "both"), *upper(context=False)), dropout=dropout),
        decoder=Stack((bottom, *upper(context=True)), dropout=dropout),
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
    """Deep LSTMs with fast-forward connections, two columns of turning direction, attention (Zhou et al. 2016).

    Embeddings and context have the width of the model, 512, where the paper's have 256 and 1280.
    """
    return EncoderDecoder(
        model_dim,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((FastForwardEncoder(layers, dropout),), dropout=dropout),
        decoder=Stack(
            (FastForwardDecoder(decoder_layers or layers, AttentionContext(Additive()), dropout),), dropout=dropout
        ),
        shared_embeddings=vocabulary.joint and share_embeddings,
        tied_embeddings=tie_output,
    )


SYSTEMS: dict[str, System] = {
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
        default_recipe="modern",
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
        default_recipe="modern",
    ),
}
