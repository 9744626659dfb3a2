"""The Transformer and its encoder–decoder variants: Shaw, RoFormer, GShard, T5, BART, speech and vision."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

from dragoman.errors import UserError
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding, Frames, Patches
from dragoman.parts.experts import MixtureOfExperts, SoftmaxGating
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import BatchNorm, LayerNorm, RMSNorm
from dragoman.parts.positions import ALiBi, Concatenated, Learned, NoPosition, RelativeBias, Rotary, Shaw, Sinusoidal
from dragoman.parts.spec import Spec, replace_everywhere
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.systems.encoder_systems import ROBERTA_TRAINING
from dragoman.systems.system import (
    ADAM_TRAINING,
    COPYING_SETTINGS,
    PaperTraining,
    System,
    VocabularySizes,
    model_sizes,
    variant_of,
    with_copying,
)


@with_copying  # adds the settings `copying` and `coverage_loss`
def transformer(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    head_dim: int | None = None,
    value_dim: int | None = None,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    pre_norm: bool = False,
    position_encoding: Literal["sinusoidal", "learned", "rotary", "alibi"] = "sinusoidal",
    max_positions: int = 1024,
    position_dim: int | None = None,
    norm: Literal["layer", "rms", "batch"] = "layer",
    query_key_norm: bool = False,
    self_attention_projections: bool = True,
    gated_ffn: bool = False,
    shared_embeddings: bool = True,
    tied_embeddings: bool = True,
) -> EncoderDecoder:
    """Self-attention and feed-forward layers, sinusoidal positions (Vaswani et al. 2017, table 3).

    The decoder has `layers` layers unless `decoder_layers` is given. `ffn_dim` is the inner dimension of feed-forward
    layers, by default 4 · `model_dim`, or 2/3 of that with `gated_ffn` (SwiGLU, Shazeer 2020), at equal cost.
    Queries and keys of a head have dimension `head_dim` (d_k in the paper), values `value_dim` (d_v).
    `self_attention_projections` false: softmax(x xᵀ) x in place of self-attention with W_Q, W_K, W_V and W_O.
    `pre_norm` moves normalization into the residual branches (Xiong et al. 2020), which trains without a long warm-up.
    `position_encoding`: learned for up to `max_positions` tokens (Gehring et al. 2017), rotary in queries and keys (Su
    et al. 2021), or alibi as a bias of the scores (Press et al. 2022). `position_dim`: positions of this dimension are
    concatenated to the embeddings instead of being added (an error for rotary and alibi). `norm`: LayerNorm, RMSNorm
    (Zhang & Sennrich 2019) or batch normalization (Ioffe & Szegedy 2015). `query_key_norm` normalizes queries and keys
    of every head (Henry et al. 2020).
    """
    norm_spec: Spec = {"layer": LayerNorm(), "rms": RMSNorm(), "batch": BatchNorm()}[norm]
    final_norm = norm_spec if pre_norm else None  # pre-norm leaves the sum of the residual connections unnormalized
    qk_norm = RMSNorm() if query_key_norm else None
    # rotary positions act in each attention layer; the others on the input of a stack, or as one bias of all its layers
    attention_position = Rotary() if position_encoding == "rotary" else NoPosition()
    stack_position: Spec = {
        "sinusoidal": Sinusoidal(),
        "learned": Learned(max_length=max_positions),
        "rotary": NoPosition(),
        "alibi": ALiBi(heads=heads),
    }[position_encoding]
    embedding = Embedding(scaled=True)
    if position_dim is not None:
        if position_encoding not in ("sinusoidal", "learned"):
            raise UserError(
                "system.settings.position_dim concatenates position vectors to the embeddings, but "
                f"{position_encoding} positions act in the attention: set system.settings.position_encoding to "
                "sinusoidal or learned, or leave out position_dim"
            )
        stack_position = Concatenated(stack_position, dim=position_dim)
        embedding = Embedding(scaled=True, width=model_dim - position_dim)

    def residual(body: Spec) -> Spec:
        """Return a residual connection around the layer `body`: with `pre_norm` the norm precedes it, else follows."""
        connection = PreNorm if pre_norm else PostNorm
        return connection(body, norm=norm_spec, dropout=dropout)

    def self_attention(visibility: Spec) -> Spec:
        """Return self-attention in a residual connection; `visibility` is its mask, full or causal."""
        return residual(
            SelfAttention(
                heads=heads,
                head_dim=head_dim,
                visibility=visibility,
                position=attention_position,
                dropout=attention_dropout,
                qk_norm=qk_norm,
                value_dim=value_dim,
                projections=self_attention_projections,
            )
        )

    cross_attention = residual(
        CrossAttention(heads=heads, head_dim=head_dim, dropout=attention_dropout, qk_norm=qk_norm, value_dim=value_dim)
    )
    if gated_ffn:
        inner_dim = ffn_dim or max(64, 64 * round(8 * model_dim / 3 / 64))  # 2/3 of 4D, as a multiple of 64
        feed_forward = residual(
            FeedForward(inner_dim=inner_dim, activation="silu", gated=True, bias=False, dropout=activation_dropout)
        )
    else:
        feed_forward = residual(FeedForward(inner_dim=ffn_dim, dropout=activation_dropout))
    encoder_block = (self_attention(Full()), feed_forward)
    decoder_block = (self_attention(Causal()), cross_attention, feed_forward)
    return EncoderDecoder(
        dim=model_dim,
        source_vocab_size=vocabulary.source,
        target_vocab_size=vocabulary.target,
        encoder=Stack(encoder_block, depth=layers, position=stack_position, dropout=dropout, norm=final_norm),
        decoder=Stack(
            decoder_block, depth=decoder_layers or layers, position=stack_position, dropout=dropout, norm=final_norm
        ),
        embedding=embedding,
        shared_embeddings=vocabulary.joint and shared_embeddings,
        tied_embeddings=tied_embeddings,
        output_bias=False,
    )


@variant_of(transformer, excluded=["position_encoding", "max_positions", "position_dim"])
def shaw(
    spec: EncoderDecoder, *, max_distance: int = 16, relative_values: bool = True, value_dim: int | None = None
) -> EncoderDecoder:
    """Transformer with relative positions in keys and values in place of sinusoids (Shaw et al. 2018).

    Distances are clipped at `max_distance`. `relative_values` false: relative positions enter the keys only. Values of
    a head have dimension `value_dim`, by default that of keys.
    """
    # a table of vectors for keys, and with `values` one for values
    position = Shaw(clip=max_distance, values=relative_values, value_dim=value_dim)
    spec = replace_everywhere(spec, SelfAttention, position=position, value_dim=value_dim)
    spec = replace_everywhere(spec, CrossAttention, value_dim=value_dim)
    return replace_everywhere(spec, Stack, position=NoPosition())  # no sinusoids at the input of the stacks


@variant_of(transformer, excluded=["position_encoding", "max_positions", "position_dim"])
def roformer(spec: EncoderDecoder, *, rope_base: float = 10000.0, rotary_values: bool = False) -> EncoderDecoder:
    """Transformer with rotary positions in place of sinusoids (Su et al. 2021, §4.1).

    Pair i of the E dimensions of a head is rotated by the angle position / rope_base^{2i/E}. `rotary_values` rotates
    the values as well: an option of the published code, not of the paper.
    """
    spec = replace_everywhere(spec, SelfAttention, position=Rotary(base=rope_base), rotary_values=rotary_values)
    return replace_everywhere(spec, Stack, position=NoPosition())  # no sinusoids at the input of the stacks


@variant_of(transformer)
def moe(
    spec: EncoderDecoder,
    *,
    experts: int = 8,
    experts_per_token: int = 2,
    balance_loss_weight: float = 0.01,
    router_noise: float = 0.0,
) -> EncoderDecoder:
    """Transformer with a mixture of experts in every second feed-forward layer (Lepikhin et al. 2020).

    The router sends a token to the `experts_per_token` experts with the highest probability (Shazeer et al. 2017). In
    training, noise of standard deviation `router_noise` is added to its logits, and a loss with the weight
    `balance_loss_weight` distributes tokens evenly. An odd number of layers is a UserError.
    The paper's expert capacity and its random skipping of the second expert are left out: no token is dropped.
    """

    def with_experts(stack: Stack) -> Stack:
        """Return the stack with two layers per block; in the second, experts replace the feed-forward layer.

        An odd number of layers is a UserError.
        """
        if stack.depth % 2:
            raise UserError(
                f"the system moe has experts in every second layer, but system.settings.layers={stack.depth} is odd: "
                "set an even number"
            )
        *attention, feed_forward = stack.block  # the parts of one layer: self-attention, cross-attention if any, FFN
        residual = cast(PostNorm | PreNorm, feed_forward)
        expert = cast(FeedForward, residual.body)
        gating = SoftmaxGating(balance_loss_weight=balance_loss_weight, router_noise=router_noise)
        mixture = MixtureOfExperts(expert, num_experts=experts, top_k=experts_per_token, gating=gating)
        block = (*stack.block, *attention, replace(residual, body=mixture))
        return replace(stack, block=block, depth=stack.depth // 2)

    return replace(spec, encoder=with_experts(spec.encoder), decoder=with_experts(spec.decoder))


@variant_of(
    transformer,
    excluded=["position_encoding", "norm", "query_key_norm", "gated_ffn"],
    model_dim=768,
    heads=12,
    position_encoding="learned",
)
def bart(spec: EncoderDecoder) -> EncoderDecoder:
    """Transformer with GELU, learned positions and normalized embeddings (Lewis et al. 2020, §2.1).

    `pre_norm` moves normalization into the residual branches, as in mBART (Liu et al. 2020).
    """
    spec = replace_everywhere(spec, FeedForward, activation="gelu")
    spec = replace_everywhere(spec, Stack, input_norm=LayerNorm())
    embedding = replace(spec.embedding, scaled=False)  # not multiplied by √D
    return replace(spec, embedding=embedding, output_bias=True, initialization=Normal(std=0.02))


@with_copying  # adds the settings `copying` and `coverage_loss`
def t5(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 12,
    decoder_layers: int | None = None,
    heads: int = 12,
    ffn_dim: int | None = None,
    position_buckets: int = 32,
    max_distance: int = 128,
    gated_ffn: bool = False,
    sentinels: int | None = 100,
    dropout: float = 0.1,
    shared_embeddings: bool = True,
    tied_embeddings: bool = True,
) -> EncoderDecoder:
    """Transformer with relative position biases, RMSNorm in the branches and no biases (Raffel et al. 2020).

    Each stack has one table of biases for `position_buckets` buckets of distances up to `max_distance`. Version 1.1
    uses `gated_ffn` (gated GELU in place of ReLU) and an untied output. `sentinels` tokens after the vocabulary stand
    for the spans that are removed from a text (§3.1.4). The paper initializes queries smaller by 1/√E (E: width of a
    head) and embeddings larger by √D (D: `model_dim`) with rescaled logits; here scores and embeddings are scaled
    instead: the same functions, which train better with Adam than weights of such different magnitudes.
    """
    norm, extra_tokens = RMSNorm(), sentinels or 0

    def residual(body: Spec) -> Spec:
        """Return a residual connection around the layer `body`, with the norm before it."""
        return PreNorm(body, norm=norm, dropout=dropout)

    def bias(bidirectional: bool) -> Spec:
        """Return the table of position biases that all layers of a stack share; a decoder's is not `bidirectional`."""
        return RelativeBias(
            heads=heads, buckets=position_buckets, max_distance=max_distance, bidirectional=bidirectional
        )

    encoder_attention = residual(SelfAttention(heads=heads, visibility=Full(), bias=False, dropout=dropout))
    decoder_attention = residual(SelfAttention(heads=heads, visibility=Causal(), bias=False, dropout=dropout))
    cross_attention = residual(CrossAttention(heads=heads, bias=False, dropout=dropout))
    activation: Literal["gelu-tanh", "relu"] = "gelu-tanh" if gated_ffn else "relu"
    feed_forward = residual(
        FeedForward(inner_dim=ffn_dim, activation=activation, gated=gated_ffn, bias=False, dropout=dropout)
    )
    decoder_block = (decoder_attention, cross_attention, feed_forward)
    return EncoderDecoder(
        dim=model_dim,
        source_vocab_size=vocabulary.source + extra_tokens,
        target_vocab_size=vocabulary.target + extra_tokens,
        encoder=Stack(
            (encoder_attention, feed_forward),
            depth=layers,
            position=bias(bidirectional=True),
            dropout=dropout,
            norm=norm,
        ),
        decoder=Stack(
            decoder_block,
            depth=decoder_layers or layers,
            position=bias(bidirectional=False),
            dropout=dropout,
            norm=norm,
        ),
        embedding=Embedding(scaled=True),
        shared_embeddings=vocabulary.joint and shared_embeddings,
        tied_embeddings=tied_embeddings,
        output_bias=False,
    )


