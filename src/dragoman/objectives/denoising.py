"""Denoising: an encoder reads a damaged text, its decoder writes what was there."""

from __future__ import annotations

import numpy as np

from dragoman.data import Batch, BatchRow, TokenStore
from dragoman.data.noise import (
    DocumentRotation,
    LocalShuffle,
    Noise,
    NoiseChain,
    SentencePermutation,
    SpanCorruption,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
)
from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel, Model
from dragoman.models.usage import FILL
from dragoman.objectives.masked_language_modeling import mask_id
from dragoman.objectives.objective import Loss, Objective, TaskContext, concat_ids
from dragoman.objectives.translation_objective import TranslationObjective
from dragoman.text import Tokenizer


class DenoisingObjective(Objective):
    """The whole text from a damaged one (Lewis et al. 2020, §2.2).

    `infill` of the words become masks, a span of about `span` words one mask; `mask` and `delete` are shares of single
    words; `permute` puts sentences in another order, `rotate` lets the text begin anywhere, and words may be shuffled
    over a distance of `shuffle` (Lample et al. 2018).
    """

    data_format = "text"
    model_kind = (EncoderDecoderModel,)
    usage = FILL
    corrupts_input = True
    infilling = "text"

    def __init__(
        self,
        task: TaskContext,
        *,
        infill: float = 0.3,
        span: float = 3.0,
        mask: float = 0.0,
        delete: float = 0.0,
        permute: bool = True,
        rotate: bool = False,
        shuffle: int | None = None,
    ) -> None:
        super().__init__(task)
        hidden = mask_id(task.source_tokenizer)
        steps: list[tuple[bool, Noise]] = [
            (permute, SentencePermutation(sentence_end_ids(task))),
            (rotate, DocumentRotation()),
            (shuffle is not None, LocalShuffle(shuffle or 1)),
            (delete > 0, TokenDeletion(delete)),
            (mask > 0, TokenMasking(mask, hidden)),
            (infill > 0, TextInfilling(infill, span, hidden)),
        ]
        self.noise = NoiseChain(tuple(step for wanted, step in steps if wanted))
        self.loss = TranslationObjective(task)
        self.make_row = self._damaged

    def _damaged(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing, ids = self.task.framing, store.target(index)
        ends = store.ends_line(index)  # a line that is cut into several rows ends in the last of them
        source = concat_ids(
            framing.source_prefix, self.noise(store.source(index), random), framing.source_suffix if ends else ()
        )
        return BatchRow(source, concat_ids((framing.bos,), ids, (framing.eos,) if ends else ()))

    def __call__(self, model: Model, batch: Batch, step: int = 0) -> Loss:
        return self.loss(model, batch, step)


class SpanCorruptionObjective(Objective):
    """Only the words that were taken out, span by span, each announced by its sentinel (Raffel et al. 2020, §3.1.4)."""

    data_format = "text"
    model_kind = (EncoderDecoderModel,)
    usage = FILL
    corrupts_input = True
    infilling = "span"

    def __init__(self, task: TaskContext, *, rate: float = 0.15, span: float = 3.0) -> None:
        super().__init__(task)
        sentinels = sentinel_ids(task.target_tokenizer, task.model.vocab_size)
        if not sentinels:
            raise UserError(
                "spans are marked by sentinels, tokens past the vocabulary, and this system has none: use t5, or the "
                "objective denoising"
            )
        self.spans = SpanCorruption(sentinels, rate, span)
        self.loss = TranslationObjective(task)
        self.make_row = self._taken_out

    def _taken_out(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        framing = self.task.framing
        source, target = self.spans(store.source(index), random)
        after = framing.source_suffix if store.ends_line(index) else ()
        return BatchRow(
            concat_ids(framing.source_prefix, source, after), concat_ids((framing.bos,), target, (framing.eos,))
        )

    def __call__(self, model: Model, batch: Batch, step: int = 0) -> Loss:
        return self.loss(model, batch, step)


def sentinel_ids(tokenizer: Tokenizer, vocabulary: int) -> tuple[int, ...]:
    """The tokens that mark spans: `<extra_id_0>` … of an imported tokenizer, else the tokens past the vocabulary."""
    named = tokenizer.special_token_ids
    own = [named[name] for n in range(len(named)) if (name := f"<extra_id_{n}>") in named]
    return tuple(own or range(tokenizer.vocab_size, vocabulary))


def sentence_end_ids(task: TaskContext) -> tuple[int, ...]:
    """The pieces that end a sentence."""
    ends = {".", "!", "?", "…", "。"}
    pieces = task.source_tokenizer.tokens(range(task.source_tokenizer.vocab_size))
    return tuple(number for number, piece in enumerate(pieces) if piece.strip("▁") in ends)
