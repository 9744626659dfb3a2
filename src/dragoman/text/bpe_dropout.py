"""Dropout for byte-pair encoding: another segmentation of a sentence each time it is seen."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UserError
from dragoman.text.special_tokens import BYTE_TOKENS, SPECIAL_TOKENS
from dragoman.text.splitmix import GOLDEN_GAMMA, UInt64Array, splitmix64
from dragoman.text.tokenizer import Tokenizer

Ids = NDArray[np.int32]

REMEMBERED = 2**17  # words whose segmentations are kept
TOGETHER = 2**19  # letters that are merged together
NEVER = np.iinfo(np.int32).max  # the rank of what is no merge


class BPEDropout:
    """Segments words anew, and in every step drops each possible merge with probability ``rate``.

    Provilkov et al. 2020, “BPE-dropout: simple and effective subword regularization”, algorithm 1.

    It works on numbers: what comes out decodes to the same text as what went in. For speed each word gets a pool of
    segmentations, the same in every process, from which chance picks one each time, and many rows are done at once.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, pool: int = 32) -> None:
        if tokenizer.kind != "bpe":
            raise UserError(
                f"dropout leaves out merges, and a tokenizer of kind {tokenizer.kind!r} has none: learn 'bpe'"
            )
        if not 0 <= rate <= 1:
            raise UserError(f"the rate of dropout must be from 0 to 1, not {rate}")
        if pool < 1:
            raise UserError(f"dropout needs a pool of at least 1 segmentation a word, not {pool}")
        self.rate, self.pool = rate, pool
        model = json.loads(tokenizer.to_json())["model"]
        number: dict[str, int] = model["vocab"]
        whole = {*SPECIAL_TOKENS, *BYTE_TOKENS}  # take part in no merge
        self._letters = {
            id_: (id_,) if piece in whole else tuple(number[letter] for letter in piece)
            for piece, id_ in number.items()
        }
        self._letters |= {tag: (tag,) for tag in tokenizer.tags.values()}
        # No merge reaches over the edge of a word, so a word can be told by its pieces: these begin one, those end one.
        self._begins = np.zeros(tokenizer.vocab_size, bool)
        self._ends = np.zeros(tokenizer.vocab_size, bool)
        initial = tokenizer.marker == "initial"
        for piece, id_ in number.items():
            first, last = (piece in whole or not _inside(piece[place]) for place in (0, -1))
            # A space that joined no piece is still the marker of the word at its side.
            self._begins[id_] = first and (initial or piece != " ")
            self._ends[id_] = last and not (initial and piece == " ")
        for tag in tokenizer.tags.values():
            self._begins[tag] = self._ends[tag] = True
        self._merges = _Merges(
            [(number[a], number[b], number[a + b]) for a, b in model["merges"]], tokenizer.vocab_size
        )
        self._forget()

    def resegment_row(self, ids: Sequence[int] | NDArray[np.integer], rng: np.random.Generator) -> NDArray[Any]:
        """One row segmented anew."""
        key = np.array([rng.bit_generator.random_raw()], np.uint64)
        return self(np.asarray(ids, np.int32), np.array([len(ids)]), key)[0]

    def __call__(
        self, flat: NDArray[Any], lengths: NDArray[Any], keys: UInt64Array
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows one after the other and their lengths → the same segmented anew; a row's key decides its chance."""
        if not self.rate or not len(flat):
            return flat, lengths
        begins = np.concatenate(([True], self._ends[flat[:-1]] | self._begins[flat[1:]]))
        filled = np.flatnonzero(lengths)
        begins[(np.cumsum(lengths) - lengths)[filled]] = True
        starts = np.flatnonzero(begins)
        row = np.repeat(np.arange(len(lengths)), lengths)[starts]
        words = self._words(flat, starts)
        place = np.arange(len(starts)) - np.searchsorted(row, row)  # of the word in its row
        chance = splitmix64(keys[row] + GOLDEN_GAMMA * (place.astype(np.uint64) + np.uint64(1)))
        chosen = words * self.pool + ((chance >> np.uint64(32)) * np.uint64(self.pool) >> np.uint64(32)).astype(int)
        begin = self._starts[chosen]
        if (missing := begin < 0).any():
            self._make(np.unique(chosen[missing]))
            begin = self._starts[chosen]
        sizes = self._sizes[chosen]
        ends = np.cumsum(sizes, dtype=np.int64)
        found = self._pieces[np.repeat(begin - (ends - sizes), sizes) + np.arange(ends[-1])]
        return found, np.bincount(row, sizes, len(lengths)).astype(np.int64)

    def _words(self, flat: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of every word; new ones get one."""
        sizes = np.diff(starts, append=len(flat))
        inside = np.arange(len(flat)) - np.repeat(starts, sizes)
        pieces = splitmix64(flat.astype(np.uint64) + GOLDEN_GAMMA * (inside.astype(np.uint64) + np.uint64(1)))
        marks = splitmix64(np.add.reduceat(pieces, starts) + sizes.astype(np.uint64))  # two words in 2⁶⁴ share one
        if len(self._letters_of) > REMEMBERED:
            self._forget()
        slots = (marks >> np.uint64(44)).astype(np.int64)
        found = self._slots[slots].astype(np.int64)
        for at in np.flatnonzero(self._marks[found] != marks).tolist():
            mark = int(marks[at])
            number = self._number.get(mark)
            if number is None:
                number = self._number[mark] = len(self._letters_of)
                word = flat[starts[at] : starts[at] + sizes[at]].tolist()
                self._letters_of.append([letter for id_ in word for letter in self._letters[id_]])
                self._marks.extend(marks[at : at + 1])
                self._starts.extend(np.full(self.pool, -1))
                self._sizes.extend(np.zeros(self.pool))
                self._slots[slots[at]] = number
            found[at] = number
        return found

    def _forget(self) -> None:
        self._number: dict[int, int] = {}  # words by their marks
        self._slots = np.zeros(2**20, np.int32)  # most words by the first bits of their marks, which is faster
        self._letters_of: list[list[int]] = []
        self._marks = _Growing(np.uint64)
        self._starts, self._sizes = _Growing(np.int64), _Growing(np.int32)  # of a word's pool, −1: not yet made
        self._pieces = _Growing(np.int32)

    def _make(self, wanted: NDArray[np.int64]) -> None:
        """Segmentations that were asked for, shorter words first: what is merged together has one width."""
        words, samples = np.divmod(wanted, self.pool)
        letters = [self._letters_of[word] for word in words.tolist()]
        keys = splitmix64(self._marks[words] + GOLDEN_GAMMA * (samples.astype(np.uint64) + np.uint64(1)))
        order = sorted(range(len(letters)), key=lambda n: len(letters[n]))
        while order:
            widest = len(letters[order[0]]) + 4
            some = [n for n in order[: max(1, TOGETHER // widest)] if len(letters[n]) <= widest]
            order = order[len(some) :]
            table = np.full((len(some), len(letters[some[-1]])), -1, np.int32)
            for row, n in zip(table, some):
                row[: len(letters[n])] = letters[n]
            pieces, sizes = self._merges.merged(table, keys[some], self.rate)
            self._starts.room[wanted[some]] = len(self._pieces) + np.cumsum(sizes, dtype=np.int64) - sizes
            self._sizes.room[wanted[some]] = sizes
            self._pieces.extend(pieces)


class _Growing:
    """An array that more is put to without copying it each time."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self.room, self.count = np.zeros(1024, dtype), 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[Any]:
        return self.room[places]

    def extend(self, more: NDArray[Any]) -> None:
        end = self.count + len(more)
        if end > len(self.room):
            self.room = np.resize(self.room, max(end, 2 * len(self.room)))
        self.room[self.count : end] = more
        self.count = end


class _Merges:
    """Which pairs of pieces become one, and in what order."""

    def __init__(self, merges: list[tuple[int, int, int]], size: int) -> None:
        """`merges` are left, right and both, the first ones first."""
        left, right, self.both = np.array(merges, np.int64).reshape(-1, 3).T
        pairs = left * size + right
        self.size, self.order = size, np.argsort(pairs, kind="stable")
        self.pairs = pairs[self.order]

    def ranks(self, left: Ids, right: Ids) -> Ids:
        """The ranks of pairs, NEVER where they are no merge."""
        if not len(self.pairs):
            return np.full(left.shape, NEVER, np.int32)
        pairs = np.where((left < 0) | (right < 0), -1, left.astype(np.int64) * self.size + right)
        places = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[places] == pairs, self.order[places], NEVER).astype(np.int32)

    def merged(self, pieces: Ids, keys: UInt64Array, rate: float) -> tuple[Ids, Ids]:
        """N L letters, −1 after them → the pieces of all rows one after the other, and how many each has."""
        alive, place = np.arange(len(pieces)), np.arange(pieces.shape[1])
        done = pieces.copy()
        ranks = self.ranks(pieces[:, :-1], pieces[:, 1:])
        step = np.uint64(0)
        while len(alive) and ranks.shape[1]:
            step += np.uint64(1)
            chance = splitmix64(
                keys[alive, None] + GOLDEN_GAMMA * (step * np.uint64(2**32) + place[:-1].astype(np.uint64))
            )
            kept = np.where((chance >> np.uint64(11)) * 2.0**-53 < rate, NEVER, ranks)
            best = kept.argmin(1)
            rank = kept[np.arange(len(kept)), best]
            goes_on = rank < NEVER
            done[alive[~goes_on]] = pieces[~goes_on]
            alive, pieces, ranks, best, rank = (x[goes_on] for x in (alive, pieces, ranks, best, rank))
            rows = np.arange(len(alive))
            shift = np.minimum(place + (place > best[:, None]), len(place) - 1)  # all behind the pair move up by one
            pieces = np.take_along_axis(pieces, shift, 1)
            pieces[:, -1] = -1
            pieces[rows, best] = self.both[rank]
            ranks = np.take_along_axis(ranks, np.minimum(shift[:, :-1], len(place) - 2), 1)
            ranks[:, -1] = NEVER
            for at in (best - 1, best):
                inside = (at >= 0) & (at < len(place) - 1)
                there, at = rows[inside], at[inside]
                ranks[there, at] = self.ranks(pieces[there, at], pieces[there, at + 1])
        done[alive] = pieces
        real = done >= 0
        return done[real], real.sum(1).astype(np.int32)


def _inside(letter: str) -> bool:
    """Whether words are made of it: a letter, digit, combining mark, ``_``, or what this Python does not know yet."""
    return letter.isalnum() or letter == "_" or unicodedata.category(letter) in ("Mn", "Mc", "Me", "Cn")