@variant_of(
    transformer,
    excluded=["pre_norm", "position_encoding", "max_positions", "position_dim", "shared_embeddings", *COPYING_SETTINGS],
    model_dim=256,
    heads=4,
    pre_norm=True,
)
def speech(
    spec: EncoderDecoder, *, feature_dim: int = 80, stride: int = 4, full_rate_convolution: bool = False
) -> EncoderDecoder:
    """Transformer that reads acoustic frames through strided convolutions and writes text (Dong et al. 2018, §3).

    A frame has `feature_dim` numbers, such as the energies of a filter bank; the convolutions reduce the number of
    frames by `stride`. The paper's attention over time and frequency is left out. With `full_rate_convolution` and
    `stride` 2, the convolutions are those of Whisper (Radford et al. 2023): one that keeps the number of frames comes
    first, with GELU and without a final projection.
    """
    frames = Frames(features=feature_dim, stride=stride)
    if full_rate_convolution:
        frames = replace(frames, activation="gelu", full_rate_layer=True, projection=False)
    return replace(spec, source_vocab_size=0, shared_embeddings=False, input=frames)  # the source has no tokens


@variant_of(
    transformer,
    excluded=["pre_norm", "position_encoding", "position_dim", "shared_embeddings", *COPYING_SETTINGS],
    model_dim=768,
    layers=12,
    heads=12,
    pre_norm=True,
)
def vision(spec: EncoderDecoder, *, feature_dim: int = 768, max_positions: int = 1024) -> EncoderDecoder:
    """Transformer that reads the patches of an image and writes text (Dosovitskiy et al. 2021, table 1).

    A patch has `feature_dim` numbers: 16 × 16 pixels of three colors in the paper. Up to `max_positions` patches have
    learned positions. The paper classifies images; here a Transformer decoder writes text.
    """
    encoder = replace(spec.encoder, position=Learned(max_length=max_positions))
    spec = replace(  # the source has no tokens
        spec, source_vocab_size=0, shared_embeddings=False, encoder=encoder, input=Patches(features=feature_dim)
    )
    return replace_everywhere(spec, FeedForward, activation="gelu")


