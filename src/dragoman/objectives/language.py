"""Language modelling: −Σ log p(y_t | y_<t), over a text, over source and target as one, over a dialogue's replies."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dragoman.data import Batch, Row, TokenStore
from dragoman.models import DecoderOnlyModel, Usage
from dragoman.models.usage import CONTINUE, REPLY, TRANSLATE
from dragoman.objectives.objective import Loss, Material, Objective, Reads, answered, row, source_layout
from dragoman.objectives.translation import Translation, dropout_of


class Language(Objective):
    """Every next word of a text (Bengio et al. 2003).

    A line that is cut into several rows has START before the first and END after the last.
    """

    reads: ClassVar[Reads] = "text"
    trains = (DecoderOnlyModel,)
    usage: ClassVar[Usage] = CONTINUE

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self.rows = self._text
        self.loss = Translation(material)

    def _text(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        framing, ids = self.material.framing, store.target(index)
        start = (framing.before or (framing.start,)) if store.starts(index) or len(ids) < 2 else ()
        return Row(row(()), row(start, ids, (framing.end,) if store.ends(index) else ()))

    def width(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return target + 1

    def sizes(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0 * source, self.width(source, target)

    def __call__(self, model: DecoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        return self.loss(model, batch, step)


class OneSequence(Language):
    """Source, separator and target as one text, all of whose words are to be foretold (Liu et al. 2018, §4.2.3)."""

    reads = "pairs"
    usage = TRANSLATE
    also = ("generate",)
    decodes = True
    best = "bleu"
    counts_source = True

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self.segments = dropout_of(material)

    def _text(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        framing, source, target = self.material.framing, store.source(index), store.target(index)
        return Row(row(()), row(framing.before, source, framing.after, (framing.start,), target, (framing.end,)))

    def width(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source + target + len(self.material.framing.before) + len(self.material.framing.after) + 1


class Dialogue(Objective):
    """The replies of a dialogue, given all that was said before; what the other says is read, not learned.

    A dialogue is one sequence, u₁ SEPARATOR r₁ END u₂ SEPARATOR r₂ END …, and only r and END count (as in supervised
    instruction tuning, Ouyang et al. 2022, §3.5).
    """

    reads = "turns"
    trains = (DecoderOnlyModel,)
    usage = REPLY
    also = ("translate",)
    aligned = True

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self.rows = self._dialogue

    def _dialogue(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        return Row(store.source(index), store.target(index))

    def width(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return source

    def __call__(self, model: DecoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        x, ctx = model.read(batch.source, source_layout(batch))
        return answered(self.material, model.output, x, batch, ctx)
