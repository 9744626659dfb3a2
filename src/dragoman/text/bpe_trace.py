"""Byte-pair encoding step by step, for teaching: which pairs were counted, which was merged, what the text becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from dragoman.errors import UserError
from dragoman.text.bpe_merges import Pair

END_OF_WORD = "</w>"
TieBreak = Literal["first", "alphabetical"]
MAX_COUNT = 10**9  # of a word


@dataclass(frozen=True)
class MergeStep:
    """One merge of byte-pair encoding."""

    pair: Pair  # the two symbols that were merged
    count: int  # how often the pair occurred in the text
    tied: tuple[Pair, ...]  # other pairs that occurred as often
    pair_counts: tuple[tuple[Pair, int], ...]  # all pairs with their counts before the merge, most frequent first
    vocabulary: tuple[str, ...]  # all symbols after the merge, in the order in which they were added
    words: dict[str, tuple[str, ...]]  # symbols of each word after the merge
    num_symbols: int  # length of the text in symbols after the merge
    #: compression ratio: length of the text in initial symbols (characters or bytes, and one end-of-word symbol per
    #: word) divided by `num_symbols`
    compression: float


@dataclass(frozen=True)
class BPETrace:
    """Byte-pair encoding of a text, learned until a limit."""

    counts: dict[str, int]  # the words of the text and their counts
    initial: dict[str, tuple[str, ...]]  # symbols of each word before the first merge
    vocabulary: tuple[str, ...]  # all symbols before the first merge, in the order of the text
    steps: tuple[MergeStep, ...]  # the merges
    final_counts: tuple[tuple[Pair, int], ...]  # all pairs with their counts after the last merge, most frequent first
    stopped: str  # why there are no further merges


def count_words(text: str) -> dict[str, int]:
    """Count the words of a text, which are separated by white space, in the order of their first occurrence.

    A text without words is a UserError.
    """
    words = dict(Counter(text.split()))  # keeps the order
    if not words:
        raise UserError("the text is empty: give at least one word to segment into tokens")
    return words


def parse_word_counts(text: str) -> dict[str, int]:
    """Parse words with counts: `low=5 lower=2`; words with the count 0 are left out.

    Of several counts of a word, the last one is kept. A wrong entry, or no word with a count above 0, is a UserError.

    Examples:
        >>> parse_word_counts("low=5 lower=2")
        {'low': 5, 'lower': 2}
    """
    words: dict[str, int] = {}
    for entry in text.split():
        word, _, number = entry.rpartition("=")
        if not word or not number.isdecimal() or len(number) > len(str(MAX_COUNT)) or int(number) > MAX_COUNT:
            raise UserError(
                f"expected words with counts up to {MAX_COUNT:,}, such as low=5 lower=2, but got {entry[:40]}: correct "
                "it"
            )
        words[word] = int(number)
    positive = {word: number for word, number in words.items() if number}
    if not positive:
        raise UserError("there are no words with counts: give at least one with a count above 0, such as low=5")
    return positive


def learn_trace(
    counts: Mapping[str, int],
    max_merges: int,
    vocab_size: int | None = None,
    compression_ratio: float | None = None,
    tie_break: TieBreak = "first",
    utf8_bytes: bool = False,
) -> BPETrace:
    """Learn merges from the counts of words until the first limit: merges, vocabulary size or compression ratio.

    `max_merges`, `vocab_size` (largest number of symbols) and `compression_ratio` (initial symbols per symbol of the
    text, to be reached) are the limits; None: no limit. `tie_break` decides between equally frequent pairs: the "first"
    in the text or in "alphabetical" order; `utf8_bytes`: words are bytes instead of characters.

    Examples:
        >>> learn_trace({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 100, compression_ratio=1.3).stopped
        'the compression ratio 1.3 is reached'
    """
    initial = {word: initial_symbols(word, utf8_bytes) for word in counts}
    vocabulary = tuple(dict.fromkeys(symbol for symbols in initial.values() for symbol in symbols))
    steps: list[MergeStep] = []
    stopped = "every word is one symbol"
    final_counts: tuple[tuple[Pair, int], ...] = ()
    for step in trace_merges(counts, tie_break, utf8_bytes):
        if compression_ratio is not None and steps and steps[-1].compression >= compression_ratio:
            stopped = f"the compression ratio {compression_ratio:g} is reached"
        elif vocab_size is not None and len(step.vocabulary) > vocab_size:
            stopped = f"the vocabulary has {len(steps[-1].vocabulary if steps else vocabulary):,} symbols"
        elif len(steps) == max_merges:
            stopped = f"{max_merges:,} merges are learned"
        else:
            steps.append(step)
            continue
        final_counts = step.pair_counts  # this step is not learned: its counts are those after the last merge
        break
    return BPETrace(
        counts=dict(counts),
        initial=initial,
        vocabulary=vocabulary,
        steps=tuple(steps),
        final_counts=final_counts,
        stopped=stopped,
    )


def initial_symbols(word: str, utf8_bytes: bool = False) -> tuple[str, ...]:
    """Return the characters of a word, or its UTF-8 bytes such as <0xC3>, and the end-of-word symbol.

    Examples:
        >>> initial_symbols("low")
        ('l', 'o', 'w', '</w>')
        >>> initial_symbols("é", utf8_bytes=True)
        ('<0xC3>', '<0xA9>', '</w>')
    """
    symbols = [f"<0x{byte:02X}>" for byte in word.encode()] if utf8_bytes else list(word)
    return (*symbols, END_OF_WORD)


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
        if "".join(chosen) not in vocabulary:  # two merges can give the same symbol
            vocabulary.append("".join(chosen))
        # length of the text in symbols
        length = sum(len(words[word]) * count for word, count in counts.items())
        tied = tuple(pair for pair in best if pair != chosen)
        yield MergeStep(
            pair=chosen,
            count=ranked[0][1],
            tied=tied,
            pair_counts=ranked,
            vocabulary=tuple(vocabulary),
            words=words,
            num_symbols=length,
            compression=initial_length / length,
        )


def merge_pair(symbols: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """Replace every occurrence of a pair of neighboring symbols, from left to right, by one symbol.

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
    """Return the segmentations of a word: its initial symbols, then the result of each of the `merges` that changes it.

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
