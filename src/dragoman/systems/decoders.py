"""Decoders alone: language models, and source and target as one sequence."""

from __future__ import annotations

from typing import Literal

from dragoman.models import DecoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, Transform
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, Sinusoidal
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Prefix
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import TRANSFORMER_TRAINING
from dragoman.systems.vocabulary_sizes import VocabularySizes


def rnn_lm(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 1,
    cell: Literal["rnn", "lstm", "gru"] = "lstm",
    dropout: float = 0.2,
    tie_output: bool = True,
) -> DecoderOnly:
    """Recurrent language model, plain, LSTM or GRU: every state predicts the next word (Mikolov et al. 2010).

    Given pairs, it reads the source, a separator and the target as one sequence: the simplest of all translators.
    """
    stack = Stack((Recurrent(cell, layers, "forward", dropout),), dropout=dropout)
    return DecoderOnly(model_dim, vocabulary.target, stack, tied_embeddings=tie_output, output_bias=True)


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
    tie_output: bool = True,
) -> DecoderOnly:
    """Decoder-only Transformer, pre-norm, learned positions, GELU (Radford et al. 2019)."""
    block = (
        PreNorm(SelfAttention(heads, visibility=Causal(), dropout=attention_dropout), LayerNorm(), dropout),
        PreNorm(FeedForward(ffn_dim, "gelu-tanh"), LayerNorm(), dropout),
    )
    stack = Stack(block, layers, Learned(max_positions), dropout, norm=LayerNorm())
    return DecoderOnly(model_dim, vocabulary.target, stack, tied_embeddings=tie_output, initialization=Normal(0.02))


def chat(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 2048,
    layers: int = 24,
    heads: int = 16,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    max_positions: int = 2048,
    tie_output: bool = True,
) -> DecoderOnly:
    """GPT's decoder, tuned on instructions and dialogues with the loss on the replies alone (Ouyang et al. 2022).

    What makes it a partner in a dialogue is how it is trained: it is built as `gpt` is.
    """
    return gpt(
        vocabulary,
        model_dim=model_dim,
        layers=layers,
        heads=heads,
        ffn_dim=ffn_dim,
        dropout=dropout,
        attention_dropout=attention_dropout,
        max_positions=max_positions,
        tie_output=tie_output,
    )


def unilm(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    max_positions: int = 512,
    tie_output: bool = True,
) -> DecoderOnly:
    """BERT's stack and one mask: the source is read both ways, the target from left to right (Dong et al. 2019).

    The paper's vectors for the first and the second segment, which also tell its three masks apart, are left out.
    """
    block = (
        PostNorm(SelfAttention(heads, visibility=Prefix(), dropout=attention_dropout), LayerNorm(), dropout),
        PostNorm(FeedForward(ffn_dim, "gelu"), LayerNorm(), dropout),
    )
    stack = Stack(block, layers, Learned(max_positions), dropout, input_norm=LayerNorm())
    transform = Transform("gelu", LayerNorm())
    return DecoderOnly(
        model_dim,
        vocabulary.target,
        stack,
        tied_embeddings=tie_output,
        output_bias=True,
        initialization=Normal(0.02),
        transform=transform,
    )


def transformer_d(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 6,
    heads: int = 8,
    ffn_dim: int | None = None,
    dropout: float = 0.1,
    tie_output: bool = True,
) -> DecoderOnly:
    """Source and target as one sequence in the Transformer's decoder (Liu et al. 2018, §4.2.3)."""
    block = (
        PostNorm(SelfAttention(heads, visibility=Causal()), LayerNorm(), dropout),
        PostNorm(FeedForward(ffn_dim), LayerNorm(), dropout),
    )
    stack = Stack(block, layers, Sinusoidal(), dropout)
    return DecoderOnly(model_dim, vocabulary.target, stack, Embedding(scaled=True), tie_output)


