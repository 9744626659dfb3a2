"""UniLM as published: masked tokens are predicted under four attention masks, and in the targets of pairs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch, BatchRow, TokenStore
from dragoman.models import MaskedDecoderModel
from dragoman.models.masked_decoder import (
    FIRST_SEGMENT,
    LEFT_TO_RIGHT,
    RIGHT_TO_LEFT,
    SECOND_SEGMENT,
    SOURCE_SEGMENT,
    TARGET_SEGMENT,
)
from dragoman.models.usage import FILL
from dragoman.objectives.masked_language_modeling import make_masker
from dragoman.objectives.objective import (
    Loss,
    Objective,
    SequenceObjective,
    TaskContext,
    build_loss,
    concat_ids,
    source_layout,
    token_loss,
)
from dragoman.objectives.translation_objective import bpe_dropout_segmenters

MASK_NAMES = {
    FIRST_SEGMENT: "bidirectional mask",
    LEFT_TO_RIGHT: "left-to-right mask",
    RIGHT_TO_LEFT: "right-to-left mask",
    SOURCE_SEGMENT: "sequence-to-sequence mask",
}


class UnifiedMaskedObjective(Objective):
    """Predicts masked tokens of every text under one of four attention masks (Dong et al. 2019, §2.3).

    Under the sequence-to-sequence mask, and for half of the bidirectional rows, a text is split at a random position
    into two segments. EOS can be masked where generation has to end with it: under the left-to-right and the
    sequence-to-sequence mask. Next-sentence prediction is left out.

    Args:
        bidirectional: probability of the bidirectional mask (⅓ in the paper).
        left_to_right: probability of the left-to-right mask (⅙).
        right_to_left: probability of the right-to-left mask (⅙); the sequence-to-sequence mask has the rest (⅓).
        mask_rate: probability that a token is selected; 80 % of them become the mask, 10 % random, 10 % stay.
        ngram_rate: probability that a bigram or trigram is selected at a time instead of one token (0.2).
    """

    data_format = "text"
    model_kind = (MaskedDecoderModel,)
    usage = FILL
    infilling = "piece"
    corrupts_input = True
    labels_source = True
    predicts_masks = True

    def __init__(
        self,
        task: TaskContext,
        *,
        bidirectional: float = 1 / 3,
        left_to_right: float = 1 / 6,
        right_to_left: float = 1 / 6,
        mask_rate: float = 0.15,
        ngram_rate: float = 0.2,
    ) -> None:
        """Set the probabilities of the masks; the mask of sequence-to-sequence has what the three others leave.

        A random number from 0 to 1 below `bounds[0]` chooses the bidirectional mask, below `bounds[1]` left-to-right,
        below `bounds[2]` right-to-left, and above it sequence-to-sequence.
        """
        super().__init__(task)
        self.bounds = np.cumsum([bidirectional, left_to_right, right_to_left])
        self.masker = make_masker(task, mask_rate, ngram_share=ngram_rate)

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the example of text number `index`: masked tokens, labels for them, and segments that choose the mask.

        The text is BOS x EOS, or BOS x EOS SEP x′ EOS in two segments. The token type of a segment tells the model
        its attention mask: `FIRST_SEGMENT` and `SECOND_SEGMENT` are bidirectional, `SOURCE_SEGMENT` and
        `TARGET_SEGMENT` have the sequence-to-sequence mask.
        """
        framing, ids = self.task.framing, store.source(index)
        mask_choice, split_choice = random.random(2)  # from 0 to 1: the attention mask, whether to split
        mask_number = int((mask_choice >= self.bounds).sum())  # how many of the three bounds it exceeds
        token_type = (FIRST_SEGMENT, LEFT_TO_RIGHT, RIGHT_TO_LEFT, SOURCE_SEGMENT)[mask_number]
        split = len(ids)  # number of tokens of the first segment: all
        if len(ids) > 1 and (token_type == SOURCE_SEGMENT or (token_type == FIRST_SEGMENT and split_choice < 0.5)):
            split = 1 + int(random.random() * (len(ids) - 1))  # each segment has one token at least
        elif token_type == SOURCE_SEGMENT:
            token_type = LEFT_TO_RIGHT  # a single token cannot be split
        first = concat_ids(framing.source_prefix, ids[:split], framing.source_suffix)
        # `framing.bos`, with which targets begin, is SEP
        second = concat_ids((framing.bos,), ids[split:], (framing.eos,)) if split < len(ids) else concat_ids(())
        tokens = concat_ids(first, second)
        second_type = {FIRST_SEGMENT: SECOND_SEGMENT, SOURCE_SEGMENT: TARGET_SEGMENT}.get(token_type, token_type)
        types = np.repeat([token_type, second_type], [len(first), len(second)])
        maskable = np.concatenate([self._is_text(first), self._is_text(second)])
        # EOS is predicted where generation has to end with it, and only at the end of a line
        maskable[-1] = token_type in (LEFT_TO_RIGHT, SOURCE_SEGMENT) and store.ends_line(index)
        labels = np.full(len(tokens), framing.pad)  # padding: no label
        tokens[maskable], labels[maskable] = self.masker(tokens[maskable], random)
        return BatchRow(tokens, labels, token_type_ids=types)

    @staticmethod
    def _is_text(segment: np.ndarray) -> np.ndarray:
        """Whether each token of a segment is text: all but the first and the last, which are special tokens."""
        index = np.arange(len(segment))
        return (index > 0) & (index < len(segment) - 1)

    def describe_row(self, row: BatchRow) -> str:
        """Name the attention mask of a training example, which its first token type stands for."""
        assert row.token_type_ids is not None
        return MASK_NAMES[int(row.token_type_ids[0])]

    def row_length(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Return for each text how many tokens its row of a batch has at most: the text with special tokens.

        These are the tokens before and after a source (its framing) and, if the text is split, a separator and another
        EOS. The arguments are equal: both are the numbers of tokens of the texts.
        """
        # + 2: separator and EOS
        return source_lengths + self.framing_length + 2

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the cross-entropy of the masked tokens; the training step is not used.

        The token types of a row stand for its attention mask.
        """
        assert batch.token_type_ids is not None
        features = self.model.forward_segments(batch.source, source_layout(batch), batch.token_type_ids)
        return self.source_token_loss(features, batch)


class MaskedTargetObjective(SequenceObjective):
    """Predicts masked tokens of the target, EOS among them, from the source and the tokens before them (§2.5).

    Validation predicts every target token in this way, each at a mask of its own, as decoding does.

    Args:
        mask_rate: probability that a target token is selected (0.7 in the paper's summarization and question
            generation); 80 % of them become the mask, 10 % random, 10 % stay.
    """

    model_kind = (MaskedDecoderModel,)
    generates = True
    default_label_smoothing = 0.1
    default_bpe_dropout = True
    predicts_masks = True

    def __init__(self, task: TaskContext, *, mask_rate: float = 0.7) -> None:
        """Set up masking: target tokens are selected with probability `mask_rate`.

        `masker` holds the mask token, the range of random tokens, and the shares that become random or stay.
        """
        super().__init__(task)
        self.masker = make_masker(task, mask_rate)
        self.subword_samplers = bpe_dropout_segmenters(task)

    def row_length(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Return for each pair how many tokens its row of a batch has, with special tokens.

        The model reads both SEP and EOS of a target, one token more than with other objectives.
        """
        return super().row_length(source_lengths, target_lengths + 1)

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the loss of masked target tokens in training, and that of all target tokens in validation.

        In training, the mean loss of the masked tokens is multiplied by the number of all target tokens, so that losses
        of batches are comparable. The training step is not used.
        """
        if not torch.is_grad_enabled():
            return super().forward(batch, step)
        is_label = batch.labels != IGNORE_INDEX
        # B T+1: SEP y EOS
        target = torch.cat((batch.target[:, :1], batch.labels.where(is_label, self.task.framing.pad)), 1)
        is_selected = torch.rand(target.shape, device=target.device) < self.masker.rate
        is_selected[:, 0] = False  # SEP
        is_selected[:, 1:] &= is_label
        features = self.model.forward_masked_target(
            batch.source,
            batch.source_lengths,
            target=torch.where(is_selected, self._replacements(target), target),
            target_lengths=batch.target_lengths + 1,  # EOS
        )
        labels = target.where(is_selected, IGNORE_INDEX)
        loss_sums = token_loss(self.model.output, features.output, labels, smoothing=self.task.label_smoothing)
        scale = is_label.sum() / is_selected.sum().clamp(min=1)
        loss_sums = {name: value * scale for name, value in loss_sums.items()}
        return build_loss(loss_sums, batch.labels, features.auxiliary_losses)

    def _replacements(self, target: Tensor) -> Tensor:
        """Return what takes the place of each target token (B T) if it is selected: itself, a random token or the mask.

        Their probabilities are `keep_share`, `random_share` and the rest.
        """
        masker, choice = self.masker, torch.rand(target.shape, device=target.device)
        # ids from `first_token` on: neither special tokens nor bytes
        random_tokens = torch.randint_like(target, masker.first_token, masker.vocab_size)
        replacements = torch.where(choice < masker.keep_share + masker.random_share, random_tokens, masker.mask)
        return torch.where(choice < masker.keep_share, target, replacements)
