"""Convolutional encoder–decoders: ConvS2S and ByteNet."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models import EncoderDecoder
from dragoman.parts.convolution import (
    DilatedBlock,
    GatedConvolution,
    MultiStepAttention,
    ScaledResidual,
    SourceExtension,
    Unfolding,
)
from dragoman.parts.embedding import Embedding
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned
from dragoman.parts.spec import Spec
from dragoman.parts.stack import Stack
from dragoman.systems.system import ADAM_TRAINING, PaperTraining, System, VocabularySizes, model_sizes, with_copying


@with_copying  # adds the settings `copying` and `coverage_loss`
def convs2s(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 20,
    decoder_layers: int | None = None,
    kernel_size: int = 3,
    dropout: float = 0.2,
    max_positions: int = 1024,
    shared_embeddings: bool = True,
    tied_embeddings: bool = True,
) -> EncoderDecoder:
    """Gated convolutions, learned positions, attention in every decoder layer (Gehring et al. 2017).

    The encoder has `layers` layers, the decoder `decoder_layers` or as many. `max_positions` is the maximum length in
    tokens. Embeddings and all layers have the same dimension, as in the paper's English–Romanian system, without
    projections between them. Left out: scaling of the encoder's gradients (§3.4) and dropout before the output layer.
    """

    def convolution(causal: bool) -> Spec:
        """Return a gated convolution; a `causal` one sees no later tokens."""
        return GatedConvolution(kernel=kernel_size, causal=causal, dropout=dropout)

    encoder_layer = ScaledResidual((convolution(causal=False),))
    decoder_layer = ScaledResidual((convolution(causal=True), ScaledResidual((MultiStepAttention(),))))
    return EncoderDecoder(
        dim=model_dim,
        source_vocab_size=vocabulary.source,
        target_vocab_size=vocabulary.target,
        encoder=Stack((encoder_layer,), depth=layers, position=Learned(max_length=max_positions), dropout=dropout),
        decoder=Stack(
            (decoder_layer,),
            depth=decoder_layers or layers,
            position=Learned(max_length=max_positions),
            dropout=dropout,
        ),
        shared_embeddings=vocabulary.joint and shared_embeddings,
        tied_embeddings=tied_embeddings,
        initialization=Normal(std=0.1),
    )


@with_copying  # adds the settings `copying` and `coverage_loss`
def bytenet(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 800,
    layers: int = 6,
    blocks_per_layer: int = 5,
    kernel_size: int = 3,
    unfolding_ratio: float = 1.2,
    unfolding_offset: float = 0.0,
    dropout: float = 0.1,
    shared_embeddings: bool = True,
    tied_embeddings: bool = True,
) -> EncoderDecoder:
    """Dilated convolutions; the decoder is stacked on the encoder, position by position (Kalchbrenner et al. 2016).

    A layer consists of `blocks_per_layer` residual blocks whose dilation doubles: 1, 2, 4, 8, 16 for the paper's five.
    The encoder reads the source of |s| tokens padded to `unfolding_ratio` · |s| + `unfolding_offset` tokens (§3.2; 1.2
    and 0 from English characters to German ones). To predict target token t, the decoder reads position t of the
    encoder's output, and nothing beyond its end.
    Additions to the paper: a layer norm at the end of each stack, and dropout in the blocks.
    """

    extension = SourceExtension(ratio=unfolding_ratio, offset=unfolding_offset)
    no_extension = SourceExtension(ratio=1.0, offset=0.0)

    def blocks(causal: bool) -> tuple[Spec, ...]:
        """Return the residual blocks of a layer, with dilations 1, 2, 4, …; `causal` ones see no later tokens."""
        return tuple(
            DilatedBlock(kernel=kernel_size, dilation=2**number, causal=causal, dropout=dropout)
            for number in range(blocks_per_layer)
        )

    return EncoderDecoder(
        dim=model_dim,
        source_vocab_size=vocabulary.source,
        target_vocab_size=vocabulary.target,
        encoder=Stack(blocks(causal=False), depth=layers, dropout=dropout, norm=LayerNorm()),
        # Unfolding reads the encoder's output at the position of each target token
        decoder=Stack((Unfolding(), Stack(blocks(causal=True), depth=layers)), dropout=dropout, norm=LayerNorm()),
        embedding=Embedding(scaled=True),
        shared_embeddings=vocabulary.joint and shared_embeddings,
        tied_embeddings=tied_embeddings,
        source_extension=None if extension == no_extension else extension,  # None: sources are not padded
    )


CONVOLUTIONAL_SYSTEMS = {
    "convs2s": System(
        convs2s,
        "Convolutional Sequence to Sequence Learning",
        2017,
        model_sizes(layers=(4, 5), big={"model_dim": 1024}),
        PaperTraining(
            "sgd",
            "plateau",
            learning_rate=0.25,
            clip_norm=0.1,
            label_smoothing=0.0,
            loss_normalization="tokens",
            plateau_factor=0.1,
            momentum=0.99,
            nesterov=True,
            dropout=0.2,
        ),
        "the rate falls after each validation that is not better, where the paper lowers it after every epoch from the "
        "first one that is not, until it is below 10⁻⁴; no weight normalization; batches have a number of tokens "
        "instead of 64 sentences",
        base_learning_rate=0.2,
    ),
    "bytenet": System(
        bytenet,
        "Neural Machine Translation in Linear Time",
        2016,
        model_sizes(layers=3, big={"model_dim": 1600}),
        replace(ADAM_TRAINING, learning_rate=3e-4, dropout=0.0),
        "the paper translates characters: --set text.tokenizer=character",
        tuned_settings={"unfolding_ratio": 1.5, "unfolding_offset": 4.0},  # most pairs of subwords, in both directions
    ),
}
