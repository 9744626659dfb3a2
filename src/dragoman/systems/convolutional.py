"""Convolutional systems: ConvS2S and ByteNet."""

from __future__ import annotations

from dragoman.models import EncoderDecoder
from dragoman.parts.convolution import DilatedBlock, GatedConvolution, HalvedResidual, MultiStepAttention, Unfolding
from dragoman.parts.embedding import Embedding
from dragoman.parts.initial import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Stack
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary import Vocabulary


def convs2s(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 20,
    decoder_layers: int | None = None,
    kernel: int = 3,
    dropout: float = 0.2,
    longest: int = 1024,
    shared: bool = True,
    tied: bool = True,
) -> EncoderDecoder:
    """Gated convolutions, learned positions, attention in every decoder layer (Gehring et al. 2017).

    Embeddings and all layers have one width, as in the paper's English–Romanian system, so that no projections stand
    between them. Left out: the smaller gradients of the encoder (§3.4), and dropout before the output layer.
    """

    def convolution(causal: bool) -> Spec:
        return GatedConvolution(kernel, causal, dropout)

    encoder_layer = HalvedResidual((convolution(causal=False),))
    decoder_layer = HalvedResidual((convolution(causal=True), HalvedResidual((MultiStepAttention(),))))
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((encoder_layer,), layers, Learned(longest), dropout),
        decoder=Stack((decoder_layer,), decoder_layers or layers, Learned(longest), dropout),
        shared=vocabulary.joint and shared,
        tied=tied,
        initial=Normal(0.1),
    )


def bytenet(
    vocabulary: Vocabulary,
    *,
    width: int = 800,
    layers: int = 6,
    blocks: int = 5,
    kernel: int = 3,
    dropout: float = 0.1,
    shared: bool = True,
    tied: bool = True,
) -> EncoderDecoder:
    """Dilated convolutions, the decoder standing on the encoder position on position (Kalchbrenner et al. 2016).

    A layer is a set of residual blocks whose dilation doubles: 1, 2, 4, 8, 16 for the paper's five. Beyond the paper,
    each stack ends in a layer norm, and blocks have dropout.
    """

    def sets(causal: bool) -> tuple[Spec, ...]:
        return tuple(DilatedBlock(kernel, 2**i, causal, dropout) for i in range(blocks))

    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack(sets(causal=False), layers, dropout=dropout, norm=LayerNorm()),
        decoder=Stack((Unfolding(), Stack(sets(causal=True), layers)), dropout=dropout, norm=LayerNorm()),
        embedding=Embedding(scaled=True),
        shared=vocabulary.joint and shared,
        tied=tied,
    )


SYSTEMS: dict[str, System] = {
    "convs2s": System(
        convs2s,
        "Convolutional Sequence to Sequence Learning",
        2017,
        {
            "tiny": {"width": 128, "layers": 4},
            "small": {"width": 256, "layers": 5},
            "base": {},
            "big": {"width": 1024},
        },
        0.2,
        paper_training=PaperTraining(
            {
                "optimizer": "sgd",
                "momentum": 0.99,
                "nesterov": True,
                "learning_rate": 0.25,
                "schedule": "plateau",
                "plateau_factor": 0.1,
                "warmup_steps": 0,
                "clip_norm": 0.1,
                "label_smoothing": 0.0,
                "loss_normalization": "tokens",
            },
            {"dropout": 0.2},
            differences="the rate falls after each validation that is not better, where the paper lowers it after "
            "every epoch from the first one that is not, until it is below 10⁻⁴; no weight normalisation; batches have "
            "a number of tokens instead of 64 sentences",
        ),
        recipe="modern",
    ),
    "bytenet": System(
        bytenet,
        "Neural Machine Translation in Linear Time",
        2016,
        {
            "tiny": {"width": 128, "layers": 3},
            "small": {"width": 256, "layers": 3},
            "base": {},
            "big": {"width": 1600},
        },
        0.4,
        paper_training=PaperTraining(
            {
                "optimizer": "adam",
                "learning_rate": 3e-4,
                "schedule": "constant",
                "warmup_steps": 0,
                "clip_norm": 0.0,
                "beta2": 0.999,
                "epsilon": 1e-8,
                "label_smoothing": 0.0,
            },
            {"dropout": 0.0},
            differences="the paper translates characters: --set text.tokenizer=character",
        ),
        recipe="modern",
    ),
}
