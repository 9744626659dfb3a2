"""Masked words: an encoder guesses what was hidden, and whether two sentences belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F

from dragoman.data import NOTHING, Batch, Row, TokenStore
from dragoman.data.noise import MaskWords
from dragoman.errors import UserError
from dragoman.models import EncoderOnlyModel, Model
from dragoman.models.usage import FILL
from dragoman.objectives.objective import Loss, Material, Objective, Reads, answered, row, source_layout
from dragoman.parts.precision import at_least_float32
from dragoman.text import SYMBOLS, Tokenizer
from dragoman.text.symbols import BYTES


class MaskedWords(Objective):
    """A share `rate` of the words is hidden and asked for (Devlin et al. 2019, §3.1).

    `copies` of every sentence are masked once and for all, as there (10); without, in every epoch anew (Liu et al.
    2019). `next_sentence`: a second sentence follows, the next one of the document or, half of the time and at the end
    of a document, one from elsewhere, and which is asked of the first token. Pairs of more than `longest` tokens are
    truncated, the longer sentence first.
    """

    reads = "text"
    trains: ClassVar[tuple[type[Model], ...]] = (EncoderOnlyModel,)
    usage = FILL
    corrupts = True
    gaps = "piece"
    aligned = True

    def __init__(
        self,
        material: Material,
        *,
        rate: float = 0.15,
        copies: int | None = None,
        next_sentence: bool = False,
        longest: int = 512,
    ) -> None:
        super().__init__(material)
        around = len(material.framing.before) + 2 * len(material.framing.after)
        if next_sentence and longest < around + 2:
            raise UserError(f"objective.settings.longest is {longest}, but two sentences need {around + 2} tokens")
        self.mask = mask_words(material, rate)
        self.copies, self.next_sentence, self.longest = copies, next_sentence, longest
        self.rows = self._two_sentences if next_sentence else self._one_sentence

    def _one_sentence(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        framing = self.material.framing
        noised, answers = self.mask(store.source(index), random)
        return framed_answers(framing.before, noised, framing.after, answers, framing.pad)

    def _two_sentences(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        """CLASS x SEPARATOR x′ SEPARATOR; the label is 0 where x′ is the next sentence, 1 where it is any."""
        framing, count = self.material.framing, len(store)
        adjacent = index + 1 < count and store.follows(index + 1)
        elsewhere = int(random.random() < 0.5 or not adjacent)
        other = index + 1
        if elsewhere and count > 2:  # any but the sentence itself and the next one
            other = (index + 2 + int(random.random() * (count - 2))) % count
        before, after = framing.before, framing.after
        room = self.longest - len(before) - 2 * len(after)
        sentences = truncated_pair(store.source(index), store.source(other % count), room)
        first, second = (self.mask(ids, random) for ids in sentences)
        blanks = [np.full(len(symbols), framing.pad) for symbols in (before, after)]
        source = row(before, first[0], after, second[0], after)
        target = row(blanks[0], first[1], blanks[1], second[1], blanks[1])
        types = np.arange(len(source)) >= len(before) + len(first[0]) + len(after)
        return Row(source, target, types.astype(np.int64), elsewhere)

    def note(self, row: Row) -> str:
        return ("the second sentence is " + ("a random one" if row.label else "the next one")) * self.next_sentence

    def width(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        around = len(self.material.framing.before) + len(self.material.framing.after)
        return np.minimum(2 * (source + around), self.longest) if self.next_sentence else source + around

    @classmethod
    def reading(cls, settings: Mapping[str, Any]) -> Reads:
        return "documents" if settings.get("next_sentence") else cls.reads

    @property
    def packs(self) -> bool:
        return super().packs and not self.next_sentence  # which is asked of the first token of a row

    def __call__(self, model: EncoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        features, ctx = model.features(batch.source, source_layout(batch), types=batch.types)
        loss = answered(self.material, model.output, features, batch, ctx)
        if not self.next_sentence or model.pooler is None or batch.labels is None:
            return loss
        logits = at_least_float32(model.pooler(features))
        lost = F.cross_entropy(logits, batch.labels)
        right = (logits.argmax(-1) == batch.labels).sum() / (batch.labels != NOTHING).sum()
        parts = {"next sentence": lost.detach() * loss.count, "next sentence right": right * loss.count}
        return Loss(loss.total + lost * loss.count, loss.count, loss.parts | parts)


def truncated_pair(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sequences of at most `room` tokens together: the longer one is shortened first, at its far end."""
    half = room // 2
    kept = min(len(first), max(room - half, room - len(second)))
    return first[len(first) - kept :], second[: room - kept]


def mask_words(material: Material, rate: float) -> MaskWords:
    """Masking for a tokenizer: words put in by chance are any but symbols and bytes."""
    tokenizer = material.source
    first = len(SYMBOLS) if tokenizer.kind == "word" else len(SYMBOLS) + len(BYTES)
    return MaskWords(
        vocabulary=tokenizer.size,
        first_word=min(first, tokenizer.size - 1),
        rate=rate,
        mask=mask_of(tokenizer),
        pad=material.framing.pad,
    )


def mask_of(tokenizer: Tokenizer) -> int:
    if tokenizer.mask is None:
        raise UserError("words cannot be masked: the run's tokenizer has no symbol for a mask")
    return tokenizer.mask


def framed_answers(
    before: tuple[int, ...], ids: np.ndarray, after: tuple[int, ...], answers: np.ndarray, pad: int
) -> Row:
    """A source with its symbols, and the answers to it, none to the symbols."""
    return Row(row(before, ids, after), row([pad] * len(before), answers, [pad] * len(after)))
