"""Tagging: one label for every word."""

from __future__ import annotations

import numpy as np

from dragoman.data import Batch, BatchRow, TokenStore
from dragoman.models import EncoderOnlyModel
from dragoman.models.usage import TAG
from dragoman.objectives.masked_language_modeling import framed_row
from dragoman.objectives.objective import Loss, Objective, TaskContext, source_layout, source_token_loss


class TaggingObjective(Objective):
    """−Σ log p(tag | sentence), asked of the first piece of every word (Devlin et al. 2019, §5.3)."""

    data_format = "tags"
    model_kind = (EncoderOnlyModel,)
    usage = TAG
    aligned = True
    selection_metric = "accuracy"

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self.make_row = self._tagged

    def _tagged(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing = self.task.framing
        return framed_row(
            framing.source_prefix, store.source(index), framing.source_suffix, store.target(index), framing.pad
        )

    def __call__(self, model: EncoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        features, ctx = model.forward_features(batch.source, source_layout(batch))
        return source_token_loss(self.task, model.output, features, batch, ctx)
