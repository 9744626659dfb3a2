"""Forbidden phrases: they are never generated, however they might be segmented into tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.search.engine import LogitsProcessor, SpecialTokens, gather_rows
from dragoman.search.search_state import SearchState, map_tensors
from dragoman.text import Tokenizer

MAX_TABLE_BYTES = 1 << 29  # of the table of tokens that complete a phrase
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
    next: Ints  # S A: state after a character
    hit: Bools  # S A: whether a phrase is complete: before the character, or with it if it is not a letter
    ends: Bools  # S: whether a phrase is complete at the end of the text

    def class_of(self, character: str) -> int:
        """Return the class of a character, which is its column in the tables `next` and `hit` of the automaton.

        Characters of phrases have classes of their own; all others are OTHER, LETTER or SPACE.
        """
        return self.alphabet[character] if character in self.alphabet else _other_class(character)

    def occurs_in(self, text: str) -> bool:
        """Whether one of the phrases occurs in the text, as the automaton finds by reading it.

        `next` is the state after a character, `hit` whether it completes a phrase, `ends` whether the end of text does.
        """
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
                raise UserError(
                    f"the required phrase {phrase!r} contains a forbidden phrase: require another phrase, or do not "
                    "forbid this one"
                )

    def unicode_classes(self) -> tuple[Ints, Ints]:
        """Return the class of every Unicode code point, and how many letters have smaller code points than each."""
        classes = _classes().copy()
        # characters that occur in phrases have classes of their own
        classes[[ord(character) for character in self.alphabet]] = list(self.alphabet.values())
        return classes, np.concatenate(([0], np.cumsum(_classes() == LETTER)))

    @classmethod
    def build(cls, phrases: Iterable[str]) -> PhraseAutomaton:
        """Build the automaton of some phrases; an empty phrase is a UserError.

        Characters of phrases are numbered after the classes OTHER, LETTER and SPACE, which hold all other characters.
        """
        plain = [" ".join(phrase.split()) for phrase in phrases]
        for phrase in plain:
            if not phrase or "\ufffd" in phrase:
                raise UserError(
                    f"the forbidden phrase {phrase!r} is empty or contains U+FFFD, which stands for undecodable bytes: "
                    "give words"
                )
        characters = sorted({*"".join(plain)} - {" "})
        alphabet = {character: number for number, character in enumerate(characters, SPACE + 1)}
        letters = [False, True, False, *map(is_letter, characters)]  # of OTHER, LETTER, SPACE and the characters
        rows = sorted({tuple(alphabet.get(character, SPACE) for character in phrase) for phrase in plain})
        return cls(alphabet, *_build_tables(rows, letters))


def _build_tables(phrases: Sequence[tuple[int, ...]], letters: Sequence[bool]) -> tuple[Ints, Bools, Bools]:
    """Return the tables of an automaton that finds the phrases as whole words, by the powerset construction.

    A state is a set of (phrase, number of its characters that were read), and whether a word may begin here. The
    tables are `next` (S A: the state after a symbol), `hit` (S A: whether a phrase is then complete) and `ends` (S:
    whether one is complete at the end of the text).

    Args:
        phrases: Their characters as symbols, from 0 to A − 1.
        letters: A, whether each symbol is a letter.
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
            if phrase[position - 1] == SPACE:  # more white space may follow
                continued.setdefault(SPACE, set()).add((number, position))
        next_row, hit_row = [], []
        for symbol, letter in enumerate(letters):
            reached = continued.get(symbol, set()) | (first.get(symbol, set()) if word_start or not letter else set())
            whole = {(number, position) for number, position in reached if position == len(phrases[number])}
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


def _other_class(character: str) -> int:
    """Return the class of a character that occurs in no phrase."""
    return SPACE if character.isspace() else LETTER if is_letter(character) else OTHER


@cache
def _classes() -> Ints:
    """Return the class (OTHER, LETTER or SPACE) of every Unicode code point."""
    return np.array([_other_class(chr(code_point)) for code_point in range(NUM_CODE_POINTS)])


