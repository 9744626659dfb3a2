"""An automaton that finds phrases as whole words in texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dragoman.errors import UserError

OTHER, LETTER, SPACE = range(3)  # classes of the characters that occur in no phrase
NUM_CODE_POINTS = 0x110000  # of Unicode

Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.signedinteger]]


def is_letter(character: str) -> bool:
    """Whether a character is part of words: a letter, a combining mark, a digit or an underscore."""
    return character == "_" or unicodedata.category(character)[0] in "LMN"


@dataclass(frozen=True)
class PhraseAutomaton:
    """A finite automaton that reads a text character by character and finds phrases that occur as whole words.

    A phrase that begins or ends with a letter occurs as whole words if there is no letter before or after it. A space
    in a phrase matches any white space. All characters of one class that occur in no phrase are treated alike.
    """

    alphabet: dict[str, int]  # classes of the characters that occur in phrases
    ignore_case: bool
    next: Ints  # S A: state after a character
    hit: Bools  # S A: whether a phrase is complete: before the character, or with it if it is not a letter
    ends: Bools  # S: whether a phrase is complete at the end of the text

    def class_of(self, character: str) -> int:
        """Return the class of a character, which is its column in `next` and `hit`."""
        known = self.alphabet.get(_fold(character) if self.ignore_case else character)
        if known is not None:
            return known
        return SPACE if character.isspace() else LETTER if is_letter(character) else OTHER

    def occurs_in(self, text: str) -> bool:
        """Whether one of the phrases occurs in the text."""
        state = 0
        for character in text:
            column = self.class_of(character)
            if self.hit[state, column]:
                return True
            state = int(self.next[state, column])
        return bool(self.ends[state])

    def check_required(self, required: Iterable[str]) -> None:
        """Raise an error if a forbidden phrase occurs in a required one."""
        for phrase in required:
            if self.occurs_in(phrase):
                raise UserError(f"the required phrase {phrase!r} contains a forbidden one: change one of them")

    def unicode_classes(self) -> tuple[Ints, Ints]:
        """Return the class of every code point, and how many letters precede each code point."""
        classes = _classes().copy()
        for character, number in self.alphabet.items():
            same = _case_variants().get(character, ()) if self.ignore_case else ()
            classes[[ord(variant) for variant in (character, *same)]] = number
        return classes, np.concatenate(([0], np.cumsum(_classes() == LETTER)))

    @classmethod
    def build(cls, phrases: Iterable[str], ignore_case: bool = False) -> PhraseAutomaton:
        """Build the automaton of some phrases."""
        plain = [" ".join(phrase.split()) for phrase in phrases]
        if not all(plain) or any("\ufffd" in phrase for phrase in plain):
            raise UserError("a forbidden phrase is empty or contains U+FFFD: give words without it")
        if ignore_case:
            plain = ["".join(map(_fold, phrase)) for phrase in plain]
        characters = sorted({*"".join(plain)} - {" "})
        alphabet = {character: number for number, character in enumerate(characters, SPACE + 1)}
        letters = [False, True, False, *map(is_letter, characters)]
        rows = sorted({tuple(alphabet.get(character, SPACE) for character in phrase) for phrase in plain})
        return cls(alphabet, ignore_case, *_build_tables(rows, letters))


def _build_tables(phrases: Sequence[tuple[int, ...]], letters: Sequence[bool]) -> tuple[Ints, Bools, Bools]:
    """Return `next`, `hit` and `ends`, by the powerset construction.

    A state is a set of (phrase, number of its characters that were read), and whether a word may begin here.
    """
    first: dict[int, set[tuple[int, int]]] = {}
    for number, phrase in enumerate(phrases):
        first.setdefault(phrase[0], set()).add((number, 1))
    start: tuple[frozenset[tuple[int, int]], bool] = (frozenset(), True)
    numbers, queue = {start: 0}, [start]
    next_states, hit = [], []
    for active, word_start in queue:  # grows during the loop
        continued: dict[int, set[tuple[int, int]]] = {}
        complete = False
        for number, position in active:
            phrase = phrases[number]
            if position == len(phrase):
                complete = True
                continue
            continued.setdefault(phrase[position], set()).add((number, position + 1))
            if phrase[position - 1] == SPACE:
                continued.setdefault(SPACE, set()).add((number, position))
        next_row, hit_row = [], []
        for symbol, letter in enumerate(letters):
            reached = continued.get(symbol, set()) | (first.get(symbol, set()) if word_start or not letter else set())
            whole = {item for item in reached if item[1] == len(phrases[item[0]])}
            hit_row.append(not letter and (complete or bool(whole)))
            state = (frozenset(reached if letter else reached - whole), not letter)
            if state not in numbers:
                numbers[state] = len(queue)
                queue.append(state)
            next_row.append(numbers[state])
        next_states.append(next_row)
        hit.append(hit_row)
    ends = [any(position == len(phrases[number]) for number, position in active) for active, _ in queue]
    return np.array(next_states), np.array(hit), np.array(ends)


def _fold(character: str) -> str:
    lower = character.lower()
    return lower if len(lower) == 1 else character


@cache
def _classes() -> Ints:
    """Return the class of every code point, apart from phrases."""
    characters = map(chr, range(NUM_CODE_POINTS))
    return np.array([SPACE if c.isspace() else LETTER if is_letter(c) else OTHER for c in characters])


@cache
def _case_variants() -> dict[str, list[str]]:
    """Return the characters that differ from another one only by case, by that one."""
    variants: dict[str, list[str]] = {}
    for character in map(chr, range(NUM_CODE_POINTS)):
        if (folded := _fold(character)) != character:
            variants.setdefault(folded, []).append(character)
    return variants
