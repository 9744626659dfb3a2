"""What an encoder is asked: the tag of every word, the word under every mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dragoman.data.batching import sorted_batches
from dragoman.data.reading import encode_words
from dragoman.errors import UserError
from dragoman.models import EncoderOnlyModel, ReplacedTokensModel
from dragoman.run.results import Filled, Tagged
from dragoman.text import Framing, Tokenizer

if TYPE_CHECKING:
    from dragoman.run.run import Run

MARKS = ("<mask>", "[MASK]")  # how a user may write a mask


@torch.inference_mode()
def tag(run: Run, texts: Sequence[str]) -> list[Tagged]:
    """The tag of every word; words are what is parted by spaces."""
    model = run.model
    tags = (
        isinstance(model, EncoderOnlyModel) and model.spec.outputs and run.target_tokenizer is not run.source_tokenizer
    )
    if not isinstance(model, EncoderOnlyModel) or not tags:
        raise UserError(f"{run.folder} was not trained to tag words: train a tagger on words and their tags")
    sentences = [text.split() for text in texts]
    pieces = encode_words(sentences, run.source_tokenizer)
    room = run.longest_source - len(run.framing.before) - len(run.framing.after)
    results = [Tagged([], [], [])] * len(texts)
    written = [i for i, words in enumerate(sentences) if words]
    rows = [[piece for word in pieces[i] for piece in word][:room] for i in written]
    for batch, logits in _logits(run, model, rows):
        probability, best = logits.softmax(-1).max(-1)
        for n, (p, tags) in zip(batch, zip(probability.tolist(), best.tolist())):
            i = written[n]
            first = np.cumsum([0, *(len(word) for word in pieces[i])])[:-1]
            places = [int(place) + len(run.framing.before) for place in first if place < room]
            labels = [run.target_tokenizer.decode([tags[place]]) for place in places]
            results[i] = Tagged(sentences[i], labels, [p[place] for place in places])
    return results


@torch.inference_mode()
def fill(run: Run, texts: Sequence[str], best: int) -> list[Filled]:
    """The likeliest piece under every mask, each on its own."""
    model = run.model.generator if isinstance(run.model, ReplacedTokensModel) else run.model
    if not isinstance(model, EncoderOnlyModel) or model.spec.outputs is not None:
        raise UserError(f"{run.folder} was not trained to fill masks: train a system such as bert on text")
    tokenizer = run.source_tokenizer
    room = run.longest_source - len(run.framing.before) - len(run.framing.after)
    whole = [with_masks(tokenizer, text) for text in texts]
    rows = [ids[:room] for ids in whole]  # what comes after the longest source stays as it is
    results = [Filled(text, []) for text in texts]
    for batch, logits in _logits(run, model, rows):
        for n, scores in zip(batch, logits):
            ids, choices = list(rows[n]), []
            for place in [place for place, token in enumerate(ids) if token == tokenizer.mask]:
                wishes = scores[place + len(run.framing.before)].softmax(-1)
                wishes[list(run.framing.banned)] = 0.0
                p, tokens = wishes[: tokenizer.size].topk(min(best, tokenizer.size))
                choices.append([(tokenizer.pieces([t])[0], q) for t, q in zip(tokens.tolist(), p.tolist())])
                ids[place] = int(tokens[0])
            results[n] = Filled(tokenizer.decode(ids + whole[n][room:]), choices)
    return results


def with_masks(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in which masks are written out, as <mask> or [MASK]."""
    if tokenizer.mask is None:
        raise UserError("masks cannot be filled: the run's tokenizer has no symbol for them")
    for mark in MARKS:
        text = text.replace(mark, "\x01")
    return tokenizer.encode_masked(text, "\x01")


def _logits(run: Run, model: EncoderOnlyModel, rows: list[list[int]]) -> Iterator[tuple[list[int], Tensor]]:
    """The rows' numbers, batch by batch, and what the model says of each of their tokens, symbols counted in."""
    lengths = np.array([len(row) for row in rows])
    for batch in sorted_batches(lengths, run.config.search.tokens) if len(rows) else []:
        source, source_lengths = run.pad([framed(rows[n], run.framing) for n in batch], run.framing.pad)
        yield batch.tolist(), model(source, source_lengths).float()


def framed(ids: Sequence[int], framing: Framing) -> list[int]:
    return [*framing.before, *ids, *framing.after]
