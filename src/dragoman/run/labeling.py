"""Tagging: the label of every word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dragoman.data.batching import batch_by_length
from dragoman.data.data_formats import encode_words
from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.run.results import TaggedSentence
from dragoman.run.sources import add_framing, max_source_tokens
from dragoman.text import Tokenizer

if TYPE_CHECKING:
    from dragoman.run.run import Run


@torch.inference_mode()
def tag(run: Run, texts: Sequence[str]) -> list[TaggedSentence]:
    """Tag the words of each text, which are separated by spaces; a word's tag is predicted at its first token."""
    run.check_usage("tag")
    if not run.model.num_labels:
        raise run.usage_error("tag")
    if run.target_tokenizer is run.source_tokenizer:
        raise UserError(
            f"{run.folder} has no names for its labels: train a tagger from it (--start-from) on words and their tags"
        )
    sentences = [text.split() for text in texts]
    word_tokens = encode_words(sentences, run.source_tokenizer)
    max_tokens, prefix = max_source_tokens(run), len(run.framing.source_prefix)
    results = [TaggedSentence([], [], [])] * len(texts)
    nonempty = [i for i, words in enumerate(sentences) if words]
    rows = [[token for word in word_tokens[i] for token in word][:max_tokens] for i in nonempty]
    special = special_labels(run.target_tokenizer, run.model.num_labels)
    for batch, logits in batch_logits(run, run.model, rows):
        logits[..., special] = -torch.inf
        probability, best = logits.softmax(-1).max(-1)
        for n, probabilities, labels in zip(batch, probability.tolist(), best.tolist()):
            i = nonempty[n]
            word_starts = np.cumsum([0, *(len(word) for word in word_tokens[i])])[:-1]
            positions = [int(start) + prefix for start in word_starts if start < max_tokens]
            tags = [run.target_tokenizer.decode([labels[position]]) for position in positions]
            results[i] = TaggedSentence(sentences[i], tags, [probabilities[position] for position in positions])
    return results


def special_labels(tokenizer: Tokenizer, num_labels: int) -> list[int]:
    """Return the outputs of a tagger that are not labels: the special tokens of its target tokenizer."""
    return [n for n in range(num_labels) if n == tokenizer.unk or not tokenizer.decode([n])]


def batch_logits(run: Run, model: Model, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor]]:
    """Yield the indices of the rows of a batch and an encoder's logits at each of their tokens, framing included."""
    lengths = np.array([len(row) for row in rows])
    for batch in batch_by_length(lengths, run.config.search.batch_tokens) if len(rows) else []:
        source, source_lengths = run.pad_batch([add_framing(run, rows[n]) for n in batch])
        yield batch.tolist(), model(source, source_lengths).float()
