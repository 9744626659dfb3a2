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
from dragoman.run.sources import Source, check_language_pair, normalize_text
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
    """Compute log p(y|x) of given translations `targets`, in total and by token, EOS included.

    Without sources (None), a decoder-only model computes log p(y). A multilingual model without a language pair is a
    UserError.
    """
    results = [ScoredText(score=0.0, tokens=[], token_scores=[])] * len(targets)  # replaced below
    check_language_pair(run)
    for indices, source_ids, target_ids in _batches(run, sources, targets):
        source, source_lengths = run.pad_batch(source_ids)
        framed = [_frame_target(run, ids, has_source=sources is not None) for ids in target_ids]
        target, target_lengths = run.pad_batch(framed)
        scores = token_scores(
            run.full_precision_model, source, source_lengths, target, target_lengths
        ).tolist()  # B T, 0 at padding
        # the first tokens, if they are forced (such as a language token), have probability 1
        num_forced = 0 if sources is None else len(run.framing.forced_bos)
        for i, ids, padded_scores in zip(indices, framed, scores):
            tokens = run.target_tokenizer.tokens(ids[1:])  # without BOS
            target_scores = [0.0] * num_forced + padded_scores[num_forced : len(tokens)]
            results[i] = ScoredText(sum(target_scores), tokens, target_scores)
    return results


