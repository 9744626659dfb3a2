"""Texts cut as SentencePiece cuts them, by a model of the ``tokenizers`` library."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

from dragoman.text.rewriting import Rewriter, Rewriting, splitter

#: begins the names of pieces that no text may be cut into: Unicode promises never to make this a character
HIDDEN = "\uffff"

_UNKNOWN_PENALTY = 10  # how much less likely than the least likely piece SentencePiece takes an unknown character to be
_REPEATED = re.compile(r"(.{1,3}?)\1\1", re.DOTALL)


class Cutter:
    """Rewrites texts, cuts them into pieces and numbers these; ``sentencepiece.cutter`` makes one.

    The library's model numbers a piece from `size` on if the vocabulary leaves it out, and it becomes `unknown`. The
    `symbols` are found whatever is around them. What is unknown to the model is one of the vocabulary's `others`, or is
    written with `spelled`, the numbers of the 256 bytes, which byte-pair models do themselves.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        rewriting: Rewriting,
        unknown: int,
        size: int,
        symbols: Mapping[str, int],
        others: Mapping[str, int],
        spelled: Sequence[int],
    ) -> None:
        self.library, self.unknown, self.size = library, unknown, size
        self.symbols, self.others, self.spelled = dict(symbols), dict(others), list(spelled)
        self.rewriter = Rewriter(rewriting, symbols)
        self._split = splitter(symbols)
        self._limited = max(library.get_vocab().values()) >= size
        self._adds = isinstance(library.model, models.Unigram)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        # The symbols are in no other piece, so that the text between them can be cut on its own.
        rows = [self._split(self.rewriter(text)) for text in texts]
        between = iter(self._encode([part for parts in rows for part in parts[::2]]))
        ids = [
            list(chain.from_iterable([self.symbols[part]] if n % 2 else next(between) for n, part in enumerate(parts)))
            for parts in rows
        ]
        if self._limited:
            ids = [[number if number < self.size else self.unknown for number in row] for row in ids]
        return ids

    def _encode(self, texts: list[str]) -> list[list[int]]:
        rows = [encoding.ids for encoding in self.library.encode_batch_fast(texts, add_special_tokens=False)]
        for n, text in enumerate(texts):
            again = (self.spelled or self.others) and self.unknown in rows[n]
            if again or (self._adds and _REPEATED.search(text)):
                pieces = self._best(text) if self._adds else self._pieces(text)
                rows[n] = list(chain.from_iterable(self._number(piece, number) for piece, number in pieces))
        return rows

    def _number(self, piece: str, number: int) -> list[int]:
        """The numbers of a piece, for which there may be others if it is unknown.

        The library could write unigrams in bytes as well, but would then take a literal ``<0x41>`` for one.
        """
        if number == self.unknown and self.spelled:
            return [self.spelled[byte] for byte in piece.encode()]
        return [self.others.get(piece, number) if number == self.unknown else number]

    def _pieces(self, text: str) -> list[tuple[str, int]]:
        encoding = self.library.encode(text, add_special_tokens=False)
        return [(text[begin:end], number) for number, (begin, end) in zip(encoding.ids, encoding.offsets)]

    def _best(self, text: str) -> list[tuple[str, int]]:
        """The pieces with the highest sum of scores, added up in single precision, as SentencePiece does.

        The library does so in double precision. That makes a difference where something is repeated: the pieces can
        change places (“..” “.” or “.” “..”), the sums are the same, and their rounding decides.
        """
        longest, lowest, scores = self._scores
        unlikely = np.float32(lowest - np.float32(_UNKNOWN_PENALTY))
        best = [(np.float32(0), 0, 0)] + [(np.float32(-np.inf), 0, 0)] * len(text)  # the sum, and the last piece's
        for begin in range(len(text)):  # place and number
            so_far = best[begin][0]
            ends = range(begin + 1, min(begin + longest, len(text)) + 1)
            found = [(end, *scores[text[begin:end]]) for end in ends if text[begin:end] in scores]
            if not found or found[0][0] > begin + 1:
                found.append((begin + 1, unlikely, self.unknown))
            for end, score, number in found:
                if so_far + score > best[end][0]:
                    best[end] = (so_far + score, begin, number)
        pieces: list[tuple[str, int]] = []
        end = len(text)
        while end:
            _, begin, number = best[end]
            after, last = pieces.pop() if pieces and number == pieces[-1][1] == self.unknown else ("", number)
            pieces.append((text[begin:end] + after, last))  # a run of unknown characters is one piece
            end = begin
        return pieces[::-1]

    @functools.cached_property
    def _scores(self) -> tuple[int, np.float32, dict[str, tuple[np.float32, int]]]:
        """The length of the longest piece, the lowest score, and each piece's score and number."""
        vocabulary = json.loads(self.library.to_str())["model"]["vocab"]
        scores = {
            piece: (np.float32(score), number)
            for number, (piece, score) in enumerate(vocabulary)
            if not piece.startswith(HIDDEN)
        }
        return max(map(len, scores)), min(score for score, _ in scores.values()), scores

    def to_dict(self) -> dict[str, Any]:
        how = self.rewriter.how
        return {
            "table": base64.b64encode(how.table).decode(),
            "rewriting": [how.prefix, how.collapse, how.escape, how.suffix],
            "unknown": self.unknown,
            "size": self.size,
            "symbols": self.symbols,
            "others": self.others,
            "bytes": self.spelled,
        }

    @classmethod
    def from_dict(cls, library: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> Cutter:
        """What ``to_dict`` described; a ValueError, KeyError or TypeError if it did not."""
        rewriting = Rewriting(base64.b64decode(settings["table"]), *map(bool, settings["rewriting"]))
        symbols, others = ({str(k): int(n) for k, n in settings[key].items()} for key in ("symbols", "others"))
        spelled = [int(number) for number in settings["bytes"]]
        if len(spelled) not in (0, 256):
            raise ValueError("there are 256 bytes")
        return cls(library, rewriting, int(settings["unknown"]), int(settings["size"]), symbols, others, spelled)
