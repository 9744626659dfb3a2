"""Byte-pair encoding: the merges, learned from word counts."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise

Pair = tuple[str, str]


def learn_merges(counts: Mapping[str, int] | Mapping[tuple[str, ...], int], merges: int) -> list[Pair]:
    """The first ``merges`` merges of byte-pair encoding, or fewer when every word has become one symbol.

    ``counts`` says how often each word was seen; a word is a string (its symbols are the characters) or a tuple of symbols,
    such as ``("l", "o", "w", "</w>")``.
    """
    return [pair for pair, _ in islice(iterate_merges(counts), merges)]


def iterate_merges(counts: Mapping[str, int] | Mapping[tuple[str, ...], int]) -> Iterator[tuple[Pair, int]]:
    """One merge after the other, each with its count: again and again the most frequent pair of neighbours becomes a symbol.

        merge_k = argmax over (a, b) of Σ_word count(word) · occurrences of a b in word

    Sennrich et al. 2016, “Neural machine translation of rare words with subword units”, algorithm 1. Of pairs that are
    equally frequent the one wins that comes first when the words are read in the order given, as in the paper's program.

    Counts are kept up to date only where a merge changes a word, and the best pair is the top of a heap. An entry of the
    heap may promise too much, since counts fall as neighbours are merged, so it is worked out again when it reaches
    the top; it never promises too little, since a pair that can have gained is entered anew.
    """
    words: list[Sequence[str]] = [tuple(word) for word in counts]
    frequency = list(counts.values())
    count: dict[Pair, int] = defaultdict(int)
    where: dict[Pair, set[int]] = defaultdict(set)  # the words that contain the pair
    for index, word in enumerate(words):
        for pair in pairwise(word):
            count[pair] += frequency[index]
            where[pair].add(index)

    def entry(pair: Pair) -> tuple[int, int, int, Pair]:
        first = min(where[pair])
        return -count[pair], first, _offset(words[first], pair), pair

    heap = [entry(pair) for pair in where]
    heapq.heapify(heap)
    while heap:
        pair = heap[0][-1]
        if not where.get(pair):
            heapq.heappop(heap)
            continue
        if (now := entry(pair)) != heap[0]:
            heapq.heapreplace(heap, now)
            continue
        yield pair, count[pair]

        symbol = "".join(pair)
        gained = set()
        for index in where.pop(pair):
            before = words[index]
            after = words[index] = _merge(before, pair, symbol)
            for old in pairwise(before):
                count[old] -= frequency[index]
                where[old].discard(index)
            for new in pairwise(after):
                count[new] += frequency[index]
                where[new].add(index)
                if symbol in new:
                    gained.add(new)
        for new in gained:
            heapq.heappush(heap, entry(new))


def _offset(word: Sequence[str], pair: Pair) -> int:
    """Where the pair first stands in the word, in characters: unlike an index, no merge elsewhere in the word moves it."""
    offset = 0
    for neighbours in pairwise(word):
        if neighbours == pair:
            break
        offset += len(neighbours[0])
    return offset


def _merge(word: Sequence[str], pair: Pair, symbol: str) -> list[str]:
    merged: list[str] = []
    waiting = False  # whether the last symbol is the left half of the pair
    for part in word:
        if waiting and part == pair[1]:
            merged[-1] = symbol
            waiting = False
        else:
            merged.append(part)
            waiting = part == pair[0]
    return merged
