"""The corpus of the training benchmark, and the batches of the other toolkits."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from peers.protocol import BOS, EOS, NUM_SPECIAL_TOKENS, PAD, PaddedBatch, Pairs

Rows = NDArray[np.int64]
BATCHES_PER_WINDOW = 100  # batches that are sorted together


def from_texts(source: Path, target: Path, vocabulary: int) -> Pairs:
    """Read two text files, plain or .gz, and segment them by BPE learned from both."""
    from dragoman.text.tokenizer import learn_tokenizer

    sides = [_lines(source), _lines(target)]
    tokenizer = learn_tokenizer([line for side in sides for line in side], "bpe", vocabulary)
    ids = [tokenizer.encode_batch(side) for side in sides]
    kept = [pair for pair in zip(*ids) if all(0 < len(side) <= 200 for side in pair)]
    return Pairs(*(part for side in zip(*kept) for part in _flat([np.asarray(row) for row in side])))


def synthetic(pairs: int, vocabulary: int, seed: int = 1) -> Pairs:
    """Draw random ids in sentence-like lengths: log-normal, 28 tokens on average, from 4 to 100.

    The logarithms of the lengths of source and target correlate by 0.9, as in translations.
    """
    random = np.random.default_rng(seed)
    sigma = 0.55
    both = random.standard_normal(pairs) * np.sqrt(0.9)
    sides = []
    for _ in range(2):
        z = both + random.standard_normal(pairs) * np.sqrt(0.1)
        lengths = np.clip(np.rint(np.exp(np.log(28) - sigma**2 / 2 + sigma * z)), 4, 100).astype(np.int64)
        sides += [random.integers(NUM_SPECIAL_TOKENS, vocabulary, int(lengths.sum())), lengths]
    return Pairs(*sides)


def padded(pairs: Pairs, tokens: int, count: int, by_length: bool = True, seed: int = 1) -> list[PaddedBatch]:
    """Return the first `count` batches of a shuffled corpus, sorted by length in windows or unsorted."""
    order = np.random.default_rng(seed).permutation(len(pairs.source_lengths))
    rows = _sorted(pairs, order, tokens, seed) if by_length else _unsorted(pairs, order, tokens)
    starts = [np.cumsum(lengths) - lengths for lengths in (pairs.source_lengths, pairs.target_lengths)]
    return [_padded(pairs, starts, rows) for rows in islice(rows, count)]


def _sorted(pairs: Pairs, order: Rows, tokens: int, seed: int) -> Iterator[Rows]:
    """Yield batches of about `tokens` target tokens without padding."""
    random = np.random.default_rng(seed)
    window = int(BATCHES_PER_WINDOW * tokens / (pairs.target_lengths.mean() + 1))
    for begin in range(0, len(order), window):
        rows = order[begin : begin + window]
        rows = rows[np.lexsort((pairs.source_lengths[rows], pairs.target_lengths[rows]))]
        numbers = np.cumsum(pairs.target_lengths[rows] + 1) // tokens  # batch of each row
        batches = [rows[numbers == number] for number in range(numbers[-1])] or [rows]
        yield from (batches[number] for number in random.permutation(len(batches)))


def _unsorted(pairs: Pairs, order: Rows, tokens: int) -> Iterator[Rows]:
    """Yield batches of about `tokens` tokens with padding."""
    begin = max_length = 0
    for position, row in enumerate(order):
        max_length = max(max_length, int(pairs.source_lengths[row]) + 1, int(pairs.target_lengths[row]) + 1)
        if max_length * (position + 1 - begin) >= tokens:
            yield order[begin : position + 1]
            begin, max_length = position + 1, 0


def _padded(pairs: Pairs, starts: list[NDArray[np.int64]], rows: NDArray[np.int64]) -> PaddedBatch:
    source = _rows(pairs.source, starts[0][rows], pairs.source_lengths[rows], first=())
    target = _rows(pairs.target, starts[1][rows], pairs.target_lengths[rows], first=(BOS,))
    lengths = torch.from_numpy(pairs.source_lengths[rows] + 1)
    return PaddedBatch(source, lengths, target, int((pairs.target_lengths[rows] + 1).sum()))


def _rows(
    ids: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64], first: tuple[int, ...]
) -> torch.Tensor:
    max_length = int(lengths.max()) + 1 + len(first)
    padded_ids = np.full((len(lengths), max_length), PAD, np.int64)
    for number, (start, length) in enumerate(zip(starts, lengths)):
        row = [*first, *ids[start : start + length], EOS]
        padded_ids[number, : len(row)] = row
    return torch.from_numpy(padded_ids)


def _lines(path: Path) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def _flat(rows: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.concatenate(rows).astype(np.int64), np.array([len(row) for row in rows], np.int64)
