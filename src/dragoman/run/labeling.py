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
from dragoman.models import EncoderOnlyModel
from dragoman.run.results import TaggedSentence
from dragoman.text import Framing, Tokenizer

if TYPE_CHECKING:
    from dragoman.run.run import Run


@torch.inference_mode()
def tag(run: Run, texts: Sequence[str]) -> list[TaggedSentence]:
    """The tag of every word; words are what is parted by spaces."""
    model = run.model
    run.check_usage("tag")
    if not isinstance(model, EncoderOnlyModel) or not model.spec.num_labels:
        raise run.usage_error("tag")
    if run.target_tokenizer is run.source_tokenizer:
        raise UserError(f"{run.folder} has no names for its labels: train a tagger on words and their tags from it")
    sentences = [text.split() for text in texts]
    pieces = encode_words(sentences, run.source_tokenizer)
    room = run.max_source_length - len(run.framing.source_prefix) - len(run.framing.source_suffix)
    results = [TaggedSentence([], [], [])] * len(texts)
    written = [i for i, words in enumerate(sentences) if words]
    rows = [[piece for word in pieces[i] for piece in word][:room] for i in written]
    special = special_labels(run.target_tokenizer, int(model.spec.num_labels))
    for batch, logits in batch_logits(run, model, rows):
        logits[..., special] = -torch.inf
        probability, best = logits.softmax(-1).max(-1)
        for n, (p, tags) in zip(batch, zip(probability.tolist(), best.tolist())):
            i = written[n]
            first = np.cumsum([0, *(len(word) for word in pieces[i])])[:-1]
            places = [int(place) + len(run.framing.source_prefix) for place in first if place < room]
            labels = [run.target_tokenizer.decode([tags[place]]) for place in places]
            results[i] = TaggedSentence(sentences[i], labels, [p[place] for place in places])
    return results


def special_labels(tokenizer: Tokenizer, outputs: int) -> list[int]:
    """The outputs of a tagger that are not labels: padding, unknown and other special symbols of its tokenizer."""
    return [n for n in range(outputs) if n == tokenizer.unk or not tokenizer.decode([n])]


def batch_logits(run: Run, model: EncoderOnlyModel, rows: list[list[int]]) -> Iterator[tuple[list[int], Tensor]]:
    """The rows' numbers, batch by batch, and what the model says of each of their tokens, symbols counted in."""
    lengths = np.array([len(row) for row in rows])
    for batch in batch_by_length(lengths, run.config.search.batch_tokens) if len(rows) else []:
        source, source_lengths = run.pad_batch([add_framing(rows[n], run.framing) for n in batch], run.framing.pad)
        yield batch.tolist(), model(source, source_lengths).float()


def add_framing(ids: Sequence[int], framing: Framing) -> list[int]:
    return [*framing.source_prefix, *ids, *framing.source_suffix]
