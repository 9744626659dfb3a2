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
    """Whether a character can be part of a word: a letter, a combining mark, a digit or an underscore."""
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
        """Return the class of a character, which is its column in the automaton's tables `next` and `hit`.

        Each character that occurs in a phrase is a class by itself (`alphabet`); all others are in the class OTHER,
        LETTER or SPACE.
        """
        return self.alphabet[character] if character in self.alphabet else _other_class(character)

    def occurs_in(self, text: str) -> bool:
        """Whether one of the phrases occurs in the text as whole words.

        The automaton reads the text: `next` is the state after a character, `hit` whether the character completes a
        phrase, `ends` whether the end of the text does.
        """
        state = 0
        for character in text:
            column = self.class_of(character)
            if self.hit[state, column]:
                return True
            state = int(self.next[state, column])
        return bool(self.ends[state])

    def check_required(self, required: Iterable[str]) -> None:
        """Raise a UserError if one of the phrases, which are forbidden, occurs in a required phrase."""
        for phrase in required:
            if self.occurs_in(phrase):
                raise UserError(
                    f"the required phrase {phrase!r} contains a forbidden phrase: change one of the two phrases"
                )

    def unicode_classes(self) -> tuple[Ints, Ints]:
        """Return the class of every Unicode code point, and for each the number of letters with smaller code points.

        The difference of two of these numbers is the number of letters in a range of code points.
        """
        classes = _unicode_classes().copy()
        # each character that occurs in a phrase is a class by itself
        classes[[ord(character) for character in self.alphabet]] = list(self.alphabet.values())
        return classes, np.concatenate(([0], np.cumsum(_unicode_classes() == LETTER)))

    @classmethod
    def build(cls, phrases: Iterable[str]) -> PhraseAutomaton:
        """Build the automaton that finds these phrases; an empty phrase is a UserError.

        Its symbols are classes of characters: OTHER, LETTER and SPACE, then one for each character of the phrases.
        White space within a phrase becomes a single space.
        """
        plain = [" ".join(phrase.split()) for phrase in phrases]
        for phrase in plain:
            if not phrase or "\ufffd" in phrase:
                raise UserError(
                    f"the forbidden phrase {phrase!r} is empty or contains U+FFFD, the mark of bytes that are not "
                    "UTF-8: give a phrase of words"
                )
        characters = sorted({*"".join(plain)} - {" "})
        alphabet = {character: number for number, character in enumerate(characters, SPACE + 1)}
        letters = [False, True, False, *map(is_letter, characters)]  # by class: OTHER, LETTER, SPACE, the characters
        # the only character of a phrase that is not in the alphabet is the space
        class_sequences = {tuple(alphabet.get(character, SPACE) for character in phrase) for phrase in plain}
        return cls(alphabet, *_build_tables(sorted(class_sequences), letters))


def _build_tables(phrases: Sequence[tuple[int, ...]], is_letter: Sequence[bool]) -> tuple[Ints, Bools, Bools]:
    """Return the tables of an automaton that finds the phrases as whole words, by the powerset construction.

    A match is (index of a phrase, number of its symbols that were read). A state is the set of all current matches, and
    whether a word may begin here. State 0 is that at the beginning of a text. A match of a whole phrase remains until
    the next symbol shows whether the word ends there, or is a hit at once if its own last symbol is no letter.

    Args:
        phrases: Each is a sequence of symbols (classes of characters) from 0 to A − 1.
        is_letter: A, whether each symbol is a letter.

    Returns:
        `next` (S A: the state after a symbol), `hit` (S A: whether the symbol completes a phrase as whole words) and
        `ends` (S: whether a phrase is complete if the text ends here) of S states.
    """
    first_matches: dict[int, set[tuple[int, int]]] = {}  # by first symbol
    for number, phrase in enumerate(phrases):
        first_matches.setdefault(phrase[0], set()).add((number, 1))
    start: tuple[frozenset[tuple[int, int]], bool] = (frozenset(), True)
    state_numbers, queue = {start: 0}, [start]
    next_states, hit = [], []
    for matches, word_start in queue:  # grows during the loop
        continued: dict[int, set[tuple[int, int]]] = {}  # matches after the next symbol, by symbol
        complete = False  # whether a match is a whole phrase already
        for number, position in matches:
            phrase = phrases[number]
            if position == len(phrase):
                complete = True
                continue
            continued.setdefault(phrase[position], set()).add((number, position + 1))
            if phrase[position - 1] == SPACE:  # more white space may follow
                continued.setdefault(SPACE, set()).add((number, position))
        next_row, hit_row = [], []
        for symbol, symbol_is_letter in enumerate(is_letter):
            can_begin = word_start or not symbol_is_letter  # whether a phrase may begin with this symbol
            reached = continued.get(symbol, set()) | (first_matches.get(symbol, set()) if can_begin else set())
            whole = {(number, position) for number, position in reached if position == len(phrases[number])}
            hit_row.append(not symbol_is_letter and (complete or bool(whole)))
            state = (frozenset(reached if symbol_is_letter else reached - whole), not symbol_is_letter)
            if state not in state_numbers:
                state_numbers[state] = len(queue)
                queue.append(state)
            next_row.append(state_numbers[state])
        next_states.append(next_row)
        hit.append(hit_row)
    ends = [any(position == len(phrases[number]) for number, position in matches) for matches, _ in queue]
    return np.array(next_states), np.array(hit), np.array(ends)


