"""How much one text is worth where another was right: sentence chrF and BLEU of many pairs of texts at once."""

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
BLOCK = 1 << 21  # numbers of a dense matrix that are held at once
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@dataclass(frozen=True)
class Grams:
    """The n-grams of one order in some texts: text `text[i]` has `count[i]` of n-gram `gram[i]`; sorted by n-gram."""

    text: Array
    gram: Array
    count: Array
    totals: Array  # of each text

    def among(self, texts: Array) -> Grams:
        """Of some of the texts, which are numbered anew; none may be asked for twice."""
        place = np.full(len(self.totals), -1)
        place[texts] = np.arange(len(texts))
        kept = place[self.text] >= 0
        return Grams(place[self.text[kept]], self.gram[kept], self.count[kept], self.totals[texts])

    def blocks(self, bounds: Array) -> list[Grams]:
        """Parted at some n-grams."""
        places = np.searchsorted(self.gram, bounds)
        parts = (slice(begin, end) for begin, end in pairwise(places))
        return [Grams(self.text[part], self.gram[part], self.count[part], self.totals) for part in parts]


def grams(sequences: Sequence[Array], order: int) -> Iterator[Grams]:
    """The n-grams of sequences of numbers (at least 0), of order 1, 2, …, `order`.

    An n-gram is the (n−1)-gram before its last symbol and that symbol, so its number is found by sorting pairs.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    symbols = np.concatenate([np.zeros(0, np.int64), *sequences]).astype(np.int64)
    symbols = np.unique(symbols, return_inverse=True)[1]
    text = np.repeat(np.arange(len(lengths)), lengths)
    left = np.repeat(lengths.cumsum(), lengths) - np.arange(len(symbols))  # how many symbols there are from here on
    names, base = symbols, len(symbols) + 1
    place = np.arange(len(symbols))  # where an n-gram ends
    for n in range(1, order + 1):
        if n > 1:
            longer = left[place] > 1
            place = place[longer] + 1
            names = np.unique(names[longer] * base + symbols[place], return_inverse=True)[1]
        pairs, count = np.unique(names * len(lengths) + text[place], return_counts=True)
        gram, owner = np.divmod(pairs, max(1, len(lengths)))
        yield Grams(owner, gram, count, np.maximum(lengths - n + 1, 0))


def matches(candidates: Grams, references: Grams) -> Array:
    """C R: how many n-grams of each candidate stand in each reference, each as often as there: Σ_g min(c_g, r_g).

    min(c, r) = Σ_k [c ≥ k][r ≥ k]: a product of matrices with a column for the k-th time that an n-gram is there. Only
    n-grams that both sides have need a column, and no more than a block of columns is made at once. Where the sides
    are one and the same, a text shares everything with itself, and n-grams of one text alone need no column.
    """
    same = candidates is references
    size = int(max(candidates.gram.max(initial=-1), references.gram.max(initial=-1))) + 1
    times = np.minimum(_most(candidates, size), _most(references, size))  # G: columns that each n-gram needs
    if same:
        times[np.bincount(candidates.gram, minlength=size) == 1] = 0
    first = times.cumsum() - times
    width = max(1, BLOCK // max(1, len(candidates.totals) + len(references.totals)))
    bounds = np.unique(np.append(np.searchsorted(first, np.arange(0, int(times.sum()), width)), size))
    found = np.zeros((len(candidates.totals), len(references.totals)))
    for mine, theirs, begin, end in zip(candidates.blocks(bounds), references.blocks(bounds), bounds, bounds[1:]):
        columns = int(times[begin:end].sum())
        own = _occurrences(mine, times, first - first[begin], columns)
        other = own if same else _occurrences(theirs, times, first - first[begin], columns)
        found += own @ other.T
    if same:
        np.fill_diagonal(found, candidates.totals)
    return found


def _most(side: Grams, size: int) -> Array:
    """G: how often each n-gram stands in the text that has most of it."""
    most = np.zeros(size, np.int64)
    np.maximum.at(most, side.gram, side.count)
    return most


def _occurrences(side: Grams, times: Array, first: Array, columns: int) -> Array:
    """N F: is an n-gram there for the k-th time? A count is exact in float32 up to 2²⁴."""
    count = np.minimum(side.count, times[side.gram])
    step = np.arange(int(count.sum())) - np.repeat(count.cumsum() - count, count)  # 0, 1, … of each
    table = np.zeros((len(side.totals), columns), np.float32)
    table[np.repeat(side.text, count), np.repeat(first[side.gram], count) + step] = 1.0
    return table


def shared(candidates: Grams, expected: Array) -> Array:
    """C: how many n-grams of each candidate stand in a reference that has `expected` (G) of each."""
    both = np.minimum(candidates.count, expected[candidates.gram])
    return np.bincount(candidates.text, both, len(candidates.totals))


def paired(order: Grams, partner: Array) -> Array:
    """N: how many n-grams each text shares with its partner (N), another of the texts."""
    size = len(order.totals)
    names = order.gram * size + order.text  # sorted as they are
    wanted = order.gram * size + partner[order.text]
    place = np.searchsorted(names, wanted).clip(max=max(0, len(names) - 1))
    both = np.where(names[place] == wanted, np.minimum(order.count, order.count[place]), 0)
    return np.bincount(order.text, both, size)


@dataclass(frozen=True)
class Overlap:
    """What candidates and references have and share of each order of n-gram, in arrays that broadcast: C 1, R, C R."""

    candidates: list[Array]
    references: list[Array]
    matches: list[Array]


class Utility(ABC):
    """A measure from 0 to 100 that counts n-grams, and nothing but n-grams."""

    @abstractmethod
    def orders(self, texts: Sequence[str]) -> list[Grams]:
        """The n-grams of some texts, one order after another."""

    @abstractmethod
    def score(self, overlap: Overlap) -> Array:
        """C R (or what the arrays broadcast to): the measure from the counts."""

    def counted(self, own: Array, other: Array) -> Array:
        """How many of its `own` n-grams of one order a candidate adds to a corpus, where the reference has `other`."""
        return own

    def pairwise(self, candidates: Sequence[str], references: Sequence[str]) -> Array:
        """C R: the utility of every candidate where every reference was right."""
        orders, mine, theirs = self._read(candidates, references)
        if np.array_equal(mine, theirs):
            sides = [(order, order) for order in orders]
        else:
            sides = [(order.among(mine), order.among(theirs)) for order in orders]
        overlap = Overlap(
            [own.totals[:, None].astype(float) for own, _ in sides],
            [other.totals.astype(float) for _, other in sides],
            [matches(own, other) for own, other in sides],
        )
        return self.score(overlap)

    def aggregated(self, candidates: Sequence[str], references: Sequence[str], weights: Array) -> Array:
        """C: the utility of each candidate where the reference has the n-grams that are expected of the references.

        The counts of the references are averaged by their `weights`, which sum to 1 (R), and not the measures: linear
        in the number of texts (DeNero et al. 2009; Vamvas & Sennrich 2024).
        """
        orders, mine, theirs = self._read(candidates, references)
        overlap = Overlap([], [], [])
        for order in orders:
            other = order.among(theirs)
            size = int(order.gram.max(initial=-1)) + 1
            expected = np.bincount(other.gram, other.count * weights[other.text], size)
            own = order.among(mine)
            overlap.candidates.append(own.totals.astype(float))
            overlap.references.append(np.asarray(weights @ other.totals, dtype=float))
            overlap.matches.append(shared(own, expected))
        return self.score(overlap)

    def _read(self, candidates: Sequence[str], references: Sequence[str]) -> tuple[list[Grams], Array, Array]:
        """The n-grams of all texts, and where candidates and references stand among them; neither has a text twice."""
        numbers = {text: i for i, text in enumerate(dict.fromkeys((*candidates, *references)))}
        places = (np.array([numbers[text] for text in side], np.int64) for side in (candidates, references))
        mine, theirs = places
        return self.orders(list(numbers)), mine, theirs


@dataclass(frozen=True)
class ChrF(Utility):
    """chrF: the F-score of character n-grams, in which recall counts β times as much as precision.

        chrF_β = 100 · (1 + β²) P R / (β² P + R),   P, R: mean precision and recall over the orders that both have

    Popović (2015), as sacreBLEU has it: spaces do not count. With `words` 2 it is chrF++ (Popović 2017).
    """

    characters: int = 6
    words: int = 0
    beta: float = 2.0

    def orders(self, texts: Sequence[str]) -> list[Grams]:
        found = list(grams([_code_points("".join(text.split())) for text in texts], self.characters))
        if self.words:
            found += grams(_numbered([_words(text) for text in texts]), self.words)
        return found

    def counted(self, own: Array, other: Array) -> Array:
        return np.where(other > 0, own, 0)

    def score(self, overlap: Overlap) -> Array:
        precision = recall = orders = np.zeros(())
        for own, other, both in zip(overlap.candidates, overlap.references, overlap.matches):
            there = (own > 0) & (other > 0)
            precision = precision + both / np.where(there, own, np.inf)
            recall = recall + both / np.where(there, other, np.inf)
            orders = orders + there
        precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
        factor = self.beta**2
        below = factor * precision + recall
        return 100 * (1 + factor) * precision * recall / np.where(below > 0, below, 1)


@dataclass(frozen=True)
class Bleu(Utility):
    """BLEU of single sentences: the geometric mean of the n-gram precisions, times a penalty for being short.

        BLEU = 100 · min(1, exp(1 − r/c)) · (p₁ … p_N)^{1/N},   c, r: the lengths; N ≤ 4, no longer than the candidate

    Papineni et al. (2002), as sacreBLEU has it: tokens by its rules “13a”; where no n-gram matches, p_n is 1 of
    2, 4, … times as many (Chen & Cherry 2014, method 3), unless none matches at all. With `effective` False N is 4
    always, as for a corpus.
    """

    order: int = 4
    effective: bool = True

    def orders(self, texts: Sequence[str]) -> list[Grams]:
        from sacrebleu import BLEU  # takes a fifth of a second, so it is imported where it is used

        tokenizer = BLEU(effective_order=True).tokenizer
        return list(grams(_numbered([tokenizer(text.rstrip()).split() for text in texts]), self.order))

    def score(self, overlap: Overlap) -> Array:
        own, other = overlap.candidates[0], overlap.references[0]
        brevity = np.exp(np.minimum(0, 1 - other / np.where(own > 0, own, 1)))
        logarithm = halvings = orders = np.zeros(())
        for total, both in zip(overlap.candidates, overlap.matches):
            halvings = halvings + (both == 0)
            precision = np.where(both > 0, both, 0.5**halvings) / np.where(total > 0, total, 1)
            logarithm = logarithm + np.where(total > 0, np.log(precision), 0)
            orders = orders + (total > 0)
        mean = logarithm / np.maximum(orders, 1)
        scored = (sum(overlap.matches) > 0) & ((orders == self.order) | self.effective)
        return np.where(scored, 100 * brevity * np.exp(mean), 0)


#: the utilities by name
UTILITIES: dict[str, Utility] = {"chrf": ChrF(), "chrf++": ChrF(words=2), "bleu": Bleu()}


def utility_of(name: str) -> Utility:
    if name not in UTILITIES:
        raise unknown_name("utility", name, UTILITIES)
    return UTILITIES[name]


def _code_points(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _numbered(texts: list[list[str]]) -> list[Array]:
    """The words of some texts as numbers."""
    numbers: dict[str, int] = {}
    return [np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64) for words in texts]


def _words(text: str) -> list[str]:
    """The words as chrF++ counts them: a punctuation mark at the end stands alone, or else one at the beginning."""
    found = []
    for word in text.split():
        if len(word) > 1 and word[-1] in PUNCTUATION:
            found += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in PUNCTUATION:
            found += [word[0], word[1:]]
        else:
            found.append(word)
    return found