@dataclass
class PhraseTables:
    """The automaton as tensors. S states, A classes of characters, V tokens, G groups of tokens that read alike.

    Tokens that hold a part of a UTF-8 character (P of them, of up to L bytes) are read byte by byte.
    """

    group: Tensor  # V: group of each token
    next: Tensor  # S G: state after a token
    hit: Tensor  # 2 S V: whether a token completes a phrase; [1]: if it is the last token of the target
    ends: Tensor  # S: whether the end of the target completes a phrase
    next_by_class: Tensor  # S A: state after a character
    hit_by_class: Tensor  # S A: whether a character completes a phrase
    partial: Tensor  # P: tokens with a part of a character
    partial_bytes: Tensor  # P L, padded with −1
    partial_index: Tensor  # V: index in `partial`, or −1
    classes: Tensor  # class of each code point
    letters_before: Tensor  # how many letters precede each code point


@dataclass
class ReadState:
    """Where the automaton is in the text of each hypothesis, B K each."""

    state: Tensor
    bits: Tensor  # of a character of which some bytes were read
    missing: Tensor  # bytes that this character lacks

    def where(self, condition: Tensor, other: ReadState) -> ReadState:
        """Take the values of `self` where the condition (B K) holds, and those of `other` elsewhere."""
        return map_tensors(lambda own, others: torch.where(condition, own, others), self, other)


