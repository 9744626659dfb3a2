"""Sentence chrF, BLEU and GLEU of many pairs of texts at once: utilities of searches, and rewards of training."""

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
        """G, the number of different n-grams: their numbers are 0 … G−1."""
        return int(self.ngram.max(initial=-1)) + 1


def count_ngrams(sequences: Sequence[Array], max_order: int) -> Iterator[NGramCounts]:
    """Count the n-grams of N sequences of symbols (integers ≥ 0); yield the counts of order 1, 2, …, `max_order`.

    All sequences are concatenated. Each n-gram gets a number: the rank of the pair (number of its first n−1 symbols,
    last symbol) among all such pairs.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    symbols = np.concatenate([np.zeros(0, np.int64), *sequences]).astype(np.int64)
    symbols = np.unique(symbols, return_inverse=True)[1]  # renumbered 0, 1, …
    text = np.repeat(np.arange(len(lengths)), lengths)  # index of the sequence of each symbol
    remaining = np.repeat(lengths.cumsum(), lengths) - np.arange(len(symbols))  # symbols from here to the end
    ngram, base = symbols, len(symbols) + 1  # number · base + symbol is different for different pairs
    end = np.arange(len(symbols))  # position of the last symbol of each n-gram
    for n in range(1, max_order + 1):
        if n > 1:
            continued = remaining[end] > 1  # (n−1)-grams after which another symbol of the same sequence follows
            end = end[continued] + 1
            ngram = np.unique(ngram[continued] * base + symbols[end], return_inverse=True)[1]
        # one number for each pair of an n-gram and a text
        pairs, count = np.unique(ngram * len(lengths) + text[end], return_counts=True)
        unique_ngram, ngram_text = np.divmod(pairs, max(1, len(lengths)))
        yield NGramCounts(text=ngram_text, ngram=unique_ngram, count=count, totals=np.maximum(lengths - n + 1, 0))


def match_all_pairs(counts: NGramCounts, left: Array, right: Array) -> Array:
    """Return the number of matching n-grams, Σ_g min(c_g, r_g), of each of C texts with each of R texts, C R.

    c_g and r_g are how often the texts contain n-gram g. `left` (C) and `right` (R) are indices of texts in `counts`.

    min(c, r) = Σ_k [c ≥ k][r ≥ k] is a product of matrices with a column for the k-th occurrence of an n-gram. Only
    occurrences in at least two texts need columns, which are processed in blocks. A text matches itself completely.
    """
    columns = _second_largest_counts(counts)  # G: number of columns for each of G different n-grams
    first = columns.cumsum() - columns  # G: index of the first column
    width = max(1, MAX_MATRIX_SIZE // max(1, len(counts.totals)))  # columns of a block
    starts = np.arange(0, int(columns.sum()), width)
    bounds = np.unique(np.append(np.searchsorted(first, starts), len(columns)))  # n-grams at which blocks begin
    entries = np.searchsorted(counts.ngram, bounds)  # where the counts of each block begin
    matches = np.zeros((len(left), len(right)))
    for ngrams, block in zip(pairwise(bounds), pairwise(entries)):
        table = _occurrence_table(counts, columns, first, slice(*ngrams), slice(*block))
        left_rows = table[left]
        matches += left_rows @ (left_rows if np.array_equal(left, right) else table[right]).T
    # a text matches itself in all its n-grams, also in those that no other text contains
    return np.where(left[:, None] == right, counts.totals[right], matches)


def match_pairs(counts: NGramCounts, left: Array, right: Array) -> Array:
    """Return the number of matching n-grams, Σ_g min(c_g, r_g), of text `left[i]` with text `right[i]` for every i.

    c_g and r_g are how often the two texts contain n-gram g. `left` and `right` are indices of texts in `counts`, where
    entry j says that text `counts.text[j]` contains n-gram `counts.ngram[j]` `counts.count[j]` times.
    """
    by_text = np.argsort(counts.text, kind="stable")  # entries, text by text
    num_entries = np.bincount(counts.text, minlength=len(counts.totals))  # of each text
    first = num_entries.cumsum() - num_entries
    lengths = num_entries[left]
    pair = np.repeat(np.arange(len(left)), lengths)  # each entry of each left text, as often as the text occurs
    offset = np.arange(len(pair)) - np.repeat(lengths.cumsum() - lengths, lengths)  # 0, 1, … within each pair
    entry = by_text[first[left[pair]] + offset]
    keys = counts.ngram * len(counts.totals) + counts.text  # sorted, as entries are
    right_keys = counts.ngram[entry] * len(counts.totals) + right[pair]  # of these n-grams in the right texts
    index = np.minimum(np.searchsorted(keys, right_keys), max(0, len(keys) - 1))  # of the n-gram in the right text
    shared = np.where(keys[index] == right_keys, np.minimum(counts.count[entry], counts.count[index]), 0)
    return np.bincount(pair, shared, len(left))


def _second_largest_counts(counts: NGramCounts) -> Array:
    """Return for each of G n-grams its second largest count in a text (G), 0 if only one text contains it."""
    order = np.lexsort((counts.count, counts.ngram))  # by n-gram, then by count: the second largest is next to last
    largest = np.cumsum(np.bincount(counts.ngram, minlength=counts.num_ngrams)) - 1  # index of the last one in `order`
    in_two_texts = np.diff(largest, prepend=-1) > 1
    return np.where(in_two_texts, counts.count[order[largest - 1]], 0)


def _occurrence_table(counts: NGramCounts, columns: Array, first: Array, ngrams: slice, block: slice) -> Array:
    """Return a table with a row for each of N texts and a column for each pair (n-gram, k) of a block of n-grams.

    It contains 1 where the text contains the n-gram at least k times, and 0 elsewhere. Products of its rows are sums of
    ones, which are exact in float32 up to 2²⁴.

    Args:
        counts: text `counts.text[i]` contains n-gram `counts.ngram[i]` `counts.count[i]` times.
        columns: the number of columns of each n-gram, which is the largest k.
        first: the index of the first of these columns, by n-gram.
        ngrams: the n-grams of this block.
        block: the entries of `counts` with these n-grams.
    """
    text, ngram = counts.text[block], counts.ngram[block]
    count = np.minimum(counts.count[block], columns[ngram])
    occurrence = np.arange(int(count.sum())) - np.repeat(count.cumsum() - count, count)  # 0, 1, … of each n-gram
    table = np.zeros((len(counts.totals), int(columns[ngrams].sum())), np.float32)
    table[np.repeat(text, count), np.repeat(first[ngram] - first[ngrams.start], count) + occurrence] = 1.0
    return table


class NGramMetric(ABC):
    """A metric from 0 to 100 that depends on counts of n-grams only."""

    @abstractmethod
    def count_ngrams(self, texts: Sequence[str]) -> list[NGramCounts]:
        """Return how often each text contains each n-gram: one `NGramCounts` per order (n = 1, 2, …)."""

    @abstractmethod
    def score(self, candidates: Sequence[Array], references: Sequence[Array], matches: Sequence[Array]) -> Array:
        """Return the metric, from 0 to 100, of candidates with references, given their numbers of n-grams.

        Each argument is a list with one array per order of n-grams (1, 2, …); the arrays are broadcast.

        Args:
            candidates: C 1 or C, numbers of n-grams in the candidates.
            references: R or a number, numbers of n-grams in the references.
            matches: C R or C, numbers of n-grams that a candidate and a reference have in common.
        """

    def pairwise(self, candidates: Sequence[str], references: Sequence[str]) -> Array:
        """Return the metric (0 to 100) of each of C candidates with each of R references, C R."""
        # counts of each order (n = 1, 2, …), and the indices of candidates (left) and references (right) in them
        orders, left, right = self._count_all(candidates, references)
        return self.score(
            [order.totals[left, None].astype(float) for order in orders],
            [order.totals[right].astype(float) for order in orders],
            [match_all_pairs(order, left, right) for order in orders],
        )

    def aggregated(self, candidates: Sequence[str], references: Sequence[str], weights: Array) -> Array:
        """Return the metric (0 to 100) of each of C candidates with the mean n-gram counts of the references, C.

        `weights` (R) are those of the references in the mean, with sum 1; no reference may occur twice. The cost is
        linear in the number of texts (DeNero et al. 2009; Vamvas & Sennrich 2024).
        """
        # counts of each order (n = 1, 2, …), and the indices of candidates (left) and references (right) in them
        orders, left, right = self._count_all(candidates, references)
        text_weights = np.zeros(len(orders[0].totals))  # 0 for texts that are only candidates
        text_weights[right] = weights
        matches = []
        for order in orders:
            # by n-gram: its mean count in the references
            mean_count = np.bincount(order.ngram, order.count * text_weights[order.text], order.num_ngrams)
            shared = np.bincount(order.text, np.minimum(order.count, mean_count[order.ngram]), len(order.totals))
            matches.append(shared[left])
        in_candidates = [order.totals[left].astype(float) for order in orders]
        in_references = [np.asarray(weights @ order.totals[right], dtype=float) for order in orders]
        return self.score(in_candidates, in_references, matches)

    def paired(self, candidates: Sequence[str], references: Sequence[str]) -> Array:
        """Return the metric (0 to 100) of candidate i with reference i, for every i."""
        # counts of each order (n = 1, 2, …), and the indices of candidates (left) and references (right) in them
        orders, left, right = self._count_all(candidates, references)
        return self.score(
            [order.totals[left].astype(float) for order in orders],
            [order.totals[right].astype(float) for order in orders],
            [match_pairs(order, left, right) for order in orders],
        )

    def _count_all(
        self, candidates: Sequence[str], references: Sequence[str]
    ) -> tuple[list[NGramCounts], Array, Array]:
        """Count the n-grams of candidates and references together, equal texts once.

        Returns the counts by order of n-grams, and the indices of the candidates and of the references in them.
        """
        index = {text: i for i, text in enumerate(dict.fromkeys((*candidates, *references)))}
        left, right = (np.array([index[text] for text in texts], np.int64) for texts in (candidates, references))
        return self.count_ngrams(list(index)), left, right


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
        """Return how often each text contains each n-gram: one `NGramCounts` per order.

        The orders are 1 … `char_order` of characters, without white space, then 1 … `word_order` of words.
        """
        orders = list(count_ngrams([_code_points("".join(text.split())) for text in texts], self.char_order))
        if self.word_order:
            from sacrebleu import CHRF  # imported late, because it takes 0.2 s

            # in spite of its name, it keeps punctuation, separated from words
            split_words = CHRF(word_order=self.word_order)._remove_punctuation
            orders += count_ngrams(_number_words([split_words(text) for text in texts]), self.word_order)
        return orders

    def score(self, candidates: Sequence[Array], references: Sequence[Array], matches: Sequence[Array]) -> Array:
        """Return chrF from the numbers of n-grams in candidates, in references, and in both (`matches`).

        Each argument is a list with one array per order of n-grams; the arrays are broadcast. An order counts only if
        both texts have n-grams of it.
        """
        precision = recall = num_orders = np.zeros(())
        for in_candidate, in_reference, shared in zip(candidates, references, matches):
            occurs = (in_candidate > 0) & (in_reference > 0)  # others get precision and recall 0, by dividing by ∞
            precision = precision + shared / np.where(occurs, in_candidate, np.inf)
            recall = recall + shared / np.where(occurs, in_reference, np.inf)
            num_orders = num_orders + occurs
        precision, recall = precision / np.maximum(num_orders, 1), recall / np.maximum(num_orders, 1)
        beta_squared = self.beta**2
        divisor = beta_squared * precision + recall
        return 100 * (1 + beta_squared) * precision * recall / np.where(divisor > 0, divisor, 1)


@dataclass(frozen=True)
class Bleu(NGramMetric):
    """Sentence BLEU (Papineni et al. 2002), computed as in sacreBLEU with the tokenizer 13a.

        BLEU = 100 · min(1, exp(1 − r/c)) · (p₁ … p_N)^{1/N}

    c and r are the lengths of candidate and reference, and N ≤ 4 is at most c. If no n-gram of an order matches, p_n is
    1/2, 1/4, … matches (Chen & Cherry 2014, method 3), unless nothing matches at all.
    """

    max_order: int = 4

    def count_ngrams(self, texts: Sequence[str]) -> list[NGramCounts]:
        """Return how often each text contains each n-gram of words: one `NGramCounts` per order, 1 … `max_order`."""
        from sacrebleu import BLEU  # imported late, because it takes 0.2 s

        tokenizer = BLEU(effective_order=True).tokenizer
        return list(count_ngrams(_number_words([tokenizer(text.rstrip()).split() for text in texts]), self.max_order))

    def score(self, candidates: Sequence[Array], references: Sequence[Array], matches: Sequence[Array]) -> Array:
        """Return sentence BLEU from the numbers of n-grams in candidates, in references, and in both (`matches`).

        Each argument is a list with one array per order of n-grams; the arrays are broadcast. The first order without a
        match counts as 1/2 match, the second as 1/4, and so on; without any match BLEU is 0. Orders of which the
        candidate has no n-gram, being too short, are left out.
        """
        candidate_length, reference_length = candidates[0], references[0]  # numbers of unigrams
        brevity = np.exp(np.minimum(0, 1 - reference_length / np.where(candidate_length > 0, candidate_length, 1)))
        log_precision = halvings = num_orders = np.zeros(())
        for total, shared in zip(candidates, matches):
            halvings = halvings + (shared == 0)  # number of orders without a match so far
            precision = np.where(shared > 0, shared, 0.5**halvings) / np.where(total > 0, total, 1)
            log_precision = log_precision + np.where(total > 0, np.log(precision), 0)
            num_orders = num_orders + (total > 0)
        mean = log_precision / np.maximum(num_orders, 1)
        return np.where(sum(matches) > 0, 100 * brevity * np.exp(mean), 0)


@dataclass(frozen=True)
class Gleu(NGramMetric):
    """GLEU, the reward of GNMT (Wu et al. 2016, §5.3): the smaller of precision and recall of all n-grams together.

        GLEU = 100 · Σ_n matches_n / max(Σ_n candidate n-grams, Σ_n reference n-grams),  n = 1 … 4

    Words are those of BLEU (sacreBLEU's tokenizer 13a).
    """

    max_order: int = 4

    def count_ngrams(self, texts: Sequence[str]) -> list[NGramCounts]:
        """Return how often each text contains each n-gram of words, as split by BLEU: one `NGramCounts` per order."""
        return Bleu(max_order=self.max_order).count_ngrams(texts)

    def score(self, candidates: Sequence[Array], references: Sequence[Array], matches: Sequence[Array]) -> Array:
        """Return GLEU from the numbers of n-grams in candidates, in references, and in both (`matches`).

        Each argument is a list with one array per order of n-grams, which are broadcast.
        """
        num_ngrams = np.maximum(sum(candidates), sum(references))
        return 100 * sum(matches) / np.where(num_ngrams > 0, num_ngrams, 1)


#: the utilities of minimum Bayes risk decoding
UTILITIES: dict[str, NGramMetric] = {"chrf": ChrF(), "chrf++": ChrF(word_order=2), "bleu": Bleu()}


def get_metric(name: str) -> NGramMetric:
    """Return the metric with this name, "chrf", "chrf++" or "bleu"; another name is a UserError."""
    if name not in UTILITIES:
        raise unknown_name("metric of minimum Bayes risk", name, UTILITIES)
    return UTILITIES[name]


def _code_points(text: str) -> Array:
    """Return the Unicode code points of the characters of a text; unpaired surrogates are no error."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _number_words(texts: list[list[str]]) -> list[Array]:
    """Replace the words of each text by integers, in the order of first occurrence; equal words get equal numbers."""
    numbers: dict[str, int] = {}
    return [np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64) for words in texts]
