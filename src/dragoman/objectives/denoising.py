"""Denoising: an encoder reads a damaged text, its decoder writes what was there."""

from __future__ import annotations

import numpy as np

from dragoman.data import Batch, Row, TokenStore
from dragoman.data.noise import (
    Chain,
    CorruptSpans,
    Delete,
    Infill,
    MaskTokens,
    Noise,
    PermuteSentences,
    Rotate,
    Shuffle,
)
from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel, Model
from dragoman.models.usage import FILL
from dragoman.objectives.masked_words import mask_of
from dragoman.objectives.objective import Loss, Material, Objective, row
from dragoman.objectives.translation import Translation
from dragoman.text import Tokenizer


class Denoising(Objective):
    """The whole text from a damaged one (Lewis et al. 2020, §2.2).

    `infill` of the words become masks, a span of about `span` words one mask; `mask` and `delete` are shares of single
    words; `permute` puts sentences in another order, `rotate` lets the text begin anywhere, and words may be shuffled
    over a distance of `shuffle` (Lample et al. 2018).
    """

    reads = "text"
    trains = (EncoderDecoderModel,)
    usage = FILL
    corrupts = True
    gaps = "text"

    def __init__(
        self,
        material: Material,
        *,
        infill: float = 0.3,
        span: float = 3.0,
        mask: float = 0.0,
        delete: float = 0.0,
        permute: bool = True,
        rotate: bool = False,
        shuffle: int | None = None,
    ) -> None:
        super().__init__(material)
        hidden = mask_of(material.source)
        steps: list[tuple[bool, Noise]] = [
            (permute, PermuteSentences(sentence_ends(material))),
            (rotate, Rotate()),
            (shuffle is not None, Shuffle(shuffle or 1)),
            (delete > 0, Delete(delete)),
            (mask > 0, MaskTokens(mask, hidden)),
            (infill > 0, Infill(infill, span, hidden)),
        ]
        self.noise = Chain(tuple(step for wanted, step in steps if wanted))
        self.loss = Translation(material)
        self.rows = self._damaged

    def _damaged(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        framing, ids = self.material.framing, store.target(index)
        ends = store.ends(index)  # a line that is cut into several rows ends in the last of them
        source = row(framing.before, self.noise(store.source(index), random), framing.after if ends else ())
        return Row(source, row((framing.start,), ids, (framing.end,) if ends else ()))

    def __call__(self, model: Model, batch: Batch, step: int = 0) -> Loss:
        return self.loss(model, batch, step)


class Spans(Objective):
    """Only the words that were taken out, span by span, each announced by its sentinel (Raffel et al. 2020, §3.1.4)."""

    reads = "text"
    trains = (EncoderDecoderModel,)
    usage = FILL
    corrupts = True
    gaps = "span"

    def __init__(self, material: Material, *, rate: float = 0.15, span: float = 3.0) -> None:
        super().__init__(material)
        sentinels = sentinels_of(material.target, material.model.vocabulary)
        if not sentinels:
            raise UserError(
                "spans are marked by sentinels, tokens past the vocabulary, and this system has none: use t5, or the "
                "objective denoising"
            )
        self.spans = CorruptSpans(sentinels, rate, span)
        self.loss = Translation(material)
        self.rows = self._taken_out

    def _taken_out(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        framing = self.material.framing
        source, target = self.spans(store.source(index), random)
        after = framing.after if store.ends(index) else ()
        return Row(row(framing.before, source, after), row((framing.start,), target, (framing.end,)))

    def __call__(self, model: Model, batch: Batch, step: int = 0) -> Loss:
        return self.loss(model, batch, step)


def sentinels_of(tokenizer: Tokenizer, vocabulary: int) -> tuple[int, ...]:
    """The tokens that mark spans: `<extra_id_0>` … of an imported tokenizer, else the tokens past the vocabulary."""
    named = getattr(tokenizer, "symbols", {})
    own = [named[name] for n in range(len(named)) if (name := f"<extra_id_{n}>") in named]
    return tuple(own or range(tokenizer.size, vocabulary))


def sentence_ends(material: Material) -> tuple[int, ...]:
    """The pieces that end a sentence."""
    ends = {".", "!", "?", "…", "。"}
    pieces = material.source.pieces(range(material.source.size))
    return tuple(number for number, piece in enumerate(pieces) if piece.strip("▁") in ends)
