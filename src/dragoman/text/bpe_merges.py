"""Byte-pair encoding: learning merges from word counts."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import add
from typing import NamedTuple

Pair = tuple[str, str]


class LearnedMerge(NamedTuple):
    """A merge of byte-pair encoding: the pair, its frequency before the merge, and the length of the text after it."""

    pair: Pair
    frequency: int
    num_symbols: int


def learn_merges(counts: Mapping[str, int] | Mapping[tuple[str, ...], int], num_merges: int) -> list[Pair]:
    """Learn the first `num_merges` merges of byte-pair encoding, or fewer if every word has become one symbol.

    `counts` has the frequency of each word. A word is a string, whose symbols are its characters, or a tuple of symbols
    such as `("l", "o", "w", "</w>")`.
    """
    return [merge.pair for merge in islice(iterate_merges(counts), num_merges)]


def iterate_merges(counts: Mapping[str, int] | Mapping[tuple[str, ...], int]) -> Iterator[LearnedMerge]:
    """Yield merges: in each step, the most frequent pair of symbols becomes one symbol.

        merge_k = argmax over (a, b) of Σ_word count(word) · occurrences of a b in word

    Sennrich et al. 2016, “Neural machine translation of rare words with subword units”, algorithm 1. Among equally
    frequent pairs, the first in the order of `counts` wins, as in the paper's program.

    A merge updates only the counts of pairs in the words that contain it, and the best pair is the top of a heap.
    Counts fall as neighbors are merged, so heap entries may be too high: an entry is recomputed when it reaches the
    top. They are never too low, because a pair whose count has risen is pushed again.
    """
    codes = _Codes()
    words = [codes.encode(word) for word in counts]  # one character (code) for each symbol; a pair is two characters
    word_counts = list(counts.values())
    num_symbols = sum(len(word) * count for word, count in zip(words, word_counts))  # of the text
    pair_counts: dict[str, int] = defaultdict(int)  # in the text
    words_with: dict[str, set[int]] = defaultdict(set)  # indices of the words that contain a pair
    for index, word in enumerate(words):
        for pair in _pairs(word):
            pair_counts[pair] += word_counts[index]
            words_with[pair].add(index)

    def entry(pair: str) -> tuple[int, int, int, str]:
        """Return the heap entry of a pair: the most frequent first, then that which occurs earliest in the text.

        Its parts are the negated count, the first word with the pair, and the position of the pair in that word.
        """
        first = min(words_with[pair])
        # Measured in characters: unlike an index of symbols, merges elsewhere in the word do not change the position.
        position = sum(len(codes.symbols[ord(code)]) for code in words[first].partition(pair)[0])
        return -pair_counts[pair], first, position, pair

    heap = [entry(pair) for pair in words_with]
    heapq.heapify(heap)
    while heap:
        pair = heap[0][-1]
        if not words_with[pair]:  # other merges have removed all its occurrences
            heapq.heappop(heap)
            continue
        if (current := entry(pair)) != heap[0]:  # its count has fallen
            heapq.heapreplace(heap, current)
            continue
        left, right = (codes.symbols[ord(code)] for code in pair)
        frequency = pair_counts[pair]
        symbol = codes.encode([left + right])
        new_pairs = set()
        for index in words_with[pair].copy():
            before = words[index]  # the word before the merge
            after = words[index] = before.replace(pair, symbol)
            num_symbols -= (len(before) - len(after)) * word_counts[index]
            # Only the symbols from the left neighbor of the first occurrence to the right one of the last have changed.
            start = max(0, before.find(pair) - 1)
            unchanged = len(before) - before.rfind(pair) - 3  # symbols after the pair (2) and its right neighbor (1)
            for old_pair in _pairs(before[start : len(before) - unchanged]):
                pair_counts[old_pair] -= word_counts[index]
                if old_pair not in after:
                    words_with[old_pair].discard(index)
            for new_pair in _pairs(after[start : len(after) - unchanged]):
                pair_counts[new_pair] += word_counts[index]
                words_with[new_pair].add(index)
                if symbol in new_pair:
                    new_pairs.add(new_pair)
        for new_pair in new_pairs:  # counts of other pairs have only fallen
            heapq.heappush(heap, entry(new_pair))
        yield LearnedMerge((left, right), frequency=frequency, num_symbols=num_symbols)


class _Codes:
    """Represents every symbol as one character, so that a word is a string and a merge is `str.replace`."""

    def __init__(self) -> None:
        """Start without symbols; each gets the next character (code) when it is first encoded."""
        self.symbols: list[str] = []  # by code point
        self.code: dict[str, str] = {}  # symbol → its character

    def encode(self, word: Iterable[str]) -> str:
        """Return the symbols of a word (its characters, or longer ones) as a string with one character per symbol."""
        for symbol in word:
            if symbol not in self.code:
                self.code[symbol] = chr(len(self.symbols))
                self.symbols.append(symbol)
        return "".join(map(self.code.__getitem__, word))


def _pairs(word: str) -> Iterator[str]:
    """Yield all adjacent pairs of characters of a word."""
    return map(add, word, word[1:])
