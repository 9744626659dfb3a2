"""Phrases in texts: an automaton that knows where they stand as whole words."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dragoman.errors import UserError

OTHER, LETTER, SPACE = range(3)  # what characters are if no phrase has them
POINTS = 0x110000  # of Unicode

Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.signedinteger]]


def is_letter(character: str) -> bool:
    """Is it a part of words: a letter, a mark on one, a digit or an underscore?"""
    return character == "_" or unicodedata.category(character)[0] in "LMN"


@dataclass(frozen=True)
class PhraseAutomaton:
    """An automaton that reads a text character by character and knows when one of some phrases stands there alone.

    It stands alone if the characters before and after it are no letters, where it begins or ends with one. A space in
    it is any white space. In `next` (S A) is the state after a character, in `hit` (S A) whether a phrase is closed by
    it: by the first character after it, or by its own last one if that is no letter. `ends` (S) are the states in which
    the end of a text closes one. Characters are numbered by `number`; all that are in no phrase are alike.
    """

    alphabet: dict[str, int]
    ignore_case: bool
    next: Numbers
    hit: Bools
    ends: Bools

    def number(self, character: str) -> int:
        found = self.alphabet.get(_fold(character) if self.ignore_case else character)
        if found is not None:
            return found
        return SPACE if character.isspace() else LETTER if is_letter(character) else OTHER

    def occurs_in(self, text: str) -> bool:
        """Does one of the phrases stand in the text?"""
        state = 0
        for character in text:
            number = self.number(character)
            if self.hit[state, number]:
                return True
            state = int(self.next[state, number])
        return bool(self.ends[state])

    def characters(self) -> tuple[Numbers, Numbers]:
        """The number of every character of Unicode, and how many of those before it are letters."""
        classes = _classes().copy()
        for character, number in self.alphabet.items():
            same = _folded().get(character, ()) if self.ignore_case else ()
            classes[[ord(one) for one in (character, *same)]] = number
        return classes, np.concatenate(([0], np.cumsum(_classes() == LETTER)))

    @classmethod
    def of(cls, phrases: Iterable[str], ignore_case: bool = False) -> PhraseAutomaton:
        plain = [" ".join(phrase.split()) for phrase in phrases]
        if not all(plain) or any("\ufffd" in phrase for phrase in plain):
            raise UserError("a forbidden phrase must have words, and no U+FFFD, which stands for what is no character")
        if ignore_case:
            plain = ["".join(map(_fold, phrase)) for phrase in plain]
        seen = sorted({*"".join(plain)} - {" "})
        alphabet = {character: number for number, character in enumerate(seen, SPACE + 1)}
        letter = [False, True, False, *map(is_letter, seen)]
        rows = sorted({tuple(alphabet.get(character, SPACE) for character in phrase) for phrase in plain})
        return cls(alphabet, ignore_case, *_automaton(rows, letter))


def _automaton(phrases: Sequence[tuple[int, ...]], letter: Sequence[bool]) -> tuple[Numbers, Bools, Bools]:
    """By sets of states: (phrase, how many of its characters were read), and whether a word may begin here."""
    begun: dict[int, set[tuple[int, int]]] = {}
    for number, phrase in enumerate(phrases):
        begun.setdefault(phrase[0], set()).add((number, 1))
    start: tuple[frozenset[tuple[int, int]], bool] = (frozenset(), True)
    numbers, queue = {start: 0}, [start]
    after, hit = [], []
    for active, fresh in queue:  # which grows meanwhile
        wanted: dict[int, set[tuple[int, int]]] = {}
        pending = False
        for number, place in active:
            phrase = phrases[number]
            if place == len(phrase):
                pending = True
                continue
            wanted.setdefault(phrase[place], set()).add((number, place + 1))
            if phrase[place - 1] == SPACE:
                wanted.setdefault(SPACE, set()).add((number, place))
        row, closed = [], []
        for symbol, inside in enumerate(letter):
            reached = wanted.get(symbol, set()) | (begun.get(symbol, set()) if fresh or not inside else set())
            whole = {one for one in reached if one[1] == len(phrases[one[0]])}
            closed.append(not inside and (pending or bool(whole)))
            state = (frozenset(reached if inside else reached - whole), not inside)
            if state not in numbers:
                numbers[state] = len(queue)
                queue.append(state)
            row.append(numbers[state])
        after.append(row)
        hit.append(closed)
    ends = [any(place == len(phrases[number]) for number, place in active) for active, _ in queue]
    return np.array(after), np.array(hit), np.array(ends)


def check_required(required: Iterable[str], phrases: PhraseAutomaton) -> None:
    """Refuses required phrases in which a forbidden one stands."""
    for phrase in required:
        if phrases.occurs_in(phrase):
            raise UserError(
                f"the required phrase {phrase!r} has words that are forbidden: require or forbid them, not both"
            )


def _fold(character: str) -> str:
    lower = character.lower()
    return lower if len(lower) == 1 else character


@cache
def _classes() -> Numbers:
    """What each character of Unicode is."""
    characters = map(chr, range(POINTS))
    return np.array([SPACE if c.isspace() else LETTER if is_letter(c) else OTHER for c in characters])


@cache
def _folded() -> dict[str, list[str]]:
    """The characters that are the same as another one but for their case."""
    same: dict[str, list[str]] = {}
    for character in map(chr, range(POINTS)):
        if (folded := _fold(character)) != character:
            same.setdefault(folded, []).append(character)
    return same
