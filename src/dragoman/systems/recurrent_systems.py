"""Recurrent encoder–decoders: Sutskever, Cho, Bahdanau, bag of words, Luong, GNMT, Deep-Att and LSTMs with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from dragoman.errors import unknown_name
from dragoman.models import EncoderDecoder, HardAttention
from dragoman.parts.attention_scores import Additive, Concat, Dot, General, ScaledDot, TanhProduct
from dragoman.parts.bag_of_words import BagOfWords
from dragoman.parts.experts import MixtureOfExperts, NoisyTopKGating
from dragoman.parts.fast_forward import FastForwardDecoder, FastForwardEncoder
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.hard_alignment import HardAlignment
from dragoman.parts.initialization import Orthogonal
from dragoman.parts.recurrence import CellKind, Recurrent
from dragoman.parts.recurrent_decoder import (
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
    MeanState,
    NoContext,
    RecurrentDecoder,
    StateReadout,
)
from dragoman.parts.spec import Spec, find_specs, replace_everywhere
from dragoman.parts.stack import Residual, Stack
from dragoman.systems.system import (
    ADAM_TRAINING,
    PaperTraining,
    System,
    VocabularySizes,
    model_sizes,
    variant_of,
    with_copying,
)

ATTENTION_SCORES: dict[str, Spec] = {
    "dot": Dot(),
    "scaled-dot": ScaledDot(),
    "general": General(),
    "concat": Concat(),
    "additive": Additive(),
    "tanh-product": TanhProduct(),
}


def _attention(score: str) -> AttentionContext:
    """Return attention over the source with the score function of this name, such as "dot"; UserError if unknown."""
    if score not in ATTENTION_SCORES:
        raise unknown_name("attention_score", score, ATTENTION_SCORES)
    return AttentionContext(ATTENTION_SCORES[score])


@with_copying  # adds the settings `copying` and `coverage_loss`
def sutskever(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 1000,
    layers: int = 4,
    dropout: float = 0.2,
    shared_embeddings: bool = True,
    tied_embeddings: bool = False,
) -> EncoderDecoder:
    """Deep LSTMs; the final state of the encoder, which reads backward, starts the decoder (Sutskever et al. 2014)."""
    encoder = Recurrent("lstm", layers=layers, direction="backward", dropout=dropout)
    decoder = RecurrentDecoder(
        "lstm",
        layers=layers,
        context=NoContext(),
        attends="after",  # no effect without a context; in variants with attention, the query is the state after a step
        feedback="nothing",  # nothing but the previous token enters a step
        initial_state=FromLast(),
        readout=StateReadout(),
        dropout=dropout,
    )
    return EncoderDecoder(
        dim=model_dim,
        source_vocab_size=vocabulary.source,
        target_vocab_size=vocabulary.target,
        encoder=Stack((encoder,), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared_embeddings=vocabulary.joint and shared_embeddings,
        tied_embeddings=tied_embeddings,
    )


@variant_of(sutskever)
def luong(
    spec: EncoderDecoder,
    *,
    attention_score: str = "general",
    input_feeding: bool = True,
    encoder_direction: Literal["forward", "backward", "both"] = "backward",
) -> EncoderDecoder:
    """LSTMs, a backward encoder, attention with the current state as query, input feeding (Luong et al. 2015).

    `encoder_direction`: the direction in which the encoder reads the source; `both` is a bidirectional encoder.
    """
    feedback = "output" if input_feeding else "nothing"  # what enters the next step besides the target token
    spec = replace_everywhere(spec, Recurrent, direction=encoder_direction)
    return replace_everywhere(
        spec, RecurrentDecoder, context=_attention(attention_score), feedback=feedback, readout=AttentionalReadout()
    )


@variant_of(sutskever, layers=1)
def cho(spec: EncoderDecoder, *, cell: CellKind = "gru") -> EncoderDecoder:
    """GRUs; one context vector of the source enters every decoder step and the maxout output (Cho et al. 2014).

    `cell`: gru is PyTorch's, which has fast kernels; gru-reset-before is the paper's, whose reset gate is applied
    before the matrix product.
    """
    spec = replace_everywhere(spec, Recurrent, cell=cell, direction="forward")
    spec = replace_everywhere(
        spec,
        RecurrentDecoder,
        cell=cell,
        context=FixedContext(LastState()),  # the encoder's last state
        feedback="context",  # enters each step besides the previous token
        initial_state=FromContext(),
        readout=MaxoutReadout(),
    )
    return replace(spec, initialization=Orthogonal())


@variant_of(cho)
def bahdanau(spec: EncoderDecoder, *, attention_score: str = "additive") -> EncoderDecoder:
    """GRUs, a bidirectional encoder, additive attention with the previous state as query (Bahdanau et al. 2015).

    The initial state of the decoder depends on the state of the encoder that reads backward (`BackwardState`).
    """
    spec = replace_everywhere(spec, Recurrent, direction="both")
    return replace_everywhere(
        spec,
        RecurrentDecoder,
        context=_attention(attention_score),
        attends="before",  # with the previous state as query
        initial_state=FromSummary(BackwardState()),
    )


@variant_of(cho)
def bow(spec: EncoderDecoder, *, pooling: Literal["mean", "sum", "attention"] = "mean") -> EncoderDecoder:
    """Cho's decoder over a bag of words: pooled embeddings and tanh layers (Rush et al. 2015, §3.2).

    As many feed-forward layers as the decoder has follow the mean or sum of the source's embeddings. `pooling`
    attention: they are applied to each word, and Bahdanau's decoder attends to the results; its initial state depends
    on their mean. In all three, the order of the source words does not matter.
    """
    # the settings `layers` and `dropout`, from the spec that `cho` has built with them
    layers, dropout = next(find_specs(spec, RecurrentDecoder)).layers, spec.encoder.dropout
    if pooling != "attention":
        return replace(
            spec, encoder=Stack((BagOfWords(layers=layers, pooling=pooling, dropout=dropout),), dropout=dropout)
        )
    spec = replace_everywhere(
        spec,
        RecurrentDecoder,
        context=_attention("additive"),
        attends="before",  # with the previous state as query
        initial_state=FromSummary(MeanState()),
    )
    layer = FeedForward(activation="tanh", dropout=dropout)  # applied to each word
    return replace(spec, encoder=Stack((layer,), depth=layers, dropout=dropout))


@variant_of(sutskever, model_dim=1024)
def gnmt(spec: EncoderDecoder, *, layers: int = 8, dropout: float = 0.2) -> EncoderDecoder:
    """Deep residual LSTMs; the bottom decoder layer computes the attention for all layers (Wu et al. 2016).

    The bottom encoder layer is bidirectional, with half of the dimension per direction. Layers from the third on
    compute x + LSTM(x). The previous output of the bottom decoder layer is the query; the context enters every layer.
    Dropout is applied to the input of every layer. The decoder starts from zeros.
    """

    def stack(bottom: Spec, attention_context: bool) -> Stack:
        """Return `layers` layers: the bottom one, a plain one, then residual ones.

        `attention_context`: layers above the bottom also read its attention over the source.
        """
        layer = Recurrent("lstm", attention_context=attention_context, input_dropout=dropout)
        parts = (bottom, layer, *[Residual(layer)] * (layers - 2))
        return Stack(parts[:layers], dropout=dropout)  # with one layer, only the bottom one

    encoder_bottom = Recurrent("lstm", layers=1, direction="both")
    decoder_bottom = RecurrentDecoder(
        "lstm",
        layers=1,
        context=AttentionContext(Additive()),
        attends="before",  # the query is the state before the step
        feedback="context",  # enters each step besides the previous token
        initial_state=FromZero(),
    )
    return replace(
        spec,
        encoder=stack(encoder_bottom, attention_context=False),
        decoder=stack(decoder_bottom, attention_context=True),
    )


@variant_of(sutskever, model_dim=512)
def moe_2017(
    spec: EncoderDecoder,
    *,
    layers: int = 2,
    experts: int = 32,
    experts_per_token: int = 4,
    ffn_dim: int = 2048,
    cell_dim: int | None = 2048,
    importance_loss_weight: float = 0.01,
    load_loss_weight: float = 0.01,
    dropout: float = 0.2,
) -> EncoderDecoder:
    """GNMT's LSTMs with a mixture of experts above the bottom layer of each stack (Shazeer et al. 2017, §E).

    The bottom encoder layer is bidirectional, with half of the dimension per direction; the paper counts it as two of
    its three. LSTMs have `cell_dim` cells, projected to the dimension of the model. All layers are residual, and the
    mixture has a sigmoid at the end. The gating is the paper's noisy top-k (§2.1), flat with 32 experts; its bilingual
    models use a strictly balanced gating (§F), which fixes the load within a batch.
    """
    mixture = MixtureOfExperts(
        FeedForward(inner_dim=ffn_dim),
        num_experts=experts,
        top_k=experts_per_token,
        gating=NoisyTopKGating(importance_loss_weight=importance_loss_weight, load_loss_weight=load_loss_weight),
        output_activation="sigmoid",
    )

    def stack(bottom: Spec, attention_context: bool) -> Stack:
        """Return the bottom layer, the experts and further layers, all residual.

        `attention_context`: layers above the bottom also read its attention over the source.
        """
        layer = Recurrent("lstm", attention_context=attention_context, cell_dim=cell_dim)
        block = tuple(Residual(part, dropout=dropout) for part in (bottom, mixture, *[layer] * (layers - 1)))
        return Stack(block, dropout=dropout)

    decoder_bottom = RecurrentDecoder(
        "lstm", context=AttentionContext(TanhProduct()), initial_state=FromZero(), cell_dim=cell_dim
    )
    return replace(
        spec,
        encoder=stack(Recurrent("lstm", direction="both", cell_dim=cell_dim), attention_context=False),
        decoder=stack(decoder_bottom, attention_context=True),
    )


@variant_of(sutskever, model_dim=512)
def deep_att(
    spec: EncoderDecoder, *, layers: int = 9, decoder_layers: int | None = None, dropout: float = 0.1
) -> EncoderDecoder:
    """Deep LSTMs with fast-forward connections, two columns of alternating direction, attention (Zhou et al. 2016).

    Embeddings and context have the dimension of the model, 512; the paper's have 256 and 1280.
    """
    encoder = FastForwardEncoder(layers=layers, dropout=dropout)
    decoder = FastForwardDecoder(layers=decoder_layers or layers, context=AttentionContext(Additive()), dropout=dropout)
    return replace(spec, encoder=Stack((encoder,), dropout=dropout), decoder=Stack((decoder,), dropout=dropout))


def hard_monotonic(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 400,
    layers: int = 2,
    decoder_layers: int = 1,
    order: Literal[0, 1] = 0,
    monotonic: bool = True,
    max_jump: int = 5,
    dropout: float = 0.4,
    shared_embeddings: bool = False,
    tied_embeddings: bool = False,
) -> HardAttention:
    """LSTMs with hard monotonic attention, whose alignments are summed out exactly (Wu & Cotterell 2019).

    Each target token comes from one source position, which never moves backward if `monotonic`. `order` 0: the position
    depends on the target so far, as attention does (Wu et al. 2018); `order` 1: it is at most `max_jump` positions
    after the previous one, or before it if not `monotonic`. For transliteration, pronunciation and inflection.
    """
    decoder = RecurrentDecoder(  # it reads only the target so far: `alignment` combines its states with the source
        "lstm",
        layers=decoder_layers,
        context=NoContext(),
        attends="after",  # no effect without a context
        feedback="nothing",  # nothing but the previous token enters a step
        initial_state=FromZero(),
        dropout=dropout,
    )
    return HardAttention(
        dim=model_dim,
        source_vocab_size=vocabulary.source,
        target_vocab_size=vocabulary.target,
        encoder=Stack((Recurrent("lstm", layers=layers, direction="both", dropout=dropout),), dropout=dropout),
        decoder=Stack((decoder,), dropout=dropout),
        shared_embeddings=vocabulary.joint and shared_embeddings,
        tied_embeddings=tied_embeddings,
        alignment=HardAlignment(order=order, monotonic=monotonic, max_jump=max_jump),
    )


RNN_SIZES = model_sizes(
    layers=1, tied_embeddings=True, base={"model_dim": 512, "tied_embeddings": True}, big={"model_dim": 1000}
)

#: SGD; the loss is divided by the number of sentences, and the norm of the gradient is clipped at 5
SGD_TRAINING = PaperTraining("sgd", "halving", clip_norm=5.0, label_smoothing=0.0, loss_normalization="sentences")

#: Adadelta with ρ = 0.95 and ε = 10⁻⁶; the norm of the gradient is clipped at 1; the papers' GRU
ADADELTA_TRAINING = replace(
    SGD_TRAINING,
    optimizer="adadelta",
    schedule="constant",
    learning_rate=1.0,
    clip_norm=1.0,
    dropout=0.0,
    cell="gru-reset-before",
)

RECURRENT_SYSTEMS = {
    "sutskever": System(
        sutskever,
        "Sequence to Sequence Learning with Neural Networks",
        2014,
        RNN_SIZES | {"tiny": RNN_SIZES["tiny"] | {"layers": 2}},
        replace(SGD_TRAINING, learning_rate=0.7, halving_start_epoch=5.0, halving_interval=0.5, dropout=0.0),
        "batches have a number of tokens instead of 128 sentences; weights are initialized as Glorot's instead of "
        "uniform in ±0.08",
        base_learning_rate=1.0,
    ),
    "cho": System(
        cho,
        "Learning Phrase Representations using RNN Encoder–Decoder for Statistical Machine Translation",
        2014,
        RNN_SIZES,
        ADADELTA_TRAINING,
        "batches have a number of tokens instead of 64 phrase pairs; the paper does not mention clipping, 1 is "
        "Bahdanau's",
        base_learning_rate=1.0,
    ),
    "bahdanau": System(
        bahdanau,
        "Neural Machine Translation by Jointly Learning to Align and Translate",
        2015,
        RNN_SIZES,
        ADADELTA_TRAINING,
        "batches have a number of tokens instead of 80 sentences",
        base_learning_rate=1.0,
    ),
    "bow": System(
        bow,
        "A Neural Attention Model for Abstractive Sentence Summarization",
        2015,
        RNN_SIZES,
        ADADELTA_TRAINING,
        "the paper's bag-of-words encoder; the decoder and its training are those of cho in place of the paper's "
        "feed-forward language model",
        base_learning_rate=1.0,
    ),
    "luong": System(
        luong,
        "Effective Approaches to Attention-based Neural Machine Translation",
        2015,
        RNN_SIZES,
        replace(SGD_TRAINING, learning_rate=1.0, halving_start_epoch=8.0, halving_interval=1.0, dropout=0.2),
        "the paper's models with dropout, trained for 12 epochs; those without it start halving after 5 of 10 epochs; "
        "batches have a number of tokens instead of 128 sentences; weights are initialized as Glorot's instead of "
        "uniform in ±0.1",
        base_learning_rate=1.0,
        tuned_settings={"encoder_direction": "both"},
    ),
    "gnmt": System(
        gnmt,
        "Google's Neural Machine Translation System: Bridging the Gap between Human and Machine Translation",
        2016,
        model_sizes(layers=(3, 4), tied_embeddings=True, base=RNN_SIZES["base"], big={}),
        replace(ADAM_TRAINING, learning_rate=2e-4, clip_norm=5.0, loss_normalization="sentences", dropout=0.2),
        "the paper's first 60,000 steps; it continues with SGD at a rate of 0.5, halved from 1.2 million steps on, "
        "which is a second run: --start-from RUN --set training.optimizer=sgd --set training.learning_rate=0.5 --set "
        "training.schedule=halving",
        base_learning_rate=1.0,
    ),
    "deep-att": System(
        deep_att,
        "Deep Recurrent Models with Fast-Forward Connections for Neural Machine Translation",
        2016,
        model_sizes(
            layers=(2, 3),
            decoder_layers=(1, 2),
            tied_embeddings=True,
            base={"layers": 5, "decoder_layers": 3, "tied_embeddings": True},
            big={"decoder_layers": 7},
        ),
        replace(SGD_TRAINING, schedule="plateau", learning_rate=1.0, plateau_factor=0.5, dropout=0.1),
        "the paper's SGD with strong L2 regularization and one rate for each kind of layer is replaced by plain SGD "
        "with Luong's rate and clipping, the rate halved when validation does not improve",
        base_learning_rate=1.0,
    ),
    "moe-2017": System(
        moe_2017,
        "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer",
        2017,
        model_sizes(
            tied_embeddings=True,
            experts=(4, 8),
            experts_per_token=2,
            ffn_dim=(128, 256),
            cell_dim=None,
            base={"experts": 16, "ffn_dim": 1024, "cell_dim": None, "tied_embeddings": True},
            big={},
        ),
        replace(
            ADAM_TRAINING, schedule="inverse-sqrt", learning_rate=2e-4, warmup_steps=2000, hold_steps=8000, dropout=0.4
        ),
        "the paper does not state its rate: 2·10⁻⁴ is GNMT's; it does not mention clipping; batches of 16,000 words on "
        "each of 64 GPUs",
        base_learning_rate=1.0,
    ),
    "hard-monotonic": System(
        hard_monotonic,
        "Exact Hard Monotonic Attention for Character-Level Transduction",
        2019,
        model_sizes(layers=(1, 2), big={"model_dim": 800}),
        replace(ADAM_TRAINING, schedule="plateau", learning_rate=1e-3, plateau_factor=0.5, clip_norm=5.0, dropout=0.4),
        "batches have a number of tokens instead of 20 words; the encoder has half of the dimension in each direction, "
        "the paper's 400 only in size big; embeddings and the layer before the softmax have the dimension of the model "
        "instead of 200 and 1,200",
        base_learning_rate=1.0,
        small_corpus_objective={"rdrop_alpha": 3.0},  # WER 23.8 → 23.2 for 800 words, 17.8 → 17.2 for 8,000
        training_length=0.6,  # it memorizes words early, and R-Drop computes every pair twice
    ),
}
