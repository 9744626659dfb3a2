"""Language modeling: −Σ log p(y_t | y_<t) over a text, a concatenated pair, or the replies of a dialogue."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dragoman.data import Batch, BatchRow, TokenStore
from dragoman.models import DecoderOnlyModel, Usage
from dragoman.models.usage import CONTINUE, REPLY, TRANSLATE
from dragoman.objectives.objective import (
    DataFormatName,
    Loss,
    Objective,
    SequenceObjective,
    TaskContext,
    concat_ids,
    source_layout,
)
from dragoman.objectives.translation_objective import bpe_dropout_segmenters


class LanguageModelObjective(SequenceObjective):
    """Predicts every next token of a text (Bengio et al. 2003).

    A line that is split into several rows has BOS in the first and EOS in the last.
    """

    data_format: ClassVar[DataFormatName] = "text"
    model_kind = (DecoderOnlyModel,)
    usage: ClassVar[Usage] = CONTINUE

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self.build_row = self._text_row

    def _text_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing, ids = self.task.framing, store.target(index)
        bos = (framing.source_prefix or (framing.bos,)) if store.starts_line(index) or len(ids) < 2 else ()
        return BatchRow(concat_ids(()), concat_ids(bos, ids, (framing.eos,) if store.ends_line(index) else ()))

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return target + 1

    def packed_lengths(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0 * source, self.row_length(source, target)


class ConcatenationObjective(LanguageModelObjective):
    """Predicts all tokens of source, separator and target as one text (Liu et al. 2018, §4.2.3)."""

    data_format = "pairs"
    usage = TRANSLATE
    other_commands = ("generate",)
    generates = True
    selection_metric = "bleu"
    predicts_source = True

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self.subword_samplers = bpe_dropout_segmenters(task)

    def _text_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing = self.task.framing
        source = concat_ids(framing.source_prefix, store.source(index), framing.source_suffix)
        return BatchRow(concat_ids(()), concat_ids(source, (framing.bos,), store.target(index), (framing.eos,)))

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source + target + len(self.task.framing.source_prefix) + len(self.task.framing.source_suffix) + 1


class DialogueObjective(Objective):
    """Predicts the replies of a dialogue from all turns before them; the other speaker's turns have no labels.

    A dialogue is one sequence, u₁ SEPARATOR r₁ EOS u₂ SEPARATOR r₂ EOS …, with labels for r and EOS (as in supervised
    instruction tuning, Ouyang et al. 2022, §3.5).
    """

    data_format = "turns"
    model_kind = (DecoderOnlyModel,)
    usage = REPLY
    other_commands = ("translate",)
    aligned = True

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self.build_row = self._dialogue_row

    def _dialogue_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        return BatchRow(store.source(index), store.target(index))

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        features = self.model.forward_tokens(batch.source, source_layout(batch))
        return self.source_token_loss(features, batch)
