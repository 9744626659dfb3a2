"""Untrained runs for tests."""

from __future__ import annotations

from pathlib import Path

import torch

from dragoman.config import Config
from dragoman.run import Run
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import ENCODER_DECODER_FRAMING, learn_tokenizer

LINES = ["the dog sleeps .", "größe – 5 €", "a cat sees an old house 🏠"] * 3


def untrained(kind: str, system: str = "transformer", seed: int = 1, **settings: int) -> Run:
    """A run that writes what comes to its mind, half characters among it."""
    tokenizer = learn_tokenizer(LINES, kind, 300)
    torch.manual_seed(seed)
    vocabulary = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, joint=True)
    model = SYSTEMS[system].spec(vocabulary, "tiny", **({"model_dim": 16, "layers": 1} | settings)).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    return Run(Path("untrained"), Config(), model, tokenizer, tokenizer, ENCODER_DECODER_FRAMING, "last")
