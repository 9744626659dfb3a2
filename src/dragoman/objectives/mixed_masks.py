"""UniLM's mixture of masks: one stack learns to read both ways, left to right, and from a source to a target."""

from __future__ import annotations

import numpy as np

from dragoman.data import Batch, Row, TokenStore
from dragoman.models import DecoderOnlyModel
from dragoman.models.usage import CONTINUE
from dragoman.objectives.masked_words import mask_words
from dragoman.objectives.objective import Loss, Material, Objective, answered, row, source_layout


class MixedMasks(Objective):
    """Each sentence under one of three masks, chosen by chance (Dong et al. 2019, §2.3).

    Both ways, `rate` of the words are hidden and asked for; left to right, every next word is; from source to target,
    the text is cut somewhere, its first part is seen as a whole and every next word of the second is asked for. The
    paper asks for hidden words under all three masks; here what is written from left to right is asked for as it will
    be written.
    """

    reads = "text"
    trains = (DecoderOnlyModel,)
    usage = CONTINUE
    corrupts = True
    aligned = True

    def __init__(
        self, material: Material, *, both_ways: float = 1 / 3, left_to_right: float = 1 / 3, rate: float = 0.15
    ) -> None:
        super().__init__(material)
        self.both_ways, self.left_to_right = both_ways, left_to_right
        self.mask = mask_words(material, rate)
        self.rows = self._masked

    def _masked(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        """The label of a row is how much of it is seen from everywhere."""
        framing, ids = self.material.framing, store.source(index)
        choice, blank = random.random(), [framing.pad]
        end = framing.end if store.ends(index) else framing.pad  # a line that was cut does not end here
        if choice < self.both_ways:
            noised, answers = self.mask(ids, random)
            last = 1 if store.ends(index) else 0
            source = row(framing.before, noised, (framing.end,) * last)
            return Row(source, row(blank * len(framing.before), answers, blank * last), label=len(source))
        if choice < self.both_ways + self.left_to_right or len(ids) < 2:
            return Row(row(framing.before, ids), row(blank * (len(framing.before) - 1), ids, (end,)))
        cut = 1 + int(random.random() * (len(ids) - 1))
        seen = row(framing.before, ids[:cut], framing.after)
        source = row(seen, (framing.start,), ids[cut:])
        return Row(source, row(blank * len(seen), ids[cut:], (end,)), label=len(seen))

    def note(self, row: Row) -> str:
        if row.label == len(row.source):
            return "bidirectional mask"
        return f"the first {row.label} tokens are seen as a whole" if row.label else "left-to-right mask"

    def width(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source + len(self.material.framing.before) + len(self.material.framing.after) + 1

    def __call__(self, model: DecoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        x, ctx = model.read(batch.source, source_layout(batch), batch.labels)
        return answered(self.material, model.output, x, batch, ctx)
