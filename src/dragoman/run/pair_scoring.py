"""What a run says of given pairs: scores, alignments, attention, logits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dragoman.data.batching import batch_by_length
from dragoman.errors import UserError
from dragoman.models import DecoderOnlyModel
from dragoman.run.results import Alignment, ScoredText, SentenceAttention
from dragoman.run.sources import Source, normalize_text
from dragoman.search import Hypothesis
from dragoman.search.forced_decoding import TokenWordMap, attention_weights, cross_attention, word_alignment
from dragoman.search.scoring import token_scores

if TYPE_CHECKING:
    from dragoman.run.run import Run


def score(run: Run, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[ScoredText]:
    """log p(y|x) of given translations, or log p(y) of texts where a decoder alone is given no sources."""
    results = [ScoredText(0.0, [], [])] * len(targets)
    for rows, source_ids, target_ids in _pairs(run, sources, targets):
        source, source_lengths = run.pad_batch(source_ids, run.framing.pad)
        framed = [_framed_target(run, ids, alone=sources is None) for ids in target_ids]
        target, target_lengths = run.pad_batch(framed, run.framing.pad)
        scores = token_scores(run.model, source, source_lengths, target, target_lengths).tolist()
        for i, ids, row in zip(rows, framed, scores):
            pieces = run.target_tokenizer.tokens(ids[1:])
            results[i] = ScoredText(sum(row), pieces, row[: len(pieces)])
    return results


def within_max_length(run: Run, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[bool]:
    """Whether the model has positions for each target: those of others cannot be scored."""
    results = [True] * len(targets)
    for rows, source_ids, target_ids in _pairs(run, sources, targets):
        room = run.model.max_target_length(torch.tensor([len(ids) for ids in source_ids]))
        if room is None:
            break
        for i, ids, most in zip(rows, target_ids, room.tolist()):
            results[i] = len(_framed_target(run, ids, alone=sources is None)) - 1 <= most
    return results


def align(run: Run, sources: Sequence[Source], targets: Sequence[str]) -> list[Alignment] | None:
    """Word alignments of given translations; None for systems without attention."""
    if run.model.source_features is not None:
        raise UserError(f"{run.folder} reads vectors, which are no words that could be aligned")
    results: list[Alignment] = [[] for _ in sources]
    for rows, source_ids, target_ids in _pairs(run, sources, targets):
        source, source_lengths = run.pad_batch(source_ids, run.framing.pad)
        links = align_batch(run, source, source_lengths, target_ids)
        if links is None:
            return None
        for i, found in zip(rows, links):
            results[i] = found
    return results


def align_batch(run: Run, source: Tensor, source_lengths: Tensor, targets: list[list[int]]) -> list[Alignment] | None:
    """The word alignments of some targets, ids without START and END; None for systems without attention."""
    looks = batch_cross_attention(run, source, source_lengths, targets)
    if looks is None:
        return None
    return [
        word_alignment(
            weights,
            TokenWordMap.from_ids(run.source_tokenizer, ids[:length].tolist()),
            TokenWordMap.from_ids(run.target_tokenizer, written),
        )
        for weights, ids, length, written in zip(looks, source, source_lengths.tolist(), targets)
    ]


def hypothesis_token_scores(
    run: Run, source: Tensor, source_lengths: Tensor, found: list[list[Hypothesis]]
) -> list[list[list[float]]]:
    """log p of every token of the hypotheses of each source, END last where it was reached: all sum up to the scores.

    By teacher forcing, so that a search need not write them down; of several models the mean of their probabilities.
    """
    results: list[list[list[float]]] = [[] for _ in found]
    for rank in range(max(map(len, found))):
        rows = [row for row, some in enumerate(found) if rank < len(some)]
        some = [found[row][rank] for row in rows]
        framed = [[run.framing.bos, *one.tokens, *[run.framing.eos] * one.finished] for one in some]
        sources = torch.tensor(rows, device=source.device)
        target, target_lengths = run.pad_batch(framed, run.framing.pad)
        given = (source[sources], source_lengths[sources], target, target_lengths)
        by_model = torch.stack([token_scores(model, *given) for model in run.models])
        mean = (by_model.logsumexp(0) - math.log(len(by_model))).tolist()
        for row, one, ids, scores in zip(rows, some, framed, mean):
            forced = len(run.framing.forced_bos)  # costs nothing
            own = [0.0] * forced + scores[forced : len(ids) - 1]
            if run.framing.force_eos_at_limit and one.finished:  # nor does an END at the limit
                own[-1] = one.score - sum(own[:-1])
            results[row].append(own)
    return results


def batch_cross_attention(run: Run, source: Tensor, source_lengths: Tensor, targets: list[list[int]]) -> Tensor | None:
    """B T S: what was looked at to write each token of some targets, ids without START and END."""
    target, target_lengths = run.pad_batch([[run.framing.bos, *ids] for ids in targets], run.framing.pad)
    return cross_attention(run.model, attention_weights(run.model, source, source_lengths, target, target_lengths))


def attention(run: Run, source: Source, target: str | None) -> SentenceAttention:
    """Everything that was looked at, for a given translation or for the one that the run finds."""
    ids = run.encode_sources([source])[0]
    if target is None:
        target = run.translate([source], alignment=False)[0].text
    target_ids = _framed_target(run, run.target_tokenizer.encode(normalize_text(run, target)))
    sides = (*run.pad_batch([ids], 0), *run.pad_batch([target_ids[:-1]], 0))
    weights = attention_weights(run.model, *sides)
    looks = cross_attention(run.model, weights)
    target_words = TokenWordMap.from_ids(run.target_tokenizer, target_ids[1:])
    if run.model.source_features is None:
        pieces, source_words = run.source_tokenizer.tokens(ids), TokenWordMap.from_ids(run.source_tokenizer, ids)
    else:
        places = 0 if looks is None else looks.shape[-1]
        pieces, source_words = [str(place) for place in range(1, places + 1)], TokenWordMap([], [])
    return SentenceAttention(
        pieces,
        run.target_tokenizer.tokens(target_ids[1:]),
        {path: w[0].cpu() for path, w in weights.items()},
        None if looks is None else looks[0].cpu(),
        [] if looks is None else word_alignment(looks[0], source_words, target_words),
    )


@torch.inference_mode()
def logits(run: Run, source_ids: Tensor | None, target_ids: Tensor | None) -> Tensor:
    """Logits at every target position, B T V, from padded ids, B S and B T; the pad id may stand left or right."""
    if run.model.source_features is not None:
        raise UserError("logits are asked for with token ids, but this run reads vectors: call its model itself")
    pad = run.framing.pad
    if target_ids is None:
        if source_ids is None or run.model.can_generate:
            raise UserError("logits want target ids, and source ids too unless a decoder stands alone")
        source_ids = source_ids.to(run.device)
        source, lengths, order = _to_the_left(source_ids, source_ids != pad)
        return _back(run.model(source, lengths), order)
    target_ids = target_ids.to(run.device)
    if source_ids is None:
        source, source_lengths = target_ids[:, :0], torch.zeros_like(target_ids[:, 0])
    else:
        source_ids = source_ids.to(run.device)
        source, source_lengths, _ = _to_the_left(source_ids, source_ids != pad)
    real = _starts(target_ids, pad) if run.framing.bos == pad else target_ids != pad
    if pad == run.framing.eos:  # no symbol pads: what looks like it ends a sentence
        real = torch.ones_like(real)
    target, target_lengths, order = _to_the_left(target_ids, real)
    return _back(run.model(source, source_lengths, target, target_lengths), order)


def _pairs(
    run: Run, sources: Sequence[Source] | None, targets: Sequence[str]
) -> Iterator[tuple[list[int], list[Any], list[list[int]]]]:
    """Pairs in batches of like length: their numbers, framed source ids (or vectors), bare target ids."""
    if sources is None and not isinstance(run.model, DecoderOnlyModel):
        raise UserError(f"{run.folder} scores translations, so it must be given their sources")
    if sources is not None and len(sources) != len(targets):
        raise UserError(f"{len(sources):,} sources cannot go with {len(targets):,} targets: one each is needed")
    if not targets:
        return
    source_ids = run.encode_sources(sources) if sources is not None else [[] for _ in targets]
    target_ids = run.target_tokenizer.encode_batch([normalize_text(run, text) for text in targets])
    lengths = np.array([max(len(s), len(t) + 2) for s, t in zip(source_ids, target_ids)])
    for rows in batch_by_length(lengths, run.config.search.batch_tokens):
        yield rows.tolist(), [source_ids[i] for i in rows], [target_ids[i] for i in rows]


def _framed_target(run: Run, ids: list[int], alone: bool = False) -> list[int]:
    """With START and END; `alone` as a text that is no translation."""
    begin = run.framing.source_prefix if alone and run.framing.source_prefix else (run.framing.bos,)
    return [*begin, *ids, run.framing.eos]


def _to_the_left(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows with their real tokens first, the lengths, and the order that did it (B T)."""
    order = (~real).long().argsort(dim=1, stable=True)
    return ids.gather(1, order), real.sum(1), order


def _back(logits: Tensor, order: Tensor) -> Tensor:
    return logits.gather(1, order.argsort(1)[..., None].expand_as(logits))


def _starts(ids: Tensor, pad: int) -> Tensor:
    """B T: which tokens are real where a target starts with the token that pads: the last pad before the others too."""
    others = ids != pad
    return others | (
        ~others
        & (others.roll(-1, 1) | (torch.arange(ids.shape[1], device=ids.device) == 0))
        & (others.long().cumsum(1) == 0)
    )
