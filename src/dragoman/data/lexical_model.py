"""Lexical translation model p(t|s) of tokens (IBM model 1, Brown et al. 1993), and how monotone its alignments are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.token_store import TokenStore

MAX_BATCH_LINKS = 2**22  # pairs of a source and a target token that are processed at a time
MAX_TABLE_ENTRIES = 2**24  # pairs of tokens with a probability
EM_ITERATIONS = 3
MIN_PROBABILITY = 1e-9  # p(t|s) of a pair that the model has not counted
MAX_ALIGNED_PAIRS = 1000  # sentence pairs by which the share of monotone alignments is estimated

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class TokenLinks(NamedTuple):
    """All pairs of a target token and a source token of its sentence, ordered by target token.

    `starts` is the index of the first pair of each target token, `target_lengths` the length of each target sentence.
    """

    source: IntArray
    target: IntArray
    starts: IntArray
    target_lengths: IntArray


@dataclass
class LexicalModel:
    """Expected counts c(s, t) of how often the source token s is translated by the target token t.

    `keys` are the pairs of tokens as numbers s · V + t, sorted; `counts` are theirs; V is `target_size`.
    """

    keys: IntArray
    counts: FloatArray
    source_size: int
    target_size: int

    def probabilities(self) -> FloatArray:
        """Return p(t|s) = c(s, t) / Σ_t c(s, t) for all keys, which are the pairs (s, t) of source and target tokens.

        c(s, t) are the expected counts of how often t translates s.
        """
        source = self.keys // self.target_size
        total = np.bincount(source, self.counts, self.source_size)  # Σ_t c(s, t) of each source token
        return self.counts / np.maximum(total[source], 1e-12)

    def lookup(self, links: TokenLinks, probabilities: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the index among `keys` and p(t|s) of each pair of tokens in `links`; p is 0 for a pair without a key.

        The key of a source token s and a target token t is s · V + t, where V is `target_size`. `probabilities` are
        those of the keys, of which there must be one: a model that was learned from any links has some.
        """
        key = links.source * self.target_size + links.target
        index = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)  # among the sorted keys, if it is there
        return index, np.where(self.keys[index] == key, probabilities[index], 0.0)


def learn_lexical_model(
    store: TokenStore, sizes: tuple[int, int], max_pairs: int, iterations: int = EM_ITERATIONS
) -> LexicalModel:
    """Learn p(t|s) from at most `max_pairs` sentence pairs, spread over the store.

    It starts from how often s and t occur in the same sentence pair, and each EM iteration distributes every target
    token over the source tokens ∝ p(t|s). Memory does not grow with the store: if too many pairs of tokens co-occur,
    the rarest are dropped. `sizes` are those of the source and the target vocabulary.
    """
    rows = spread_rows(store, max_pairs)
    source_size, target_size = sizes
    model = LexicalModel(np.zeros(0, np.int64), np.zeros(0), source_size=source_size, target_size=target_size)
    for links in token_links(store, rows):
        _add_cooccurrences(model, links.source * model.target_size + links.target)  # keys of pairs of tokens
    for _ in range(iterations):
        # of each key, a pair of a source and a target token
        probabilities, counts = model.probabilities(), np.zeros(len(model.keys))
        for links in token_links(store, rows):
            index, p = model.lookup(links, probabilities)
            target_total = np.add.reduceat(p, links.starts)  # Σ_s p(t|s) of each target token
            source_lengths = np.diff(links.starts, append=len(p))  # of the sentence of each target token
            shares = p / np.repeat(np.maximum(target_total, 1e-12), source_lengths)  # sum to 1 for a target token
            counts += np.bincount(index, weights=shares, minlength=len(counts))
        model.counts = counts
    return model


class AlignmentStatistics(NamedTuple):
    """How the target tokens of a corpus depend on single source tokens.

    Attributes:
        monotone: share of target tokens that can be aligned with the source without crossing links: near 1 for
            pronunciation and transliteration, about 0.5 if the order is arbitrary.
        explained: share of the information about a target token that its source token gives,
            mean log p(t|s) / p(t) over the entropy of p(t): at least 0.5 for pronunciation and transliteration, near 0
            where each target token depends on several source tokens, as in arithmetic.
    """

    monotone: float
    explained: float


