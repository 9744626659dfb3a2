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

LINK_SMOOTHING = 0.01  # added to the weights of occlusion and of attention, so that neither can exclude a link alone


def align_by_occlusion(run: Run, sources: Sequence[str], targets: Sequence[str]) -> list[Alignment]:
    """Align the words of sentence pairs: a target word is aligned with the source word whose removal harms it most.

    Returns for each pair a list of links (index of the source word, index of the target word). Every word has at least
    one link, unless one of the two sentences has no words.
    """
    source_ids = [ids[: max_source_tokens(run)] for ids in encode_without_framing(run, sources)]
    target_ids = encode_targets(run, targets)
    return [_align_pair(run, source, target) for source, target in zip(source_ids, target_ids)]


@torch.inference_mode()
def _align_pair(run: Run, source_ids: list[int], target_ids: list[int]) -> Alignment:
    """Align the words of a sentence pair by occlusion, and by attention if the model has any.

    The sentences are token ids without BOS, EOS and other special tokens. Returns links (index of the source word,
    index of the target word). Shapes: T target tokens, S source tokens, W source words.
    """
    source_map = TokenWordMap.from_ids(run.source_tokenizer, source_ids)
    target_map = TokenWordMap.from_ids(run.target_tokenizer, target_ids)
    num_source_words, num_target_words = (max(words.word_ids, default=-1) + 1 for words in (source_map, target_map))
    if not num_source_words or not num_target_words:
        return []
    if num_source_words == 1:  # the source would be empty without its only word
        return [(0, word) for word in range(num_target_words)]
    removal_words = _removal_words(source_map)
    occluded = [  # the source without each of its words
        [token for token, word in zip(source_ids, removal_words) if word != removed]
        for removed in range(num_source_words)
    ]
    framed = [add_framing(run, ids) for ids in (source_ids, *occluded)]
    differences = _prediction_differences(run, framed, target_ids)  # T W
    weights = _by_target_word(differences, target_map, num_target_words)  # target words × source words
    attention = batch_cross_attention(run, *run.pad_batch(framed[:1]), [target_ids])  # from the whole source
    if attention is not None:
        begin = len(run.framing.source_prefix)  # attention to special tokens and of EOS is left out
        to_tokens = attention[0].float().cpu()[: len(target_ids), begin : begin + len(source_ids)]  # T S
        to_words = sum_by_word(to_tokens, source_map.core_word_ids, num_source_words)  # T W
        # the product of both; the smoothing keeps one of them from excluding a link alone
        attention_weights = _by_target_word(to_words, target_map, num_target_words)
        weights = (weights + LINK_SMOOTHING) * (attention_weights + LINK_SMOOTHING)
    return _links(weights)


def _removal_words(words: TokenWordMap) -> list[int]:
    """Return for each source token the index of the word with which it is removed, −1 if it is never removed.

    A token that is only a space is removed with the word after it. Punctuation that is attached to a word is never
    removed: it has the word −1 in `core_word_ids`.
    """
    removal_words = list(words.core_word_ids)
    for index in range(len(removal_words) - 2, -1, -1):
        if words.word_ids[index] < 0:  # a token without a word, such as a space
            removal_words[index] = removal_words[index + 1]
    return removal_words


def _prediction_differences(run: Run, sources: list[list[int]], target_ids: list[int]) -> Tensor:
    """Return by how much log p of each of T target tokens falls if a source word is removed, T W for W words.

    `sources` are the token ids of the whole source, then of the source without each word. Where log p rises, it is 0.
    """
    target = [run.framing.bos, *target_ids, run.framing.eos]
    scores = torch.empty(len(sources), len(target_ids))
    lengths = [max(len(source), len(target)) for source in sources]
    for batch in batch_by_length(lengths, run.config.search.batch_tokens):
        pairs = (*run.pad_batch([sources[i] for i in batch]), *run.pad_batch([target] * len(batch)))
        # without log p of EOS
        scores[torch.from_numpy(batch)] = (
            token_scores(run.full_precision_model, *pairs)[:, : len(target_ids)].float().cpu()
        )
    return (scores[0] - scores[1:]).clamp_min(0).T


def _by_target_word(weights: Tensor, target: TokenWordMap, num_words: int) -> Tensor:
    """Sum the rows of `weights` (T target tokens × W source words) that belong to the same target word.

    Returns N W for N = `num_words` target words; each row is normalized to sum 1. Attached punctuation does not count:
    it has the word −1 in `target.core_word_ids`.
    """
    by_word = sum_by_word(weights.T, target.core_word_ids, num_words).T  # sums columns, hence the transpositions
    return by_word / by_word.sum(1, keepdim=True).clamp_min(1e-9)  # a row of zeros remains


def _links(weights: Tensor) -> Alignment:
    """Link each target word with its best source word, then each source word without a link with its best target word.

    `weights` has a row for each target word and a column for each source word. Returns sorted pairs (index of the
    source word, index of the target word).
    """
    links = {(int(target_weights.argmax()), target) for target, target_weights in enumerate(weights)}
    linked_sources = {source for source, _ in links}
    unlinked_sources = [source for source in range(weights.shape[1]) if source not in linked_sources]
    links |= {(source, int(weights[:, source].argmax())) for source in unlinked_sources}
    return sorted(links)
