"""Replaced tokens: a small generator puts likely words in, the discriminator says which were put in."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch, BatchRow
from dragoman.models import Model, ReplacedTokensModel
from dragoman.objectives.masked_language_modeling import MaskedLanguageObjective
from dragoman.objectives.objective import Loss, TaskContext, labeled_features, reduce_loss, source_layout, token_loss
from dragoman.parts.precision import at_least_float32


class ReplacedTokenObjective(MaskedLanguageObjective):
    """loss = generator's masked words + `weight` · discriminator's yes or no for every token (Clark et al. 2020, §2).

    A word that the generator guesses right counts as not replaced. Nothing flows back through the drawing.
    """

    model_kind: ClassVar[tuple[type[Model], ...]] = (ReplacedTokensModel,)

    def __init__(self, task: TaskContext, *, rate: float = 0.15, weight: float = 50.0) -> None:
        super().__init__(task, rate=rate)
        self.weight = weight

    def describe_row(self, row: BatchRow) -> str:
        return "the discriminator finds the tokens that the generator gets wrong"

    def __call__(self, model: ReplacedTokensModel, batch: Batch, step: int = 0) -> Loss:  # type: ignore[override]
        hidden, sums = self._generator_loss(model, batch)
        with torch.no_grad():
            drawn = sample_tokens(model.generator.output(hidden))
        return self._loss(model, batch, sums, drawn)

    def validation_loss(self, model: ReplacedTokensModel, batch: Batch) -> Loss:
        """The same with replacements that no model draws: the masked words of the batch, shuffled.

        The discriminator's loss against its own generator rises as the generator improves, so checkpoints cannot be
        compared by it. Against fixed replacements, drawn from the words of the validation text, they can: the
        validator seeds the shuffle.
        """
        _, sums = self._generator_loss(model, batch)
        shuffled = batch.labels.clone()
        places = (batch.labels != IGNORE_INDEX).nonzero()[:, 0]
        shuffled[places] = batch.labels[places[torch.randperm(len(places), device=places.device)]]
        return self._loss(model, batch, sums, shuffled)

    def _generator_loss(self, model: ReplacedTokensModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = labeled_features(model.generator.forward_features(batch.source, source_layout(batch))[0], batch)
        return hidden, token_loss(model.generator.output, hidden, batch.labels)

    def _loss(self, model: ReplacedTokensModel, batch: Batch, sums: dict[str, Tensor], drawn: Tensor) -> Loss:
        """The discriminator's loss where masked words are replaced by those drawn, added to the generator's."""
        assert batch.label_positions is not None
        was = batch.source.flatten()
        nothing = batch.labels == IGNORE_INDEX  # such point to a place that keeps what it has
        tokens = was.scatter(0, batch.label_positions, torch.where(nothing, was[batch.label_positions], drawn)).view_as(
            batch.source
        )
        original = was.scatter(
            0, batch.label_positions, torch.where(nothing, was[batch.label_positions], batch.labels)
        ).view_as(tokens)
        logits = at_least_float32(model.output(model.forward_features(tokens, source_layout(batch))[0])[..., 0])  # B S
        replaced = (tokens != original).to(logits.dtype)
        real = batch.source != self.task.framing.pad
        each = F.binary_cross_entropy_with_logits(logits, replaced, reduction="none").masked_fill(~real, 0.0)
        lost = each.sum() / real.sum()
        found = (((logits > 0) == (replaced > 0)) & real).sum() / real.sum()
        loss = reduce_loss(sums, batch.labels, [self.weight * lost])
        parts = {"detection": lost.detach() * loss.count, "detected": found * loss.count}
        return Loss(loss.total, loss.count, loss.metrics | parts)


def sample_tokens(logits: Tensor) -> Tensor:
    """N V → N: a word drawn from each softmax, by the largest of logits with Gumbel's noise."""
    logits = at_least_float32(logits)
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)
