"""What SentencePiece does to a text before it cuts it: characters, spaces, the space before the first word.

The ``tokenizers`` library has a normaliser for the same rules, but it looks them up by whole graphemes and takes the
shortest that fits, by which it loses accents and does not join Korean letters.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

SPACE = "▁"

# No table in use comes near these; one that goes beyond them is damaged or meant to do harm.
_LONGEST_TABLE = 1 << 21
_LONGEST_RULE = 256
_MOST_NODES = 1 << 20


@dataclass(frozen=True)
class Rewriting:
    """What is done to a text."""

    table: bytes = b""  # the rules of characters, as a model holds them
    prefix: bool = True  # a space goes before the text, so that its first word looks like the others
    collapse: bool = True  # runs of spaces become one, and none are left around the text
    escape: bool = True  # spaces become ▁
    suffix: bool = False  # the space goes after the text instead


class Rules:
    """A model's rules of characters: what is replaced, and by what; a ValueError if they are damaged.

    They are held as the length of a trie, the trie, and the replacements, each ended by a zero. The trie is a double
    array: a node is a unit of 32 bits, and its child by byte c is the unit at place ^ offset ^ c, if that is labelled
    c. Where a unit says so, its child by byte 0 holds where the replacement begins (Yata, “Darts-clone”).
    """

    def __init__(self, table: bytes) -> None:
        length = int.from_bytes(table[:4], "little")
        if len(table) > _LONGEST_TABLE or length % 4 or (table and not 4 <= length <= len(table) - 4):
            raise ValueError("its table of characters is damaged")
        units = np.frombuffer(table, "<u4", length // 4, 4) if table else np.zeros(1, np.uint32)
        self._pool = table[4 + length :]
        self._label = (units & 0x800000FF).tolist()
        self._offset = ((units >> 10) << ((units & 1 << 9) >> 6)).tolist()
        self._ends = (units >> 8 & 1).astype(bool).tolist()
        self._value = (units & 0x7FFFFFFF).tolist()
        #: the characters that are replaced on their own, and those that stand in a rule, but not as its first
        self.alone, self.later = self._letters()

    def apply(self, text: str) -> str:
        """The text with the longest rule that fits at every place, from left to right."""
        alone, later = self.alone, self.later
        if alone.isdisjoint(text) and later.isdisjoint(text):
            return text
        result, place = [], 0
        while place < len(text):
            found = None
            if text[place] in alone or text[place + 1 : place + 2] in later:
                found = self._longest(text, place)
            place, part = found or (place + 1, text[place])
            result.append(part)
        return "".join(result)

    def _longest(self, text: str, place: int) -> tuple[int, str] | None:
        """The end of the longest rule that fits at a place, and its replacement."""
        found, node, child = None, self._offset[0], 0
        for end in range(place + 1, min(len(text), place + _LONGEST_RULE) + 1):
            for byte in text[end - 1].encode():
                child = node ^ byte
                if child >= len(self._label) or self._label[child] != byte:
                    return found
                node = child ^ self._offset[child]
            if self._ends[child]:
                found = end, self._replacement(node)
        return found

    def _replacement(self, node: int) -> str:
        begin = self._value[node] if node < len(self._value) else len(self._pool)
        end = self._pool.find(b"\0", begin, begin + _LONGEST_RULE)
        if end < 0:
            raise ValueError("its table of characters is damaged")
        return self._pool[begin:end].decode()

    def _letters(self) -> tuple[set[str], set[str]]:
        """Looks at every node once: rules share the ends that they have in common, or there would be too many."""
        children: dict[int, list[int]] = {}
        for place, label in enumerate(self._label):
            if 0 < label < 256:
                children.setdefault(place ^ label, []).append(place)
        alone: set[str] = set()
        later: set[str] = set()
        waiting = [(self._offset[0], b"", True)]  # a node, the bytes of a character so far, is it the first one?
        seen = {*waiting}
        while waiting:
            node, begun, first = waiting.pop()
            for place in children.get(node, ()):
                below, letter = place ^ self._offset[place], begun + bytes([self._label[place]])
                whole = len(letter) == _length(letter[0])
                if whole and self._ends[place]:
                    self._replacement(below)
                    (alone if first else later).add(letter.decode())
                elif whole and not first:
                    later.add(letter.decode())
                state = (below, b"", False) if whole else (below, letter, first)
                if state not in seen:
                    seen.add(state)
                    waiting.append(state)
            if len(seen) > _MOST_NODES:
                raise ValueError("its table of characters runs in circles")
        return alone, later


@functools.lru_cache(4)
def rules(table: bytes) -> Rules:
    """The same rules for the same table, which the models of two languages often share."""
    return Rules(table)


def _length(byte: int) -> int:
    """How many bytes the character has that begins with this one."""
    return 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4


class Rewriter:
    """Rewrites texts, all but a model's own `symbols` in them."""

    def __init__(self, how: Rewriting, symbols: Iterable[str] = ()) -> None:
        self.how = how
        self._rules = rules(how.table)
        self._split = splitter(symbols)

    def __call__(self, text: str) -> str:
        if not text:
            return ""
        how, parts = self.how, self._split(text)
        parts[::2] = map(self._rules.apply, parts[::2])
        text = "".join(parts)
        if how.collapse:
            text = re.sub(" {2,}", " ", text).strip(" ")
            if not text:
                return ""
        space = SPACE if how.escape else " "
        text = text.replace(" ", space)
        if how.prefix and not how.suffix:
            text = space + text
        if how.collapse:
            text = text.rstrip(space)
        return text + space if how.prefix and how.suffix else text


def splitter(symbols: Iterable[str]) -> Callable[[str], list[str]]:
    """Splits a text at some symbols, the longest first: text, symbol, text, … symbol, text."""
    found = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    return re.compile(f"({found})").split if found else lambda text: [text]
