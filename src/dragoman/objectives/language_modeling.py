"""Language modelling: −Σ log p(y_t | y_<t), over a text, over source and target as one, over a dialogue's replies."""

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
    TaskContext,
    concat_ids,
    source_layout,
    source_token_loss,
)
from dragoman.objectives.translation_objective import TranslationObjective, bpe_dropout_segmenters


class LanguageModelObjective(Objective):
    """Every next word of a text (Bengio et al. 2003).

    A line that is cut into several rows has START before the first and END after the last.
    """

    data_format: ClassVar[DataFormatName] = "text"
    model_kind = (DecoderOnlyModel,)
    usage: ClassVar[Usage] = CONTINUE

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self.make_row = self._text
        self.loss = TranslationObjective(task)

    def _text(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing, ids = self.task.framing, store.target(index)
        start = (framing.source_prefix or (framing.bos,)) if store.starts_line(index) or len(ids) < 2 else ()
        return BatchRow(concat_ids(()), concat_ids(start, ids, (framing.eos,) if store.ends_line(index) else ()))

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return target + 1

    def packed_lengths(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0 * source, self.row_length(source, target)

    def __call__(self, model: DecoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        return self.loss(model, batch, step)


class ConcatenationObjective(LanguageModelObjective):
    """Source, separator and target as one text, all of whose words are to be foretold (Liu et al. 2018, §4.2.3)."""

    data_format = "pairs"
    usage = TRANSLATE
    other_commands = ("generate",)
    generates = True
    selection_metric = "bleu"
    predicts_source = True

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self.segmenters = bpe_dropout_segmenters(task)

    def _text(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing, source, target = self.task.framing, store.source(index), store.target(index)
        return BatchRow(
            concat_ids(()),
            concat_ids(framing.source_prefix, source, framing.source_suffix, (framing.bos,), target, (framing.eos,)),
        )

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source + target + len(self.task.framing.source_prefix) + len(self.task.framing.source_suffix) + 1


class DialogueObjective(Objective):
    """The replies of a dialogue, given all that was said before; what the other says is read, not learned.

    A dialogue is one sequence, u₁ SEPARATOR r₁ END u₂ SEPARATOR r₂ END …, and only r and END count (as in supervised
    instruction tuning, Ouyang et al. 2022, §3.5).
    """

    data_format = "turns"
    model_kind = (DecoderOnlyModel,)
    usage = REPLY
    other_commands = ("translate",)
    aligned = True

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self.make_row = self._dialogue

    def _dialogue(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        return BatchRow(store.source(index), store.target(index))

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source

    def __call__(self, model: DecoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        x, ctx = model.forward_tokens(batch.source, source_layout(batch))
        return source_token_loss(self.task, model.output, x, batch, ctx)
