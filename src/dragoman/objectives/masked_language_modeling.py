"""Masked words: an encoder guesses what was hidden, and whether two sentences belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F

from dragoman.data import IGNORE_INDEX, Batch, BatchRow, TokenStore
from dragoman.data.noise import MaskedLanguageModeling
from dragoman.errors import UserError
from dragoman.models import EncoderOnlyModel, Model
from dragoman.models.usage import FILL
from dragoman.objectives.objective import (
    DataFormatName,
    Loss,
    Objective,
    TaskContext,
    concat_ids,
    source_layout,
    source_token_loss,
)
from dragoman.parts.precision import at_least_float32
from dragoman.text import SPECIAL_TOKENS, Tokenizer
from dragoman.text.special_tokens import BYTE_TOKENS


class MaskedLanguageObjective(Objective):
    """A share `rate` of the words is hidden and asked for (Devlin et al. 2019, §3.1).

    `copies` of every sentence are masked once and for all, as there (10); without, in every epoch anew (Liu et al.
    2019). `next_sentence`: a second sentence follows, the next one of the document or, half of the time and at the end
    of a document, one from elsewhere, and which is asked of the first token. Pairs of more than `longest` tokens are
    truncated, the longer sentence first.
    """

    data_format = "text"
    model_kind: ClassVar[tuple[type[Model], ...]] = (EncoderOnlyModel,)
    usage = FILL
    corrupts_input = True
    infilling = "piece"
    aligned = True

    def __init__(
        self,
        task: TaskContext,
        *,
        rate: float = 0.15,
        copies: int | None = None,
        next_sentence: bool = False,
        longest: int = 512,
    ) -> None:
        super().__init__(task)
        around = len(task.framing.source_prefix) + 2 * len(task.framing.source_suffix)
        if next_sentence and longest < around + 2:
            raise UserError(f"objective.settings.longest is {longest}, but two sentences need {around + 2} tokens")
        self.mask = make_masker(task, rate)
        self.repeat_after_epochs, self.next_sentence, self.longest = copies, next_sentence, longest
        self.make_row = self._two_sentences if next_sentence else self._one_sentence

    def _one_sentence(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing = self.task.framing
        noised, answers = self.mask(store.source(index), random)
        return framed_row(framing.source_prefix, noised, framing.source_suffix, answers, framing.pad)

    def _two_sentences(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """CLASS x SEPARATOR x′ SEPARATOR; the label is 0 where x′ is the next sentence, 1 where it is any."""
        framing, count = self.task.framing, len(store)
        adjacent = index + 1 < count and store.follows_previous(index + 1)
        elsewhere = int(random.random() < 0.5 or not adjacent)
        other = index + 1
        if elsewhere and count > 2:  # any but the sentence itself and the next one
            other = (index + 2 + int(random.random() * (count - 2))) % count
        before, after = framing.source_prefix, framing.source_suffix
        room = self.longest - len(before) - 2 * len(after)
        sentences = truncate_pair(store.source(index), store.source(other % count), room)
        first, second = (self.mask(ids, random) for ids in sentences)
        blanks = [np.full(len(symbols), framing.pad) for symbols in (before, after)]
        source = concat_ids(before, first[0], after, second[0], after)
        target = concat_ids(blanks[0], first[1], blanks[1], second[1], blanks[1])
        types = np.arange(len(source)) >= len(before) + len(first[0]) + len(after)
        return BatchRow(source, target, types.astype(np.int64), elsewhere)

    def describe_row(self, row: BatchRow) -> str:
        return (
            "the second sentence is " + ("a random one" if row.sentence_label else "the next one")
        ) * self.next_sentence

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        around = len(self.task.framing.source_prefix) + len(self.task.framing.source_suffix)
        return np.minimum(2 * (source + around), self.longest) if self.next_sentence else source + around

    @classmethod
    def data_format_for(cls, settings: Mapping[str, Any]) -> DataFormatName:
        return "documents" if settings.get("next_sentence") else cls.data_format

    @property
    def supports_packing(self) -> bool:
        return super().supports_packing and not self.next_sentence  # which is asked of the first token of a row

    def __call__(self, model: EncoderOnlyModel, batch: Batch, step: int = 0) -> Loss:
        features, ctx = model.forward_features(batch.source, source_layout(batch), token_types=batch.token_type_ids)
        loss = source_token_loss(self.task, model.output, features, batch, ctx)
        if not self.next_sentence or model.pooler is None or batch.sentence_labels is None:
            return loss
        logits = at_least_float32(model.pooler(features))
        lost = F.cross_entropy(logits, batch.sentence_labels)
        right = (logits.argmax(-1) == batch.sentence_labels).sum() / (batch.sentence_labels != IGNORE_INDEX).sum()
        parts = {"next sentence": lost.detach() * loss.count, "next sentence right": right * loss.count}
        return Loss(loss.total + lost * loss.count, loss.count, loss.metrics | parts)


def truncate_pair(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sequences of at most `room` tokens together: the longer one is shortened first, at its far end."""
    half = room // 2
    kept = min(len(first), max(room - half, room - len(second)))
    return first[len(first) - kept :], second[: room - kept]


def make_masker(task: TaskContext, rate: float) -> MaskedLanguageModeling:
    """Masking for a tokenizer: words put in by chance are any but symbols and bytes."""
    tokenizer = task.source_tokenizer
    first = len(SPECIAL_TOKENS) if tokenizer.kind == "word" else len(SPECIAL_TOKENS) + len(BYTE_TOKENS)
    return MaskedLanguageModeling(
        vocab_size=tokenizer.vocab_size,
        first_token=min(first, tokenizer.vocab_size - 1),
        rate=rate,
        mask=mask_id(tokenizer),
        pad=task.framing.pad,
    )


def mask_id(tokenizer: Tokenizer) -> int:
    if tokenizer.mask is None:
        raise UserError("words cannot be masked: the run's tokenizer has no symbol for a mask")
    return tokenizer.mask


def framed_row(
    before: tuple[int, ...], ids: np.ndarray, after: tuple[int, ...], answers: np.ndarray, pad: int
) -> BatchRow:
    """A source with its symbols, and the answers to it, none to the symbols."""
    return BatchRow(concat_ids(before, ids, after), concat_ids([pad] * len(before), answers, [pad] * len(after)))
