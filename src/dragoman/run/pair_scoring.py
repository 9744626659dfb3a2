"""Teacher forcing on given pairs: scores, word alignments, attention, logits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dragoman.data.batching import batch_by_length
from dragoman.errors import UserError
from dragoman.run.results import Alignment, ScoredText, SentenceAttention
from dragoman.run.sources import Source, normalize_text
from dragoman.search import Hypothesis
from dragoman.search.forced_decoding import (
    TokenWordMap,
    cross_attention,
    record_attention,
    token_scores,
    word_alignment,
)

if TYPE_CHECKING:
    from dragoman.run.run import Run


def score(run: Run, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[ScoredText]:
    """Compute log p(y|x) of given translations, or log p(y) if a decoder-only model gets no sources."""
    results = [ScoredText(score=0.0, tokens=[], token_scores=[])] * len(targets)  # replaced below
    if run.framing.languages is not None:  # a multilingual model without a language pair
        run.framing.for_languages()  # raises the error
    for indices, source_ids, target_ids in _batches(run, sources, targets):
        source, source_lengths = run.pad_batch(source_ids)
        framed = [_frame_target(run, ids, has_source=sources is not None) for ids in target_ids]
        target, target_lengths = run.pad_batch(framed)
        scores = token_scores(run.model, source, source_lengths, target, target_lengths).tolist()  # B T, 0 at padding
        forced = 0 if sources is None else len(run.framing.forced_bos)  # forced tokens have probability 1
        for i, ids, log_p in zip(indices, framed, scores):
            tokens = run.target_tokenizer.tokens(ids[1:])  # without BOS
            log_p = [0.0] * forced + log_p[forced : len(tokens)]
            results[i] = ScoredText(sum(log_p), tokens, log_p)
    return results


def within_max_length(run: Run, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[bool]:
    """Return whether the model has enough positions for each target."""
    results = [True] * len(targets)
    for indices, source_ids, target_ids in _batches(run, sources, targets):
        max_lengths = run.model.max_target_length(torch.tensor([len(ids) for ids in source_ids]))
        if max_lengths is None:  # no limit
            break
        for i, ids, max_length in zip(indices, target_ids, max_lengths.tolist()):
            framed = _frame_target(run, ids, has_source=sources is not None)
            results[i] = len(framed) - 1 <= max_length  # EOS is predicted, but not read
    return results


def align(run: Run, sources: Sequence[Source], targets: Sequence[str]) -> list[Alignment] | None:
    """Return the aligned (source word, target word) pairs of given translations; None if the model has no attention."""
    if run.model.source_features is not None:
        raise UserError(
            f"{run.folder} reads feature vectors, which have no words: alignments need a run that reads text"
        )
    results: list[Alignment] = [[] for _ in sources]
    for indices, source_ids, target_ids in _batches(run, sources, targets):
        source, source_lengths = run.pad_batch(source_ids)
        alignments = align_batch(run, source, source_lengths, target_ids)
        if alignments is None:
            return None
        for i, alignment in zip(indices, alignments):
            results[i] = alignment
    return results


def align_batch(run: Run, source: Tensor, source_lengths: Tensor, targets: list[list[int]]) -> list[Alignment] | None:
    """Align the words of a batch by its cross-attention; return None if the model has none.

    `source` has padded token ids (B S); `targets` are token ids without BOS and EOS.
    """
    attention = batch_cross_attention(run, source, source_lengths, targets)
    if attention is None:
        return None
    return [
        word_alignment(
            weights,
            TokenWordMap.from_ids(run.source_tokenizer, source_ids[:length].tolist()),
            TokenWordMap.from_ids(run.target_tokenizer, target_ids),
        )
        for weights, source_ids, length, target_ids in zip(attention, source, source_lengths.tolist(), targets)
    ]


def hypothesis_token_scores(
    run: Run, source: Tensor, source_lengths: Tensor, hypotheses: list[list[Hypothesis]]
) -> list[list[list[float]]]:
    """Compute log p of every token of the hypotheses of each source (B S), EOS last if it was generated.

    Teacher forcing gives the same numbers as the search, which therefore does not record them. The best hypotheses of
    all sources form one batch, the second best the next, and so on. An ensemble averages probabilities.
    """
    results: list[list[list[float]]] = [[] for _ in hypotheses]
    for rank in range(max(map(len, hypotheses))):
        sources = [index for index, ranked in enumerate(hypotheses) if rank < len(ranked)]
        batch = [hypotheses[index][rank] for index in sources]
        framed = [[run.framing.bos, *h.tokens, *[run.framing.eos] * h.finished] for h in batch]
        source_indices = torch.tensor(sources, device=source.device)
        pairs = (source[source_indices], source_lengths[source_indices], *run.pad_batch(framed))
        by_model = torch.stack([token_scores(model, *pairs) for model in run.models])  # models B T
        averaged = (by_model.logsumexp(0) - math.log(len(by_model))).tolist()
        for index, hypothesis, ids, scores in zip(sources, batch, framed, averaged):
            forced = len(run.framing.forced_bos)  # the first tokens of a hypothesis, which have probability 1
            scores = [0.0] * forced + scores[forced : len(ids) - 1]
            if run.framing.force_eos_at_limit and hypothesis.finished:
                # hypothesis.score is the sum of all log p: 0 is left for an EOS that was forced, else log p(EOS)
                scores[-1] = hypothesis.score - sum(scores[:-1])
            results[index].append(scores)
    return results


def batch_cross_attention(run: Run, source: Tensor, source_lengths: Tensor, targets: list[list[int]]) -> Tensor | None:
    """Return the cross-attention (B T S) for targets given as token ids without BOS and EOS; None if there is none.

    A model that aligns explicitly returns the posterior probabilities of its alignments instead.
    """
    pairs = (source, source_lengths, *run.pad_batch([[run.framing.bos, *ids] for ids in targets]))
    posterior = run.model.posterior_alignment(*pairs)
    return cross_attention(run.model, *record_attention(run.model, *pairs)) if posterior is None else posterior


def attention(run: Run, source: Source, target: str | None) -> SentenceAttention:
    """Return all attention weights for a given translation, or for the one that the run's search finds.

    A `TokenWordMap` says which tokens form a word, for the word alignment. Images and speech have no words: their
    “tokens” are the numbers of the encoder's positions.
    """
    ids = run.encode_sources([source])[0]
    if target is None:
        target = run.translate([source], alignment=False)[0].text
    target_ids = _frame_target(run, encode_targets(run, [target])[0])
    pair = (*run.pad_batch([ids]), *run.pad_batch([target_ids[:-1]]))
    weights, copying = record_attention(run.model, *pair)
    cross = cross_attention(run.model, weights, copying)
    if run.model.source_features is None:
        source_tokens, source_words = run.source_tokenizer.tokens(ids), TokenWordMap.from_ids(run.source_tokenizer, ids)
    else:
        positions = 0 if cross is None else cross.shape[-1]
        source_tokens = [str(position + 1) for position in range(positions)]
        source_words = TokenWordMap(word_ids=[], core_word_ids=[])
    target_words = TokenWordMap.from_ids(run.target_tokenizer, target_ids[1:])
    return SentenceAttention(
        source=source_tokens,
        target=run.target_tokenizer.tokens(target_ids[1:]),
        weights={path: layer_weights[0].cpu() for path, layer_weights in weights.items()},
        cross=None if cross is None else cross[0].cpu(),
        alignment=[] if cross is None else word_alignment(cross[0], source_words, target_words),
    )


@torch.inference_mode()
def logits(run: Run, source_ids: Tensor | None, target_ids: Tensor | None) -> Tensor:
    """Compute logits at every target position, B T V, from padded ids, B S and B T; padding may be left or right.

    The models need padding on the right, so it is moved there, and the logits are moved back.
    """
    if run.model.source_features is not None:
        raise UserError("logits() takes token ids, but this run reads feature vectors: call run.model directly")
    pad = run.framing.pad
    if target_ids is None:
        if source_ids is None or run.model.can_generate:
            raise UserError("logits need target ids, and source ids as well unless the model is decoder-only")
        source_ids = source_ids.to(run.device)
        source, lengths, order = _move_padding_right(source_ids, source_ids != pad)
        return _restore_padding(run.model(source, lengths), order)
    target_ids = target_ids.to(run.device)
    if source_ids is None:
        source, source_lengths = target_ids[:, :0], torch.zeros_like(target_ids[:, 0])
    else:
        source_ids = source_ids.to(run.device)
        source, source_lengths, _ = _move_padding_right(source_ids, source_ids != pad)
    is_token = _is_token_or_bos(target_ids, pad) if run.framing.bos == pad else target_ids != pad
    if pad == run.framing.eos:  # padding cannot be told from EOS
        is_token = torch.ones_like(is_token)
    target, target_lengths, order = _move_padding_right(target_ids, is_token)
    return _restore_padding(run.model(source, source_lengths, target, target_lengths), order)


def _batches(
    run: Run, sources: Sequence[Source] | None, targets: Sequence[str]
) -> Iterator[tuple[list[int], list[Any], list[list[int]]]]:
    """Yield batches of pairs of similar length: indices, framed sources, target ids (`encode_targets`)."""
    if sources is None and not run.model.is_decoder_only:
        raise UserError(
            f"{run.folder} is a translation model, whose scores need sources: give one source for each target"
        )
    if sources is not None and len(sources) != len(targets):
        raise UserError(f"expected one source for each target, got {len(sources):,} sources, {len(targets):,} targets")
    if not targets:
        return
    source_ids = run.encode_sources(sources) if sources is not None else [[] for _ in targets]
    target_ids = encode_targets(run, targets, has_source=sources is not None)
    lengths = [max(len(source), len(target) + 2) for source, target in zip(source_ids, target_ids)]  # BOS and EOS
    for indices in batch_by_length(lengths, run.config.search.batch_tokens):
        yield indices.tolist(), [source_ids[i] for i in indices], [target_ids[i] for i in indices]


def encode_targets(run: Run, targets: Sequence[str], has_source: bool = True) -> list[list[int]]:
    """Return the token ids of targets after those that every generated target begins with (`forced_bos`).

    Texts of a language model, which have no source, begin without these.
    """
    forced = run.framing.forced_bos if has_source else ()
    rows = run.target_tokenizer.encode_batch([normalize_text(run, text) for text in targets])
    return [[*forced, *ids] for ids in rows]


def _frame_target(run: Run, ids: list[int], has_source: bool = True) -> list[int]:
    """Add BOS and EOS; without a source, a target begins like a source of decoder-only models (`source_prefix`)."""
    beginning = (run.framing.bos,) if has_source else run.framing.source_prefix or (run.framing.bos,)
    return [*beginning, *ids, run.framing.eos]


def _move_padding_right(ids: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the tokens of each sequence (B T) before its padding; return the ids, lengths (B) and the old positions."""
    order = (~is_token).long().argsort(dim=1, stable=True)
    return ids.gather(1, order), is_token.sum(1), order


def _restore_padding(logits: Tensor, order: Tensor) -> Tensor:
    """Move logits (B T V) back to where their tokens were before `_move_padding_right`, which returned `order`."""
    return logits.gather(1, order.argsort(1)[..., None].expand_as(logits))


def _is_token_or_bos(ids: Tensor, pad: int) -> Tensor:
    """Return which positions (B T) are tokens if BOS is also the padding: the last pad before the tokens is BOS."""
    is_not_pad = ids != pad
    is_first = torch.arange(ids.shape[1], device=ids.device) == 0
    is_bos = ~is_not_pad & (is_not_pad.roll(-1, 1) | is_first) & (is_not_pad.long().cumsum(1) == 0)
    return is_not_pad | is_bos