def within_max_length(run: Run, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[bool]:
    """Return for each target whether the model has enough positions to read it, after its source."""
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
    """Align the words of given translations by cross-attention; None if the model has no attention.

    Returns for each translation a list of pairs (index of the source word, index of the target word). A run that reads
    images or speech is a UserError.
    """
    if run.model.source_features is not None:
        raise UserError(
            f"words cannot be aligned by {run.folder}, because it reads feature vectors: use a run that reads text"
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
    """Align the words of a batch of sentence pairs by cross-attention; return None if the model has no attention.

    `source` has padded token ids (B S), `source_lengths` (B) of each source; `targets` are token ids without BOS and
    EOS. Returns for each sentence pair a list of pairs (index of the source word, index of the target word).
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
    """Compute log p of every token of hypotheses, EOS last if it was generated, by teacher forcing.

    `source` (B S) has padded token ids, `source_lengths` (B) of each source; `hypotheses` are those of each source,
    best first. The result has one list of log p for each hypothesis of each source. The best hypotheses of all sources
    form one batch, the second best the next, and so on. An ensemble averages probabilities. The numbers are the same as
    in the search, which does not record them.
    """
    results: list[list[list[float]]] = [[] for _ in hypotheses]
    num_forced = len(run.framing.forced_bos)  # first tokens, such as a language token, that have probability 1
    for rank in range(max(map(len, hypotheses))):
        sources = [index for index, ranked in enumerate(hypotheses) if rank < len(ranked)]
        batch = [hypotheses[index][rank] for index in sources]
        bos, eos = run.framing.bos, run.framing.eos
        framed = [[bos, *hypothesis.tokens, *([eos] if hypothesis.finished else [])] for hypothesis in batch]
        source_indices = torch.tensor(sources, device=source.device)
        pairs = (source[source_indices], source_lengths[source_indices], *run.pad_batch(framed))
        by_model = torch.stack([token_scores(model, *pairs) for model in run.full_precision_models])  # models B T
        averaged = (by_model.logsumexp(0) - math.log(len(by_model))).tolist()  # log of the mean probability
        for index, hypothesis, ids, padded_scores in zip(sources, batch, framed, averaged):
            scores = [0.0] * num_forced + padded_scores[num_forced : len(ids) - 1]  # BOS is not predicted
            if run.framing.force_eos_at_limit and hypothesis.finished:
                # EOS may have been forced at the length limit, with log p = 0, which teacher forcing does not know: its
                # log p is the score of the hypothesis, which is the sum of all log p, minus the sum of the others
                scores[-1] = hypothesis.score - sum(scores[:-1])
            results[index].append(scores)
    return results


def batch_cross_attention(run: Run, source: Tensor, source_lengths: Tensor, targets: list[list[int]]) -> Tensor | None:
    """Return the mean cross-attention weights (B T S) of a batch, or None if the model has no cross-attention.

    `source` (B S) has padded token ids, `source_lengths` (B) of each source; `targets` are token ids without BOS and
    EOS, but the last row of the weights is for EOS. For a model with explicit alignments (hard attention) the weights
    are the posterior probabilities of the alignments.
    """
    pairs = (source, source_lengths, *run.pad_batch([[run.framing.bos, *ids] for ids in targets]))
    model = run.full_precision_model
    posterior = model.posterior_alignment(*pairs)  # None: the model has no explicit alignments
    return cross_attention(model, *record_attention(model, *pairs)) if posterior is None else posterior


def attention(run: Run, source: Source, target: str | None) -> SentenceAttention:
    """Return all attention weights for a source and a given translation, or the one that the run's search finds (None).

    The result has the tokens of both as well, and the word alignment. Images and speech have no words: the numbers of
    the encoder's positions (1, 2, …) take the place of their tokens.
    """
    ids = run.encode_sources([source])[0]
    if target is None:
        target = run.translate([source], alignment=False)[0].text
    target_ids = _frame_target(run, encode_targets(run, [target])[0])
    pair = (*run.pad_batch([ids]), *run.pad_batch([target_ids[:-1]]))  # EOS is predicted, but not read
    weights, copying = record_attention(
        run.full_precision_model, *pair
    )  # copying: probabilities of copying each source token
    cross = cross_attention(run.model, weights, copying)
    if run.model.source_features is None:
        source_tokens, source_words = run.source_tokenizer.tokens(ids), TokenWordMap.from_ids(run.source_tokenizer, ids)
    else:
        num_positions = 0 if cross is None else cross.shape[-1]
        source_tokens = [str(position + 1) for position in range(num_positions)]
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
    """Compute the logits at every target position, B T V, from padded token ids, B S and B T.

    Padding (`framing.pad`) may be on the left or on the right. The models need it on the right, so it is moved there,
    and the logits are moved back. `source_ids` may be None for a decoder-only model; `target_ids` must be None for an
    encoder-only model, whose logits are those at every source position (B S V). A missing argument, and a run that
    reads feature vectors, are UserErrors.
    """
    if run.model.source_features is not None:
        raise UserError("logits() takes token ids, but this run reads feature vectors: call run.model directly")
    model, pad = run.full_precision_model, run.framing.pad
    if target_ids is None:
        if source_ids is None or run.model.can_generate:
            raise UserError(
                "logits() needs target_ids for a model with a decoder, and source_ids for a model with an encoder: "
                "give the missing argument"
            )
        source_ids = source_ids.to(run.device)
        source, lengths, order = _move_padding_right(source_ids, source_ids != pad)
        return _restore_padding(model(source, lengths), order)
    target_ids = target_ids.to(run.device)
    if source_ids is None:  # empty sources, B 0, of length 0
        source, source_lengths = target_ids[:, :0], torch.zeros_like(target_ids[:, 0])
    else:
        source_ids = source_ids.to(run.device)
        source, source_lengths, _ = _move_padding_right(source_ids, source_ids != pad)
    is_token = _is_token_or_bos(target_ids, pad) if run.framing.bos == pad else target_ids != pad
    if pad == run.framing.eos:  # padding cannot be told from EOS: all ids count as tokens
        is_token = torch.ones_like(is_token)
    target, target_lengths, order = _move_padding_right(target_ids, is_token)
    return _restore_padding(model(source, source_lengths, target, target_lengths), order)


def _batches(
    run: Run, sources: Sequence[Source] | None, targets: Sequence[str]
) -> Iterator[tuple[list[int], list[Any], list[list[int]]]]:
    """Encode pairs of source and target, and yield batches of pairs of similar length.

    A batch is (indices of the pairs, sources as token ids with special tokens or as feature arrays, targets as token
    ids without BOS and EOS). `sources` may be None for a decoder-only model; they are then empty. For another model,
    and if the numbers of sources and targets differ, a UserError is raised.
    """
    if sources is None and not run.model.is_decoder_only:
        raise UserError(
            f"{run.folder} is a translation model, whose scores need sources: give one source for each target"
        )
    if sources is not None and len(sources) != len(targets):
        raise UserError(
            f"expected one source for each target, but got {len(sources):,} sources and {len(targets):,} targets: give "
            "equally many"
        )
    if not targets:
        return
    source_ids = run.encode_sources(sources) if sources is not None else [[] for _ in targets]
    target_ids = encode_targets(run, targets, has_source=sources is not None)
    lengths = [max(len(source), len(target) + 2) for source, target in zip(source_ids, target_ids)]  # BOS and EOS
    for indices in batch_by_length(lengths, run.config.search.batch_tokens):
        yield indices.tolist(), [source_ids[i] for i in indices], [target_ids[i] for i in indices]


def encode_targets(run: Run, targets: Sequence[str], has_source: bool = True) -> list[list[int]]:
    """Return the token ids of targets without BOS and EOS, but with the tokens that are forced at their beginning.

    Forced tokens, such as a language token, are generated first in every target. Texts of a language model, which have
    no source (`has_source` is False), begin without them.
    """
    forced = run.framing.forced_bos if has_source else ()
    target_ids = run.target_tokenizer.encode_batch([normalize_text(run, text) for text in targets])
    return [[*forced, *ids] for ids in target_ids]


def _frame_target(run: Run, ids: list[int], has_source: bool = True) -> list[int]:
    """Return the token ids of a target with BOS before and EOS after them.

    A decoder-only model reads source and target as one sequence, in which the special tokens `source_prefix` come first
    and BOS stands before the target. A text without a source (`has_source` is False) therefore begins with
    `source_prefix`, and with BOS only if the run has no such tokens.
    """
    first_ids = (run.framing.bos,) if has_source else run.framing.source_prefix or (run.framing.bos,)
    return [*first_ids, *ids, run.framing.eos]


def _move_padding_right(ids: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the padding of each sequence (B T) to its end; `is_token` (B T) is False for padding.

    Returns the ids (B T), the lengths (B), and the old position of each id (B T), which `_restore_padding` needs.
    """
    order = (~is_token).long().argsort(dim=1, stable=True)  # tokens (0) first, in their order, then padding (1)
    return ids.gather(1, order), is_token.sum(1), order


def _restore_padding(logits: Tensor, order: Tensor) -> Tensor:
    """Move logits (B T V) back to where their tokens were before the padding was moved to the end.

    `order` (B T) is the old position of each token, as returned by `_move_padding_right`.
    """
    return logits.gather(1, order.argsort(1)[..., None].expand_as(logits))


def _is_token_or_bos(ids: Tensor, pad: int) -> Tensor:
    """Return which positions of `ids` (B T) are tokens and not padding, B T, if BOS has the same id as padding (`pad`).

    The last `pad` before the first other token is BOS: others before it are padding on the left. In a row without other
    tokens it is the first `pad`.
    """
    is_other_token = ids != pad
    first_other = is_other_token.long().argmax(1, keepdim=True)  # B 1: its position; 0 if there is none
    return is_other_token.scatter(1, (first_other - 1).clamp(min=0), True)  # a row that begins with it has no BOS
