"""Byte-pair encoding step by step, for teaching: which pairs were counted, which was merged, what the text becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from dragoman.text.bpe_merges import Pair

END_OF_WORD = "</w>"
TieBreak = Literal["first", "alphabetical"]


@dataclass(frozen=True)
class MergeStep:
    """One merge of byte-pair encoding.

    Attributes:
        pair: the two symbols that were merged.
        count: how often the pair occurred in the text.
        tied: other pairs that occurred as often.
        pair_counts: all pairs with their counts before the merge, most frequent first.
        vocabulary: all symbols after the merge, in the order in which they were added.
        words: symbols of each word after the merge.
        num_symbols: length of the text in symbols after the merge.
        compression: length of the text in initial symbols divided by `num_symbols`.
    """

    pair: Pair
    count: int
    tied: tuple[Pair, ...]
    pair_counts: tuple[tuple[Pair, int], ...]
    vocabulary: tuple[str, ...]
    words: dict[str, tuple[str, ...]]
    num_symbols: int
    compression: float


def initial_symbols(word: str, utf8_bytes: bool = False) -> tuple[str, ...]:
    """Return the characters of a word, or its UTF-8 bytes such as <0xC3>, and the end-of-word symbol.

    Examples:
        >>> initial_symbols("low")
        ('l', 'o', 'w', '</w>')
        >>> initial_symbols("é", utf8_bytes=True)
        ('<0xC3>', '<0xA9>', '</w>')
    """
    letters = [f"<0x{byte:02X}>" for byte in word.encode()] if utf8_bytes else list(word)
    return (*letters, END_OF_WORD)


def trace_merges(
    counts: Mapping[str, int], tie_break: TieBreak = "first", utf8_bytes: bool = False
) -> Iterator[MergeStep]:
    """Yield the merges of byte-pair encoding (Sennrich et al. 2016, algorithm 1) until every word is one symbol.

    Args:
        counts: frequency of each word.
        tie_break: which of several equally frequent pairs is merged: the `first` one in the text, as in the paper's
            program, or the first one in `alphabetical` order.
        utf8_bytes: start with the bytes of the words instead of their characters.

    Examples:
        >>> step = next(trace_merges({"low": 5, "lower": 2, "newest": 6, "widest": 3}))
        >>> step.pair, step.count, step.tied
        (('e', 's'), 9, (('s', 't'), ('t', '</w>')))
    """
    words = {word: initial_symbols(word, utf8_bytes) for word in counts}
    vocabulary = list(dict.fromkeys(symbol for symbols in words.values() for symbol in symbols))
    initial_length = sum(len(words[word]) * count for word, count in counts.items())
    while True:
        pair_counts: Counter[Pair] = Counter()
        for word, symbols in words.items():
            for pair in pairwise(symbols):
                pair_counts[pair] += counts[word]
        if not pair_counts:
            return
        ranked = tuple(pair_counts.most_common())  # pairs of equal count in the order of the text
        best = [pair for pair, count in ranked if count == ranked[0][1]]
        chosen = min(best) if tie_break == "alphabetical" else best[0]
        words = {word: merge_pair(symbols, chosen) for word, symbols in words.items()}
        if "".join(chosen) not in vocabulary:
            vocabulary.append("".join(chosen))
        length = sum(len(words[word]) * count for word, count in counts.items())
        tied = tuple(pair for pair in best if pair != chosen)
        yield MergeStep(chosen, ranked[0][1], tied, ranked, tuple(vocabulary), words, length, initial_length / length)


def merge_pair(symbols: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """Replace every occurrence of a pair, from left to right, by one symbol.

    Examples:
        >>> merge_pair(("a", "a", "a", "b"), ("a", "a"))
        ('aa', 'a', 'b')
    """
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] = "".join(pair)
        else:
            merged.append(symbol)
    return tuple(merged)


def segment(word: str, merges: Iterable[Pair], utf8_bytes: bool = False) -> list[tuple[str, ...]]:
    """Return the segmentations of a word: its initial symbols, then the result of every merge that changes it.

    Examples:
        >>> segment("low", [("l", "o"), ("e", "s"), ("lo", "w")])
        [('l', 'o', 'w', '</w>'), ('lo', 'w', '</w>'), ('low', '</w>')]
    """
    steps = [initial_symbols(word, utf8_bytes)]
    for pair in merges:
        merged = merge_pair(steps[-1], pair)
        if merged != steps[-1]:
            steps.append(merged)
    return steps
