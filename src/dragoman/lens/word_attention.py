"""Attention from word to word: what the lens shows, where the model looks from piece to piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dragoman.run import Run, SentenceAttention
from dragoman.run.sources import normalize_text
from dragoman.text.word_splitting import alignment_spans

END_LABEL = "(end)"


def word_attention(run: Run, source: str, target: str | None = None) -> SentenceAttention:
    """The attention of a sentence pair with words in the place of pieces; without a target, of the run's translation.

    The last column is what was looked at outside of words, mostly the end of the sentence. Heads and layers are not
    kept.
    """
    if target is None:
        target = run.translate([source], alignment=False)[0].text
    target = normalize_text(run, target)
    attention = run.attention(source, target)
    source_ids, target_ids = run.encode_sources([source])[0], run.target_tokenizer.encode(target)
    source_words = run.source_tokenizer.word_ids(source_ids)
    target_words = run.target_tokenizer.word_ids(target_ids)
    return replace(
        attention,
        source=[*word_labels(run.source_tokenizer.decode(source_ids), source_words), END_LABEL],
        target=word_labels(run.target_tokenizer.decode(target_ids), target_words),
        weights={},
        cross=None if attention.cross is None else merge_to_words(attention.cross, source_words, target_words),
    )


def merge_to_words(weights: Tensor, source_words: Sequence[int], target_words: Sequence[int]) -> Tensor:
    """T S weights over pieces → over words: the sum over a source word's pieces, the mean over a target word's.

    The words of pieces are as in `word_alignment`. Rows are the words that have pieces, columns too, with one more for
    the source pieces of no word, so that rows still sum to 1.
    """
    columns = [*sorted({word for word in source_words if word >= 0}), -1]
    rows = sorted({word for word in target_words if word >= 0})
    to_column = torch.tensor([[float(of == word) for word in columns] for of in source_words])
    to_row = torch.tensor([[float(of == word) for of in target_words] for word in rows])
    if not rows:
        return torch.zeros(0, len(columns))
    mean = to_row / to_row.sum(1, keepdim=True)
    return mean @ weights[: len(target_words), : len(source_words)].float().cpu() @ to_column


def word_labels(text: str, word_of_piece: Sequence[int]) -> list[str]:
    """The words that have pieces, each with the ones after it that have none."""
    spans = alignment_spans(text)
    known = sorted({word for word in word_of_piece if word >= 0})
    lasts = [following - 1 for following in known[1:]] + [len(spans) - 1]
    return [text[spans[word][0] : spans[last][1]] for word, last in zip(known, lasts)]
