"""Byte-pair encoding: the merges, learned from word counts."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import add

Pair = tuple[str, str]


def learn_merges(counts: Mapping[str, int] | Mapping[tuple[str, ...], int], merges: int) -> list[Pair]:
    """The first ``merges`` merges of byte-pair encoding, or fewer when every word has become one symbol.

    ``counts`` says how often each word was seen; a word is a string, whose symbols are its characters, or a tuple of
    symbols, such as ``("l", "o", "w", "</w>")``.
    """
    return [pair for pair, _ in islice(iterate_merges(counts), merges)]


def iterate_merges(counts: Mapping[str, int] | Mapping[tuple[str, ...], int]) -> Iterator[tuple[Pair, int]]:
    """One merge after the other, each with its count: again and again the most frequent pair becomes one symbol.

        merge_k = argmax over (a, b) of Σ_word count(word) · occurrences of a b in word

    Sennrich et al. 2016, “Neural machine translation of rare words with subword units”, algorithm 1. Of pairs that are
    equally frequent the one wins that comes first when the words are read in the order given, as in the paper's
    program.

    Counts are kept up to date only where a merge changes a word, and the best pair is the top of a heap. An entry of
    the heap may promise too much, since counts fall as neighbours are merged, so it is worked out again when it reaches
    the top; it never promises too little, since a pair that can have gained is entered anew.
    """
    codes = _Codes()
    words = [codes.encode(word) for word in counts]
    frequency = list(counts.values())
    count: dict[str, int] = defaultdict(int)
    where: dict[str, set[int]] = defaultdict(set)  # the words that contain the pair
    for index, word in enumerate(words):
        for pair in _pairs(word):
            count[pair] += frequency[index]
            where[pair].add(index)

    def entry(pair: str) -> tuple[int, int, int, str]:
        first = min(where[pair])
        # The place is counted in characters: unlike an index, no merge elsewhere in the word moves it.
        place = sum(len(codes.symbols[ord(code)]) for code in words[first].partition(pair)[0])
        return -count[pair], first, place, pair

    heap = [entry(pair) for pair in where]
    heapq.heapify(heap)
    while heap:
        pair = heap[0][-1]
        if not where[pair]:
            heapq.heappop(heap)
            continue
        if (now := entry(pair)) != heap[0]:
            heapq.heapreplace(heap, now)
            continue
        left, right = (codes.symbols[ord(code)] for code in pair)
        yield (left, right), count[pair]

        symbol = codes.encode([left + right])
        gained = set()
        for index in where[pair].copy():
            before = words[index]
            after = words[index] = before.replace(pair, symbol)
            # Only what lies between the neighbours of the first and of the last occurrence has changed.
            start = max(0, before.find(pair) - 1)
            rest = len(before) - before.rfind(pair) - 3
            for old in _pairs(before[start : len(before) - rest]):
                count[old] -= frequency[index]
                if old not in after:
                    where[old].discard(index)
            for new in _pairs(after[start : len(after) - rest]):
                count[new] += frequency[index]
                where[new].add(index)
                if symbol in new:
                    gained.add(new)
        for new in gained:
            heapq.heappush(heap, entry(new))


class _Codes:
    """Writes every symbol as one character, so that a word is a string and a merge is ``str.replace``."""

    def __init__(self) -> None:
        self.symbols: list[str] = []
        self.code: dict[str, str] = {}

    def encode(self, word: Iterable[str]) -> str:
        for symbol in word:
            if symbol not in self.code:
                self.code[symbol] = chr(len(self.symbols))
                self.symbols.append(symbol)
        return "".join(map(self.code.__getitem__, word))


def _pairs(word: str) -> Iterator[str]:
    return map(add, word, word[1:])
