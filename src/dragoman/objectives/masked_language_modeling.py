"""Objectives of encoders: masked language modeling with next-sentence prediction, replaced token detection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch, BatchRow, TokenStore
from dragoman.data.noise import MaskedLanguageModeling
from dragoman.errors import UserError
from dragoman.models import EncoderOnlyModel, Model, ReplacedTokensModel
from dragoman.models.usage import FILL
from dragoman.objectives.objective import (
    DataFormatName,
    Loss,
    Objective,
    TaskContext,
    build_loss,
    concat_ids,
    labeled_features,
    source_layout,
    token_loss,
)
from dragoman.objectives.translation_objective import sample_tokens
from dragoman.parts.precision import at_least_float32
from dragoman.text import SPECIAL_TOKENS, Framing, Tokenizer
from dragoman.text.special_tokens import BYTE_TOKENS

RANDOM_SENTENCE_TRIES = 10  # to find a random sentence in another document


class MaskedLanguageObjective(Objective):
    """Predicts masked tokens from their context (Devlin et al. 2019, §3.1).

    Args:
        mask_rate: probability that a token is masked.
        mask_copies: number of different maskings of a sentence, which repeat after that many epochs (10 in the paper);
            None masks anew in every epoch (Liu et al. 2019).
        next_sentence: append a second sentence, which is the next one of the document or, with probability ½ and at
            the end of a document, a random one (of another document if there is one), and predict from the first token
            which it is.
        max_length: tokens of a pair of sentences; the longer sentence is truncated first.
    """

    data_format = "text"
    model_kind: ClassVar[tuple[type[Model], ...]] = (EncoderOnlyModel,)
    usage = FILL
    corrupts_input = True
    infilling = "piece"
    labels_source = True

    def __init__(
        self,
        task: TaskContext,
        *,
        mask_rate: float = 0.15,
        mask_copies: int | None = None,
        next_sentence: bool = False,
        max_length: int = 512,
    ) -> None:
        """Check that two sentences fit into `max_length`, and build the function that masks tokens (`masker`)."""
        super().__init__(task)
        num_special_tokens = len(task.framing.source_prefix) + 2 * len(task.framing.source_suffix)
        shortest = num_special_tokens + 2  # a token of each sentence
        if next_sentence and max_length < shortest:
            raise UserError(
                "next-sentence prediction reads two sentences with their special tokens, which are at least "
                f"{shortest} tokens, but objective.settings.max_length is {max_length}: raise it"
            )
        self.masker = make_masker(task, mask_rate)
        self.distinct_epochs = mask_copies  # the maskings repeat after this number of epochs; None: never
        self.next_sentence, self.max_length = next_sentence, max_length
        # a sentence label is predicted from the first token of a row, which cannot hold several examples then
        self.supports_packing &= not next_sentence

    def build_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build the training example of text number `index` of the store: some tokens are masked, and have labels.

        With next-sentence prediction, another sentence follows.
        """
        if self.next_sentence:
            return self._sentence_pair_row(store, index, random)
        masked, labels = self.masker(store.source(index), random)
        return framed_row(self.task.framing, masked, labels)

    def _sentence_pair_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Build CLS x SEP x′ SEP from sentence number `index` of the store, x, and another sentence x′.

        x′ is the next sentence (sentence label 0), or, with probability ½ and at the end of a document, a random one
        (label 1) that is not the next one: of another document unless none is found within RANDOM_SENTENCE_TRIES, as in
        BERT's own code. In a corpus of two sentences, the next one is always chosen where there is one. Both are
        truncated and masked; special tokens have no labels. The first sentence has token type 0, the second 1.
        """
        framing, count = self.task.framing, len(store)
        has_next = index + 1 < count and store.follows_previous(index + 1)
        has_others = count > 2  # sentences that are neither this one nor the one after it
        is_random = (random.random() < 0.5 and has_others) or not has_next
        second_index = (index + 1) % count
        if is_random and has_others:
            for _ in range(RANDOM_SENTENCE_TRIES):
                second_index = (index + 2 + int(random.random() * (count - 2))) % count  # neither this one nor the next
                if not store.same_document(index, second_index):
                    break
        prefix, suffix = framing.source_prefix, framing.source_suffix
        max_tokens = self.max_length - len(prefix) - 2 * len(suffix)
        sentences = truncate_pair(store.source(index), store.source(second_index), max_tokens)
        (first, first_labels), (second, second_labels) = (self.masker(ids, random) for ids in sentences)
        no_prefix_labels, no_suffix_labels = (np.full(len(special), framing.pad) for special in (prefix, suffix))
        source = concat_ids(prefix, first, suffix, second, suffix)
        target = concat_ids(no_prefix_labels, first_labels, no_suffix_labels, second_labels, no_suffix_labels)
        in_second = np.arange(len(source)) >= len(prefix) + len(first) + len(suffix)
        return BatchRow(source, target, token_type_ids=in_second.astype(np.int64), sentence_label=int(is_random))

    def describe_row(self, row: BatchRow) -> str:
        """Say whether the second sentence of an example is the next or a random one; empty if there is only one."""
        if not self.next_sentence:
            return ""
        return "the second sentence is " + ("a random one" if row.sentence_label else "the next one")

    def row_length(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Return for each text how many tokens its row of a batch has, estimated with next-sentence prediction.

        It has the tokens of the text (`source_lengths`) with special tokens. With next-sentence prediction, a second
        sentence of about the same length follows; a row has at most `max_length` tokens.
        """
        lengths = source_lengths + self.framing_length
        return np.minimum(2 * lengths, self.max_length) if self.next_sentence else lengths

    @classmethod
    def data_format_for(cls, settings: Mapping[str, Any]) -> DataFormatName:
        """Return how the corpus is read: as "documents" if the settings need adjacent sentences, or else as "text"."""
        return "documents" if settings.get("next_sentence") else cls.data_format

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the cross-entropy of masked tokens and, if enabled, that of next-sentence prediction.

        The training step is not used.
        """
        features = self.model.forward_features(batch.source, source_layout(batch), token_types=batch.token_type_ids)
        loss = self.source_token_loss(features, batch)
        # without a pooler, a model has no output layer for sentence labels
        if not self.next_sentence or self.model.pooler is None or batch.sentence_labels is None:
            return loss
        logits = at_least_float32(self.model.pooler(features.output))  # B 2
        sentence_loss = F.cross_entropy(logits, batch.sentence_labels)
        is_correct, is_label = logits.argmax(-1) == batch.sentence_labels, batch.sentence_labels != IGNORE_INDEX
        accuracy = is_correct.sum() / is_label.sum()
        # means over sentences are multiplied by the number of token labels, by which the sums of a `Loss` are divided
        metrics = {
            "next_sentence_loss": sentence_loss.detach() * loss.num_labels,
            "next_sentence_accuracy": accuracy * loss.num_labels,
        }
        return loss._replace(total=loss.total + sentence_loss * loss.num_labels, metrics=loss.metrics | metrics)


def truncate_pair(first: np.ndarray, second: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Truncate two adjacent texts to `max_tokens` in total: the longer one first, until both are equally long.

    Tokens are removed from the start of the first text and from the end of the second.
    """
    half = max_tokens // 2
    # the first text gets what the second one leaves, but at least the larger half
    first_length = min(len(first), max(max_tokens - half, max_tokens - len(second)))
    return first[len(first) - first_length :], second[: max_tokens - first_length]


