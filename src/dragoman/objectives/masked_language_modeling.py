"""Masked language modeling: an encoder predicts masked tokens, and whether two sentences are adjacent."""

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
from dragoman.objectives.objective import DataFormatName, Loss, Objective, TaskContext, concat_ids, source_layout
from dragoman.parts.precision import at_least_float32
from dragoman.text import SPECIAL_TOKENS, Tokenizer
from dragoman.text.special_tokens import BYTE_TOKENS


class MaskedLanguageObjective(Objective):
    """Predicts masked tokens from their context (Devlin et al. 2019, §3.1).

    Args:
        mask_rate: probability that a token is masked.
        mask_copies: number of different maskings of a sentence, which repeat after that many epochs (10 in the paper);
            None masks anew in every epoch (Liu et al. 2019).
        next_sentence: append a second sentence, which is the next one of the document or, with probability ½ and at
            the end of a document, a random one, and predict from the first token which it is.
        max_length: tokens of a pair of sentences; the longer sentence is truncated first.
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
        mask_rate: float = 0.15,
        mask_copies: int | None = None,
        next_sentence: bool = False,
        max_length: int = 512,
    ) -> None:
        super().__init__(task)
        shortest = len(task.framing.source_prefix) + 2 * len(task.framing.source_suffix) + 2
        if next_sentence and max_length < shortest:
            raise UserError(f"objective.settings.max_length is {max_length}, but two sentences need {shortest} tokens")
        self.masker = make_masker(task, mask_rate)
        self.distinct_epochs, self.next_sentence, self.max_length = mask_copies, next_sentence, max_length
        self.build_row = self._sentence_pair_row if next_sentence else self._sentence_row

    def _sentence_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing = self.task.framing
        masked, labels = self.masker(store.source(index), random)
        return framed_row(framing.source_prefix, masked, framing.source_suffix, labels, framing.pad)

    def _sentence_pair_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build CLS x SEP x′ SEP; the sentence label is 0 if x′ is the next sentence, 1 if it is a random one."""
        framing, count = self.task.framing, len(store)
        adjacent = index + 1 < count and store.follows_previous(index + 1)
        is_random = int(random.random() < 0.5 or not adjacent)
        other = index + 1
        if is_random and count > 2:  # neither the sentence itself nor the next one
            other = (index + 2 + int(random.random() * (count - 2))) % count
        prefix, suffix = framing.source_prefix, framing.source_suffix
        max_tokens = self.max_length - len(prefix) - 2 * len(suffix)
        sentences = truncate_pair(store.source(index), store.source(other % count), max_tokens)
        first, second = (self.masker(ids, random) for ids in sentences)
        blanks = [np.full(len(symbols), framing.pad) for symbols in (prefix, suffix)]
        source = concat_ids(prefix, first[0], suffix, second[0], suffix)
        target = concat_ids(blanks[0], first[1], blanks[1], second[1], blanks[1])
        token_types = np.arange(len(source)) >= len(prefix) + len(first[0]) + len(suffix)
        return BatchRow(source, target, token_types.astype(np.int64), is_random)

    def describe_row(self, row: BatchRow) -> str:
        if not self.next_sentence:
            return ""
        return "the second sentence is " + ("a random one" if row.sentence_label else "the next one")

    def row_length(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        length = source + len(self.task.framing.source_prefix) + len(self.task.framing.source_suffix)
        return np.minimum(2 * length, self.max_length) if self.next_sentence else length

    @classmethod
    def data_format_for(cls, settings: Mapping[str, Any]) -> DataFormatName:
        return "documents" if settings.get("next_sentence") else cls.data_format

    @property
    def supports_packing(self) -> bool:
        return super().supports_packing and not self.next_sentence  # predicted from the first token of a row

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        features = self.model.forward_features(batch.source, source_layout(batch), token_types=batch.token_type_ids)
        loss = self.source_token_loss(features, batch)
        if not self.next_sentence or self.model.pooler is None or batch.sentence_labels is None:
            return loss
        logits = at_least_float32(self.model.pooler(features.output))
        sentence_loss = F.cross_entropy(logits, batch.sentence_labels)
        correct = (logits.argmax(-1) == batch.sentence_labels).sum() / (batch.sentence_labels != IGNORE_INDEX).sum()
        metrics = {
            "next_sentence_loss": sentence_loss.detach() * loss.num_labels,
            "next_sentence_accuracy": correct * loss.num_labels,
        }
        return Loss(loss.total + sentence_loss * loss.num_labels, loss.num_labels, loss.metrics | metrics)


def truncate_pair(first: np.ndarray, second: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Truncate two adjacent texts to `max_tokens` in total, the longer one first, at the outer ends."""
    half = max_tokens // 2
    first_length = min(len(first), max(max_tokens - half, max_tokens - len(second)))
    return first[len(first) - first_length :], second[: max_tokens - first_length]


def make_masker(task: TaskContext, mask_rate: float) -> MaskedLanguageModeling:
    """Build the masking for a tokenizer; random replacements are neither special tokens nor bytes."""
    tokenizer = task.source_tokenizer
    first = len(SPECIAL_TOKENS) if tokenizer.kind == "word" else len(SPECIAL_TOKENS) + len(BYTE_TOKENS)
    return MaskedLanguageModeling(
        vocab_size=tokenizer.vocab_size,
        first_token=min(first, tokenizer.vocab_size - 1),
        rate=mask_rate,
        mask=mask_id(tokenizer),
        pad=task.framing.pad,
    )


def mask_id(tokenizer: Tokenizer) -> int:
    if tokenizer.mask is None:
        raise UserError("tokens cannot be masked: the tokenizer of the run has no mask token")
    return tokenizer.mask


def framed_row(
    prefix: tuple[int, ...], ids: np.ndarray, suffix: tuple[int, ...], labels: np.ndarray, pad: int
) -> BatchRow:
    """Add prefix and suffix to a source and its labels; the framing itself is unlabeled."""
    return BatchRow(concat_ids(prefix, ids, suffix), concat_ids([pad] * len(prefix), labels, [pad] * len(suffix)))
