"""Forbidden phrases: words that are never written, however they might be cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.search.beam import gather_rows
from dragoman.search.engine import LogitsProcessor, SpecialTokens
from dragoman.search.phrase_automaton import OTHER, POINTS, SPACE, Bools, Numbers, PhraseAutomaton
from dragoman.search.slots import Tree
from dragoman.text import Tokenizer

MOST = 1 << 29  # bytes of the largest table

States = tuple[Tensor, Tensor, Tensor]


class ForbiddenPhrases(LogitsProcessor):
    """None of some phrases is ever written as whole words, whatever its pieces.

    A token is forbidden if a phrase would be closed by it: what begins with no letter after the phrase, END, or a token
    with all of the phrase and more. Nothing else is, but for what would leave nothing to be written: a phrase that no
    token can go on with (where tokens are whole words), half a character all of whose other halves close a phrase, and,
    as the last token before the length limit cuts a text off, what completes a phrase. Case matters unless told.

    Half characters are read as the tokenizers learned here join them: what is no UTF-8 becomes U+FFFD, no letter.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        phrases: Iterable[str],
        symbols: SpecialTokens,
        vocabulary: int,
        ignore_case: bool = False,
    ) -> None:
        """`vocabulary` is how many tokens the model can write, which may be more than the tokenizer has."""
        self.phrases = PhraseAutomaton.of(phrases, ignore_case)
        self.end, self.closed = symbols.eos, symbols.force_eos_at_limit
        spelled = tokenizer.surface_forms()[:vocabulary]
        spelled += [b""] * (vocabulary - len(spelled))
        whole = [_text(spelling) for spelling in spelled]
        odd = [number for number, text in enumerate(whole) if text is None]
        kinds: dict[tuple[int, ...], int] = {(): 0}  # tokens of the same characters, but for what no phrase has
        kind = [kinds.setdefault(self._numbers(text or ""), len(kinds)) for text in whole]
        ends = self.phrases.ends
        if 2 * len(ends) * vocabulary > MOST:
            raise UserError(
                f"forbidden phrases with {len(ends):,} letters are too many for a vocabulary of {vocabulary:,}: forbid "
                f"no more than {MOST // (2 * vocabulary):,} letters"
            )
        after, hit = self._tables(list(kinds))
        if not odd:
            written = {kind[number] for number in range(vocabulary) if number not in symbols.suppressed} - {0}
            hit = self._without_ways_out(after, hit, sorted(written))
        longest = max((len(spelled[number]) for number in odd), default=0)
        bytes_of = [[*spelled[number]] + [-1] * (longest - len(spelled[number])) for number in odd]
        classes, letters = self.phrases.characters() if odd else (np.zeros(1, np.int64), np.zeros(2, np.int64))
        places = np.full(vocabulary, -1)
        places[odd] = np.arange(len(odd))
        self.tables = {
            "kind": torch.tensor(kind),  # V
            "next": torch.from_numpy(after),  # S G, for G kinds
            "hit": torch.from_numpy(np.stack((hit[:, kind], (hit | ends[after])[:, kind]))),  # 2 S V; 1: the last token
            "ends": torch.from_numpy(ends),  # S
            "step": torch.from_numpy(self.phrases.next),  # S A
            "closes": torch.from_numpy(self.phrases.hit),  # S A
            "odd": torch.tensor(odd, dtype=torch.long),  # P
            "bytes": torch.tensor(bytes_of, dtype=torch.long).reshape(len(odd), longest),  # P L
            "place": torch.from_numpy(places),  # V: among the odd
            "classes": torch.from_numpy(classes),  # of all of Unicode
            "letters": torch.from_numpy(letters),  # how many of the characters before this one are
        }

    def _numbers(self, text: str) -> tuple[int, ...]:
        """The characters of a text; of several that no phrase has one is enough, and of several spaces."""
        found = [self.phrases.number(character) for character in text]
        return tuple(n for n, before in zip(found, [-1, *found]) if n > SPACE or n != before)

    def _tables(self, kinds: list[tuple[int, ...]]) -> tuple[Numbers, Bools]:
        """S G: the state after a token of each kind, and whether a phrase is closed by it."""
        states = len(self.phrases.next)
        after = np.repeat(np.arange(states, dtype=np.int32)[:, None], len(kinds), 1)
        hit = np.zeros((states, len(kinds)), bool)
        for place in range(max(map(len, kinds))):
            some = [number for number, kind in enumerate(kinds) if place < len(kind)]
            character = np.array([kinds[number][place] for number in some])
            hit[:, some] |= self.phrases.hit[after[:, some], character]
            after[:, some] = self.phrases.next[after[:, some], character]
        return after, hit

    def _without_ways_out(self, after: Numbers, hit: Bools, written: list[int]) -> Bools:
        """Forbids tokens after which neither END nor any other token might be written."""
        while True:
            stuck = self.phrases.ends & hit[:, written].all(1)
            more = hit | stuck[after]
            if (more == hit).all():
                return more
            hit = more

    def init_state(self, slots: Tree, longest: int) -> None:
        tokens = slots["tokens"]
        self.tables = {name: table.to(tokens.device) for name, table in self.tables.items()}
        # of the automaton, and of half a character: its bits so far and how many bytes it lacks
        slots["forbidden"] = {name: torch.zeros_like(tokens) for name in ("state", "bits", "lacks")}

    def __call__(self, slots: Tree, logits: Tensor) -> Tensor:
        tables, here = self.tables, slots["forbidden"]
        last = (slots["step"] + 1 + self.closed >= slots["limit"])[:, None]  # B 1
        broken = here["lacks"] > 0  # what comes next but does not complete the character
        state = torch.where(broken, tables["step"][:, OTHER][here["state"]], here["state"])
        ends = tables["ends"][here["state"]]  # B K
        hit = tables["hit"][last.long(), state] | (broken & ends)[..., None]  # B K V
        if len(tables["odd"]):
            hit[..., tables["odd"]] = self._odd_hit(here, last)
        hit[..., self.end] = ends
        return logits.masked_fill_(hit, -torch.inf)

    def _odd_hit(self, here: Tree, last: Tensor) -> Tensor:
        """B K P: is a phrase closed by a token that has a part of a character, or by whatever follows?"""
        tables = self.tables
        old = [here[name][..., None] for name in ("state", "bits", "lacks")]  # B K 1
        hit, (state, bits, lacks) = self._read((old[0], old[1], old[2]), tables["bytes"])
        least, most = (((bits + more) << (6 * lacks)).clamp(max=POINTS) for more in (0, 1))
        hopeless = (lacks > 0) & (tables["letters"][least] == tables["letters"][most])
        return hit | (tables["ends"][state] & (hopeless | last[..., None]))

    def _read(self, states: States, spelled: Tensor) -> tuple[Tensor, States]:
        """… states and the bytes of tokens, … L → whether phrases are closed by them, and the states after them."""
        state, bits, lacks = states
        tables = self.tables
        hit = torch.zeros_like(state, dtype=torch.bool)
        for byte in spelled.unbind(-1):
            joined = (bits << 6) | (byte & 0x3F)
            fits = (byte & 0xC0 == 0x80) & (lacks > 0)  # and is neither too long a form, nor a surrogate, nor too large
            fits &= (lacks != 2) | ((joined >= 0x20) & ((joined < 0x360) | (joined > 0x37F)))
            fits &= (lacks != 3) | ((joined >= 0x10) & (joined < 0x110))
            broken = ~fits & (lacks > 0)  # half a character is left behind
            other = tables["step"][:, OTHER][state]
            new_hit = hit | (broken & tables["closes"][:, OTHER][state])
            new = torch.where(broken, other, state)
            head = (byte >= 0xC2).long() + (byte >= 0xE0) + (byte >= 0xF0) - 3 * (byte > 0xF4)  # bytes that follow
            head = head.clamp(min=0)
            left = torch.where(fits, lacks - 1, head)
            bits_now = torch.where(fits, joined, byte & (0x7F >> (head + (head > 0))))
            alone = torch.where(byte < 0x80, tables["classes"][byte.clamp(0, 0x7F)], OTHER)
            character = torch.where(fits, tables["classes"][joined.clamp(0, POINTS - 1)], alone)
            whole = left == 0
            new_hit = new_hit | (whole & tables["closes"][new, character])
            new = torch.where(whole, tables["step"][new, character], new)
            real = byte >= 0
            hit, state = torch.where(real, new_hit, hit), torch.where(real, new, state)
            bits, lacks = torch.where(real & ~whole, bits_now, bits * ~real), torch.where(real, left, lacks)
        return hit, (state, bits, lacks)

    def update(self, slots: Tree, tokens: Tensor, parents: Tensor | None) -> None:
        tables, here = self.tables, slots["forbidden"]
        state, bits, lacks = (
            here[name] if parents is None else gather_rows(here[name], parents) for name in ("state", "bits", "lacks")
        )
        kind, place = tables["kind"][tokens], tables["place"][tokens]
        begun = torch.where(lacks > 0, tables["step"][:, OTHER][state], state)
        after, nothing = tables["next"][begun, kind].long(), torch.zeros_like(bits)
        silent = (kind == 0) & (place < 0)  # a special symbol
        new = [torch.where(silent, old, one) for old, one in zip((state, bits, lacks), (after, nothing, nothing))]
        if len(tables["odd"]):
            _, read = self._read((state, bits, lacks), tables["bytes"][place.clamp(min=0)])
            new = [torch.where(place >= 0, one, other) for one, other in zip(read, new)]
        slots["forbidden"] = dict(zip(("state", "bits", "lacks"), new))


def _text(spelling: bytes) -> str | None:
    """None if it has but a part of a character."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return None
