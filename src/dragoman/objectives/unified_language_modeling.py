"""Unified language modeling (UniLM): one stack learns bidirectional, left-to-right and prefix attention masks."""

from __future__ import annotations

import numpy as np

from dragoman.data import Batch, BatchRow, TokenStore
from dragoman.models import DecoderOnlyModel
from dragoman.models.usage import CONTINUE
from dragoman.objectives.masked_language_modeling import make_masker
from dragoman.objectives.objective import Loss, Objective, TaskContext, concat_ids, source_layout


class UnifiedLanguageObjective(Objective):
    """Trains every sentence under one of three attention masks, chosen at random (Dong et al. 2019, §2.3).

    Under the bidirectional mask, masked tokens are predicted; under the left-to-right mask, every next token; under the
    prefix mask, the text is split at a random position, the first part is read as a whole, and every next token of the
    second part is predicted. The paper predicts masked tokens under all three masks; here next tokens are predicted as
    they are generated later.

    Args:
        bidirectional: probability of the bidirectional mask.
        left_to_right: probability of the left-to-right mask; the prefix mask has the remaining probability.
        mask_rate: probability that a token is masked under the bidirectional mask.
    """

    data_format = "text"
    model_kind = (DecoderOnlyModel,)
    usage = CONTINUE
    corrupts_input = True
    aligned = True

    def __init__(
        self,
        task: TaskContext,
        *,
        bidirectional: float = 1 / 3,
        left_to_right: float = 1 / 3,
        mask_rate: float = 0.15,
    ) -> None:
        super().__init__(task)
        self.bidirectional, self.left_to_right = bidirectional, left_to_right
        self.masker = make_masker(task, mask_rate)
        self.build_row = self._masked_row

    def _masked_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build a row; its sentence label is the number of tokens that are read bidirectionally."""
        framing, ids = self.task.framing, store.source(index)
        choice, blank = random.random(), [framing.pad]
        eos = framing.eos if store.ends_line(index) else framing.pad  # a line that is split ends in its last row
        if choice < self.bidirectional:
            masked, labels = self.masker(ids, random)
            last = 1 if store.ends_line(index) else 0
            source = concat_ids(framing.source_prefix, masked, (framing.eos,) * last)
            target = concat_ids(blank * len(framing.source_prefix), labels, blank * last)
            return BatchRow(source, target, sentence_label=len(source))
        if choice < self.bidirectional + self.left_to_right or len(ids) < 2:
            target = concat_ids(blank * (len(framing.source_prefix) - 1), ids, (eos,))
            return BatchRow(concat_ids(framing.source_prefix, ids), target)
        split = 1 + int(random.random() * (len(ids) - 1))
        prefix = concat_ids(framing.source_prefix, ids[:split], framing.source_suffix)
        source = concat_ids(prefix, (framing.bos,), ids[split:])
        target = concat_ids(blank * len(prefix), ids[split:], (eos,))
        return BatchRow(source, target, sentence_label=len(prefix))

    def describe_row(self, row: BatchRow) -> str:
        if row.sentence_label == len(row.source):
            return "bidirectional mask"
        return (
            f"bidirectional over the first {row.sentence_label} tokens" if row.sentence_label else "left-to-right mask"
        )

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source + len(self.task.framing.source_prefix) + len(self.task.framing.source_suffix) + 1

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        features = self.model.forward_tokens(batch.source, source_layout(batch), batch.sentence_labels)
        return self.source_token_loss(features, batch)
