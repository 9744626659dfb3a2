"""Sentence chrF and BLEU of many pairs of texts at once, as utilities of minimum Bayes risk decoding and reranking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import unknown_name

Array = NDArray[Any]
MAX_MATRIX_SIZE = 1 << 21  # elements of a dense matrix that are held at once
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@dataclass(frozen=True)
class NGramCounts:
    """The n-grams of one order in N texts: text `text[i]` contains n-gram `ngram[i]` `count[i]` times.

    N-grams are numbers, and entries are sorted by them.
    """

    text: Array
    ngram: Array
    count: Array
    totals: Array  # N: number of n-grams of each text

    @property
    def num_ngrams(self) -> int:
        return int(self.ngram.max(initial=-1)) + 1

    def select(self, texts: Array) -> NGramCounts:
        """Return the counts of some texts, which must be different ones, in their new order."""
        index = np.full(len(self.totals), -1)
        index[texts] = np.arange(len(texts))
        kept = index[self.text] >= 0
        return NGramCounts(index[self.text[kept]], self.ngram[kept], self.count[kept], self.totals[texts])

    def split(self, bounds: Array) -> list[NGramCounts]:
        """Split the counts at some n-grams."""
        parts = (slice(begin, end) for begin, end in pairwise(np.searchsorted(self.ngram, bounds)))
        return [NGramCounts(self.text[part], self.ngram[part], self.count[part], self.totals) for part in parts]


def count_ngrams(sequences: Sequence[Array], max_order: int) -> Iterator[NGramCounts]:
    """Count the n-grams of sequences of numbers >= 0, of order 1, 2, …, `max_order`.

    An n-gram is numbered by sorting the pairs of an (n−1)-gram and its next symbol.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    symbols = np.concatenate([np.zeros(0, np.int64), *sequences]).astype(np.int64)
    symbols = np.unique(symbols, return_inverse=True)[1]
    text = np.repeat(np.arange(len(lengths)), lengths)
    remaining = np.repeat(lengths.cumsum(), lengths) - np.arange(len(symbols))  # symbols from here to the end
    ngram, base = symbols, len(symbols) + 1
    end = np.arange(len(symbols))  # position of the last symbol of each n-gram
    for n in range(1, max_order + 1):
        if n > 1:
            continued = remaining[end] > 1
            end = end[continued] + 1
            ngram = np.unique(ngram[continued] * base + symbols[end], return_inverse=True)[1]
        pairs, count = np.unique(ngram * len(lengths) + text[end], return_counts=True)
        unique_ngram, owner = np.divmod(pairs, max(1, len(lengths)))
        yield NGramCounts(owner, unique_ngram, count, np.maximum(lengths - n + 1, 0))