def alignment_statistics(store: TokenStore, sizes: tuple[int, int], ignored: range = range(0)) -> AlignmentStatistics:
    """Align target tokens with source tokens, and return in what order, and how well they are explained.

    Each target token is linked with the source token of the largest p(t|s), of equal ones with that nearest to the
    diagonal; the longest sequence of links that does not step backward counts as monotone. Targets of one token, which
    have no order, do not count; both shares are 0 if there are no others. `ignored` are the ids of source tokens
    without a position, such as grammatical features. `sizes` are those of the vocabularies.
    """
    model = learn_lexical_model(store, sizes, MAX_ALIGNED_PAIRS, iterations=5)
    probabilities = model.probabilities()
    monotone = total = 0
    gains, tokens_in_text = 0.0, np.zeros(sizes[1])  # Σ log p(t|s), and how often each target token occurs
    for links in token_links(store, spread_rows(store, MAX_ALIGNED_PAIRS)):
        is_ignored = (links.source >= ignored.start) & (links.source < ignored.stop)
        _, p = model.lookup(links, probabilities)  # p(t|s) of each pair of a source and a target token of a sentence
        gains += float(np.log(np.maximum.reduceat(p, links.starts).clip(min=MIN_PROBABILITY)).sum())
        tokens_in_text += np.bincount(links.target[links.starts], minlength=sizes[1])
        p = np.where(is_ignored, -1.0, p).round(12)  # −1: never the largest; rounded, so that equal ones are ties
        ends, first = np.append(links.starts[1:], len(p)), 0  # first: index of the first token of a sentence
        for length in links.target_lengths:
            tokens = range(first, first + int(length))
            chosen = [  # source positions
                _best_position(p[links.starts[token] : ends[token]], relative_position=number / length)
                for number, token in enumerate(tokens)
            ]
            first += len(chosen)
            if length > 1:
                monotone += _longest_monotone(chosen)
                total += len(chosen)
    frequencies = tokens_in_text[tokens_in_text > 0] / max(1.0, tokens_in_text.sum())
    entropy = -float((frequencies * np.log(frequencies)).sum())
    explained = 1 + gains / max(1.0, tokens_in_text.sum()) / entropy if entropy > 0 else 0.0
    return AlignmentStatistics(monotone / max(1, total), float(explained))


def _best_position(probabilities: FloatArray, relative_position: float) -> int:
    """Return the source position of the largest probability, of equal ones the nearest to a relative position.

    `probabilities` are those of the source positions; `relative_position`, from 0 to 1, is that of the target token.
    """
    best = np.flatnonzero(probabilities == probabilities.max())
    return int(best[np.argmin(np.abs(best / len(probabilities) - relative_position))])


def _longest_monotone(positions: list[int]) -> int:
    """Return the length of the longest subsequence that never decreases."""
    last: list[int] = []  # element i: the smallest last element of such subsequences of length i + 1
    for position in positions:
        place = bisect_right(last, position)
        last[place : place + 1] = [position]
    return len(last)


def spread_rows(store: TokenStore, count: int) -> IntArray:
    """Return the indices of at most `count` sentence pairs of a store, spread evenly from the first to the last."""
    return np.unique(np.linspace(0, len(store) - 1, min(count, len(store))).astype(np.int64))


def _add_cooccurrences(model: LexicalModel, new: IntArray) -> None:
    """Add pairs of tokens (`new`, as keys s · V + t) to the counts of a model.

    If more than MAX_TABLE_ENTRIES different pairs would be counted, the most frequent half of this number are kept.
    """
    new_keys, new_counts = np.unique(new, return_counts=True)
    keys, index = np.unique(np.concatenate((model.keys, new_keys)), return_inverse=True)
    counts = np.bincount(index, np.concatenate((model.counts, new_counts)), len(keys)).astype(np.float64)
    if len(keys) > MAX_TABLE_ENTRIES:
        frequent = np.sort(np.argpartition(-counts, MAX_TABLE_ENTRIES // 2)[: MAX_TABLE_ENTRIES // 2])
        keys, counts = keys[frequent], counts[frequent]
    model.keys, model.counts = keys, counts


def token_links(store: TokenStore, rows: IntArray) -> Iterator[TokenLinks]:
    """Yield, in batches, all pairs of a source and a target token that belong to the same sentence pair.

    `rows` are the sentence pairs of the store. The pairs of a target token follow one another, from `starts`.
    """
    source_lengths, target_lengths = (column.lengths[rows].astype(np.int64) for column in store.columns)
    ends = np.cumsum(source_lengths * target_lengths)  # numbers of links up to each sentence pair
    splits = np.searchsorted(ends, np.arange(MAX_BATCH_LINKS, ends[-1], MAX_BATCH_LINKS))
    for batch in np.split(np.arange(len(rows)), splits):
        batch = batch[(source_lengths[batch] > 0) & (target_lengths[batch] > 0)]
        if not len(batch):
            continue
        # tokens of all sentences, concatenated
        sources, targets = (column.rows(rows[batch]).astype(np.int64) for column in store.columns)
        lengths = source_lengths[batch]
        counts = np.repeat(lengths, target_lengths[batch])  # number of source tokens of each target token
        starts = np.cumsum(counts) - counts
        # index in `sources` of the first token of the source sentence, for each target token
        first_source = np.repeat(np.cumsum(lengths) - lengths, target_lengths[batch])
        # in `sources`: for each target token, all tokens of its source sentence
        index = np.arange(counts.sum()) + np.repeat(first_source - starts, counts)
        yield TokenLinks(
            source=sources[index],
            target=np.repeat(targets, counts),
            starts=starts,
            target_lengths=target_lengths[batch],
        )
