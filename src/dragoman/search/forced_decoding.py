"""Forced decoding: token scores, attention weights and word alignments of given targets by teacher forcing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.parts.mixer import CopyDistribution, Layout
from dragoman.parts.precision import at_least_float32
from dragoman.text import Tokenizer


@torch.inference_mode()
def token_scores(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> Tensor:
    """Return log p of each target token after BOS (B T), 0 for padding, by teacher forcing.

    Targets have BOS and EOS (B T+1), and `target_lengths` count both.
    """
    logits = model(source, source_lengths, target[:, :-1], target_lengths - 1)
    log_p = at_least_float32(logits).log_softmax(-1).gather(2, target[:, 1:, None])[..., 0]  # B T
    token_mask = Layout.padded(log_p.shape[1], target_lengths - 1).token_mask
    return torch.where(token_mask, log_p, 0.0) if token_mask is not None else log_p


@torch.inference_mode()
def attention_weights(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> dict[str, Tensor]:
    """Return the weights of every attention, B H T S, by its path in the model.

    Row t of the decoder's weights belongs to the prediction of the token after target[t].
    """
    return record_attention(model, source, source_lengths, target, target_lengths)[0]


@torch.inference_mode()
def record_attention(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> tuple[dict[str, Tensor], CopyDistribution | None]:
    """Return the `attention_weights`, and the probabilities of copying if the model can copy source tokens."""
    recorder: dict[str, list[Tensor]] = {}  # filled by the model: weights by path
    source_layout = Layout.padded(source.shape[1], source_lengths)
    target_layout = Layout.padded(target.shape[1], target_lengths)
    features = model.forward_features(source, source_layout, target, target_layout, recorder)
    return {path: torch.cat(steps, dim=2) for path, steps in recorder.items()}, features.copying


def cross_attention(model: Model, weights: dict[str, Tensor], copying: CopyDistribution | None = None) -> Tensor | None:
    """Return the mean cross-attention over heads and layers, B T S, or None if the model has none.

    Where a model copies a source token, the attention by which it does counts: p_gen · mean + (1 − p_gen) · a.
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
        """Create the map from the token ids of a text to its words."""
        return cls.from_tokens(tokenizer.word_ids(ids), tokenizer.tokens(ids))

    @classmethod
    def from_tokens(cls, word_ids: list[int], tokens: Sequence[str]) -> TokenWordMap:
        """Create the map of tokens, given by the indices of their words and their texts.

        In `core_word_ids`, punctuation that is attached to a word has no word (−1).
        """
        is_mark = [_is_punctuation(token) for token in tokens]
        with_letters = {word for word, mark in zip(word_ids, is_mark) if not mark}
        core = [-1 if mark and word in with_letters else word for word, mark in zip(word_ids, is_mark)]
        return cls(word_ids, core_word_ids=core, punctuation=frozenset(word_ids) - with_letters)


def _is_punctuation(token: str) -> bool:
    """Whether a token, which may be a byte such as <0x2E>, has neither letters nor digits."""
    if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", token):
        return int(byte[1], 16) < 128 and not chr(int(byte[1], 16)).isalnum()
    return not any(map(str.isalnum, token))


def word_alignment(weights: Tensor, source: TokenWordMap, target: TokenWordMap) -> list[tuple[int, int]]:
    """Align each target word with the source word of the highest attention; return pairs (source, target).

    Punctuation attached to a word neither decides with which word it is aligned, nor is aligned with other words.

    Args:
        weights: T S, attention between tokens.
        source: the word of each source token; `core_word_ids` leave out attached punctuation.
        target: the word of each target token.
    """
    num_source_words = max(source.word_ids, default=-1) + 1
    if num_source_words == 0:
        return []
    weights = weights[: len(target.word_ids), : len(source.word_ids)].float().cpu()
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
    """Sum attention to tokens (T S) by their words (T W, with W = `count`); tokens without a word are left out."""
    columns = torch.tensor([word if word >= 0 else count for word in word_ids])
    return torch.zeros(len(weights), count + 1).index_add_(1, columns, weights)[:, :count]