def _other_class(character: str) -> int:
    """Return the class of a character that occurs in no phrase: SPACE, LETTER or OTHER."""
    return SPACE if character.isspace() else LETTER if is_letter(character) else OTHER


@cache
def _unicode_classes() -> Ints:
    """Return the class (OTHER, LETTER or SPACE) of every Unicode code point, as an array indexed by code point."""
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
        """Return the values of `self` where the condition (B K) is true, and those of `other` elsewhere."""
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
        """Build the automaton that finds the phrases, and tables of what it does for each token of the vocabulary.

        Tokens with the same sequence of character classes form a group: the automaton treats them alike. Tokens whose
        bytes are not whole UTF-8 characters (`partial`) are read byte by byte during the search. `vocab_size` is that
        of the model, which may exceed the tokenizer's. More phrases than the tables can hold are a UserError.
        """
        self.automaton = PhraseAutomaton.build(map(tokenizer.as_tokenized, phrases))
        self.eos, self.force_eos_at_limit = special_tokens.eos, special_tokens.force_eos_at_limit
        forms = tokenizer.surface_forms()[:vocab_size]  # the bytes of each token, including spaces
        forms += [b""] * (vocab_size - len(forms))
        texts = [_decode(form) for form in forms]
        partial = [token for token, text in enumerate(texts) if text is None]
        groups: dict[tuple[int, ...], int] = {(): 0}  # group 0: special tokens, without a text, and `partial`
        group = [groups.setdefault(self._class_sequence(text or ""), len(groups)) for text in texts]
        ends = self.automaton.ends
        # the table `hit` has two bytes for each state and token, and about as many states as the phrases have letters
        if 2 * len(ends) * vocab_size > MAX_TABLE_BYTES:
            raise UserError(
                f"the forbidden phrases have about {len(ends):,} letters in total, too many for a vocabulary of "
                f"{vocab_size:,} tokens: forbid phrases with at most {MAX_TABLE_BYTES // (2 * vocab_size):,} letters"
            )
        next_states, hit = self._read_groups(list(groups))
        if not partial:  # a vocabulary with tokens of bytes can continue any text; another one may have dead ends
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
        """Return the classes of the characters of a text, as the automaton reads them.

        A character of a phrase is a class by itself. All others are OTHER, LETTER or SPACE; repetitions of these are
        left out, since the automaton is in the same state after one or several of them.
        """
        classes = [self.automaton.class_of(character) for character in text]
        return tuple(number for number, before in zip(classes, [-1, *classes]) if number > SPACE or number != before)

    def _read_groups(self, groups: list[tuple[int, ...]]) -> tuple[Ints, Bools]:
        """Return the automaton's state after a token, and whether the token completes a phrase, S G each.

        Row s is for the automaton in state s before the token, column g for the tokens of group g, which have the
        character classes `groups[g]`. The automaton reads them one by one: its tables `next` and `hit` say for each
        state and class the next state, and whether a phrase is complete.
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
        """Forbid also tokens after which neither EOS nor any other token may be generated; return the new `hit`.

        EOS is forbidden in the states in which a phrase is complete at the end of a text (`automaton.ends`).

        Args:
            next_states: S G, the automaton's state after a token of group g in state s.
            hit: S G, whether such a token is forbidden.
            usable: The groups of tokens that the search can generate.
        """
        while True:
            dead_ends = self.automaton.ends & hit[:, usable].all(1)  # S: neither the end nor a token is allowed
            new_hit = hit | dead_ends[next_states]
            if (new_hit == hit).all():
                return new_hit
            hit = new_hit  # which may make further states dead ends

    def init_state(self, state: SearchState) -> ReadState:
        """Return the automaton's first state (0) for each hypothesis (B K), and move its tables to the device.

        `bits` are those of an incomplete UTF-8 character at the end of a hypothesis, of which `missing` bytes are still
        to come: none at first.
        """
        self.tables = map_tensors(lambda table: table.to(state.tokens.device), self.tables)
        zeros = torch.zeros_like(state.tokens)  # B K
        return ReadState(state=zeros, bits=zeros.clone(), missing=zeros.clone())

    def __call__(self, state: SearchState, own_state: ReadState, logits: Tensor) -> Tensor:
        """Return the logits (B K V, changed in place) with −∞ for tokens that would complete a forbidden phrase.

        `own_state` (B K) is the automaton's state after each hypothesis, which may end with an incomplete UTF-8
        character that lacks `missing` bytes. `tables.hit` says for each state which tokens complete a phrase.
        """
        tables = self.tables
        # B 1: whether this is the last token before the length limit, or before EOS that is forced there
        last = (state.step + 1 + self.force_eos_at_limit >= state.max_length)[:, None]
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
        """Return whether P tokens with part of a character complete a phrase, now or with any next byte, B K P.

        A token after a phrase completes it with any next byte if none of the characters that it can begin is a letter:
        the phrase is then a whole word. `last` (B 1) says whether it is the last token before the length limit.
        """
        tables = self.tables
        hit, after = self._read_bytes(map_tensors(lambda leaf: leaf[..., None], own_state), tables.partial_bytes)
        # an incomplete character can become the code points `lowest` … `highest` − 1: each missing byte adds 6 bits
        lowest, highest = (((after.bits + step) << (6 * after.missing)).clamp(max=NUM_CODE_POINTS) for step in (0, 1))
        is_no_letter = (after.missing > 0) & (tables.letters_before[lowest] == tables.letters_before[highest])
        return hit | (tables.ends[after.state] & (is_no_letter | last[..., None]))

    def _read_bytes(self, before: ReadState, token_bytes: Tensor) -> tuple[Tensor, ReadState]:
        """Let the automaton, in the states `before`, read the bytes of tokens (… L, padded with −1).

        Returns whether they complete phrases, and the states after them. Bytes are decoded as UTF-8: `bits` are those
        of a character so far, `missing` is the number of bytes that it lacks. The automaton reads a character when it
        is complete, and the class OTHER for one that is not followed by its missing bytes.
        """
        tables, state, bits, missing = self.tables, before.state, before.bits, before.missing
        hit = torch.zeros_like(state, dtype=torch.bool)
        for byte in token_bytes.unbind(-1):
            joined = (bits << 6) | (byte & 0x3F)  # a byte 10xxxxxx continues a character with six bits
            continues = (byte & 0xC0 == 0x80) & (missing > 0)
            # the character must not be overlong, a surrogate, or beyond the last code point
            continues &= (missing != 2) | ((joined >= 0x20) & ((joined < 0x360) | (joined > 0x37F)))
            continues &= (missing != 3) | ((joined >= 0x10) & (joined < 0x110))
            broken = ~continues & (missing > 0)  # the preceding character remains incomplete
            new_hit = hit | (broken & tables.hit_by_class[:, OTHER][state])
            new_state = torch.where(broken, tables.next_by_class[:, OTHER][state], state)
            # number of bytes that follow a first byte of UTF-8
            following = (byte >= 0xC2).long() + (byte >= 0xE0) + (byte >= 0xF0) - 3 * (byte > 0xF4)
            following = following.clamp(min=0)
            new_missing = torch.where(continues, missing - 1, following)
            # the bits of a first byte after those that say how many bytes follow
            new_bits = torch.where(continues, joined, byte & (0x7F >> (following + (following > 0))))
            # a byte that continues nothing is an ASCII character, or undecodable
            single = torch.where(byte < 0x80, tables.classes[byte.clamp(0, 0x7F)], OTHER)
            character = torch.where(continues, tables.classes[joined.clamp(0, NUM_CODE_POINTS - 1)], single)
            whole = new_missing == 0
            new_hit = new_hit | (whole & tables.hit_by_class[new_state, character])
            new_state = torch.where(whole, tables.next_by_class[new_state, character], new_state)
            real = byte >= 0  # not padding
            hit, state = torch.where(real, new_hit, hit), torch.where(real, new_state, state)
            bits = torch.where(real & ~whole, new_bits, bits * ~real)  # 0 after a whole character
            missing = torch.where(real, new_missing, missing)
        return hit, ReadState(state, bits, missing)

    def update(self, own_state: ReadState, tokens: Tensor, parents: Tensor | None) -> ReadState:
        """Return the automaton's states after each hypothesis got one of the new `tokens` (B K).

        `own_state` has the states before these tokens. Hypothesis k continues hypothesis `parents[:, k]` of its source
        (B K), or itself if `parents` is None. Special tokens change nothing. Tokens with a part of a character
        (`partial_index` ≥ 0) are read byte by byte.
        """
        tables = self.tables
        if parents is not None:
            own_state = map_tensors(lambda leaf: gather_rows(leaf, parents), own_state)
        group, partial_index = tables.group[tokens], tables.partial_index[tokens]
        state, missing = own_state.state, own_state.missing
        # a character that lacks bytes is read as OTHER
        state = torch.where(missing > 0, tables.next_by_class[:, OTHER][state], state)
        zeros = torch.zeros_like(missing)
        after = ReadState(tables.next[state, group].long(), zeros, zeros)
        is_special = (group == 0) & (partial_index < 0)
        after = own_state.where(is_special, after)
        if len(tables.partial):
            _, read = self._read_bytes(own_state, tables.partial_bytes[partial_index.clamp(min=0)])
            after = read.where(partial_index >= 0, after)
        return after


def _decode(token_bytes: bytes) -> str | None:
    """Return the text of a token from its UTF-8 bytes; None if they contain an incomplete character."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return None
