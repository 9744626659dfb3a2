"""Text that is the same in every language: numbers, punctuation, symbols, placeholders, URLs, e-mail addresses."""

from __future__ import annotations

import re
from typing import NamedTuple

#: a placeholder of a program
PLACEHOLDER = re.compile(
    r"\{\{[^{}\n]{1,80}\}\}"  # {{ name }}
    r"|\$\{[^{}\n]{1,80}\}"  # ${name}
    r"|\{[\w.!:,\[\]-]{0,80}\}"  # {name}, {0:.2f}, {}
    r"|%\([\w.-]{1,80}\)[-+#0]?\d*(?:\.\d+)?[a-zA-Z]"  # %(name)s
    r"|%(?:\d+\$)?[-+#0]?\d*(?:\.\d+)?(?:ll?|h)?[sdifxXgeuc@](?!\w)"  # %s, %1$d, %.2f
    r"|</?\d+\s*/?>"  # <0/>, <1>…</1>
)
#: a URL or an e-mail address, without marks that follow it
ADDRESS = re.compile(
    r"(?:https?|ftp)://[^\s<>\"'„“”«»]+[\w/#=&~-]|www\.[^\s<>\"'„“”«»]+[\w/#=&~-]"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+",
    re.IGNORECASE,
)
_LETTER = re.compile(r"[^\W\d_]")
_OPENING, _CLOSING = r"[<(\[{\"'„“]*", r"[>)\]}\"'“”.,;:!?]*"
_ADDRESS_TOKEN = re.compile(
    rf"{_OPENING}(?:(?:https?|ftp)://\S+|www\.\S+|(?:mailto:)?[\w.+-]+@[\w-]+(?:\.[\w-]+)+){_CLOSING}", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<!\w)\d+(?!\w)")
_PUNCTUATION = re.compile(r"[^\w\s]")

MIN_LETTERLESS_LINES = 5  # with as many training sources without letters, these alone decide
MIN_NUMBERS = 20  # with as many numbers, these may decide without punctuation


def is_untranslatable(text: str) -> bool:
    """Whether each part of the text between spaces has no letter, or is a URL or an e-mail address; False if empty."""
    if not _LETTER.search(text):
        return bool(text.strip())
    return all(not _LETTER.search(token) or _ADDRESS_TOKEN.fullmatch(token) for token in text.split())


class CopyEvidence(NamedTuple):
    """Counts over training pairs that show whether numbers, punctuation and letterless sources are copied."""

    lines: int = 0  # sources without letters
    lines_copied: int = 0  # … whose target is identical
    numbers: int = 0  # numbers on both sides
    numbers_kept: int = 0  # … that the other side has as well
    marks: int = 0  # punctuation marks on both sides
    marks_kept: int = 0  # … that the other side has as well

    @classmethod
    def from_pair(cls, source: str, target: str) -> CopyEvidence:
        """Count what one training pair shows: whether a source without letters, numbers and punctuation are copied."""
        lines, lines_copied = _count_letterless(source, target)
        numbers, numbers_kept = _count_kept(_NUMBER, source, target)
        marks, marks_kept = _count_kept(_PUNCTUATION, source, target)
        return cls(lines, lines_copied, numbers, numbers_kept, marks, marks_kept)

    @classmethod
    def from_line(cls, source: str, target: str) -> CopyEvidence:
        """Count whether the source of one training pair, if it has no letters, is copied.

        Numbers and punctuation are not counted, for speed.
        """
        lines, lines_copied = _count_letterless(source, target)
        return cls(lines, lines_copied)

    def __add__(self, other: CopyEvidence) -> CopyEvidence:  # type: ignore[override]
        """Add all counts of two objects."""
        return CopyEvidence(*map(sum, zip(self, other)))

    @property
    def reason(self) -> str:
        """Why untranslatable text should be copied, for the user; empty if it should not.

        With MIN_LETTERLESS_LINES sources without letters in the training pairs, at least half of them must be copied.
        Otherwise both sides must share at least half of their numbers and punctuation marks, or of their numbers alone
        if there are MIN_NUMBERS. This holds for translation, but not for phonemes, logical forms or arithmetic.
        """
        if self.lines >= MIN_LETTERLESS_LINES:  # `lines` counts sources without letters
            copied = f"{self.lines_copied:,} of {self.lines:,} such sources are equal to their targets"
            return copied if 2 * self.lines_copied >= self.lines else ""
        if self.numbers >= MIN_NUMBERS and 2 * self.numbers_kept >= self.numbers:
            return "source and target have most numbers in common"
        total, kept = self.numbers + self.marks, self.numbers_kept + self.marks_kept
        is_kept = total > 0 and 2 * kept >= total
        return "source and target have most punctuation marks and numbers in common" if is_kept else ""


def _count_kept(pattern: re.Pattern[str], source: str, target: str) -> tuple[int, int]:
    """Count the matches of a pattern in source and target, and how many of them also occur in the other text.

    A match that occurs in the other text as part of something longer counts, too.
    """
    matches = [(match, target) for match in pattern.findall(source)]  # each with the other text
    matches += [(match, source) for match in pattern.findall(target)]
    return len(matches), sum(match in other_side for match, other_side in matches)


def _count_letterless(source: str, target: str) -> tuple[int, int]:
    """Return (1, 1) if the source has no letters and the target is a copy of it, (1, 0) if it has none, else (0, 0).

    An empty source does not count.
    """
    if _LETTER.search(source) or not source.strip():
        return 0, 0
    return 1, int(source.strip() == target.strip())