def match_all_pairs(candidates: NGramCounts, references: NGramCounts) -> Array:
    """C R: the number of matching n-grams, Σ_g min(c_g, r_g), of every candidate and every reference.

    min(c, r) = Σ_k [c ≥ k][r ≥ k] is a product of matrices with a column for the k-th occurrence of an n-gram. Only
    n-grams that both sides contain need columns, and columns are processed in blocks. If both sides are the same, all
    n-grams of a text match on the diagonal, and n-grams of a single text need no column.
    """
    same = candidates is references
    size = max(candidates.num_ngrams, references.num_ngrams)
    columns = np.minimum(_max_counts(candidates, size), _max_counts(references, size))  # G, per n-gram
    if same:
        columns[np.bincount(candidates.ngram, minlength=size) == 1] = 0
    first = columns.cumsum() - columns
    width = max(1, MAX_MATRIX_SIZE // max(1, len(candidates.totals) + len(references.totals)))
    bounds = np.unique(np.append(np.searchsorted(first, np.arange(0, int(columns.sum()), width)), size))
    matches = np.zeros((len(candidates.totals), len(references.totals)))
    for left, right, begin, end in zip(candidates.split(bounds), references.split(bounds), bounds, bounds[1:]):
        width = int(columns[begin:end].sum())
        left_table = _occurrence_table(left, columns, first - first[begin], width)
        right_table = left_table if same else _occurrence_table(right, columns, first - first[begin], width)
        matches += left_table @ right_table.T
    if same:
        np.fill_diagonal(matches, candidates.totals)
    return matches


def _max_counts(counts: NGramCounts, size: int) -> Array:
    """G: the largest count of each n-gram in a text."""
    largest = np.zeros(size, np.int64)
    np.maximum.at(largest, counts.ngram, counts.count)
    return largest


def _occurrence_table(counts: NGramCounts, columns: Array, first: Array, width: int) -> Array:
    """N F: 1 where a text contains an n-gram for the k-th time. Sums are exact in float32 up to 2²⁴."""
    count = np.minimum(counts.count, columns[counts.ngram])
    occurrence = np.arange(int(count.sum())) - np.repeat(count.cumsum() - count, count)  # 0, 1, … of each n-gram
    table = np.zeros((len(counts.totals), width), np.float32)
    table[np.repeat(counts.text, count), np.repeat(first[counts.ngram], count) + occurrence] = 1.0
    return table


def count_shared_ngrams(counts: NGramCounts, partner: Array) -> Array:
    """N: the number of n-grams that each text shares with its partner (N), which is another one of the texts."""
    size = len(counts.totals)
    own = counts.ngram * size + counts.text  # sorted
    wanted = counts.ngram * size + partner[counts.text]
    index = np.searchsorted(own, wanted).clip(max=max(0, len(own) - 1))
    shared = np.where(own[index] == wanted, np.minimum(counts.count, counts.count[index]), 0)
    return np.bincount(counts.text, shared, size)


@dataclass(frozen=True)
class NGramOverlap:
    """Numbers of n-grams by order, in arrays that broadcast: C 1 of candidates, R of references, C R of matches."""

    candidates: list[Array]
    references: list[Array]
    matches: list[Array]


class NGramMetric(ABC):
    """A metric from 0 to 100 that depends on counts of n-grams only."""

    @abstractmethod
    def count_ngrams(self, texts: Sequence[str]) -> list[NGramCounts]:
        """Return the n-grams of the texts, by order."""

    @abstractmethod
    def score(self, overlap: NGramOverlap) -> Array:
        """Return the metric, C R or the shape to which the arrays broadcast."""

    def effective_count(self, in_candidate: Array, in_reference: Array) -> Array:
        """Return how many n-grams of one order a candidate contributes to the counts of a corpus."""
        return in_candidate

    def pairwise(self, candidates: Sequence[str], references: Sequence[str]) -> Array:
        """C R: the metric of every candidate and every reference; neither list contains a text twice."""
        orders, candidate_index, reference_index = self._count_all(candidates, references)
        if np.array_equal(candidate_index, reference_index):
            sides = [(order, order) for order in orders]
        else:
            sides = [(order.select(candidate_index), order.select(reference_index)) for order in orders]
        overlap = NGramOverlap(
            [left.totals[:, None].astype(float) for left, _ in sides],
            [right.totals.astype(float) for _, right in sides],
            [match_all_pairs(left, right) for left, right in sides],
        )
        return self.score(overlap)

    def aggregated(self, candidates: Sequence[str], references: Sequence[str], weights: Array) -> Array:
        """C: the metric of each candidate with the mean n-gram counts of the references.

        `weights` (R) sum to 1. Linear in the number of texts (DeNero et al. 2009; Vamvas & Sennrich 2024).
        """
        orders, candidate_index, reference_index = self._count_all(candidates, references)
        overlap = NGramOverlap([], [], [])
        for order in orders:
            left, right = order.select(candidate_index), order.select(reference_index)
            mean_count = np.bincount(right.ngram, right.count * weights[right.text], order.num_ngrams)  # G
            shared = np.minimum(left.count, mean_count[left.ngram])
            overlap.candidates.append(left.totals.astype(float))
            overlap.references.append(np.asarray(weights @ right.totals, dtype=float))
            overlap.matches.append(np.bincount(left.text, shared, len(left.totals)))
        return self.score(overlap)

    def _count_all(
        self, candidates: Sequence[str], references: Sequence[str]
    ) -> tuple[list[NGramCounts], Array, Array]:
        """Return the n-grams of all texts, and the indices of candidates and references among them."""
        index = {text: i for i, text in enumerate(dict.fromkeys((*candidates, *references)))}
        sides = [np.array([index[text] for text in texts], np.int64) for texts in (candidates, references)]
        return self.count_ngrams(list(index)), sides[0], sides[1]


@dataclass(frozen=True)
class ChrF(NGramMetric):
    """chrF: F-score of character n-grams (Popović 2015), computed as in sacreBLEU, without spaces.

        chrF_β = 100 · (1 + β²) P R / (β² P + R)

    P and R are the mean precision and recall over the orders that occur in both texts. With `word_order` 2 it is chrF++
    (Popović 2017).
    """

    char_order: int = 6
    word_order: int = 0
    beta: float = 2.0

    def count_ngrams(self, texts: Sequence[str]) -> list[NGramCounts]:
        orders = list(count_ngrams([_code_points("".join(text.split())) for text in texts], self.char_order))
        if self.word_order:
            orders += count_ngrams(_number_words([_split_words(text) for text in texts]), self.word_order)
        return orders

    def effective_count(self, in_candidate: Array, in_reference: Array) -> Array:
        return np.where(in_reference > 0, in_candidate, 0)

    def score(self, overlap: NGramOverlap) -> Array:
        precision = recall = num_orders = np.zeros(())
        for in_candidate, in_reference, shared in zip(overlap.candidates, overlap.references, overlap.matches):
            occurs = (in_candidate > 0) & (in_reference > 0)
            precision = precision + shared / np.where(occurs, in_candidate, np.inf)
            recall = recall + shared / np.where(occurs, in_reference, np.inf)
            num_orders = num_orders + occurs
        precision, recall = precision / np.maximum(num_orders, 1), recall / np.maximum(num_orders, 1)
        factor = self.beta**2
        divisor = factor * precision + recall
        return 100 * (1 + factor) * precision * recall / np.where(divisor > 0, divisor, 1)


@dataclass(frozen=True)
class Bleu(NGramMetric):
    """Sentence BLEU (Papineni et al. 2002), computed as in sacreBLEU with the tokenizer 13a.

        BLEU = 100 · min(1, exp(1 − r/c)) · (p₁ … p_N)^{1/N}

    c and r are the lengths of candidate and reference, and N ≤ 4 is at most c. If no n-gram of an order matches, p_n is
    1/2, 1/4, … matches (Chen & Cherry 2014, method 3), unless nothing matches at all. Without `effective_order` N is
    always 4, as for a corpus.
    """

    max_order: int = 4
    effective_order: bool = True

    def count_ngrams(self, texts: Sequence[str]) -> list[NGramCounts]:
        from sacrebleu import BLEU  # imported late, because it takes 0.2 s

        tokenizer = BLEU(effective_order=True).tokenizer
        return list(count_ngrams(_number_words([tokenizer(text.rstrip()).split() for text in texts]), self.max_order))

    def score(self, overlap: NGramOverlap) -> Array:
        candidate_length, reference_length = overlap.candidates[0], overlap.references[0]
        brevity = np.exp(np.minimum(0, 1 - reference_length / np.where(candidate_length > 0, candidate_length, 1)))
        log_precision = halvings = num_orders = np.zeros(())
        for total, shared in zip(overlap.candidates, overlap.matches):
            halvings = halvings + (shared == 0)
            precision = np.where(shared > 0, shared, 0.5**halvings) / np.where(total > 0, total, 1)
            log_precision = log_precision + np.where(total > 0, np.log(precision), 0)
            num_orders = num_orders + (total > 0)
        mean = log_precision / np.maximum(num_orders, 1)
        scored = (sum(overlap.matches) > 0) & ((num_orders == self.max_order) | self.effective_order)
        return np.where(scored, 100 * brevity * np.exp(mean), 0)


#: the utilities of minimum Bayes risk decoding
UTILITIES: dict[str, NGramMetric] = {"chrf": ChrF(), "chrf++": ChrF(word_order=2), "bleu": Bleu()}


def get_metric(name: str) -> NGramMetric:
    if name not in UTILITIES:
        raise unknown_name("utility", name, UTILITIES)
    return UTILITIES[name]


def _code_points(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _number_words(texts: list[list[str]]) -> list[Array]:
    """Return the words of the texts as numbers."""
    numbers: dict[str, int] = {}
    return [np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64) for words in texts]


def _split_words(text: str) -> list[str]:
    """Return the words of chrF++: a punctuation mark at the end of a word is separated, or else one at its start."""
    words = []
    for word in text.split():
        if len(word) > 1 and word[-1] in PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return words
