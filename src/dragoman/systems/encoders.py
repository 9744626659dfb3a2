"""Encoders alone: BERT, RoBERTa, ELECTRA, and the tagger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dragoman.models import EncoderOnly, ReplacedTokens
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, Transform
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initial import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, Sinusoidal
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Full
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary import Vocabulary

NORM = LayerNorm(1e-12)


def bert(
    vocabulary: Vocabulary,
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    inner: int | None = None,
    embedding: int | None = None,
    types: int = 2,
    longest: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    tied: bool = True,
) -> EncoderOnly:
    """Transformer encoder that guesses masked words and whether two sentences belong together (Devlin et al. 2019).

    Learned positions for up to `longest` tokens, a vector for either of two sentences, GELU; one more layer and norm
    before the output. `embedding` is the width of the word vectors where it is not the model's (Lan et al. 2020).
    """
    narrow = None if embedding == width else embedding
    block = (
        PostNorm(SelfAttention(heads, visibility=Full(), dropout=attention_dropout), NORM, dropout),
        PostNorm(FeedForward(inner, "gelu"), NORM, dropout),
    )
    stack = Stack(block, layers, Learned(longest), dropout, input_norm=NORM, input_width=narrow)
    return EncoderOnly(
        width,
        vocabulary.source,
        stack,
        Embedding(width=narrow),
        types=types,
        tied=tied,
        transform=Transform("gelu", NORM),
        pooled=2,
        initial=Normal(0.02),
    )


def roberta(
    vocabulary: Vocabulary,
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    inner: int | None = None,
    longest: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    tied: bool = True,
) -> EncoderOnly:
    """BERT without the question of the next sentence, its words masked anew in every epoch (Liu et al. 2019)."""
    bigger = bert(
        vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        inner=inner,
        longest=longest,
        dropout=dropout,
        attention_dropout=attention_dropout,
        tied=tied,
    )
    return replace(bigger, types=0, pooled=0)


def electra(
    vocabulary: Vocabulary,
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    inner: int | None = None,
    embedding: int | None = None,
    generator: int = 3,
    longest: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    shared: bool = True,
) -> ReplacedTokens:
    """A small generator puts likely words in, the encoder says which were put in (Clark et al. 2020).

    The generator has as many layers, but `generator` times fewer heads, and is as much narrower. Both read the same
    embeddings of words and positions, `embedding` wide, the model's width unless told (§3.2, table 6).
    """
    few = max(1, heads // generator)
    narrow, table = width // heads * few, embedding or width
    inside = {"layers": layers, "longest": longest, "dropout": dropout, "attention_dropout": attention_dropout}

    def encoder(width: int, heads: int, inner: int | None) -> EncoderOnly:
        whole = bert(vocabulary, width=width, heads=heads, inner=inner, embedding=table, **inside)  # type: ignore[arg-type]
        return replace(whole, pooled=0)

    guess = encoder(narrow, few, None if inner is None else max(1, inner // generator))
    detect = replace(encoder(width, heads, inner), outputs=1, tied=False, transform=Transform("gelu"))
    return ReplacedTokens(guess, detect, shared)


def tagger(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 6,
    heads: int = 8,
    inner: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
) -> EncoderOnly:
    """Transformer encoder with one label for every word (Devlin et al. 2019, §3.2, without the pretraining)."""
    block = (
        PreNorm(SelfAttention(heads, visibility=Full(), dropout=attention_dropout), LayerNorm(), dropout),
        PreNorm(FeedForward(inner, "gelu"), LayerNorm(), dropout),
    )
    stack = Stack(block, layers, Sinusoidal(), dropout, norm=LayerNorm())
    return EncoderOnly(width, vocabulary.source, stack, Embedding(scaled=True), outputs=vocabulary.target, tied=False)


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "layers": 3, "heads": 4},
    "small": {"width": 256, "layers": 4, "heads": 4},
    "base": {},
    "big": {"width": 1024, "layers": 24, "heads": 16},
}

#: Adam with decoupled weight decay, warm-up and linear decay over a million steps (Devlin et al. 2019, §A.2)
BERT: dict[str, Any] = {
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
ROBERTA: dict[str, Any] = BERT | {"learning_rate": 6e-4, "warmup_steps": 24_000, "clip_norm": 0.0, "beta2": 0.98}

SYSTEMS: dict[str, System] = {
    "bert": System(
        bert,
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019,
        SIZES,
        0.4,
        {"text": ("masked", {"copies": 10, "next_sentence": True})},
        paper_training=PaperTraining(
            BERT,
            {"dropout": 0.1},
            steps=1_000_000,
            differences="the paper does not name the clipping at 1, which its published code has",
        ),
    ),
    "roberta": System(
        roberta,
        "RoBERTa: A Robustly Optimized BERT Pretraining Approach",
        2019,
        SIZES,
        0.4,
        paper_training=PaperTraining(
            ROBERTA,
            {"dropout": 0.1},
            rates={"big": 4e-4},
            steps=500_000,
            differences="the largest model has a warm-up of 30,000 steps in the paper",
        ),
    ),
    "electra": System(
        electra,
        "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
        2020,
        {
            "tiny": {"width": 128, "layers": 3, "heads": 4, "embedding": 64, "generator": 2},
            "small": {"width": 256, "layers": 12, "heads": 4, "embedding": 128, "generator": 4},
            "base": {},
            "big": {"width": 1024, "layers": 24, "heads": 16, "generator": 4},
        },
        0.4,
        paper_training=PaperTraining(
            BERT | {"learning_rate": 2e-4},
            {"dropout": 0.1},
            rates={"tiny": 5e-4, "small": 5e-4},
            steps=1_000_000,
            differences="the paper trains its base model for 766,000 and its largest for 400,000 steps with the same "
            "warm-up; the clipping at 1 is that of its published code",
        ),
    ),
    "tagger": System(
        tagger,
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019,
        {
            "tiny": {"width": 128, "layers": 2, "heads": 4},
            "small": {"width": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"width": 1024, "heads": 16},
        },
        0.4,
        paper_training=PaperTraining(
            BERT | {"learning_rate": 5e-5, "warmup_steps": 100, "label_smoothing": 0.0},
            {"dropout": 0.1},
            steps=1000,
            differences="the paper's fine-tuning (§A.3), which starts from a pretrained encoder: its rates are 2e-5 to "
            "5e-5; a tenth of the steps as warm-up is that of its published code",
        ),
    ),
}
