"""Tagging: one label per word."""

from __future__ import annotations

import numpy as np

from dragoman.data import Batch, BatchRow, TokenStore
from dragoman.models import EncoderOnlyModel
from dragoman.models.usage import TAG
from dragoman.objectives.masked_language_modeling import framed_row
from dragoman.objectives.objective import Loss, Objective, TaskContext, source_layout


class TaggingObjective(Objective):
    """Predicts the tag of every word from its first token: −Σ log p(tag | sentence) (Devlin et al. 2019, §5.3)."""

    data_format = "tags"
    model_kind = (EncoderOnlyModel,)
    usage = TAG
    aligned = True
    selection_metric = "accuracy"

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self.build_row = self._tagged_row

    def _tagged_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing = self.task.framing
        prefix, suffix = framing.source_prefix, framing.source_suffix
        return framed_row(prefix, store.source(index), suffix, store.target(index), framing.pad)

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        features = self.model.forward_features(batch.source, source_layout(batch))
        return self.source_token_loss(features, batch)