class ForbiddenPhrases(LogitsProcessor):
    """Phrases that never occur as whole words, however they are segmented.

    A token is forbidden if it completes a phrase: by a character other than a letter after the phrase, by EOS, or by
    containing the whole phrase and more. Tokens after which nothing could be generated are forbidden too: those that
    end with a phrase that no token continues (with tokens that are whole words), a part of a character that completes a
    phrase with whatever byte follows, and a token that ends with a phrase as the last one before the length limit.

    Bytes that are not UTF-8 are read as U+FFFD, which is not a letter, as Dragoman's tokenizers decode them.
    """

    def __init__(
        self, tokenizer: Tokenizer, phrases: Iterable[str], special_tokens: SpecialTokens, vocab_size: int
    ) -> None:
        """Build the automaton of the phrases, and tables of how it reads each token of the vocabulary.

        Tokens that the automaton reads alike form a group. Tokens whose bytes are a part of a character (`partial`) are
        read byte by byte during the search. `vocab_size` is that of the model, which may exceed the tokenizer's.
        """
        self.automaton = PhraseAutomaton.build(map(tokenizer.as_tokenized, phrases))
        self.eos, self.force_eos_at_limit = special_tokens.eos, special_tokens.force_eos_at_limit
        forms = tokenizer.surface_forms()[:vocab_size]
        forms += [b""] * (vocab_size - len(forms))
        texts = [_decode(form) for form in forms]
        partial = [token for token, text in enumerate(texts) if text is None]
        groups: dict[tuple[int, ...], int] = {(): 0}  # group 0: tokens without a text, such as special tokens
        group = [groups.setdefault(self._class_sequence(text or ""), len(groups)) for text in texts]
        ends = self.automaton.ends
        if 2 * len(ends) * vocab_size > MAX_TABLE_BYTES:
            raise UserError(
                f"forbidden phrases with {len(ends):,} letters are too many for a vocabulary of {vocab_size:,} tokens: "
                f"forbid at most {MAX_TABLE_BYTES // (2 * vocab_size):,} letters"
            )
        next_states, hit = self._read_groups(list(groups))
        if not partial:
            # groups of tokens with a text (not 0) that a search can generate
            usable = {group[token] for token in range(vocab_size) if token not in special_tokens.suppressed} - {0}
            hit = self._forbid_dead_ends(next_states, hit, sorted(usable))
        max_bytes = max((len(forms[token]) for token in partial), default=0)
        partial_bytes = [[*forms[token]] + [-1] * (max_bytes - len(forms[token])) for token in partial]
        unused = np.zeros(1, np.int64), np.zeros(2, np.int64)  # the tables of code points are only read for bytes
        classes, letters_before = self.automaton.unicode_classes() if partial else unused
        partial_index = np.full(vocab_size, -1)
        partial_index[partial] = np.arange(len(partial))
        self.tables = PhraseTables(
            group=torch.tensor(group),
            next=torch.from_numpy(next_states),
            hit=torch.from_numpy(np.stack((hit[:, group], (hit | ends[next_states])[:, group]))),
            ends=torch.from_numpy(ends),
            next_by_class=torch.from_numpy(self.automaton.next),
            hit_by_class=torch.from_numpy(self.automaton.hit),
            partial=torch.tensor(partial, dtype=torch.long),
            partial_bytes=torch.tensor(partial_bytes, dtype=torch.long).reshape(len(partial), max_bytes),
            partial_index=torch.from_numpy(partial_index),
            classes=torch.from_numpy(classes),
            letters_before=torch.from_numpy(letters_before),
        )

    def _class_sequence(self, text: str) -> tuple[int, ...]:
        """Return the automaton's symbols for the characters of a text.

        Characters of phrases have symbols of their own. All others share OTHER, LETTER or SPACE, which need not be
        repeated: the automaton is in the same state after one or several of them.
        """
        classes = [self.automaton.class_of(character) for character in text]
        return tuple(number for number, before in zip(classes, [-1, *classes]) if number > SPACE or number != before)

    def _read_groups(self, groups: list[tuple[int, ...]]) -> tuple[Ints, Bools]:
        """Return the automaton's state after a token of each group, and whether the token completes a phrase, S G each.

        A group is given by the character classes of its tokens. All S states read all G groups, character by character.
        """
        num_states = len(self.automaton.next)
        states = np.repeat(np.arange(num_states, dtype=np.int32)[:, None], len(groups), 1)
        hit = np.zeros((num_states, len(groups)), bool)
        for position in range(max(map(len, groups))):
            columns = [number for number, group in enumerate(groups) if position < len(group)]
            characters = np.array([groups[number][position] for number in columns])
            hit[:, columns] |= self.automaton.hit[states[:, columns], characters]
            states[:, columns] = self.automaton.next[states[:, columns], characters]
        return states, hit

    def _forbid_dead_ends(self, next_states: Ints, hit: Bools, usable: list[int]) -> Bools:
        """Forbid tokens after which neither EOS nor any other token may be generated.

        Args: `next_states` S G, the state after a token of each group; `hit` S G, whether it is forbidden; `usable`:
        the groups that can be generated. Returns the new `hit`. Each round may make further states dead ends.
        """
        while True:
            dead = self.automaton.ends & hit[:, usable].all(1)  # S: neither the end nor a token is allowed
            more = hit | dead[next_states]
            if (more == hit).all():
                return more
            hit = more

    def init_state(self, state: SearchState) -> ReadState:
        """Start the automaton for each hypothesis, and move its tables to the device."""
        self.tables = map_tensors(lambda table: table.to(state.tokens.device), self.tables)
        zeros = torch.zeros_like(state.tokens)  # B K: the automaton's first state, and no incomplete character
        # `bits` are those of an incomplete UTF-8 character, of which `missing` bytes are still to come
        return ReadState(state=zeros, bits=zeros.clone(), missing=zeros.clone())

    def __call__(self, state: SearchState, own_state: ReadState, logits: Tensor) -> Tensor:
        """Return the logits B K V with −∞ for tokens that complete a phrase.

        `own_state` (B K) is where the automaton is in each hypothesis, which may end with an incomplete character.
        """
        tables = self.tables
        last = (state.step + 1 + self.force_eos_at_limit >= state.max_length)[:, None]  # B 1: last token before limit
        # a character that lacks bytes is read as OTHER if a token of whole characters follows
        incomplete = own_state.missing > 0
        automaton_state = torch.where(incomplete, tables.next_by_class[:, OTHER][own_state.state], own_state.state)
        ends = tables.ends[own_state.state]  # B K: whether the end of the target would complete a phrase
        hit = tables.hit[last.long(), automaton_state] | (incomplete & ends)[..., None]  # B K V
        if len(tables.partial):
            hit[..., tables.partial] = self._partial_hit(own_state, last)
        hit[..., self.eos] = ends
        return logits.masked_fill_(hit, -torch.inf)

    def _partial_hit(self, own_state: ReadState, last: Tensor) -> Tensor:
        """B K P: whether each of P tokens with a part of a character completes a phrase, now or with any byte after it.

        The latter holds after a phrase if none of the characters that the missing bytes can yield is a letter: the
        phrase is then a whole word. `last` (B 1): it is the last token before the length limit.
        """
        tables = self.tables
        hit, after = self._read_bytes(map_tensors(lambda leaf: leaf[..., None], own_state), tables.partial_bytes)
        # range of code points that can become of an incomplete character: every missing byte adds six bits
        lowest, highest = (((after.bits + step) << (6 * after.missing)).clamp(max=NUM_CODE_POINTS) for step in (0, 1))
        is_no_letter = (after.missing > 0) & (tables.letters_before[lowest] == tables.letters_before[highest])
        return hit | (tables.ends[after.state] & (is_no_letter | last[..., None]))

    def _read_bytes(self, before: ReadState, token_bytes: Tensor) -> tuple[Tensor, ReadState]:
        """Read the bytes of tokens (… L, padded with −1): whether they complete phrases, and the states after them.

        Bytes are decoded as UTF-8: `bits` are those of a character so far, `missing` is the number of bytes that it
        lacks. The automaton reads a character when it is whole, and OTHER for one that is broken off.
        """
        tables, state, bits, missing = self.tables, before.state, before.bits, before.missing
        hit = torch.zeros_like(state, dtype=torch.bool)
        for byte in token_bytes.unbind(-1):
            joined = (bits << 6) | (byte & 0x3F)  # a byte 10xxxxxx continues a character with six bits
            continues = (byte & 0xC0 == 0x80) & (
                missing > 0
            )  # and (next lines) is not overlong, a surrogate, too large
            continues &= (missing != 2) | ((joined >= 0x20) & ((joined < 0x360) | (joined > 0x37F)))
            continues &= (missing != 3) | ((joined >= 0x10) & (joined < 0x110))
            broken = ~continues & (missing > 0)  # the preceding character remains incomplete
            new_hit = hit | (broken & tables.hit_by_class[:, OTHER][state])
            new_state = torch.where(broken, tables.next_by_class[:, OTHER][state], state)
            # number of bytes that follow a first byte of UTF-8
            following = (byte >= 0xC2).long() + (byte >= 0xE0) + (byte >= 0xF0) - 3 * (byte > 0xF4)
            following = following.clamp(min=0)
            new_missing = torch.where(continues, missing - 1, following)
            new_bits = torch.where(continues, joined, byte & (0x7F >> (following + (following > 0))))
            single = torch.where(byte < 0x80, tables.classes[byte.clamp(0, 0x7F)], OTHER)
            character = torch.where(continues, tables.classes[joined.clamp(0, NUM_CODE_POINTS - 1)], single)
            whole = new_missing == 0
            new_hit = new_hit | (whole & tables.hit_by_class[new_state, character])
            new_state = torch.where(whole, tables.next_by_class[new_state, character], new_state)
            real = byte >= 0  # not padding
            hit, state = torch.where(real, new_hit, hit), torch.where(real, new_state, state)
            bits = torch.where(real & ~whole, new_bits, bits * ~real)
            missing = torch.where(real, new_missing, missing)
        return hit, ReadState(state, bits, missing)

    def update(self, own_state: ReadState, tokens: Tensor, parents: Tensor | None) -> ReadState:
        """Return the automaton's states after new tokens (B K), which continue the rows `parents` (None: their own).

        Special tokens change nothing. Tokens with a part of a character (`partial_index` ≥ 0) are read byte by byte.
        """
        tables = self.tables
        if parents is not None:
            own_state = map_tensors(lambda leaf: gather_rows(leaf, parents), own_state)
        group, partial_index = tables.group[tokens], tables.partial_index[tokens]
        state, missing = own_state.state, own_state.missing
        state = torch.where(missing > 0, tables.next_by_class[:, OTHER][state], state)
        zeros = torch.zeros_like(missing)
        after = ReadState(tables.next[state, group].long(), zeros, zeros)
        is_special = (group == 0) & (partial_index < 0)
        after = own_state.where(is_special, after)
        if len(tables.partial):
            _, read = self._read_bytes(own_state, tables.partial_bytes[partial_index.clamp(min=0)])
            after = read.where(partial_index >= 0, after)
        return after


def _decode(form: bytes) -> str | None:
    """Decode the bytes of a token; None if they hold a part of a character."""
    try:
        return form.decode()
    except UnicodeDecodeError:
        return None
