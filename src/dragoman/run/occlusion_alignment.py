"""Word alignment by occlusion: a target word is aligned with the source word whose removal makes it least probable.

    difference(t, s) = log p(y_t | x, y_<t) − log p(y_t | x without word s, y_<t)

This is the prediction difference of Li et al. 2019, “On the Word Alignment from Neural Machine Translation”. It needs
no attention, and makes other errors than attention does: where a model has both, their product is used. Each source
word takes one teacher-forced pass, so this is for the few sentences whose alignment matters, such as those with markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dragoman.data.batching import batch_by_length
from dragoman.run.pair_scoring import batch_cross_attention, encode_targets
from dragoman.run.results import Alignment
from dragoman.run.sources import add_framing, encode_without_framing, max_source_tokens
from dragoman.search.forced_decoding import TokenWordMap, sum_by_word, token_scores

if TYPE_CHECKING:
    from dragoman.run.run import Run

LINK_SMOOTHING = 0.01  # added to both factors, so that neither can veto a link alone


def align_by_occlusion(run: Run, sources: Sequence[str], targets: Sequence[str]) -> list[Alignment]:
    """Return aligned (source word, target word) pairs; every word has at least one link, if both sides have words."""
    source_ids = [ids[: max_source_tokens(run)] for ids in encode_without_framing(run, sources)]
    target_ids = encode_targets(run, targets)
    return [_align_pair(run, source, target) for source, target in zip(source_ids, target_ids)]


@torch.inference_mode()
def _align_pair(run: Run, source_ids: list[int], target_ids: list[int]) -> Alignment:
    """Align the words of a sentence pair, given as token ids without framing (special tokens around them).

    T, S: tokens of target and source; W: words of the source.
    """
    source_map = TokenWordMap.from_ids(run.source_tokenizer, source_ids)
    target_map = TokenWordMap.from_ids(run.target_tokenizer, target_ids)
    num_source, num_target = (max(words.word_ids, default=-1) + 1 for words in (source_map, target_map))
    if not num_source or not num_target:
        return []
    if num_source == 1:  # nothing is left without it
        return [(0, word) for word in range(num_target)]
    removable = _with_spaces(source_map)
    occluded = [
        [token for token, word in zip(source_ids, removable) if word != removed] for removed in range(num_source)
    ]
    framed = [add_framing(run, ids) for ids in (source_ids, *occluded)]
    differences = _prediction_differences(run, framed, target_ids)  # T W
    weights = _by_target_word(differences, target_map, num_target)
    attention = batch_cross_attention(run, *run.pad_batch(framed[:1]), [target_ids])
    if attention is not None:
        prefix = len(run.framing.source_prefix)
        to_tokens = attention[0].float().cpu()[: len(target_ids), prefix : prefix + len(source_ids)]  # T S
        to_words = sum_by_word(to_tokens, source_map.core_word_ids, num_source)
        weights = (weights + LINK_SMOOTHING) * (_by_target_word(to_words, target_map, num_target) + LINK_SMOOTHING)
    return _links(weights)


def _with_spaces(words: TokenWordMap) -> list[int]:
    """Return the word that each token is removed with: tokens that are only a space belong to the word after them.

    A token without a word, such as a space, has the word −1; in `core_word_ids` also punctuation attached to a word.
    """
    removable = list(words.core_word_ids)
    for index in range(len(removable) - 2, -1, -1):
        if words.word_ids[index] < 0:
            removable[index] = removable[index + 1]
    return removable


def _prediction_differences(run: Run, sources: list[list[int]], target_ids: list[int]) -> Tensor:
    """Return how much less probable each of T target tokens is without each of W source words, as log p (T W).

    `sources` are the whole source, then one without each word; a token that is more probable without it has 0.
    """
    target = [run.framing.bos, *target_ids, run.framing.eos]
    scores = torch.empty(len(sources), len(target_ids))
    lengths = [max(len(source), len(target)) for source in sources]
    for batch in batch_by_length(lengths, run.config.search.batch_tokens):
        pairs = (*run.pad_batch([sources[i] for i in batch]), *run.pad_batch([target] * len(batch)))
        scores[torch.from_numpy(batch)] = token_scores(run.model, *pairs)[:, : len(target_ids)].float().cpu()
    return (scores[0] - scores[1:]).clamp_min(0).T


def _by_target_word(weights: Tensor, target: TokenWordMap, num_words: int) -> Tensor:
    """Sum the weights (T W) of T target tokens by their word, and normalize them over the W source words."""
    by_word = sum_by_word(weights.T, target.core_word_ids, num_words).T
    return by_word / by_word.sum(1, keepdim=True).clamp_min(1e-9)


def _links(weights: Tensor) -> Alignment:
    """Link each target word with its best source word, then each source word without a link with its best target word.

    `weights` has one row for each target word, one column for each source word.
    """
    links = {(int(row.argmax()), target) for target, row in enumerate(weights)}
    linked = {source for source, _ in links}
    links |= {(s, int(weights[:, s].argmax())) for s in range(weights.shape[1]) if s not in linked}
    return sorted(links)