def make_masker(
    task: TaskContext, mask_rate: float, random_share: float = 0.1, keep_share: float = 0.1, ngram_share: float = 0.0
) -> MaskedLanguageModeling:
    """Build the function that masks source tokens, each with probability `mask_rate`, for masked language modeling.

    Of the selected tokens, the share `random_share` become random ones (neither special tokens nor bytes), `keep_share`
    stay, and the others become the mask token; with probability `ngram_share`, a bigram or trigram is selected at once.
    """
    tokenizer = task.source_tokenizer
    # the first ids are special tokens and, in vocabularies without unknown words, bytes
    first_word = len(SPECIAL_TOKENS) + (0 if tokenizer.has_unknown_words else len(BYTE_TOKENS))
    return MaskedLanguageModeling(
        vocab_size=tokenizer.vocab_size,
        first_token=min(first_word, tokenizer.vocab_size - 1),  # the lowest id of a random token
        rate=mask_rate,
        random_share=random_share,
        keep_share=keep_share,
        ngram_share=ngram_share,
        mask=mask_id(tokenizer),
        pad=task.framing.pad,
    )


def mask_id(tokenizer: Tokenizer) -> int:
    """Return the id of the mask token; a UserError if there is none."""
    if tokenizer.mask is None:
        raise UserError(
            "this objective masks tokens, but the source tokenizer has no mask token: choose another tokenizer "
            "(text.tokenizer) or another objective (objective.name)"
        )
    return tokenizer.mask


def framed_row(framing: Framing, ids: np.ndarray, labels: np.ndarray) -> BatchRow:
    """Build the training example of a text: its token ids with a label each, and the special tokens of a source.

    The special tokens have the padding token as label, which stands for none.
    """
    prefix, suffix = framing.source_prefix, framing.source_suffix
    source = concat_ids(prefix, ids, suffix)
    return BatchRow(source, target=concat_ids([framing.pad] * len(prefix), labels, [framing.pad] * len(suffix)))