#: Adam with warm-up and inverse square root decay (Vaswani et al. 2017, §5.3 and §5.4)
TRANSFORMER_TRAINING = PaperTraining(
    "adam", "inverse-sqrt", warmup_steps=4000, label_smoothing=0.1, beta1=0.9, beta2=0.98, epsilon=1e-9, noam_factor=1.0
)

#: Adafactor at 1/√max(step, 10,000): a constant rate of 0.01, then the inverse square root
ADAFACTOR_TRAINING = PaperTraining(
    "adafactor", "inverse-sqrt", learning_rate=0.01, warmup_steps=10_000, warmup_start_factor=1.0
)

TRANSFORMER_SIZES = model_sizes(layers=(2, 3), heads=4, big={"model_dim": 1024, "heads": 16, "dropout": 0.3})

PRETRAINED_SIZES = TRANSFORMER_SIZES | {"big": {"model_dim": 1024, "layers": 24, "heads": 16}}

TRANSFORMER_SYSTEMS = {
    "transformer": System(
        transformer,
        "Attention Is All You Need",
        2017,
        TRANSFORMER_SIZES,
        TRANSFORMER_TRAINING,
        tuned_settings={"pre_norm": True},
        modern_settings={"norm": "rms", "position_encoding": "rotary", "query_key_norm": True, "gated_ffn": True},
    ),
    "shaw": System(
        shaw,
        "Self-Attention with Relative Position Representations",
        2018,
        TRANSFORMER_SIZES | {"big": TRANSFORMER_SIZES["big"] | {"max_distance": 8}},
        TRANSFORMER_TRAINING,
        tuned_settings={"pre_norm": True},
    ),
    "roformer": System(
        roformer,
        "RoFormer: Enhanced Transformer with Rotary Position Embedding",
        2021,
        TRANSFORMER_SIZES,
        replace(TRANSFORMER_TRAINING, learning_rate=5e-4, noam_factor=None),
        "the paper does not state the length of its warm-up: 4,000 steps are the Transformer's",
        tuned_settings={"pre_norm": True},
    ),
    "moe": System(
        moe,
        "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding",
        2020,
        model_sizes(
            layers=(2, 4),
            heads=4,
            ffn_dim=(256, 512),
            experts=4,
            big={"model_dim": 1024, "layers": 12, "heads": 16, "ffn_dim": 8192, "experts": 128},
        ),
        replace(ADAFACTOR_TRAINING, label_smoothing=0.1, dropout=0.1),
        "second moments decay as in T5, without the paper's upper bound of 0.99",
        tuned_settings={"pre_norm": True},
    ),
    "t5": System(
        t5,
        "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        2020,
        PRETRAINED_SIZES,
        replace(ADAFACTOR_TRAINING, label_smoothing=0.0, dropout=0.1),
        "the paper's pretraining (§3.1.2), also for pairs; it fine-tunes with a constant rate of 0.001",
        default_objectives={"text": ("span-corruption", {})},
    ),
    "bart": System(
        bart,
        "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation, Translation, and "
        "Comprehension",
        2020,
        PRETRAINED_SIZES | {"big": PRETRAINED_SIZES["big"] | {"layers": 12}},
        ROBERTA_TRAINING,
        "the paper refers to RoBERTa for its pretraining, whose values these are; dropout stays on in the last tenth "
        "of the steps",
        default_objectives={"text": ("denoising", {})},
        tuned_settings={"pre_norm": True},
    ),
    "speech": System(
        speech,
        "Speech-Transformer: A No-Recurrence Sequence-to-Sequence Model for Speech Recognition",
        2018,
        model_sizes(layers=(2, 3), big={"layers": 12, "decoder_layers": 6, "ffn_dim": 2048}),
        replace(TRANSFORMER_TRAINING, warmup_steps=25_000, noam_factor=10.0, dropout=0.1),
        "the paper lowers the factor of 10 to 1 when the model has converged",
        default_recipe="plain",
    ),
    "vision": System(
        vision,
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        2021,
        PRETRAINED_SIZES,
        replace(
            ADAM_TRAINING,
            optimizer="adamw",
            schedule="linear",
            learning_rate=8e-4,
            warmup_steps=10_000,
            clip_norm=1.0,
            weight_decay=0.1,
            dropout=0.0,
            learning_rates={"big": 6e-4},
            total_steps=518_000,
        ),
        "the paper's pretraining of a classifier (§4.1, table 3); the decoder is ours",
        default_recipe="plain",
    ),
}
