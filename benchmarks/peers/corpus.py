"""The data that all systems are timed on, and the peers' batches of it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from peers.protocol import END, PAD, START, SYMBOLS, Padded, Pairs

Rows = NDArray[np.int64]
BATCHES_A_WINDOW = 100  # what is sorted together


def from_texts(source: Path, target: Path, vocabulary: int) -> Pairs:
    """Two text files, plain or .gz, cut by byte pairs learned from both."""
    from dragoman.text.tokenizer import learn_tokenizer

    sides = [_lines(source), _lines(target)]
    tokenizer = learn_tokenizer([line for side in sides for line in side], "bpe", vocabulary)
    ids = [tokenizer.encode_batch(side) for side in sides]
    kept = [pair for pair in zip(*ids) if all(0 < len(side) <= 200 for side in pair)]
    return Pairs(*(part for side in zip(*kept) for part in _flat([np.asarray(row) for row in side])))


def synthetic(pairs: int, vocabulary: int, seed: int = 1) -> Pairs:
    """Random ids in sentence-like lengths: log-normal, 28 tokens on average, from 4 to 100.

    The two sides of a pair are alike in length (their logarithms correlate by 0.9), as those of translations are.
    """
    random = np.random.default_rng(seed)
    spread = 0.55
    both = random.standard_normal(pairs) * np.sqrt(0.9)
    sides = []
    for _ in range(2):
        z = both + random.standard_normal(pairs) * np.sqrt(0.1)
        lengths = np.clip(np.rint(np.exp(np.log(28) - spread**2 / 2 + spread * z)), 4, 100).astype(np.int64)
        sides += [random.integers(SYMBOLS, vocabulary, int(lengths.sum())), lengths]
    return Pairs(*sides)


def padded(pairs: Pairs, tokens: int, count: int, by_length: bool = True, seed: int = 1) -> list[Padded]:
    """The first `count` batches of a shuffled corpus: sorted by length in windows, or as they come."""
    order = np.random.default_rng(seed).permutation(len(pairs.source_lengths))
    rows = _sorted(pairs, order, tokens, seed) if by_length else _as_they_come(pairs, order, tokens)
    starts = [np.cumsum(lengths) - lengths for lengths in (pairs.source_lengths, pairs.target_lengths)]
    return [_padded(pairs, starts, some) for some in islice(rows, count)]


def _sorted(pairs: Pairs, order: Rows, tokens: int, seed: int) -> Iterator[Rows]:
    """About `tokens` real target tokens a batch."""
    random = np.random.default_rng(seed)
    window = int(BATCHES_A_WINDOW * tokens / (pairs.target_lengths.mean() + 1))
    for begin in range(0, len(order), window):
        some = order[begin : begin + window]
        some = some[np.lexsort((pairs.source_lengths[some], pairs.target_lengths[some]))]
        numbers = np.cumsum(pairs.target_lengths[some] + 1) // tokens  # of the batch that each is in
        batches = [some[numbers == number] for number in range(numbers[-1])] or [some]
        yield from (batches[number] for number in random.permutation(len(batches)))


def _as_they_come(pairs: Pairs, order: Rows, tokens: int) -> Iterator[Rows]:
    """As many rows as fill `tokens` places, padding counted."""
    begin = longest = 0
    for place, row in enumerate(order):
        longest = max(longest, int(pairs.source_lengths[row]) + 1, int(pairs.target_lengths[row]) + 1)
        if longest * (place + 1 - begin) >= tokens:
            yield order[begin : place + 1]
            begin, longest = place + 1, 0


def _padded(pairs: Pairs, starts: list[NDArray[np.int64]], rows: NDArray[np.int64]) -> Padded:
    source = _rows(pairs.source, starts[0][rows], pairs.source_lengths[rows], first=())
    target = _rows(pairs.target, starts[1][rows], pairs.target_lengths[rows], first=(START,))
    lengths = torch.from_numpy(pairs.source_lengths[rows] + 1)
    return Padded(source, lengths, target, int((pairs.target_lengths[rows] + 1).sum()))


def _rows(
    ids: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64], first: tuple[int, ...]
) -> torch.Tensor:
    longest = int(lengths.max()) + 1 + len(first)
    made = np.full((len(lengths), longest), PAD, np.int64)
    for number, (start, length) in enumerate(zip(starts, lengths)):
        row = [*first, *ids[start : start + length], END]
        made[number, : len(row)] = row
    return torch.from_numpy(made)


def _lines(path: Path) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def _flat(rows: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.concatenate(rows).astype(np.int64), np.array([len(row) for row in rows], np.int64)
