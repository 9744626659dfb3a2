"""Alignments: which source token each target token looked at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.parts.mixer import Layout
from dragoman.text import Tokenizer


@torch.inference_mode()
def attention_weights(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> dict[str, Tensor]:
    """Every attention of a teacher-forced pass, by the path of its part: B H T S.

    Row t of the decoder's is what was looked at when the token after target[t] was chosen.
    """
    recorder: dict[str, list[Tensor]] = {}
    layouts = Layout.padded(source.shape[1], source_lengths), Layout.padded(target.shape[1], target_lengths)
    model.forward_features(source, layouts[0], target, layouts[1], recorder)
    return {path: torch.cat(steps, dim=2) for path, steps in recorder.items()}


def cross_attention(model: Model, weights: dict[str, Tensor]) -> Tensor | None:
    """The decoder's looks at the source in one picture: the mean over heads and layers, B T S; None if it has none."""
    looks = [weights[path].mean(1) for path in model.memory_paths if path in weights]
    return torch.stack(looks).mean(0) if looks else None


@dataclass(frozen=True)
class TokenWordMap:
    """The words of some pieces: for each piece the index of its word, −1 for none (END, spaces).

    `core` leaves out punctuation that is attached to a word: “.” in “sleeps.” says nothing about “sleeps”.
    """

    word_ids: list[int]
    core_word_ids: list[int]
    punctuation: frozenset[int] = frozenset()  # the words of punctuation alone

    @classmethod
    def from_ids(cls, tokenizer: Tokenizer, ids: Sequence[int]) -> TokenWordMap:
        return cls.from_tokens(tokenizer.word_ids(ids), tokenizer.tokens(ids))

    @classmethod
    def from_tokens(cls, words: list[int], pieces: Sequence[str]) -> TokenWordMap:
        marks = [_is_punctuation(piece) for piece in pieces]
        spelled = {word for word, mark in zip(words, marks) if not mark}
        core = [-1 if mark and word in spelled else word for word, mark in zip(words, marks)]
        return cls(words, core, frozenset(words) - spelled)


def _is_punctuation(piece: str) -> bool:
    """Whether a piece has neither letters nor digits; one may be a byte, <0x2E>."""
    if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
        return int(byte[1], 16) < 128 and not chr(int(byte[1], 16)).isalnum()
    return not any(map(str.isalnum, piece))


def word_alignment(weights: Tensor, source: TokenWordMap, target: TokenWordMap) -> list[tuple[int, int]]:
    """T S weights over pieces → (source word, target word) links: each target word with the word it looked at most.

    Punctuation attached to a word has no say in where the word is linked, and attracts no other words.
    """
    count = max(source.word_ids, default=-1) + 1
    if count == 0:
        return []
    weights = weights[: len(target.word_ids), : len(source.word_ids)].float().cpu()
    over_words, over_cores = (_summed(weights, words, count) for words in (source.word_ids, source.core_word_ids))
    links = []
    for word in range(max(target.word_ids, default=-1) + 1):
        pieces = [piece for piece, of in enumerate(target.core_word_ids) if of == word]
        if pieces:
            weight = over_words if word in target.punctuation else over_cores
            links.append((int(weight[pieces].sum(0).argmax()), word))
    return sorted(links)


def _summed(weights: Tensor, words: list[int], count: int) -> Tensor:
    """T S weights over pieces → T `count` weights over words."""
    columns = torch.tensor([word if word >= 0 else count for word in words])
    return torch.zeros(len(weights), count + 1).index_add_(1, columns, weights)[:, :count]
