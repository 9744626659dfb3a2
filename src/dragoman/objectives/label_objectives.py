"""Objectives of encoders that predict labels: of words (tagging) or of whole texts (classification)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dragoman.data import Batch, BatchRow, TokenStore
from dragoman.models import EncoderOnlyModel
from dragoman.models.usage import CLASSIFY, TAG
from dragoman.objectives.masked_language_modeling import framed_row
from dragoman.objectives.objective import DataFormatName, Loss, Objective, concat_ids, source_layout


class TaggingObjective(Objective):
    """Predicts the tag of every word from its first token: −Σ log p(tag | sentence) (Devlin et al. 2019, §5.3)."""

    data_format: ClassVar[DataFormatName] = "tags"
    model_kind = (EncoderOnlyModel,)
    usage = TAG
    labels_source = True
    selection_metric = "accuracy"

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the training example of sentence number `index` of the store: its tokens, with a tag for each word.

        `store.target` has the tag at the first token of each word, and padding (no label) at the others. `random` is
        not used: the example is the same in every epoch.
        """
        return framed_row(self.task.framing, store.source(index), store.target(index))

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the cross-entropy of the labels of source tokens; the training step is not used."""
        features = self.model.forward_features(batch.source, source_layout(batch))
        return self.source_token_loss(features, batch)


class ClassificationObjective(TaggingObjective):
    """Predicts the label of a text from its first token: −log p(label | text) (Devlin et al. 2019, §4.1)."""

    data_format = "labels"
    usage = CLASSIFY

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the training example of text number `index` of the store: its tokens, of which the first has the label.

        The others have padding as label, which the loss ignores. `random` is not used.
        """
        framing = self.task.framing
        source = concat_ids(framing.source_prefix, store.source(index), framing.source_suffix)
        return BatchRow(source, concat_ids(store.target(index), [framing.pad] * (len(source) - 1)))
