"""Replaced tokens: a small generator puts likely words in, the discriminator says which were put in."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data import Batch
from dragoman.models import Model, ReplacedTokensModel
from dragoman.objectives.masked_words import MaskedWords
from dragoman.objectives.objective import Loss, Material, asked, words_lost
from dragoman.parts.mixer import Layout


class ReplacedWords(MaskedWords):
    """loss = generator's masked words + `weight` · discriminator's yes or no for every token (Clark et al. 2020, §2).

    A word that the generator guesses right counts as not replaced. Nothing flows back through the drawing.
    """

    trains: ClassVar[tuple[type[Model], ...]] = (ReplacedTokensModel,)

    def __init__(self, material: Material, *, rate: float = 0.15, weight: float = 50.0) -> None:
        super().__init__(material, rate=rate)
        self.weight = weight

    def __call__(self, model: ReplacedTokensModel, batch: Batch, step: int = 0) -> Loss:  # type: ignore[override]
        pad = self.material.framing.pad
        features, _ = model.generator.features(batch.source, batch.source_lengths)
        hidden, words = asked(features, batch.target, pad)
        sums = words_lost(model.generator.output, hidden, words, pad)
        with torch.no_grad():
            drawn = draw(model.generator.output(hidden))
        chosen = batch.target != pad
        tokens = batch.source.masked_scatter(chosen, drawn)
        original = torch.where(chosen, batch.target, batch.source)
        replaced = (tokens != original).float()
        logits = model(tokens, batch.source_lengths)[..., 0].float()  # B S
        real = Layout.padded(tokens.shape[1], batch.source_lengths).real
        assert real is not None
        each = F.binary_cross_entropy_with_logits(logits, replaced, reduction="none").masked_fill(~real, 0.0)
        lost = each.sum() / real.sum()
        found = (((logits > 0) == (replaced > 0)) & real).sum() / real.sum()
        parts = sums | {"detection": lost * batch.target_tokens, "detected": found * batch.target_tokens}
        total = sums["likelihood"] + self.weight * lost * batch.target_tokens
        return Loss(total, batch.target_tokens, {name: part.detach() for name, part in parts.items()})


def draw(logits: Tensor) -> Tensor:
    """N V → N: a word drawn from each softmax, by the largest of logits with Gumbel's noise."""
    return (logits.float() - torch.empty_like(logits, dtype=torch.float32).exponential_().log()).argmax(-1)
