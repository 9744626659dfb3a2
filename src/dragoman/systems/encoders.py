"""Encoders alone: BERT, RoBERTa, ELECTRA, and the tagger."""

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
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary_sizes import VocabularySizes

BERT_NORM = LayerNorm(1e-12)


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
    tie_output: bool = True,
) -> EncoderOnly:
    """Transformer encoder that guesses masked words and whether two sentences belong together (Devlin et al. 2019).

    Learned positions for up to `max_positions` tokens, a vector for either of two sentences, GELU; one more layer and norm
    before the output. `embedding_dim` is the width of the word vectors where it is not the model's (Lan et al. 2020).
    """
    narrow = None if embedding_dim == model_dim else embedding_dim
    block = (
        PostNorm(SelfAttention(heads, visibility=Full(), dropout=attention_dropout), BERT_NORM, dropout),
        PostNorm(FeedForward(ffn_dim, "gelu"), BERT_NORM, dropout),
    )
    stack = Stack(block, layers, Learned(max_positions), dropout, input_norm=BERT_NORM, input_dim=narrow)
    return EncoderOnly(
        model_dim,
        vocabulary.source,
        stack,
        Embedding(width=narrow),
        token_types=token_types,
        tied_embeddings=tie_output,
        transform=Transform("gelu", BERT_NORM),
        pooled_labels=2,
        initialization=Normal(0.02),
    )


def roberta(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    ffn_dim: int | None = None,
    max_positions: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    tie_output: bool = True,
) -> EncoderOnly:
    """BERT without the question of the next sentence, its words masked anew in every epoch (Liu et al. 2019)."""
    bigger = bert(
        vocabulary,
        model_dim=model_dim,
        layers=layers,
        heads=heads,
        ffn_dim=ffn_dim,
        max_positions=max_positions,
        dropout=dropout,
        attention_dropout=attention_dropout,
        tie_output=tie_output,
    )
    return replace(bigger, token_types=0, pooled_labels=0)


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
    share_embeddings: bool = True,
) -> ReplacedTokens:
    """A small generator puts likely words in, the encoder says which were put in (Clark et al. 2020).

    The generator has as many layers, but `generator_divisor` times fewer heads, and is as much narrower. Both read the same
    embeddings of words and positions, `embedding_dim` wide, the model's width unless told (§3.2, table 6).
    """
    few = max(1, heads // generator_divisor)
    narrow, table = model_dim // heads * few, embedding_dim or model_dim
    inside = {
        "layers": layers,
        "max_positions": max_positions,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
    }

    def encoder(model_dim: int, heads: int, ffn_dim: int | None) -> EncoderOnly:
        whole = bert(vocabulary, model_dim=model_dim, heads=heads, ffn_dim=ffn_dim, embedding_dim=table, **inside)  # type: ignore[arg-type]
        return replace(whole, pooled_labels=0)

    guess = encoder(narrow, few, None if ffn_dim is None else max(1, ffn_dim // generator_divisor))
    detect = replace(
        encoder(model_dim, heads, ffn_dim), num_labels=1, tied_embeddings=False, transform=Transform("gelu")
    )
    return ReplacedTokens(guess, detect, share_embeddings)


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
    """Transformer encoder with one label for every word (Devlin et al. 2019, §3.2, without the pretraining)."""
    block = (
        PreNorm(SelfAttention(heads, visibility=Full(), dropout=attention_dropout), LayerNorm(), dropout),
        PreNorm(FeedForward(ffn_dim, "gelu"), LayerNorm(), dropout),
    )
    stack = Stack(block, layers, Sinusoidal(), dropout, norm=LayerNorm())
    return EncoderOnly(
        model_dim, vocabulary.source, stack, Embedding(scaled=True), num_labels=vocabulary.target, tied_embeddings=False
    )


BERT_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"model_dim": 128, "layers": 3, "heads": 4},
    "small": {"model_dim": 256, "layers": 4, "heads": 4},
    "base": {},
    "big": {"model_dim": 1024, "layers": 24, "heads": 16},
}

#: Adam with decoupled weight decay, warm-up and linear decay over a million steps (Devlin et al. 2019, §A.2)
BERT_TRAINING: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 1e-4,
    "schedule": "linear",
    "warmup_steps": 10_000,
    "clip_norm": 1.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-6,
    "weight_decay": 0.01,
}

#: Liu et al. 2019, table 9
ROBERTA_TRAINING: dict[str, Any] = BERT_TRAINING | {
    "learning_rate": 6e-4,
    "warmup_steps": 24_000,
    "clip_norm": 0.0,
    "beta2": 0.98,
}

SYSTEMS: dict[str, System] = {
    "bert": System(
        bert,
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019,
        BERT_SIZES,
        0.4,
        {"text": ("masked", {"copies": 10, "next_sentence": True})},
        paper_training=PaperTraining(
            BERT_TRAINING,
            {"dropout": 0.1},
            total_steps=1_000_000,
            differences="the paper does not name the clipping at 1, which its published code has",
        ),
    ),
    "roberta": System(
        roberta,
        "RoBERTa: A Robustly Optimized BERT Pretraining Approach",
        2019,
        BERT_SIZES,
        0.4,
        paper_training=PaperTraining(
            ROBERTA_TRAINING,
            {"dropout": 0.1},
            learning_rates={"big": 4e-4},
            total_steps=500_000,
            differences="the largest model has a warm-up of 30,000 steps in the paper",
        ),
    ),
    "electra": System(
        electra,
        "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
        2020,
        {
            "tiny": {"model_dim": 128, "layers": 3, "heads": 4, "embedding_dim": 64, "generator_divisor": 2},
            "small": {"model_dim": 256, "layers": 12, "heads": 4, "embedding_dim": 128, "generator_divisor": 4},
            "base": {},
            "big": {"model_dim": 1024, "layers": 24, "heads": 16, "generator_divisor": 4},
        },
        0.4,
        paper_training=PaperTraining(
            BERT_TRAINING | {"learning_rate": 2e-4},
            {"dropout": 0.1},
            learning_rates={"tiny": 5e-4, "small": 5e-4},
            total_steps=1_000_000,
            differences="the paper trains its base model for 766,000 and its largest for 400,000 steps with the same "
            "warm-up; the clipping at 1 is that of its published code",
        ),
    ),
    "tagger": System(
        tagger,
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019,
        {
            "tiny": {"model_dim": 128, "layers": 2, "heads": 4},
            "small": {"model_dim": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"model_dim": 1024, "heads": 16},
        },
        0.4,
        paper_training=PaperTraining(
            BERT_TRAINING | {"learning_rate": 5e-5, "warmup_steps": 100, "label_smoothing": 0.0},
            {"dropout": 0.1},
            total_steps=1000,
            differences="the paper's fine-tuning (§A.3), which starts from a pretrained encoder: its rates are 2e-5 to "
            "5e-5; a tenth of the steps as warm-up is that of its published code",
        ),
    ),
}
