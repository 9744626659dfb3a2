"""UniLM's mixture of masks: one stack learns to read both ways, left to right, and from a source to a target."""

from __future__ import annotations

import numpy as np

from dragoman.data import Batch, BatchRow, TokenStore
from dragoman.models import DecoderOnlyModel
from dragoman.models.usage import CONTINUE
from dragoman.objectives.masked_language_modeling import make_masker
from dragoman.objectives.objective import Loss, Objective, TaskContext, concat_ids, source_layout, source_token_loss


class UnifiedLanguageObjective(Objective):
    """Each sentence under one of three masks, chosen by chance (Dong et al. 2019, §2.3).

    Both ways, `rate` of the words are hidden and asked for; left to right, every next word is; from source to target,
    the text is cut somewhere, its first part is seen as a whole and every next word of the second is asked for. The
    paper asks for hidden words under all three masks; here what is written from left to right is asked for as it will
    be written.
    """

    data_format = "text"
    model_kind = (DecoderOnlyModel,)
    usage = CONTINUE
    corrupts_input = True
    aligned = True

    def __init__(
        self, task: TaskContext, *, both_ways: float = 1 / 3, left_to_right: float = 1 / 3, rate: float = 0.15
    ) -> None:
        super().__init__(task)
        self.both_ways, self.left_to_right = both_ways, left_to_right
        self.mask = make_masker(task, rate)
        self.make_row = self._masked

    def _masked(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """The label of a row is how much of it is seen from everywhere."""
        framing, ids = self.task.framing, store.source(index)
        choice, blank = random.random(), [framing.pad]
        end = framing.eos if store.ends_line(index) else framing.pad  # a line that was cut does not end here
        if choice < self.both_ways:
            noised, answers = self.mask(ids, random)
            last = 1 if store.ends_line(index) else 0
            source = concat_ids(framing.source_prefix, noised, (framing.eos,) * last)
            return BatchRow(
                source,
                concat_ids(blank * len(framing.source_prefix), answers, blank * last),
                sentence_label=len(source),
            )
        if choice < self.both_ways + self.left_to_right or len(ids) < 2:
            return BatchRow(
                concat_ids(framing.source_prefix, ids),
                concat_ids(blank * (len(framing.source_prefix) - 1), ids, (end,)),
            )
        cut = 1 + int(random.random() * (len(ids) - 1))
        seen = concat_ids(framing.source_prefix, ids[:cut], framing.source_suffix)
        source = concat_ids(seen, (framing.bos,), ids[cut:])
        return BatchRow(source, concat_ids(blank * len(seen), ids[cut:], (end,)), sentence_label=len(seen))

    def describe_row(self, row: BatchRow) -> str:
        if row.sentence_label == len(row.source):
            return "bidirectional mask"
        return (
            f"the first {row.sentence_label} tokens are seen as a whole" if row.sentence_label else "left-to-right mask"
        )

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source + len(self.task.framing.source_prefix) + len(self.task.framing.source_suffix) + 1

    def __call__(self, model: DecoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        x, ctx = model.forward_tokens(batch.source, source_layout(batch), batch.sentence_labels)
        return source_token_loss(self.task, model.output, x, batch, ctx)
