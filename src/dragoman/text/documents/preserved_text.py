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
        """Return where a text contains the literal, as (start, end) of characters.

        A number may have other separators, as in 1,000.5 and 1.000,5. If there is none with these digits, its parts may
        have another order, as those of a date.
        """
        if not self.is_number:
            return [match.span() for match in re.finditer(re.escape(self.text), text)]
        numbers = [(match.span(), _digits(match.group())) for match in _NUMBER.finditer(text)]
        if spans := [span for span, digits in numbers if digits == _digits(self.text)]:
            return spans
        parts = re.findall(r"\d+", self.text)  # such as day, month and year of a date
        if len(parts) > 1:
            return [span for span, _ in numbers if sorted(re.findall(r"\d+", text[slice(*span)])) == sorted(parts)]
        return []


def _digits(number: str) -> str:
    """Return the digits of a number without separators."""
    return re.sub(r"\D", "", number)


def find_literals(text: str, preserve: Preserve, verbatim: Sequence[Span] = ()) -> list[Literal]:
    """Return what a translation of the text must contain unchanged (literals), in order.

    These are the parts `verbatim`, given as (start, end) of characters, and what `preserve` names, such as numbers.
    Without `preserve` (NONE), only the parts `verbatim` are. Literals do not overlap: verbatim parts have priority,
    then placeholders, addresses (URLs and e-mail) and numbers.
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
            if all(end <= other.start or start >= other.end for other in literals):  # it overlaps none
                literals.append(Literal(start, end, text[start:end], is_number=pattern is _NUMBER))
    return sorted(literals, key=lambda literal: literal.start)


def is_only_literals(text: str, literals: Sequence[Literal]) -> bool:
    """Whether a text has literals (parts that stay the same) and no letters besides: nothing is to be translated.

    It is False for a text without literals.
    """
    position, rest = 0, []  # rest: texts between the literals
    for literal in literals:
        rest.append(text[position : literal.start])
        position = literal.end
    return bool(literals) and not _LETTER.search("".join([*rest, text[position:]]))


def place_literals(literals: Sequence[Literal], target: str) -> list[Span | None]:
    """Return where a translation (`target`) has each literal, as (start, end) of characters; None if it lacks it.

    A place belongs to one literal only. Longer ones are placed first, since a short one may be a part of them.
    """
    places: list[Span | None] = [None] * len(literals)
    used = list[Span]()
    for number in sorted(range(len(literals)), key=lambda n: -len(literals[n].text)):
        free = (
            (start, end)
            for start, end in literals[number].find_all(target)
            if all(end <= used_start or start >= used_end for used_start, used_end in used)
        )
        if (span := next(free, None)) is not None:
            places[number] = span
            used.append(span)
    return places


def missing_literals(literals: Sequence[Literal], target: str) -> list[Literal]:
    """Return the literals that a translation (`target`) lacks; of several equal ones, it lacks the last ones."""
    return [literal for literal, place in zip(literals, place_literals(literals, target)) if place is None]


def restore_literals(sentence: AlignedSentence, literals: Sequence[Literal]) -> AlignedSentence:
    """Return the sentence, with the literals that its translation lacks put in place of the aligned words.

    If the sentence has an alignment, the words of each literal are then aligned with those of its occurrence.
    """
    for literal in missing_literals(literals, sentence.target):
        sentence = _restore(sentence, literal, literals)
    return sentence if sentence.alignment is None else _align_literals(sentence, literals)


def _align_literals(sentence: AlignedSentence, literals: Sequence[Literal]) -> AlignedSentence:
    """Align the words of each literal with those of its occurrence in the translation, and with no others.

    Literals (parts that stay the same) that the translation lacks change nothing.
    """
    links = list(sentence.links)
    for literal, occurrence in zip(literals, place_literals(literals, sentence.target)):
        if occurrence is None:
            continue
        source_words = _overlapping(sentence.source_words, (literal.start, literal.end))
        target_words = _overlapping(sentence.target_words, occurrence)
        links = [(source, target) for source, target in links if not (source in source_words or target in target_words)]
        links += [(source, target) for source in source_words for target in target_words]
    return AlignedSentence(sentence.source, sentence.target, sorted({*links}))


def _overlapping(words: Sequence[Span], span: Span) -> set[int]:
    """Return the indices of the words, given as (start, end) of characters, that overlap a span of characters."""
    span_start, span_end = span
    return {index for index, (start, end) in enumerate(words) if start < span_end and end > span_start}


def _restore(sentence: AlignedSentence, literal: Literal, literals: Sequence[Literal]) -> AlignedSentence:
    """Return the sentence with a literal, which its translation lacks, in place of the words that translate only it.

    If these are not consecutive, only the first run of them is replaced. If there are none, the literal is inserted
    after the last word that translates the source word before it (at the beginning, if none does). `literals` are all
    literals of the sentence: the places of the others are not touched. The alignment follows the new words.
    """
    words, target = sentence.target_words, sentence.target
    sources = _overlapping(sentence.source_words, (literal.start, literal.end))  # source words of the literal
    other_literals = [other for other in literals if other is not literal]
    other_places = [place for place in place_literals(other_literals, target) if place]
    # target words that translate something else
    taken = {index for place in other_places for index in _overlapping(words, place)}
    taken |= {target_word for source_word, target_word in sentence.links if source_word not in sources}
    aligned = sorted({target_word for source_word, target_word in sentence.links if source_word in sources} - taken)
    if aligned:
        first = aligned[0]
        # the words from `first` up to, but not including, `stop` are the first run of consecutive aligned words
        stop = next((index for index in range(first, len(words)) if index not in aligned), len(words))
        start, end = words[first][0], words[stop - 1][1]
        # without the punctuation before the first word and after the last one
        core_start, core_end = core_span(target, *words[first])[0], core_span(target, *words[stop - 1])[1]
        # quotation marks and brackets are kept if the source has some around the literal
        source_start, source_end = sentence.source_words[min(sources)][0], sentence.source_words[max(sources)][1]
        before = target[start:core_start] if source_start < literal.start else ""
        marks = _STOPS + sentence.source[literal.end : source_end]  # full stops and others, and what the source has
        after = "".join(mark for mark in target[core_end:end] if mark in marks)
        text = target[:start] + before + literal.text + after + target[end:]
    else:
        word_before = min(sources, default=0) - 1  # in the source
        before_literal = [target_word for source_word, target_word in sentence.links if source_word == word_before]
        first = stop = max(before_literal, default=-1) + 1  # insert before this target word
        position = core_span(target, *words[first - 1])[1] if first else 0  # before punctuation at the end of a word
        text = (
            f"{target[:position]} {literal.text}{target[position:]}" if first else f"{literal.text} {target}".rstrip()
        )
    # words after the literal move, as it may have more or fewer words than what it replaces
    shift = len(AlignedSentence(sentence.source, text).target_words) - len(words)
    links = [
        (source_word, target_word if target_word < first else target_word + shift)
        for source_word, target_word in sentence.links
        if not first <= target_word < stop
    ]
    links += [(source_word, word) for source_word in sorted(sources) for word in range(first, stop + shift)]
    return AlignedSentence(sentence.source, text, sorted({*links}))
