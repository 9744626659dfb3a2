"""Decoder-only systems: language models, which read source and target of a pair as one sequence."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import cast

from dragoman.errors import UserError
from dragoman.models import DecoderOnly, MaskedDecoder
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, Transform
from dragoman.parts.experts import MixtureOfExperts, NoisyTopKGating
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.long_attention import CompressedAttention, LocalAttention
from dragoman.parts.norm import LayerNorm, RMSNorm
from dragoman.parts.positions import Learned, Rotary, Sinusoidal
from dragoman.parts.recurrence import CellKind, Recurrent
from dragoman.parts.spec import replace_everywhere
from dragoman.parts.stack import Parallel, PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Prefix, Window
from dragoman.systems.encoder_systems import BERT_SIZES, BERT_TRAINING
from dragoman.systems.system import ADAM_TRAINING, PaperTraining, System, VocabularySizes, model_sizes, variant_of
from dragoman.systems.transformer_systems import ADAFACTOR_TRAINING, TRANSFORMER_TRAINING


def rnn_lm(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 1,
    cell: CellKind = "lstm",
    dropout: float = 0.2,
    tied_embeddings: bool = True,
) -> DecoderOnly:
    """Recurrent language model: simple RNN, LSTM or GRU (Mikolov et al. 2010).

    It reads source, separator and target of a pair as one sequence: the simplest translation model.
    """
    stack = Stack((Recurrent(cell, layers=layers, direction="forward", dropout=dropout),), dropout=dropout)
    return DecoderOnly(
        dim=model_dim, vocab_size=vocabulary.target, decoder=stack, tied_embeddings=tied_embeddings, output_bias=True
    )


def transformer_d(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 6,
    heads: int = 8,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    tied_embeddings: bool = True,
) -> DecoderOnly:
    """The Transformer's decoder, which reads source and target as one sequence (Liu et al. 2018, §4.2.3).

    `ffn_dim` is 4 · `model_dim` by default.
    """
    block = (
        PostNorm(SelfAttention(heads=heads, visibility=Causal()), dropout=dropout),
        PostNorm(FeedForward(inner_dim=ffn_dim), dropout=dropout),
    )
    stack = Stack(block, depth=layers, position=Sinusoidal(), dropout=dropout)
    return DecoderOnly(
        dim=model_dim,
        vocab_size=vocabulary.target,
        decoder=stack,
        embedding=Embedding(scaled=True),
        tied_embeddings=tied_embeddings,
    )


@variant_of(transformer_d, layers=5)
def transformer_dmca(spec: DecoderOnly, *, block_size: int = 256, kernel_size: int = 3, stride: int = 3) -> DecoderOnly:
    """Decoder for long inputs: local and memory-compressed attention in alternating layers (Liu et al. 2018, §4.2.4).

    Local layers, the first one included, attend within blocks of `block_size` tokens; the others attend to all previous
    tokens through keys and values that a convolution of `kernel_size` tokens and stride `stride` compresses.
    """
    attention, feed_forward = spec.decoder.block
    residual = cast(PostNorm, attention)
    heads = cast(SelfAttention, residual.body).heads
    attentions = (
        LocalAttention(heads=heads, block_size=block_size),
        CompressedAttention(heads=heads, kernel=kernel_size, stride=stride),
    )
    block = [  # the parts of all layers: as these differ, one block takes the place of `depth` equal ones
        part
        for layer in range(spec.decoder.depth)
        for part in (replace(residual, body=attentions[layer % 2]), feed_forward)
    ]
    return replace(spec, decoder=replace(spec.decoder, block=tuple(block), depth=1))


@variant_of(transformer_dmca)
def transformer_dmca_moe(
    spec: DecoderOnly,
    *,
    experts: int = 128,
    experts_per_token: int = 2,
    importance_loss_weight: float = 0.01,
    load_loss_weight: float = 0.01,
) -> DecoderOnly:
    """Transformer-DMCA with one mixture-of-experts layer (Liu et al. 2018, table 4: 128 and 256 experts).

    The mixture replaces the feed-forward layer in the middle of the stack. The paper states neither the place nor
    `experts_per_token`: both are the defaults of the authors' library, and the gating is Shazeer et al.'s (2017).
    """
    block = list(spec.decoder.block)
    # the block alternates attention and feed-forward layers: odd indices are feed-forward
    middle = len(block) // 4 * 2 + 1
    residual = cast(PostNorm, block[middle])
    gating = NoisyTopKGating(importance_loss_weight=importance_loss_weight, load_loss_weight=load_loss_weight)
    expert = cast(FeedForward, residual.body)
    mixture = MixtureOfExperts(expert, num_experts=experts, top_k=experts_per_token, gating=gating)
    block[middle] = replace(residual, body=mixture)
    return replace(spec, decoder=replace(spec.decoder, block=tuple(block)))


def gpt(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    max_positions: int = 1024,
    tied_embeddings: bool = True,
) -> DecoderOnly:
    """GPT-2: decoder-only Transformer with pre-norm, learned positions and GELU (Radford et al. 2019).

    `max_positions` is the maximum length in tokens; `ffn_dim` is 4 · `model_dim` by default.
    """
    block = (
        PreNorm(SelfAttention(heads=heads, visibility=Causal(), dropout=attention_dropout), dropout=dropout),
        PreNorm(FeedForward(inner_dim=ffn_dim, activation="gelu-tanh"), dropout=dropout),
    )
    stack = Stack(block, depth=layers, position=Learned(max_length=max_positions), dropout=dropout, norm=LayerNorm())
    return DecoderOnly(
        dim=model_dim,
        vocab_size=vocabulary.target,
        decoder=stack,
        tied_embeddings=tied_embeddings,
        initialization=Normal(std=0.02),
    )


@variant_of(gpt, model_dim=2048, layers=24, heads=16, max_positions=2048)
def chat(spec: DecoderOnly) -> DecoderOnly:
    """GPT's decoder, tuned on instructions and dialogues with the loss on the replies only (Ouyang et al. 2022).

    The model is that of `gpt`; only its training differs.
    """
    return spec


@variant_of(gpt, max_positions=2048)
def gpt3(spec: DecoderOnly, *, attention_window: int = 256) -> DecoderOnly:
    """GPT-2 with full and windowed attention in alternating layers (Brown et al. 2020, §2.1).

    The paper does not state the window; `attention_window` counts the current token. The second of each two layers is
    windowed, so that an odd number of layers is a UserError.
    """
    stack = spec.decoder
    if stack.depth % 2:
        raise UserError(
            "the system gpt3 alternates layers with full and windowed attention, but "
            f"system.settings.layers={stack.depth} is odd: set an even number"
        )
    attention, feed_forward = stack.block
    # equal but for the mask, which shows the last tokens only
    windowed = replace_everywhere(attention, SelfAttention, visibility=Window(size=attention_window))
    block = (attention, feed_forward, windowed, feed_forward)
    return replace(spec, decoder=replace(stack, block=block, depth=stack.depth // 2))


@variant_of(gpt, max_positions=512)
def unilm(spec: DecoderOnly) -> DecoderOnly:
    """BERT's stack with a prefix mask: bidirectional over the source, causal over the target (Dong et al. 2019).

    The paper's segment embeddings, which also distinguish its three masks, are left out.
    """
    attention, feed_forward = (cast(PreNorm, part) for part in spec.decoder.block)
    # BERT's parts replace GPT-2's causal mask, tanh approximation of GELU, pre-norm, and norm at the end of the stack
    attention = replace_everywhere(attention, SelfAttention, visibility=Prefix())
    feed_forward = replace_everywhere(feed_forward, FeedForward, activation="gelu")
    block = tuple(PostNorm(part.body, norm=part.norm, dropout=part.dropout) for part in (attention, feed_forward))
    decoder = replace(spec.decoder, block=block, norm=None, input_norm=LayerNorm())
    return replace(spec, decoder=decoder, output_bias=True, transform=Transform(activation="gelu", norm=LayerNorm()))


@variant_of(unilm)
def unilm_masked(spec: DecoderOnly) -> MaskedDecoder:
    """UniLM as published: masked tokens are predicted under four masks, and text is generated mask by mask.

    Segment embeddings distinguish the masks. Trained on pairs, target tokens are masked; in decoding, a mask is
    appended and then replaced by the predicted token (Dong et al. 2019, §2.3 and 2.5).
    """
    # a MaskedDecoder has the hyper-parameters of the DecoderOnly
    return MaskedDecoder(**{field.name: getattr(spec, field.name) for field in fields(spec)})


def palm(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 4096,
    layers: int = 32,
    heads: int = 16,
    head_dim: int | None = None,
    ffn_dim: int | None = None,
    rope_base: float = 10000.0,
    dropout: float = 0.0,
    tied_embeddings: bool = True,
) -> DecoderOnly:
    """Parallel attention and SwiGLU, multi-query attention, rotary positions, no biases (Chowdhery et al. 2022, §2).

    Embeddings have standard deviation 1/√D and are scaled by √D at the input, which equals the paper's unit
    embeddings with logits scaled by 1/√D.
    """
    attention = SelfAttention(
        heads=heads, kv_heads=1, head_dim=head_dim, visibility=Causal(), position=Rotary(base=rope_base), bias=False
    )
    feed_forward = FeedForward(inner_dim=ffn_dim, activation="silu", gated=True, bias=False)
    block = (Parallel((attention, feed_forward), norm=LayerNorm(bias=False), dropout=dropout),)
    stack = Stack(block, depth=layers, dropout=dropout, norm=LayerNorm(bias=False))
    return DecoderOnly(
        dim=model_dim,
        vocab_size=vocabulary.target,
        decoder=stack,
        embedding=Embedding(scaled=True),
        tied_embeddings=tied_embeddings,
    )


def llama(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 4096,
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    ffn_dim: int | None = None,
    rope_base: float = 10000.0,
    norm_eps: float = 1e-5,
    dropout: float = 0.0,
    tied_embeddings: bool = False,
    attention_window: int | None = None,
    query_key_value_bias: bool = False,
) -> DecoderOnly:
    """RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases (Touvron et al. 2023).

    `kv_heads` fewer than `heads` as in the largest LLaMA 2. `ffn_dim` defaults to 2/3 · 4D, rounded up to a multiple
    of min(256, D/16). With an `attention_window` it is Mistral (Jiang et al. 2023), with `query_key_value_bias` Qwen2
    (Yang et al. 2024).
    """
    multiple = max(1, min(256, model_dim // 16))
    default_dim = 8 * model_dim // 3
    inner_dim = ffn_dim or default_dim + -default_dim % multiple  # rounded up to a multiple
    norm = RMSNorm(epsilon=norm_eps)
    attention = SelfAttention(
        heads=heads,
        kv_heads=kv_heads,
        visibility=Causal() if attention_window is None else Window(size=attention_window),
        position=Rotary(base=rope_base),
        bias=query_key_value_bias,
        output_bias=False if query_key_value_bias else None,  # None: as `bias`, which is False
    )
    feed_forward = FeedForward(inner_dim=inner_dim, activation="silu", gated=True, bias=False)
    block = tuple(PreNorm(part, norm=norm, dropout=dropout) for part in (attention, feed_forward))
    stack = Stack(block, depth=layers, dropout=dropout, norm=norm)
    return DecoderOnly(
        dim=model_dim,
        vocab_size=vocabulary.target,
        decoder=stack,
        tied_embeddings=tied_embeddings,
        initialization=Normal(std=0.02),
    )


#: AdamW with a cosine that ends at a tenth of the peak (Brown et al. 2020, §B; Touvron et al. 2023, §2.3)
LLM_TRAINING = replace(
    ADAM_TRAINING,
    optimizer="adamw",
    schedule="cosine",
    final_rate_factor=0.1,
    clip_norm=1.0,
    beta1=0.9,
    beta2=0.95,
    weight_decay=0.1,
)

DECODER_SYSTEMS = {
    "rnn-lm": System(
        rnn_lm,
        "Recurrent neural network based language model",
        2010,
        model_sizes(big={"model_dim": 1024, "layers": 2}),
        PaperTraining(
            "sgd", "plateau", learning_rate=0.1, label_smoothing=0.0, plateau_factor=0.5, cell="rnn", dropout=0.0
        ),
        "the paper updates the weights after every word instead of every batch, and ends when halving the rate no "
        "longer helps; its units are sigmoid instead of tanh",
        base_learning_rate=1.0,
        default_objectives={"pairs": ("concatenation", {})},
    ),
    "transformer-d": System(
        transformer_d,
        "Generating Wikipedia by Summarizing Long Sequences",
        2018,
        model_sizes(layers=(3, 4), heads=4, big={"model_dim": 1024, "heads": 16}),
        TRANSFORMER_TRAINING,
        default_objectives={"pairs": ("concatenation", {})},
    ),
    "transformer-dmca": System(
        transformer_dmca,
        "Generating Wikipedia by Summarizing Long Sequences",
        2018,
        model_sizes(layers=(3, 4), heads=4, big={"model_dim": 1024, "heads": 16}),
        TRANSFORMER_TRAINING,
        default_objectives={"pairs": ("concatenation", {})},
    ),
    "transformer-dmca-moe": System(
        transformer_dmca_moe,
        "Generating Wikipedia by Summarizing Long Sequences",
        2018,
        model_sizes(layers=(3, 4), heads=4, experts=(8, 16), big={"model_dim": 1024, "heads": 16}),
        TRANSFORMER_TRAINING,
        default_objectives={"pairs": ("concatenation", {})},
    ),
    "gpt": System(
        gpt,
        "Language Models are Unsupervised Multitask Learners",
        2019,
        model_sizes(layers=(3, 4), heads=4, big={"model_dim": 1600, "layers": 48, "heads": 25}),
        replace(
            ADAM_TRAINING,
            optimizer="adamw",
            schedule="cosine",
            learning_rate=2.5e-4,
            warmup_steps=2000,
            clip_norm=1.0,
            weight_decay=0.01,
            dropout=0.1,
            tokenizer="byte-bpe",
        ),
        "the paper describes only the tokenizer (§2.2) of its training: the others are the values of its predecessor "
        "(Radford et al. 2018, §4.1), whose warm-up of 2,000 steps does not depend on the length of the training",
    ),
    "chat": System(
        chat,
        "Training language models to follow instructions with human feedback",
        2022,
        model_sizes(layers=(3, 4), heads=4, big={"model_dim": 12288, "layers": 96, "heads": 96}),
        replace(
            LLM_TRAINING,
            learning_rate=9.65e-6,
            beta1=None,
            weight_decay=0.0,
            dropout=0.2,
            learning_rates={"big": 5.03e-6},
        ),
        "the paper's supervised fine-tuning (§C.1), which starts from a pretrained model: with --start-from; the "
        "reward model and reinforcement learning are left out",
    ),
    "gpt3": System(
        gpt3,
        "Language Models are Few-Shot Learners",
        2020,
        model_sizes(layers=4, heads=4, attention_window=(32, 64), big={"model_dim": 12288, "layers": 96, "heads": 96}),
        replace(
            LLM_TRAINING,
            learning_rate=6e-4,
            warmup_steps=750,
            learning_rates={"big": 6e-5},
            total_steps=520_000,
            tokenizer="byte-bpe",
        ),
        "the paper counts tokens: 375 million of warm-up and 260 billion until the rate is a tenth, here in batches of "
        "half a million; it continues at that rate for 40 billion; it does not mention dropout",
    ),
    "unilm": System(
        unilm,
        "Unified Language Model Pre-training for Natural Language Understanding and Generation",
        2019,
        BERT_SIZES,
        replace(BERT_TRAINING, learning_rate=3e-5, warmup_steps=40_000, beta1=None, total_steps=770_000),
        "the paper starts from the weights of BERT; it does not mention clipping",
        default_objectives={"text": ("unified-lm", {})},
    ),
    "unilm-masked": System(
        unilm_masked,
        "Unified Language Model Pre-training for Natural Language Understanding and Generation",
        2019,
        BERT_SIZES,
        replace(BERT_TRAINING, learning_rate=3e-5, warmup_steps=40_000, beta1=None, total_steps=770_000),
        "the paper starts from the weights of BERT; it does not mention clipping; left out: next-sentence prediction",
        base_learning_rate=0.1,
        default_objectives={"text": ("unified-masked-lm", {}), "pairs": ("masked-target", {})},
        default_recipe="plain",
    ),
    "palm": System(
        palm,
        "PaLM: Scaling Language Modeling with Pathways",
        2022,
        model_sizes(
            layers=(3, 4), heads=4, dropout=0.1, big={"model_dim": 18432, "layers": 118, "heads": 48, "head_dim": 256}
        ),
        replace(ADAFACTOR_TRAINING, momentum=0.9, clip_norm=1.0, label_smoothing=0.0, dropout=0.0),
        "second moments are factored into rows and columns, the paper's are not; left out: weight decay by the square "
        "of the rate, the auxiliary loss on log Z, and batches that grow",
    ),
    "llama": System(
        llama,
        "LLaMA: Open and Efficient Foundation Language Models",
        2023,
        model_sizes(
            layers=(3, 4),
            heads=4,
            kv_heads=2,
            dropout=0.1,
            big={"model_dim": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "ffn_dim": 28672},
        ),
        replace(
            LLM_TRAINING,
            learning_rate=3e-4,
            warmup_steps=2000,
            dropout=0.0,
            learning_rates={"big": 1.5e-4},
            total_steps=250_000,
        ),
    ),
}
