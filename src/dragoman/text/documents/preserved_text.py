"""Text that a translation must contain unchanged: placeholders of programs, URLs, e-mail addresses and numbers.

If a model loses or changes one, it replaces the words that are aligned with it in the source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dragoman.text.documents.marked_text import core_span
from dragoman.text.documents.tag_projection import AlignedSentence, Span
from dragoman.text.untranslatable import ADDRESS, PLACEHOLDER

_NUMBER = re.compile(r"(?<![\w.,])[-+]?\d+(?:[.,:/\u202f\u00a0'’-]\d+)*(?!\w)")
_LETTER = re.compile(r"[^\W\d_]")
_STOPS = ".,;:!?…。、，"  # marks after a word that belong to the sentence


class Preserve(StrEnum):
    """What translations must contain unchanged."""

    NONE = "none"
    PLACEHOLDERS = "placeholders"  # and URLs and e-mail addresses
    NUMBERS = "numbers"  # placeholders and numbers


@dataclass(frozen=True)
class Literal:
    """A part of a source text, from character `start` to `end`, that its translation must contain."""

    start: int
    end: int
    text: str
    is_number: bool = False

    def find_all(self, text: str) -> list[Span]:
        """Return where a text contains the literal; a number may have other separators, as in 1,000.5 and 1.000,5."""
        if not self.is_number:
            return [match.span() for match in re.finditer(re.escape(self.text), text)]
        numbers = [(match.span(), _digits(match.group())) for match in _NUMBER.finditer(text)]
        if spans := [span for span, digits in numbers if digits == _digits(self.text)]:
            return spans
        groups = [*re.findall(r"\d+", self.text)]  # of a date, whose parts may be in another order
        if len(groups) > 1:
            return [span for span, _ in numbers if sorted(re.findall(r"\d+", text[slice(*span)])) == sorted(groups)]
        return []


def _digits(number: str) -> str:
    """Return the digits of a number without separators."""
    return re.sub(r"\D", "", number)


def find_literals(text: str, preserve: Preserve, verbatim: Sequence[Span] = ()) -> list[Literal]:
    """Return what a translation of the text must contain unchanged (literals), in order.

    These are the parts `verbatim`, from and to a character, and what `preserve` names, such as numbers.
    """
    literals = [Literal(start, end, text[start:end]) for start, end in verbatim if text[start:end].strip()]
    patterns = [PLACEHOLDER, ADDRESS] if preserve is not Preserve.NONE else []  # {name}, %s, …; URLs, e-mail addresses
    patterns += [_NUMBER] if preserve is Preserve.NUMBERS else []
    for pattern in patterns:
        for match in pattern.finditer(text):
            start, end = match.span()
            if pattern is PLACEHOLDER:  # with letters attached to it, as in {width}px
                while start and text[start - 1].isalnum():
                    start -= 1
                while end < len(text) and text[end].isalnum():
                    end += 1
            if all(end <= other.start or start >= other.end for other in literals):
                literals.append(Literal(start, end, text[start:end], is_number=pattern is _NUMBER))
    return sorted(literals, key=lambda literal: literal.start)


def is_only_literals(text: str, literals: Sequence[Literal]) -> bool:
    """Whether a text has no letters beside its literals (parts that stay the same): nothing is to be translated."""
    position, rest = 0, []
    for literal in literals:
        rest.append(text[position : literal.start])
        position = literal.end
    return bool(literals) and not _LETTER.search("".join([*rest, text[position:]]))


def place_literals(literals: Sequence[Literal], target: str) -> list[Span | None]:
    """Return where a translation (`target`) has each literal, None if it lacks it; a place belongs to one literal only.

    Longer ones come first, since a short one may be a part of them.
    """
    places: list[Span | None] = [None] * len(literals)
    used = list[Span]()
    for number in sorted(range(len(literals)), key=lambda n: -len(literals[n].text)):
        free = (
            (start, end)
            for start, end in literals[number].find_all(target)
            if all(end <= first or start >= last for first, last in used)
        )
        if (span := next(free, None)) is not None:
            places[number] = span
            used.append(span)
    return places


def missing_literals(literals: Sequence[Literal], target: str) -> list[Literal]:
    """Return the literals that a translation lacks; of several equal ones, of which it has some, the last."""
    return [literal for literal, place in zip(literals, place_literals(literals, target)) if place is None]


def restore_literals(sentence: AlignedSentence, literals: Sequence[Literal]) -> AlignedSentence:
    """Return the sentence with the literals that its translation lacks in place of the aligned words."""
    for literal in missing_literals(literals, sentence.target):
        sentence = _restore(sentence, literal, literals)
    return sentence if sentence.alignment is None else _align_literals(sentence, literals)


def _align_literals(sentence: AlignedSentence, literals: Sequence[Literal]) -> AlignedSentence:
    """Align the words of each literal with those of its occurrence in the translation, and with no others."""
    links = list(sentence.links)
    for literal, occurrence in zip(literals, place_literals(literals, sentence.target)):
        if occurrence is None:
            continue
        sources, targets = (  # indices of the words that overlap the literal
            {n for n, (start, end) in enumerate(words) if start < last and end > first}
            for words, (first, last) in (
                (sentence.source_words, (literal.start, literal.end)),
                (sentence.target_words, occurrence),
            )
        )
        links = [(s, t) for s, t in links if s not in sources and t not in targets]
        links += [(s, t) for s in sources for t in targets]
    return AlignedSentence(sentence.source, sentence.target, sorted({*links}))


def _restore(sentence: AlignedSentence, literal: Literal, literals: Sequence[Literal]) -> AlignedSentence:
    """Replace the target words that translate only the literal by it; without any, insert it after the word before it.

    The word before is the one that translates the source word before the literal.
    """
    words, target = sentence.target_words, sentence.target
    sources = {n for n, (start, end) in enumerate(sentence.source_words) if start < literal.end and end > literal.start}
    other_literals = [other for other in literals if other is not literal]
    other_places = [place for place in place_literals(other_literals, target) if place]
    # target words that translate something else
    taken = {
        n for n, (start, end) in enumerate(words) if any(start < last and end > first for first, last in other_places)
    }
    taken |= {target_word for source_word, target_word in sentence.links if source_word not in sources}
    aligned = sorted({target_word for source_word, target_word in sentence.links if source_word in sources} - taken)
    if aligned:
        first = aligned[0]
        last = next((n for n in range(first, len(words)) if n not in aligned), len(words))  # consecutive words
        start, end = words[first][0], words[last - 1][1]
        core_start, core_end = core_span(target, *words[first])[0], core_span(target, *words[last - 1])[1]
        # quotation marks and brackets are kept if the source has some around the literal
        source_start, source_end = sentence.source_words[min(sources)][0], sentence.source_words[max(sources)][1]
        before = target[start:core_start] if source_start < literal.start else ""
        marks = _STOPS + sentence.source[literal.end : source_end]
        after = "".join(mark for mark in target[core_end:end] if mark in marks)
        text = target[:start] + before + literal.text + after + target[end:]
    else:
        before_literal = [t for s, t in sentence.links if s == min(sources, default=0) - 1]
        first = last = max(before_literal) + 1 if before_literal else 0 if words else len(words)
        position = core_span(target, *words[first - 1])[1] if first else 0
        text = (
            f"{target[:position]} {literal.text}{target[position:]}" if first else f"{literal.text} {target}".rstrip()
        )
    shift = len(AlignedSentence(sentence.source, text).target_words) - len(words)
    links = [(s, t if t < first else t + shift) for s, t in sentence.links if not first <= t < last]
    links += [(s, first + n) for s in sorted(sources) for n in range(last - first + shift)]
    return AlignedSentence(sentence.source, text, sorted({*links}))
