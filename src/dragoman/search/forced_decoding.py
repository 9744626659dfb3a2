"""Forced decoding: token scores, attention weights and word alignments of given targets by teacher forcing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.parts.mixer import CopyDistribution, SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.text import Tokenizer


@torch.inference_mode()
def token_scores(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> Tensor:
    """Return log p of each target token after BOS (B T), 0 for padding, by teacher forcing.

    Sources are B S, padded, with `source_lengths` (B) tokens each. Targets (B T+1, padded) include BOS and EOS, which
    `target_lengths` (B) count too.
    """
    logits = model(source, source_lengths, target[:, :-1], target_lengths - 1)  # nothing follows the last token
    log_p = at_least_float32(logits).log_softmax(-1).gather(2, target[:, 1:, None])[..., 0]  # B T
    token_mask = SequenceLayout.padded(log_p.shape[1], target_lengths - 1).token_mask
    return torch.where(token_mask, log_p, 0.0) if token_mask is not None else log_p  # None: no padding


@torch.inference_mode()
def attention_weights(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> dict[str, Tensor]:
    """Return the weights (B H T S) of every attention layer for given targets, by the path of the layer in the model.

    Row t of the decoder's weights belongs to the prediction of the token after target[t]. Sources are B S and targets
    B T, padded, with the given lengths (B); targets begin with BOS.
    """
    return record_attention(model, source, source_lengths, target, target_lengths)[0]


@torch.inference_mode()
def record_attention(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> tuple[dict[str, Tensor], CopyDistribution | None]:
    """Return the weights (B H T S) of every attention layer for given targets, by the path of the layer in the model.

    Returns also the probabilities of copying each source token, or None if the model cannot copy. Sources are B S and
    targets B T, padded, with the given lengths (B); targets begin with BOS. Layers that are called several times, such
    as once per target token, get one row for each.
    """
    recorder: dict[str, list[Tensor]] = {}  # filled by the model: weights of each call of a layer, by its path
    source_layout = SequenceLayout.padded(source.shape[1], source_lengths)
    target_layout = SequenceLayout.padded(target.shape[1], target_lengths)
    output = model.forward_features(source, source_layout, target, target_layout, recorder)
    return {path: torch.cat(calls, dim=2) for path, calls in recorder.items()}, output.copying


def cross_attention(model: Model, weights: dict[str, Tensor], copying: CopyDistribution | None = None) -> Tensor | None:
    """Return the mean cross-attention over heads and layers, B T S, or None if the model has no cross-attention.

    Args:
        weights: B H T S, attention weights by the path of the layer; those of `model.memory_paths` are cross-attention.
        copying: For a model that copies source tokens with probability 1 − p_gen, by another attention a: the result
            is then p_gen · mean + (1 − p_gen) · a.
    """
    means = [weights[path].mean(1) for path in model.memory_paths if path in weights]
    if not means:
        return None
    mean = torch.stack(means).mean(0)
    return mean if copying is None else copying.generation_prob * mean + copying.copy_probs


@dataclass(frozen=True)
class TokenWordMap:
    """The word of each token: its index, or −1 for none (EOS, spaces)."""

    word_ids: list[int]  # by token
    core_word_ids: list[int]  # the same, but −1 for punctuation attached to a word, such as “.” in “sleeps.”
    punctuation: frozenset[int] = frozenset()  # words that consist of punctuation

    @classmethod
    def from_ids(cls, tokenizer: Tokenizer, ids: Sequence[int]) -> TokenWordMap:
        """Create the map from the tokens of a text, given by their ids for `tokenizer`, to its words."""
        return cls.from_tokens(tokenizer.word_ids(ids), tokenizer.tokens(ids))

    @classmethod
    def from_tokens(cls, word_ids: list[int], tokens: Sequence[str]) -> TokenWordMap:
        """Create the map from the index of the word of each token (−1: none) and the text of each token.

        In `core_word_ids`, a punctuation mark that is attached to a word, such as “.” in “sleeps.”, has the word −1.
        """
        is_mark = [_is_punctuation(token) for token in tokens]
        words_with_letters = {word for word, mark in zip(word_ids, is_mark) if not mark}  # or digits
        core = [-1 if mark and word in words_with_letters else word for word, mark in zip(word_ids, is_mark)]
        return cls(word_ids, core_word_ids=core, punctuation=frozenset(word_ids) - words_with_letters)


def _is_punctuation(token: str) -> bool:
    """Whether a token has neither letters nor digits; a byte such as <0x2E> counts as its character if it is ASCII."""
    if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", token):
        return int(byte[1], 16) < 128 and not chr(int(byte[1], 16)).isalnum()
    return not any(map(str.isalnum, token))


def word_alignment(weights: Tensor, source: TokenWordMap, target: TokenWordMap) -> list[tuple[int, int]]:
    """Align each target word with the source word that gets the highest sum of its attention weights.

    Punctuation marks that are attached to words are ignored. Only for target words that consist of punctuation,
    attention to marks attached to a source word counts for that word.

    Args:
        weights: T S, attention of each target token to each source token.
        source: The word of each source token (`word_ids`); `core_word_ids` leave out attached punctuation.
        target: The word of each target token.

    Returns:
        sorted pairs (index of the source word, index of the target word).
    """
    num_source_words = max(source.word_ids, default=-1) + 1
    if num_source_words == 0:
        return []
    weights = weights[: len(target.word_ids), : len(source.word_ids)].float().cpu()  # without EOS if the maps omit it
    to_words = sum_by_word(weights, source.word_ids, num_source_words)
    to_words_without_punctuation = sum_by_word(weights, source.core_word_ids, num_source_words)
    alignment = []
    for word in range(max(target.word_ids, default=-1) + 1):
        tokens = [token for token, word_id in enumerate(target.core_word_ids) if word_id == word]
        if tokens:
            word_weights = to_words if word in target.punctuation else to_words_without_punctuation
            alignment.append((int(word_weights[tokens].sum(0).argmax()), word))
    return sorted(alignment)


def sum_by_word(weights: Tensor, word_ids: list[int], count: int) -> Tensor:
    """Sum the columns of attention weights (T S) that belong to the same source word: the result is T W.

    `word_ids` is the word (0 … W−1) of each of S source tokens, or −1 for none, whose weights are dropped; `count` is
    W.
    """
    columns = torch.tensor([word if word >= 0 else count for word in word_ids])  # column W is dropped at the end
    return torch.zeros(len(weights), count + 1).index_add_(1, columns, weights)[:, :count]
