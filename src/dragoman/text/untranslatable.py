"""Text that reads the same in every language: numbers, punctuation, symbols, URLs and e-mail addresses."""

from __future__ import annotations

import re
from typing import NamedTuple

_LETTER = re.compile(r"[^\W\d_]")
_OPENING, _CLOSING = r"[<(\[{\"'„“]*", r"[>)\]}\"'“”.,;:!?]*"
_ADDRESS = re.compile(
    rf"{_OPENING}(?:(?:https?|ftp)://\S+|www\.\S+|(?:mailto:)?[\w.+-]+@[\w-]+(?:\.[\w-]+)+){_CLOSING}", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<!\w)\d+(?!\w)")
_MARK = re.compile(r"[^\w\s]")

MIN_LINES = 5  # letterless training sources from which on they decide alone
MIN_NUMBERS = 20  # numbers from which on they may decide without punctuation


def is_untranslatable(text: str) -> bool:
    """Whether every whitespace token of the text has no letter, or is a URL or an e-mail address."""
    if not _LETTER.search(text):
        return bool(text.strip())
    return all(not _LETTER.search(token) or _ADDRESS.fullmatch(token) for token in text.split())


class CopyEvidence(NamedTuple):
    """How often training pairs keep letterless sources as they are, and the numbers and punctuation marks of a side."""

    lines: int = 0  # sources without letters
    lines_copied: int = 0  # of them, with an identical target
    numbers: int = 0  # of both sides
    numbers_kept: int = 0  # of them, those that the other side has too
    marks: int = 0
    marks_kept: int = 0

    @classmethod
    def from_pair(cls, source: str, target: str) -> CopyEvidence:
        return cls(*_letterless(source, target), *_kept(_NUMBER, source, target), *_kept(_MARK, source, target))

    @classmethod
    def from_line(cls, source: str, target: str) -> CopyEvidence:
        """The same without looking at the numbers and marks within a sentence, which is much faster."""
        return cls(*_letterless(source, target))

    def __add__(self, other: CopyEvidence) -> CopyEvidence:  # type: ignore[override]
        return CopyEvidence(*(one + two for one, two in zip(self, other)))

    @property
    def copies(self) -> bool:
        """Whether untranslatable text should be copied.

        If enough letterless sources are among the training pairs, most of them must be copied there. Otherwise both
        sides must have most of their numbers and punctuation marks in common, or their numbers alone. This holds for
        translation, but not for phonemes, logical forms or arithmetic.
        """
        if self.lines >= MIN_LINES:
            return 2 * self.lines_copied >= self.lines
        if self.numbers >= MIN_NUMBERS and 2 * self.numbers_kept >= self.numbers:
            return True
        total, kept = self.numbers + self.marks, self.numbers_kept + self.marks_kept
        return total > 0 and 2 * kept >= total


def _kept(pattern: re.Pattern[str], source: str, target: str) -> tuple[int, int]:
    """How many numbers or marks both sides have, and how many of them the other side has too."""
    found = [(item, other) for text, other in ((source, target), (target, source)) for item in pattern.findall(text)]
    return len(found), sum(item in other for item, other in found)


def _letterless(source: str, target: str) -> tuple[int, int]:
    if _LETTER.search(source) or not source.strip():
        return 0, 0
    return 1, int(source.strip() == target.strip())
