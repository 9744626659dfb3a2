"""Replaced token detection: a generator fills masks with plausible tokens, the discriminator detects them."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch, BatchRow
from dragoman.models import Model, ReplacedTokensModel
from dragoman.objectives.masked_language_modeling import MaskedLanguageObjective
from dragoman.objectives.objective import Loss, TaskContext, labeled_features, reduce_loss, source_layout, token_loss
from dragoman.objectives.translation_objective import sample_tokens
from dragoman.parts.precision import at_least_float32


class ReplacedTokenObjective(MaskedLanguageObjective):
    """Adds the generator's masked-language loss and the discriminator's binary loss (Clark et al. 2020, §2).

    A token that the generator predicts correctly counts as original. Sampling from the generator is not
    differentiated.

    Args:
        mask_rate: probability that a token is masked.
        discriminator_weight: weight of the discriminator's loss, a mean over all tokens.
    """

    model_kind: ClassVar[tuple[type[Model], ...]] = (ReplacedTokensModel,)

    def __init__(self, task: TaskContext, *, mask_rate: float = 0.15, discriminator_weight: float = 50.0) -> None:
        super().__init__(task, mask_rate=mask_rate)
        self.discriminator_weight = discriminator_weight

    def describe_row(self, row: BatchRow) -> str:
        return "the discriminator finds the tokens that the generator gets wrong"

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        features, sums = self._generator_loss(batch)
        with torch.no_grad():
            replacements = sample_tokens(self.model.generator.output(features))
        return self._add_discriminator_loss(batch, sums, replacements)

    def validation_loss(self, batch: Batch) -> Loss:
        """Compute the loss with replacements that no model samples: the masked tokens of the batch, shuffled.

        Against its own generator, the discriminator's loss rises as the generator improves. Against fixed
        replacements from the validation text, checkpoints are comparable; the validator seeds the shuffle.
        """
        _, sums = self._generator_loss(batch)
        shuffled = batch.labels.clone()
        labeled = (batch.labels != IGNORE_INDEX).nonzero()[:, 0]
        shuffled[labeled] = batch.labels[labeled[torch.randperm(len(labeled), device=labeled.device)]]
        return self._add_discriminator_loss(batch, sums, shuffled)

    def _generator_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        generator = self.model.generator
        features = labeled_features(generator.forward_features(batch.source, source_layout(batch)).output, batch)
        return features, token_loss(generator.output, features, batch.labels)

    def _add_discriminator_loss(self, batch: Batch, sums: dict[str, Tensor], replacements: Tensor) -> Loss:
        """Add the discriminator's loss on the batch whose masked tokens are replaced."""
        assert batch.label_positions is not None
        source = batch.source.flatten()
        at_labels = source[batch.label_positions]
        unlabeled = batch.labels == IGNORE_INDEX  # their positions keep their tokens
        tokens = source.scatter(0, batch.label_positions, torch.where(unlabeled, at_labels, replacements))
        original = source.scatter(0, batch.label_positions, torch.where(unlabeled, at_labels, batch.labels))
        features = self.model.forward_features(tokens.view_as(batch.source), source_layout(batch)).output
        logits = at_least_float32(self.model.output(features)[..., 0])  # B S
        replaced = (tokens != original).view_as(batch.source).to(logits.dtype)
        mask = batch.source != self.task.framing.pad
        losses = F.binary_cross_entropy_with_logits(logits, replaced, reduction="none").masked_fill(~mask, 0.0)
        detection_loss = losses.sum() / mask.sum()
        accuracy = (((logits > 0) == (replaced > 0)) & mask).sum() / mask.sum()
        loss = reduce_loss(sums, batch.labels, [self.discriminator_weight * detection_loss])
        metrics = {
            "detection_loss": detection_loss.detach() * loss.num_labels,
            "detection_accuracy": accuracy * loss.num_labels,
        }
        return Loss(loss.total, loss.num_labels, loss.metrics | metrics)
