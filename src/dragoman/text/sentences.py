"""Sentence splitting: a text as sentences, whose translations are joined with the original white space between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

CLOSING = "\"'”’“»«›)\\]}"
# a mark that ends sentences where white space follows, or, of scripts that are written without spaces, anywhere
END = re.compile(rf"[.!?…؟۔।॥።։။។]+[{CLOSING}]*(?=\s)|[。！？｡]+[」』”’）】》{CLOSING}]*")
PARAGRAPH = re.compile(r"\s*[\n\r\t\v\f\x85\u2028\u2029]\s*")
OPENING = "\"'„“‚‘«»‹¿¡([{"
ABBREVIATIONS = {
    "bzw",
    "ca",
    "dr",
    "etc",
    "evtl",
    "gen",
    "hr",
    "inc",
    "jr",
    "ltd",
    "mme",
    "mr",
    "mrs",
    "ms",
    "nr",
    "prof",
}
ABBREVIATIONS |= {"sen", "sr", "sra", "st", "str", "usw", "vgl", "vol", "vs"}
#: control characters are no text, and count as spaces
CONTROLS = {code: " " for code in (*range(0x00, 0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"}
FULL_WIDTH_ENDS = frozenset("。！？｡」』）】》")
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "km", "my"})  # languages


@dataclass
class SplitText:
    """The sentences of a text, and the white space before each of them and after the last."""

    sentences: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=lambda: [""])

    def add(self, sentence: str, gap: str) -> None:
        """A sentence and what follows it."""
        self.sentences.append(sentence)
        self.gaps.append(gap)

    def gaps_for_language(self, target: str) -> list[str]:
        """The gaps; an empty gap between two sentences becomes a space if the target language has spaces."""
        space = "" if target.split("-")[0] in WITHOUT_SPACES else " "
        return [gap or space if 0 < n < len(self.gaps) - 1 else gap for n, gap in enumerate(self.gaps)]

    def gaps_after(self, translations: Sequence[str]) -> list[str]:
        """The gaps for translations into an unknown language: an empty one becomes a space, but not after 。."""
        ends = ["", *(text[-1:] for text in translations)]
        inner = range(1, len(self.gaps) - 1)
        return [
            gap or (" " if n in inner and ends[n] not in FULL_WIDTH_ENDS else "") for n, gap in enumerate(self.gaps)
        ]

    def join(self, translations: Sequence[str], target: str | None = None) -> str:
        """The text with translations in place of the sentences; `target` is the language code, if it is known.

        Where the source has no space between two sentences, one is inserted if the target language has spaces.
        """
        gaps = self.gaps_after(translations) if target is None else self.gaps_for_language(target)
        return gaps[0] + "".join(text + gap for text, gap in zip(translations, gaps[1:], strict=True))


def split_sentences(text: str, count_tokens: Callable[[str], int], max_tokens: int) -> SplitText:
    """Split a text into sentences; a sentence of more than `most` tokens is cut at a comma, a space or anywhere.

    Line breaks and tabs end a sentence. A sentence-final mark does unless a lower-case letter follows. A full stop
    after one letter, one or two digits or a common abbreviation does not.
    """
    found, place = SplitText(), 0
    for gap in [*PARAGRAPH.finditer(text), None]:
        paragraph = text[place : gap.start() if gap else len(text)]
        for sentence, after in _sentences(paragraph):
            for part, space in _fitting(sentence, after, count_tokens, max_tokens):
                _add(found, part, space)
        if gap:
            found.gaps[-1] += gap.group()
            place = gap.end()
    return found


def single_sentence(text: str) -> SplitText:
    """A text as one sentence."""
    found = SplitText()
    _add(found, text, "")
    return found


def _add(found: SplitText, sentence: str, gap: str) -> None:
    """The white space around a sentence belongs to the gaps."""
    clean = sentence.translate(CONTROLS)
    inner = clean.strip()
    if not inner:
        found.gaps[-1] += sentence + gap
        return
    before = len(clean) - len(clean.lstrip())
    found.gaps[-1] += sentence[:before]
    found.add(inner, sentence[before + len(inner) :] + gap)


def _sentences(paragraph: str) -> list[tuple[str, str]]:
    """Sentences, each with the white space after it."""
    found, start = [], 0
    for mark in END.finditer(paragraph):
        rest = paragraph[mark.end() : mark.end() + 200]
        space = rest[: len(rest) - len(rest.lstrip())]
        if mark.end() >= len(paragraph) or (space and _goes_on(paragraph[start : mark.start()], mark.group(), rest)):
            continue
        found.append((paragraph[start : mark.end()], space))
        start = mark.end() + len(space)
    return [*found, (paragraph[start:], "")]


def _goes_on(before: str, mark: str, after: str) -> bool:
    """Is the mark within a sentence?"""
    if after.lstrip().lstrip(OPENING)[:1].islower():
        return True
    word = (before.rsplit(None, 1) or [""])[-1].lstrip(OPENING).rsplit(".", 1)[-1]
    if mark != ".":
        return False
    return len(word) == 1 or (word.isdigit() and len(word) <= 2) or word.lower() in ABBREVIATIONS


def _fitting(sentence: str, after: str, tokens: Callable[[str], int], most: int) -> list[tuple[str, str]]:
    """A sentence as parts of at most so many tokens, halved as near to the middle as a good place is found."""
    if len(sentence) < 2 or tokens(sentence) <= most:
        return [(sentence, after)]
    middle = len(sentence) // 2
    places = [match.end() for match in re.finditer(r"[,;:،；：，、](?!\d)", sentence)]
    places = [place for place in places if abs(place - middle) <= len(sentence) // 4]
    places = places or [match.start() + 1 for match in re.finditer(r"\s", sentence[1:-1])]
    place = min(places, key=lambda place: abs(place - middle), default=middle)
    place = place if 0 < place < len(sentence) else middle
    second = sentence[place:].lstrip()
    space = sentence[place : len(sentence) - len(second)]
    if not second:
        return [(sentence, after)]
    return _fitting(sentence[:place], space, tokens, most) + _fitting(second, after, tokens, most)