class ReplacedTokenObjective(MaskedLanguageObjective):
    """Adds the generator's masked-language loss and the discriminator's binary loss (Clark et al. 2020, §2).

    Selected tokens become the mask, or stay, but none becomes random: the generator samples one for each of them, with
    Gumbel noise. A token that it predicts correctly counts as original. Sampling is not differentiated. The
    discriminator's loss is over all tokens but padding.

    Args:
        mask_rate: probability that a token is selected (0.15, and 0.25 for the largest model; table 6).
        keep_rate: probability that a selected token stays instead of becoming the mask: 0.15 in the published code, 0
            by the paper's equations.
        discriminator_weight: weight of the discriminator's loss, a mean over all tokens.
    """

    model_kind: ClassVar[tuple[type[Model], ...]] = (ReplacedTokensModel,)

    def __init__(
        self, task: TaskContext, *, mask_rate: float = 0.15, keep_rate: float = 0.15, discriminator_weight: float = 50.0
    ) -> None:
        """Set up the two losses: tokens are selected for the generator with probability `mask_rate`.

        A selected token stays with probability `keep_rate`, or becomes the mask. `discriminator_weight` multiplies the
        discriminator's loss.
        """
        super().__init__(task, mask_rate=mask_rate)
        self.masker = make_masker(task, mask_rate, random_share=0.0, keep_share=keep_rate)
        self.discriminator_weight = discriminator_weight

    def describe_row(self, row: BatchRow) -> str:
        """Say what the discriminator predicts, which the tokens of a training example (`row`) do not show."""
        return "the discriminator finds the tokens that the generator gets wrong"

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the sum of the generator's loss and the discriminator's, on tokens that the generator samples.

        The training step is not used.
        """
        features, loss_sums = self._generator_loss(batch)  # of the N masked tokens, N D; losses by name
        with torch.no_grad():
            replacements = sample_tokens(self.model.generator.output(features))
        return self._add_discriminator_loss(batch, loss_sums, replacements)

    def validation_loss(self, batch: Batch) -> Loss:
        """Compute generator and discriminator loss with replacements that no model samples: labels, shuffled.

        Against its own generator, the discriminator's loss rises as the generator improves. Against fixed replacements
        from the validation text, checkpoints are comparable; the caller seeds the shuffle.
        """
        _, loss_sums = self._generator_loss(batch)
        shuffled = batch.labels.clone()
        labeled = (batch.labels != IGNORE_INDEX).nonzero()[:, 0]
        shuffled[labeled] = batch.labels[labeled[torch.randperm(len(labeled), device=labeled.device)]]
        return self._add_discriminator_loss(batch, loss_sums, replacements=shuffled)

    def _generator_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the generator's features of the masked tokens (N D), and its losses summed over them, by name."""
        generator = self.model.generator
        features = labeled_features(generator.forward_features(batch.source, source_layout(batch)).output, batch)
        return features, token_loss(generator.output, features, batch.labels)

    def _add_discriminator_loss(self, batch: Batch, loss_sums: dict[str, Tensor], replacements: Tensor) -> Loss:
        """Add the discriminator's loss on the batch whose N masked tokens are replaced by `replacements` (N).

        The discriminator predicts for every token whether it differs from the original. `loss_sums` are the generator's
        losses, summed over the N labels, by name.
        """
        assert batch.label_positions is not None
        source = batch.source.flatten()
        masked = source[batch.label_positions]  # N
        unlabeled = batch.labels == IGNORE_INDEX  # only fill up the N positions, whose tokens stay then
        tokens = source.scatter(0, batch.label_positions, torch.where(unlabeled, masked, replacements))
        original = source.scatter(0, batch.label_positions, torch.where(unlabeled, masked, batch.labels))
        features = self.model.forward_features(tokens.view_as(batch.source), source_layout(batch)).output
        logits = at_least_float32(self.model.output(features)[..., 0])  # B S
        replaced = (tokens != original).view_as(batch.source).to(logits.dtype)
        is_token = batch.source != self.task.framing.pad
        losses = F.binary_cross_entropy_with_logits(logits, replaced, reduction="none").masked_fill(~is_token, 0.0)
        detection_loss = losses.sum() / is_token.sum()
        accuracy = (((logits > 0) == (replaced > 0)) & is_token).sum() / is_token.sum()
        loss = build_loss(loss_sums, batch.labels, auxiliary_losses=[self.discriminator_weight * detection_loss])
        # means over tokens are multiplied by the number of labels, by which the sums of a `Loss` are divided
        metrics = {
            "detection_loss": detection_loss.detach() * loss.num_labels,
            "detection_accuracy": accuracy * loss.num_labels,
        }
        return loss._replace(metrics=loss.metrics | metrics)
