"""Replaced tokens: a small generator puts likely words in, the discriminator says which were put in."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data import NOTHING, Batch, Row
from dragoman.models import Model, ReplacedTokensModel
from dragoman.objectives.masked_words import MaskedWords
from dragoman.objectives.objective import Loss, Material, asked, loss_of, source_layout, words_lost
from dragoman.parts.precision import at_least_float32


class ReplacedWords(MaskedWords):
    """loss = generator's masked words + `weight` · discriminator's yes or no for every token (Clark et al. 2020, §2).

    A word that the generator guesses right counts as not replaced. Nothing flows back through the drawing.
    """

    trains: ClassVar[tuple[type[Model], ...]] = (ReplacedTokensModel,)

    def __init__(self, material: Material, *, rate: float = 0.15, weight: float = 50.0) -> None:
        super().__init__(material, rate=rate)
        self.weight = weight

    def note(self, row: Row) -> str:
        return "the discriminator finds the tokens that the generator gets wrong"

    def __call__(self, model: ReplacedTokensModel, batch: Batch, step: int = 0) -> Loss:  # type: ignore[override]
        hidden, sums = self._generator_loss(model, batch)
        with torch.no_grad():
            drawn = draw(model.generator.output(hidden))
        return self._loss(model, batch, sums, drawn)

    def validation_loss(self, model: ReplacedTokensModel, batch: Batch) -> Loss:
        """The same with replacements that no model draws: the masked words of the batch, shuffled.

        The discriminator's loss against its own generator rises as the generator improves, so checkpoints cannot be
        compared by it. Against fixed replacements, drawn from the words of the validation text, they can: the
        validator seeds the shuffle.
        """
        _, sums = self._generator_loss(model, batch)
        shuffled = batch.answers.clone()
        places = (batch.answers != NOTHING).nonzero()[:, 0]
        shuffled[places] = batch.answers[places[torch.randperm(len(places), device=places.device)]]
        return self._loss(model, batch, sums, shuffled)

    def _generator_loss(self, model: ReplacedTokensModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = asked(model.generator.features(batch.source, source_layout(batch))[0], batch)
        return hidden, words_lost(model.generator.output, hidden, batch.answers)

    def _loss(self, model: ReplacedTokensModel, batch: Batch, sums: dict[str, Tensor], drawn: Tensor) -> Loss:
        """The discriminator's loss where masked words are replaced by those drawn, added to the generator's."""
        assert batch.asked is not None
        was = batch.source.flatten()
        nothing = batch.answers == NOTHING  # such point to a place that keeps what it has
        tokens = was.scatter(0, batch.asked, torch.where(nothing, was[batch.asked], drawn)).view_as(batch.source)
        original = was.scatter(0, batch.asked, torch.where(nothing, was[batch.asked], batch.answers)).view_as(tokens)
        logits = at_least_float32(model.output(model.features(tokens, source_layout(batch))[0])[..., 0])  # B S
        replaced = (tokens != original).to(logits.dtype)
        real = batch.source != self.material.framing.pad
        each = F.binary_cross_entropy_with_logits(logits, replaced, reduction="none").masked_fill(~real, 0.0)
        lost = each.sum() / real.sum()
        found = (((logits > 0) == (replaced > 0)) & real).sum() / real.sum()
        loss = loss_of(sums, batch.answers, [self.weight * lost])
        parts = {"detection": lost.detach() * loss.count, "detected": found * loss.count}
        return Loss(loss.total, loss.count, loss.parts | parts)


def draw(logits: Tensor) -> Tensor:
    """N V → N: a word drawn from each softmax, by the largest of logits with Gumbel's noise."""
    logits = at_least_float32(logits)
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)
