"""Language modeling: −Σ log p(y_t | y_<t) over a text, a concatenated pair, or the replies of a dialogue.

Unified language modeling (UniLM) learns bidirectional, left-to-right and prefix attention masks with one stack.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dragoman.data import Batch, BatchRow, TokenStore
from dragoman.models import DecoderOnlyModel, Usage
from dragoman.models.usage import CONTINUE, REPLY, TRANSLATE
from dragoman.objectives.masked_language_modeling import make_masker
from dragoman.objectives.objective import (
    DataFormatName,
    Loss,
    Objective,
    SequenceObjective,
    TaskContext,
    concat_ids,
    source_layout,
)
from dragoman.objectives.translation_objective import bpe_dropout_segmenters


class LanguageModelObjective(SequenceObjective):
    """Predicts every next token of a text (Bengio et al. 2003).

    A line that is split into several rows has BOS in the first and EOS in the last.
    """

    data_format: ClassVar[DataFormatName] = "text"
    model_kind = (DecoderOnlyModel,)
    usage: ClassVar[Usage] = CONTINUE

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the training example of text number `index`: an empty source, and the text as target.

        A long line is split into several texts, of which only the first has BOS and the last EOS; a single token also
        has BOS, from which it is predicted. `random` is not used.
        """
        framing, ids = self.task.framing, store.target(index)
        # the model has no source: the prefix of one stands before the text, also in a search; without any, BOS does
        first_tokens = framing.source_prefix or (framing.bos,)
        bos = first_tokens if store.starts_line(index) or len(ids) < 2 else ()
        eos = (framing.eos,) if store.ends_line(index) else ()
        return BatchRow(source=concat_ids(()), target=concat_ids(bos, ids, eos))

    def row_length(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Return for each text how many tokens the model reads in its row of a batch: BOS and the text.

        EOS is only a label. The arguments are equal: both are the numbers of tokens of the texts.
        """
        # + 1: BOS
        return target_lengths + 1

    def packed_lengths(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many tokens each text adds to the packed source and to the packed target of a batch.

        It adds none to the source, and the text with BOS to the target. The arguments are equal: both are the numbers
        of tokens of the texts.
        """
        return np.zeros_like(source_lengths), self.row_length(source_lengths, target_lengths)


class ConcatenationObjective(LanguageModelObjective):
    """Predicts all tokens of source, separator and target as one text (Liu et al. 2018, §4.2.3)."""

    data_format = "pairs"
    usage = TRANSLATE
    other_commands = ("generate",)
    generates = True
    predicts_source = True

    def __init__(self, task: TaskContext) -> None:
        """Set up the objective for a task; its BPE dropout, if any, segments source and target anew in every epoch."""
        super().__init__(task)
        self.subword_samplers = bpe_dropout_segmenters(task)

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the training example of pair number `index`: an empty source; source and target together as target.

        `random` is not used.
        """
        framing = self.task.framing
        source = concat_ids(framing.source_prefix, store.source(index), framing.source_suffix)
        target = concat_ids(source, (framing.bos,), store.target(index), (framing.eos,))
        return BatchRow(source=concat_ids(()), target=target)

    def row_length(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Return for each pair how many tokens the model reads in its row: source and target with special tokens.

        EOS is only a label. The arguments are the numbers of source and target tokens of the pairs, without special
        tokens.
        """
        # + 1: BOS before the target
        return source_lengths + target_lengths + self.framing_length + 1


class DialogueObjective(Objective):
    """Predicts the replies of a dialogue from all turns before them; the other speaker's turns have no labels.

    A dialogue is one sequence, u₁ SEPARATOR r₁ EOS u₂ SEPARATOR r₂ EOS …, with labels for r and EOS (as in supervised
    instruction tuning, Ouyang et al. 2022, §3.5).
    """

    data_format = "turns"
    model_kind = (DecoderOnlyModel,)
    usage = REPLY
    other_commands = ("translate",)
    labels_source = True

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Return dialogue number `index` as the store has it; `random` is not used.

        `store.source` has the tokens of all turns, `store.target` their labels: the next token where it belongs to a
        reply, padding elsewhere.
        """
        return BatchRow(store.source(index), store.target(index))

    def row_length(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Return for each dialogue how many tokens its row of a batch has: `source_lengths`, those of all its turns."""
        return source_lengths

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the cross-entropy of the labeled tokens, those of replies; the training step is not used."""
        features = self.model.forward_tokens(batch.source, source_layout(batch))
        return self.source_token_loss(features, batch)


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
    labels_source = True

    def __init__(
        self, task: TaskContext, *, bidirectional: float = 1 / 3, left_to_right: float = 1 / 3, mask_rate: float = 0.15
    ) -> None:
        """Set the probabilities of the `bidirectional` and `left_to_right` attention masks; a prefix mask has the rest.

        `mask_rate` is the probability that a token is masked under the bidirectional one.
        """
        super().__init__(task)
        self.bidirectional, self.left_to_right = bidirectional, left_to_right
        self.masker = make_masker(task, mask_rate)

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the training example of text number `index` under one of three attention masks, chosen at random.

        Bidirectional: masked tokens have labels. Left to right: the label of every token is the next one. Prefix: the
        text is split, and only the second part has labels. The sentence label of the row is the number of tokens that
        are read bidirectionally.
        """
        framing, ids = self.task.framing, store.source(index)
        choice = random.random()  # from 0 to 1, divided among the three masks
        no_label = [framing.pad]  # padding as label stands for none
        ends_line = store.ends_line(index)  # a long line is split into several texts, of which the last has EOS
        next_after_text = framing.eos if ends_line else framing.pad  # label of the last token
        if choice < self.bidirectional:
            masked, labels = self.masker(ids, random)
            eos = [framing.eos] if ends_line else []
            source = concat_ids(framing.source_prefix, masked, eos)
            target = concat_ids(no_label * len(framing.source_prefix), labels, no_label * len(eos))
            return BatchRow(source, target, sentence_label=len(source))
        if choice < self.bidirectional + self.left_to_right or len(ids) < 2:
            # the label of the last token of the prefix is the first token of the text
            target = concat_ids(no_label * (len(framing.source_prefix) - 1), ids, (next_after_text,))
            return BatchRow(concat_ids(framing.source_prefix, ids), target)
        split = 1 + int(random.random() * (len(ids) - 1))  # tokens of the first part; each part has one at least
        prefix = concat_ids(framing.source_prefix, ids[:split], framing.source_suffix)
        source = concat_ids(prefix, (framing.bos,), ids[split:])
        target = concat_ids(no_label * len(prefix), ids[split:], (next_after_text,))
        return BatchRow(source, target, sentence_label=len(prefix))

    def describe_row(self, row: BatchRow) -> str:
        """Name the attention mask of an example, whose sentence label is the number of tokens read bidirectionally."""
        prefix_length = row.sentence_label
        if prefix_length == len(row.source):
            return "bidirectional mask"
        return f"bidirectional over the first {prefix_length} tokens" if prefix_length else "left-to-right mask"

    def row_length(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Return for each text how many tokens its row of a batch has: the text with special tokens.

        The arguments are equal: both are the numbers of tokens of the texts.
        """
        # + 1: EOS after the text, or BOS between its two parts
        return source_lengths + self.framing_length + 1

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the cross-entropy of the labeled tokens; the training step is not used.

        Sentence labels are not predicted: they are the numbers of tokens that are read bidirectionally.
        """
        features = self.model.forward_tokens(batch.source, source_layout(batch), prefix_lengths=batch.sentence_labels)
        return self.source_token_loss(features, batch)
