"""Denoising: an encoder reads a corrupted text, and the decoder generates the original."""

from __future__ import annotations

import numpy as np

from dragoman.data import BatchRow, TokenStore, noise
from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel
from dragoman.models.usage import FILL
from dragoman.objectives.masked_language_modeling import mask_id
from dragoman.objectives.objective import SequenceObjective, TaskContext, concat_ids
from dragoman.text import Tokenizer

SENTENCE_FINAL_PUNCTUATION = {".", "!", "?", "…", "。"}


class DenoisingObjective(SequenceObjective):
    """Reconstructs a text from a corrupted one (BART; Lewis et al. 2020, §2.2).

    Args:
        infill_rate: share of tokens in spans that are each replaced by one mask.
        mean_span_length: mean number of tokens of such a span.
        mask_rate: probability that a token is masked.
        delete_rate: probability that a token is deleted.
        permute_sentences: shuffle the sentences of a text.
        rotate_document: start the text at a random token.
        shuffle_distance: shuffle tokens over at most this distance (Lample et al. 2018); None leaves their order.
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
        infill_rate: float = 0.3,
        mean_span_length: float = 3.0,
        mask_rate: float = 0.0,
        delete_rate: float = 0.0,
        permute_sentences: bool = True,
        rotate_document: bool = False,
        shuffle_distance: int | None = None,
    ) -> None:
        """Collect the noise functions that the settings enable, in the order in which they are applied to a text."""
        super().__init__(task)
        mask = mask_id(task.source_tokenizer)
        enabled: list[noise.Noise] = []
        if permute_sentences:
            enabled.append(noise.SentencePermutation(sentence_end_ids(task)))
        if rotate_document:
            enabled.append(noise.DocumentRotation())
        if shuffle_distance is not None:
            enabled.append(noise.LocalShuffle(shuffle_distance))
        if delete_rate > 0:
            enabled.append(noise.TokenDeletion(delete_rate))
        if mask_rate > 0:
            enabled.append(noise.TokenMasking(mask_rate, mask))
        if infill_rate > 0:
            enabled.append(noise.TextInfilling(infill_rate, mean_span_length, mask))
        self.noise = noise.NoiseChain(tuple(enabled))

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the training example of text number `index` of the store: corrupted text as source, original as target.

        Special tokens (framing) are added before and after both.
        """
        framing = self.task.framing
        original = store.source(index)  # source and target of a store of texts are equal
        ends_line = store.ends_line(index)  # a long line is split into several texts, of which the last has EOS
        source_suffix, target_suffix = (framing.source_suffix, (framing.eos,)) if ends_line else ((), ())
        source = concat_ids(framing.source_prefix, self.noise(original, random), source_suffix)
        return BatchRow(source, target=concat_ids((framing.bos,), original, target_suffix))


class SpanCorruptionObjective(SequenceObjective):
    """Predicts only the removed spans, each after its sentinel token (T5; Raffel et al. 2020, §3.1.4).

    Args:
        mask_rate: share of tokens that are removed and replaced by sentinels.
        mean_span_length: mean number of tokens of a removed span.
    """

    data_format = "text"
    model_kind = (EncoderDecoderModel,)
    usage = FILL
    corrupts_input = True
    infilling = "span"

    def __init__(self, task: TaskContext, *, mask_rate: float = 0.15, mean_span_length: float = 3.0) -> None:
        """Set up the function `corrupt_spans`, which removes the share `mask_rate` of the tokens of a text.

        It removes them in spans of `mean_span_length` tokens in the mean, each replaced by another sentinel token.
        """
        super().__init__(task)
        sentinels = sentinel_ids(task.target_tokenizer, task.model.vocab_size)
        if not sentinels:
            raise UserError(
                "the objective span-corruption replaces removed spans by sentinel tokens, whose ids follow those of "
                "the tokenizer, but this system has no sentinel tokens: set system.name to t5, or objective.name to "
                "denoising"
            )
        self.corrupt_spans = noise.SpanCorruption(sentinels, mask_rate, mean_span_length)

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the training example of text number `index` of the store: spans are removed from it, and predicted.

        In the source, a sentinel token stands for each span; the target holds the spans, each after its sentinel.
        """
        framing = self.task.framing
        source, target = self.corrupt_spans(store.source(index), random)
        # a long line is split into several texts, of which only the last has the suffix (EOS) in the source
        suffix = framing.source_suffix if store.ends_line(index) else ()
        return BatchRow(
            concat_ids(framing.source_prefix, source, suffix), concat_ids((framing.bos,), target, (framing.eos,))
        )


def sentinel_ids(tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of the sentinel tokens, which stand for removed spans in span corruption (T5).

    They are `<extra_id_0>`, `<extra_id_1>`, … of an imported tokenizer, or else the ids between the tokenizer's
    vocabulary and the model's, which has `vocab_size` tokens.
    """
    ids = tokenizer.special_token_ids  # name → id
    possible_names = [f"<extra_id_{number}>" for number in range(len(ids))]  # at most all special tokens
    imported = [ids[name] for name in possible_names if name in ids]
    return tuple(imported or range(tokenizer.vocab_size, vocab_size))


def sentence_end_ids(task: TaskContext) -> tuple[int, ...]:
    """Return the ids of all tokens of the source tokenizer that end a sentence, such as “.”."""
    tokens = task.source_tokenizer.tokens(range(task.source_tokenizer.vocab_size))  # in the order of their ids
    # “▁” stands for a space before or after the punctuation mark
    return tuple(token_id for token_id, token in enumerate(tokens) if token.strip("▁") in SENTENCE_FINAL_PUNCTUATION)
