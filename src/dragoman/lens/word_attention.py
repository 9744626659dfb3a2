"""Attention between words, merged from attention between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dragoman.run import Run, SentenceAttention
from dragoman.run.pair_scoring import encode_targets
from dragoman.text.word_splitting import alignment_spans

END_LABEL = "(end)"  # of the column for source tokens of no word, mostly EOS


def word_attention(run: Run, source: str, target: str | None = None) -> SentenceAttention:
    """Return the cross-attention between the words of a sentence pair, averaged over heads and layers.

    Rows are target words and columns source words; a last column is the attention to tokens of no word, mostly EOS.
    Without `target`, the run translates `source`. `cross` is None if the model has no cross-attention.
    """
    if target is None:
        target = run.translate([source], alignment=False)[0].text
    attention = run.attention(source, target)
    source_ids, target_ids = run.encode_sources([source])[0], encode_targets(run, [target])[0]
    source_words = run.source_tokenizer.word_ids(source_ids)
    target_words = run.target_tokenizer.word_ids(target_ids)
    return replace(
        attention,
        source=[*word_labels(run.source_tokenizer.decode(source_ids), source_words), END_LABEL],
        target=word_labels(run.target_tokenizer.decode(target_ids), target_words),
        weights={},  # those of each layer remain between tokens, and are left out
        cross=None if attention.cross is None else merge_to_words(attention.cross, source_words, target_words),
    )


def merge_to_words(weights: Tensor, source_words: Sequence[int], target_words: Sequence[int]) -> Tensor:
    """Merge attention weights between tokens (T, S) to words: the sum over source tokens, the mean over target tokens.

    `source_words` and `target_words` have for each token the index of its word, −1 for tokens of no word. The result
    has a row for each target word and a column for each source word; a last column is the weight of source tokens of no
    word, so that rows still sum to 1.
    """
    columns = [*sorted(set(source_words) - {-1}), -1]
    rows = sorted(set(target_words) - {-1})
    if not rows:
        return torch.zeros(0, len(columns))
    # 1 where a token belongs to a word: to_column (source tokens × columns), to_row (rows × target tokens)
    to_column = torch.tensor([[float(token_word == word) for word in columns] for token_word in source_words])
    to_row = torch.tensor([[float(token_word == word) for token_word in target_words] for word in rows])
    mean = to_row / to_row.sum(1, keepdim=True)
    # `weights` may have a last row for EOS, which `target_words` does not have
    return mean @ weights[: len(target_words), : len(source_words)].float().cpu() @ to_column


def word_labels(text: str, word_ids: Sequence[int]) -> list[str]:
    """Return the words of `text` that have tokens, each extended by the words after it that have none.

    `word_ids` has for each token the index of its word in the text, −1 for tokens of no word. Words without tokens
    before the first one that has any are left out.
    """
    spans = alignment_spans(text)  # (begin, end) of each word, in characters
    first_words = sorted(set(word_ids) - {-1})  # indices of the words that have tokens
    last_words = [following - 1 for following in first_words[1:]] + [len(spans) - 1]  # inclusive
    return [text[spans[first][0] : spans[last][1]] for first, last in zip(first_words, last_words)]
