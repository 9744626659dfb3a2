"""Dropout for byte-pair encoding: another segmentation of a sentence each time it is seen."""

from __future__ import annotations

import functools
import json
import random
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dragoman.errors import UserError
from dragoman.text.symbols import BYTES, SYMBOLS
from dragoman.text.tokenizer import Tokenizer

_WORDS_REMEMBERED = 1 << 17


class Dropout:
    """Segments words anew, and in every step drops each possible merge with probability ``rate``.

    Provilkov et al. 2020, “BPE-dropout: simple and effective subword regularization”, algorithm 1.

    It works on numbers: ``dropout(ids, rng)`` decodes to the same text as ``ids``. For speed each word gets a pool of
    segmentations, the same in every process, from which ``rng`` picks one each time.
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
        self._merges = {
            (number[left], number[right]): (rank, number[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        whole = {*SYMBOLS, *BYTES}  # take part in no merge
        self._letters = {
            id_: (id_,) if piece in whole else tuple(number[letter] for letter in piece)
            for piece, id_ in number.items()
        }
        self._letters |= {tag: (tag,) for tag in tokenizer.tags.values()}
        # No merge reaches over the edge of a word, so a word can be told by its pieces: these begin one, those end one.
        self._begins = [False] * tokenizer.size
        self._ends = [False] * tokenizer.size
        initial = tokenizer.marker == "initial"
        for piece, id_ in number.items():
            first, last = (piece in whole or not _inside(piece[place]) for place in (0, -1))
            # A space that joined no piece is still the marker of the word at its side.
            self._begins[id_] = first and (initial or piece != " ")
            self._ends[id_] = last and not (initial and piece == " ")
        for tag in tokenizer.tags.values():
            self._begins[tag] = self._ends[tag] = True
        self._segmentations = functools.lru_cache(_WORDS_REMEMBERED)(self._make_pool)

    def __call__(self, ids: Sequence[int] | npt.NDArray[np.integer], rng: np.random.Generator) -> list[int]:
        ids = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if not self.rate or not ids:
            return ids
        begins, ends, segmentations = self._begins, self._ends, self._segmentations
        edges = [place for place, (left, right) in enumerate(pairwise(ids), 1) if ends[left] or begins[right]]
        edges.append(len(ids))
        result: list[int] = []
        begin = 0
        choices = (rng.random(len(edges)) * self.pool).astype(int).tolist()  # several times faster than rng.integers
        for end, choice in zip(edges, choices):
            result += segmentations(tuple(ids[begin:end]))[choice]
            begin = end
        return result

    def _make_pool(self, word: tuple[int, ...]) -> list[tuple[int, ...]]:
        rng = random.Random(f"{self.rate} {word}")
        same: dict[tuple[int, ...], tuple[int, ...]] = {}  # most are, and one copy of each is enough
        made = (self._segment(word, rng) for _ in range(self.pool))
        return [same.setdefault(segmentation, segmentation) for segmentation in made]

    def _segment(self, word: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
        merges, drop, rate = self._merges, rng.random, self.rate
        pieces = [letter for id_ in word for letter in self._letters[id_]]
        while True:
            best = None
            for place, pair in enumerate(pairwise(pieces)):
                merge = merges.get(pair)
                if merge and drop() >= rate and (best is None or merge < best[0]):
                    best = merge, place
            if best is None:
                return tuple(pieces)
            (_, merged), place = best
            pieces[place : place + 2] = [merged]


def _inside(letter: str) -> bool:
    """Whether words are made of it: a letter, digit, combining mark, ``_``, or what this Python does not know yet."""
    return letter.isalnum() or letter == "_" or unicodedata.category(letter) in ("Mn", "Mc", "Me", "Cn")