SYSTEMS: dict[str, System] = {
    "rnn-lm": System(
        rnn_lm,
        "Recurrent neural network based language model",
        2010,
        {
            "tiny": {"model_dim": 128},
            "small": {"model_dim": 256},
            "base": {},
            "big": {"model_dim": 1024, "layers": 2},
        },
        1.0,
        {"pairs": ("one-sequence", {})},
        paper_training=PaperTraining(
            {
                "optimizer": "sgd",
                "learning_rate": 0.1,
                "schedule": "plateau",
                "plateau_factor": 0.5,
                "warmup_steps": 0,
                "clip_norm": 0.0,
                "label_smoothing": 0.0,
            },
            {"cell": "rnn", "dropout": 0.0},
            differences="the paper updates the weights after every word instead of every batch, and ends when halving "
            "the rate no longer helps; its units are sigmoid instead of tanh",
        ),
        default_recipe="modern",
    ),
    "transformer-d": System(
        transformer_d,
        "Generating Wikipedia by Summarizing Long Sequences",
        2018,
        {
            "tiny": {"model_dim": 128, "layers": 3, "heads": 4},
            "small": {"model_dim": 256, "layers": 4, "heads": 4},
            "base": {},
            "big": {"model_dim": 1024, "heads": 16},
        },
        0.4,
        {"pairs": ("one-sequence", {})},
        paper_training=PaperTraining(TRANSFORMER_TRAINING, noam_factor=1.0),
        default_recipe="modern",
    ),
    "gpt": System(
        gpt,
        "Language Models are Unsupervised Multitask Learners",
        2019,
        {
            "tiny": {"model_dim": 128, "layers": 3, "heads": 4},
            "small": {"model_dim": 256, "layers": 4, "heads": 4},
            "base": {},
            "big": {"model_dim": 1600, "layers": 48, "heads": 25},
        },
        0.4,
        paper_training=PaperTraining(
            {
                "optimizer": "adamw",
                "learning_rate": 2.5e-4,
                "schedule": "cosine",
                "warmup_steps": 2000,
                "clip_norm": 1.0,
                "beta2": 0.999,
                "epsilon": 1e-8,
                "weight_decay": 0.01,
                "label_smoothing": 0.0,
            },
            {"dropout": 0.1},
            differences="the paper does not describe its training: these are the values of its predecessor (Radford et "
            "al. 2018, §4.1), whose warm-up of 2,000 steps does not depend on the length of the training",
        ),
        default_recipe="modern",
    ),
    "chat": System(
        chat,
        "Training language models to follow instructions with human feedback",
        2022,
        {
            "tiny": {"model_dim": 128, "layers": 3, "heads": 4},
            "small": {"model_dim": 256, "layers": 4, "heads": 4},
            "base": {},
            "big": {"model_dim": 12288, "layers": 96, "heads": 96},
        },
        0.4,
        paper_training=PaperTraining(
            {
                "optimizer": "adamw",
                "learning_rate": 9.65e-6,
                "schedule": "cosine",
                "final_rate_factor": 0.1,
                "warmup_steps": 0,
                "clip_norm": 1.0,
                "beta2": 0.95,
                "epsilon": 1e-8,
                "weight_decay": 0.0,
                "label_smoothing": 0.0,
            },
            {"dropout": 0.2},
            learning_rates={"big": 5.03e-6},
            differences="the paper's supervised fine-tuning (§C.1), which starts from a pretrained model: with "
            "--start-from; the reward model and reinforcement learning are left out",
        ),
        default_recipe="modern",
    ),
    "unilm": System(
        unilm,
        "Unified Language Model Pre-training for Natural Language Understanding and Generation",
        2019,
        {
            "tiny": {"model_dim": 128, "layers": 3, "heads": 4},
            "small": {"model_dim": 256, "layers": 4, "heads": 4},
            "base": {},
            "big": {"model_dim": 1024, "layers": 24, "heads": 16},
        },
        0.4,
        {"text": ("masks", {})},
        paper_training=PaperTraining(
            {
                "optimizer": "adamw",
                "learning_rate": 3e-5,
                "schedule": "linear",
                "warmup_steps": 40_000,
                "clip_norm": 1.0,
                "beta2": 0.999,
                "epsilon": 1e-6,
                "weight_decay": 0.01,
            },
            {"dropout": 0.1},
            total_steps=770_000,
            differences="the paper starts from the weights of BERT; it does not name a clipping",
        ),
        default_recipe="modern",
    ),
}
