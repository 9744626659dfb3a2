"""Tagging: one label for every word."""

from __future__ import annotations

import numpy as np

from dragoman.data import Batch, Row, TokenStore
from dragoman.models import EncoderOnlyModel
from dragoman.models.usage import TAG
from dragoman.objectives.masked_words import framed_answers
from dragoman.objectives.objective import Loss, Material, Objective, answered, source_layout


class Tagging(Objective):
    """−Σ log p(tag | sentence), asked of the first piece of every word (Devlin et al. 2019, §5.3)."""

    reads = "tags"
    trains = (EncoderOnlyModel,)
    usage = TAG
    aligned = True
    best = "accuracy"

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self.rows = self._tagged

    def _tagged(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        framing = self.material.framing
        return framed_answers(framing.before, store.source(index), framing.after, store.target(index), framing.pad)

    def __call__(self, model: EncoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        features, ctx = model.features(batch.source, source_layout(batch))
        return answered(self.material, model.output, features, batch, ctx)
