"""Encoder-only systems: BERT, RoBERTa, ELECTRA and a tagger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dragoman.models import EncoderOnly, ReplacedTokens
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, Transform
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, Sinusoidal
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Full
from dragoman.systems.system import PaperTraining, System, VocabularySizes, model_sizes, variant_of

BERT_NORM = LayerNorm(epsilon=1e-12)


def bert(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    ffn_dim: int | None = None,
    embedding_dim: int | None = None,
    token_types: int = 2,
    max_positions: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    tied_embeddings: bool = True,
) -> EncoderOnly:
    """Transformer encoder that predicts masked tokens and whether two sentences are adjacent (Devlin et al. 2019).

    Learned positions for up to `max_positions` tokens, an embedding for each of `token_types` segments, GELU, and a
    dense layer with a norm before the output. `embedding_dim`: dimension of the token embeddings if it differs from
    `model_dim` (Lan et al. 2020).
    """
    projected_dim = None if embedding_dim == model_dim else embedding_dim  # None: no projection to `model_dim`
    block = (
        PostNorm(
            SelfAttention(heads=heads, visibility=Full(), dropout=attention_dropout), norm=BERT_NORM, dropout=dropout
        ),
        PostNorm(FeedForward(inner_dim=ffn_dim, activation="gelu"), norm=BERT_NORM, dropout=dropout),
    )
    return EncoderOnly(
        dim=model_dim,
        vocab_size=vocabulary.source,
        encoder=Stack(
            block,
            depth=layers,
            position=Learned(max_length=max_positions),
            dropout=dropout,
            input_norm=BERT_NORM,
            input_dim=projected_dim,
        ),
        embedding=Embedding(width=projected_dim),
        token_types=token_types,
        tied_embeddings=tied_embeddings,
        transform=Transform(activation="gelu", norm=BERT_NORM),
        pooled_labels=2,  # the second sentence is the next one, or a random one
        initialization=Normal(std=0.02),
    )


@variant_of(bert, excluded=["embedding_dim", "token_types"])
def roberta(spec: EncoderOnly) -> EncoderOnly:
    """BERT without next-sentence prediction, with new masks in every epoch (Liu et al. 2019).

    Here, the model loses segment embeddings and the classifier of sentence pairs; the objective draws the masks.
    """
    return replace(spec, token_types=0, pooled_labels=0)


def electra(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    ffn_dim: int | None = None,
    embedding_dim: int | None = None,
    generator_divisor: int = 3,
    max_positions: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    shared_embeddings: bool = True,
) -> ReplacedTokens:
    """A small generator replaces tokens, the encoder detects the replaced ones (Clark et al. 2020).

    The generator has the same number of layers; its heads and dimensions are divided by `generator_divisor`. Both
    models have embeddings of tokens and positions of dimension `embedding_dim`, by default `model_dim`, and share them
    if `shared_embeddings` (§3.2, table 6).
    """

    def encoder(dim: int, heads: int, ffn_dim: int | None) -> EncoderOnly:
        """Return the spec of generator or discriminator: BERT of dimension `dim` without next-sentence prediction."""
        settings: dict[str, Any] = {"model_dim": dim, "layers": layers, "heads": heads, "ffn_dim": ffn_dim}
        # both models have embeddings of the same dimension, so that they can share them
        settings |= {"embedding_dim": embedding_dim or model_dim, "max_positions": max_positions}
        settings |= {"dropout": dropout, "attention_dropout": attention_dropout}
        return replace(bert(vocabulary, **settings), pooled_labels=0)  # of a pair of sentences

    generator_heads = max(1, heads // generator_divisor)
    generator_ffn_dim = None if ffn_dim is None else max(1, ffn_dim // generator_divisor)  # None: 4 · generator_dim
    generator_dim = model_dim // heads * generator_heads  # its heads have the same dimension as the discriminator's
    generator = encoder(dim=generator_dim, heads=generator_heads, ffn_dim=generator_ffn_dim)
    discriminator = encoder(dim=model_dim, heads=heads, ffn_dim=ffn_dim)
    # one logit for every token: whether it was replaced
    discriminator = replace(discriminator, num_labels=1, tied_embeddings=False, transform=Transform("gelu"))
    return ReplacedTokens(generator, discriminator, shared_embeddings=shared_embeddings)


def tagger(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 6,
    heads: int = 8,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
) -> EncoderOnly:
    """Transformer encoder with one label for every word (Devlin et al. 2019, §3.2, without the pretraining).

    Training on tags replaces the output layer (`EncoderOnly.with_labels`); training on text alone, by masked language
    modeling, keeps the one built here, which predicts tokens.
    """
    block = (
        PreNorm(SelfAttention(heads=heads, visibility=Full(), dropout=attention_dropout), dropout=dropout),
        PreNorm(FeedForward(inner_dim=ffn_dim, activation="gelu"), dropout=dropout),
    )
    stack = Stack(block, depth=layers, position=Sinusoidal(), dropout=dropout, norm=LayerNorm())
    return EncoderOnly(
        dim=model_dim,
        vocab_size=vocabulary.source,
        encoder=stack,
        embedding=Embedding(scaled=True),
        tied_embeddings=False,
    )


@variant_of(tagger)
def classifier(spec: EncoderOnly) -> EncoderOnly:
    """Transformer encoder with one label for a whole text (Devlin et al. 2019, §4.1, without the pretraining).

    The encoder is that of `tagger`. Training on labels replaces the output layer: W tanh(W' h_1), h_1 being the state
    of the first token.
    """
    return spec


#: Adam with decoupled weight decay, warm-up and linear decay over a million steps (Devlin et al. 2019, §A.2)
BERT_TRAINING = PaperTraining(
    "adamw",
    "linear",
    learning_rate=1e-4,
    warmup_steps=10_000,
    clip_norm=1.0,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-6,
    weight_decay=0.01,
    dropout=0.1,
    total_steps=1_000_000,
)

#: Liu et al. 2019, table 9, and §4.4 for the tokenizer
ROBERTA_TRAINING = replace(
    BERT_TRAINING,
    learning_rate=6e-4,
    warmup_steps=24_000,
    clip_norm=0.0,
    beta2=0.98,
    learning_rates={"big": 4e-4},
    total_steps=500_000,
    tokenizer="byte-bpe",
)

BERT_SIZES = model_sizes(layers=(3, 4), heads=4, big={"model_dim": 1024, "layers": 24, "heads": 16})

ENCODER_SYSTEMS = {
    "bert": System(
        bert,
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019,
        BERT_SIZES,
        BERT_TRAINING,
        "the paper does not mention the clipping at 1, which its published code has",
        default_objectives={"text": ("masked-lm", {"mask_copies": 10, "next_sentence": True})},
        default_recipe="plain",
    ),
    "roberta": System(
        roberta,
        "RoBERTa: A Robustly Optimized BERT Pretraining Approach",
        2019,
        BERT_SIZES,
        ROBERTA_TRAINING,
        "the largest model has a warm-up of 30,000 steps in the paper",
        default_recipe="plain",
    ),
    "electra": System(
        electra,
        "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
        2020,
        model_sizes(
            layers=(3, 12),
            heads=4,
            embedding_dim=(64, 128),
            generator_divisor=(2, 4),
            big={"model_dim": 1024, "layers": 24, "heads": 16, "generator_divisor": 4},
        ),
        replace(BERT_TRAINING, learning_rate=2e-4, learning_rates={"tiny": 5e-4, "small": 5e-4}),
        "the paper trains its base model for 766,000 and its largest for 400,000 steps with the same warm-up; the "
        "clipping at 1 is that of its published code",
        default_objectives={"text": ("replaced-token-detection", {})},
        objective_settings={"big": {"mask_rate": 0.25}},
        default_recipe="plain",
    ),
    "tagger": System(
        tagger,
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019,
        model_sizes(layers=(2, 3), heads=4, big={"model_dim": 1024, "heads": 16}),
        replace(BERT_TRAINING, learning_rate=5e-5, warmup_steps=100, label_smoothing=0.0, total_steps=1000),
        "the paper's fine-tuning (§A.3), which starts from a pretrained encoder: its rates are 2e-5 to 5e-5; a tenth "
        "of the steps as warm-up is that of its published code",
        default_recipe="plain",
    ),
    "classifier": System(
        classifier,
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019,
        model_sizes(layers=(2, 3), heads=4, big={"model_dim": 1024, "heads": 16}),
        replace(BERT_TRAINING, learning_rate=5e-5, warmup_steps=100, label_smoothing=0.0, total_steps=1000),
        "the paper's fine-tuning (§A.3), which starts from a pretrained encoder: its rates are 2e-5 to 5e-5; a tenth "
        "of the steps as warm-up is that of its published code",
        default_objectives={"pairs": ("classification", {})},
        default_recipe="plain",
    ),
}
