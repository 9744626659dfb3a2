"""Required phrases: a beam that finds translations in which given phrases stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.parts.precision import at_least_float32
from dragoman.search.beam import BeamSearch, candidates, empty, gather_rows, rows, set_aside, truncate
from dragoman.search.engine import Hypothesis
from dragoman.search.greedy import write_tokens
from dragoman.search.penalties import looked
from dragoman.search.phrase_automaton import PhraseAutomaton, check_required
from dragoman.search.slots import Tree
from dragoman.search.stopping import search_ends
from dragoman.text import Tokenizer

IGNORE_INDEX = -1  # fills phrases up; no token


def encode_required_phrases(
    tokenizer: Tokenizer,
    required: Sequence[Sequence[str]],
    forbidden: PhraseAutomaton | None = None,
    device: torch.device | None = None,
) -> Tree:
    """The phrases that the target of each source must have, as `ConstrainedBeam` reads them in a search's wishes.

    A phrase is cut into pieces as it would be at the beginning of a text, which is also how it is in the middle of one,
    with the marker for its space: ▁house, or house▁ where spaces follow words, and then it must stand before a space or
    the end. Where a tokenizer gives spaces pieces of their own (characters, bytes), a phrase may be a part of a word.
    Byte-level tokenizers from elsewhere write no space before a text: there the form in the middle of a text is meant.
    Nowhere is it asked that the word ends with the phrase: “▁house” is met by “▁house s”, if it is ever so cut.
    """
    if forbidden is not None:
        check_required(chain.from_iterable(required), forbidden)
    return required_phrase_tensors([[_cut(tokenizer, phrase) for phrase in phrases] for phrases in required], device)


def required_phrase_tensors(required: Sequence[Sequence[Sequence[int]]], device: torch.device | None = None) -> Tree:
    """The same of phrases that are token sequences: C of up to L tokens for each of B sources, padded.

    What is a part of another phrase is left out, for it is met wherever that is. ``required`` B C L are the tokens,
    ``required_length`` B C the lengths, ``required_times`` B C how often each must be written, 0 for padding;
    ``required_next`` B C L L says how much of a phrase one has after j tokens of it and then a token that is its i-th
    (Knuth, Morris & Pratt 1977).
    """
    counted = [_essential(Counter(map(tuple, phrases))) for phrases in required]
    most = max((len(phrases) for phrases in counted), default=0) or 1
    longest = max((len(phrase) for phrases in counted for phrase in phrases), default=0) or 1
    batch = len(counted)
    tokens = torch.full((batch, most, longest), IGNORE_INDEX)
    length, times = torch.zeros(2, batch, most, dtype=torch.long).unbind(0)
    after = torch.zeros(batch, most, longest, longest, dtype=torch.long)
    for row, phrases in enumerate(counted):
        for column, (phrase, count) in enumerate(phrases.items()):
            size = len(phrase)
            tokens[row, column, :size] = torch.tensor(phrase)
            length[row, column], times[row, column] = size, count
            after[row, column, :size, :size] = torch.tensor(_after(phrase))
    tree = {"required": tokens, "required_length": length, "required_times": times, "required_next": after}
    return {name: leaf.to(device) for name, leaf in tree.items()}


def check_phrases_fit(wishes: Tree, limits: Tensor, before: int | Tensor = 0) -> None:
    """Refuses phrases that targets of up to `limits` tokens (B), END counted in, have no room for.

    `before` (B) tokens are written first of all, because they are forced. Phrases must fit in one after the other,
    but for those that are a part of others.
    """
    needed = (wishes["required_times"] * wishes["required_length"]).sum(1)  # B
    room = limits.to(needed.device) - 1 - before
    for length, there in zip(needed.tolist(), room.tolist()):
        if length > there:
            raise UserError(
                f"the required phrases of a source have {length} tokens, but its target may have no more "
                f"than {max(0, there)} before its end: require less, or raise the length limit"
            )


class ConstrainedBeam(BeamSearch):
    """Beam search with required phrases: dynamic beam allocation (Post & Vilar 2018), in tensors (Hu et al. 2019, §3).

    What follows is looked at for each hypothesis: what `BeamSearch` would look at, its likeliest token, and the next
    token of every phrase that it does not have yet. They fall into banks by how many tokens of phrases they have met:
    those of whole phrases, and of the longest one that is begun. The beam takes the best of each bank, the fullest
    first, then the second best of each, and so on, so that no bank takes the place of another. A hypothesis is complete
    only if it has all phrases; what the length limit cuts off without them is given back only, and as unfinished,
    where nothing else was found. Each step a hypothesis of the fullest bank goes on with its phrase, so phrases that
    there is room for are always met, unless other rules forbid them. Without phrases this is `BeamSearch`.

    Phrases stand in the target as they are, without interruption. What was begun and not gone on with falls back to
    the longest beginning of a phrase that was just written. All phrases are followed side by side: they may overlap, so
    that “New York” meets “York” as well, and the paper's bookkeeping of one phrase at a time, which may miss phrases
    that begin alike, is not needed. A phrase that is given n times must be written n times, without overlapping itself.
    A beam that is narrower than there are banks writes phrases as early as it can.
    """

    def init_state(self, slots: Tree, longest: int) -> None:
        super().init_state(slots, longest)
        tokens = slots["tokens"]
        batch, width = tokens.shape
        none = torch.zeros(batch, width, slots["wishes"]["required"].shape[1], dtype=torch.long, device=tokens.device)
        slots["met"], slots["place"] = none, none.clone()  # how often, and how far in the next time: B K C
        slots["short"] = empty(batch, width, longest, tokens.device)  # cut off by the limit, without all phrases

    def select(
        self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None, penalty: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = at_least_float32(logits)
        if self.watches:
            slots["looks"] = slots["looks"] + at_least_float32(looked(looks))
        step, limit, written, wishes = slots["step"], slots["limit"], slots["written"], slots["wishes"]
        best, parent, token = self._candidates(slots, logits, norm, penalty)  # B N
        met, place = advance(
            wishes, gather_rows(slots["met"], parent), gather_rows(slots["place"], parent), token
        )  # B N C
        bank = progress(wishes, met, place)
        divisor = self.settings.length_divisor(step + 1)[:, None]  # B 1
        end = token == self.end

        first = allocate(best, bank, self.rows_per_source)  # B K
        complete = torch.where(end, best, -torch.inf).gather(1, first)
        origin = parent.gather(1, first)
        set_aside(
            slots["aside"],
            complete,
            complete / divisor + self._coverage(slots, origin),
            gather_rows(written, origin),
            step,
        )

        kept = allocate(torch.where(end, -torch.inf, best), bank, self.rows_per_source)
        scores = torch.where(end, -torch.inf, best).gather(1, kept)
        token, parent = token.gather(1, kept), parent.gather(1, kept)
        slots["met"], slots["place"] = gather_rows(met, kept), gather_rows(place, kept)
        slots["written"] = written = write_tokens(gather_rows(written, parent), step, token)
        done = has_all(wishes, slots["met"])
        coverage, at_limit = self._coverage(slots, parent), limit == step + 1
        for name, which in (("cut", done), ("short", ~done)):
            some = torch.where(which, scores, -torch.inf)
            truncate(slots[name], at_limit, some, some / divisor + coverage, written, limit)
        ends = search_ends(self.settings, slots["aside"]["normalized"], scores, step + 1, limit)
        slots["over"] = over = slots["over"] | (limit <= step + 1) | ends
        slots["scores"] = scores.masked_fill(over[:, None], -torch.inf)
        if self.watches:
            slots["looks"] = gather_rows(slots["looks"], parent)
        return token, parent

    def _candidates(
        self, slots: Tree, logits: Tensor, norm: Tensor, penalty: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """B N: log p of the continuations to choose from, −∞ where there is none, their hypotheses and tokens."""
        scores, wishes, met = slots["scores"], slots["wishes"], slots["met"]
        logits[..., self.end] = logits[..., self.end].masked_fill(~has_all(wishes, met), -torch.inf)
        some, parent, token = candidates(scores, logits, norm, 2 * self.rows_per_source, penalty)  # B 2K
        likeliest, top = logits.max(-1, keepdim=True)  # B K 1
        length = wishes["required"].shape[-1]
        places = slots["place"].clamp(max=length - 1)[..., None]  # B K C 1
        wanted = wishes["required"][:, None].expand(-1, self.rows_per_source, -1, -1).gather(3, places)[..., 0]  # B K C
        missing = met < wishes["required_times"][:, None]
        wanted = torch.where(missing, wanted, 0)
        gain = logits.gather(2, wanted).masked_fill(~missing, -torch.inf)
        more = scores[..., None] + (torch.cat((gain, likeliest), 2) - norm[..., None]).clamp_(max=0)  # B K C+1
        own = torch.arange(self.rows_per_source, device=scores.device)[:, None].expand_as(more)
        best = torch.cat((some, more.flatten(1)), 1)
        parent = torch.cat((parent, own.flatten(1)), 1)
        token = torch.cat((token, torch.cat((wanted, top), 2).flatten(1)), 1)
        name = torch.where(best > -torch.inf, parent * logits.shape[-1] + token, -1)
        return best.masked_fill(repeated(name), -torch.inf), parent, token

    def hypotheses(self, slots: Tree) -> list[list[Hypothesis]]:
        """As of a beam without phrases; what lacks phrases only where there is nothing else, and as unfinished."""
        found = super().hypotheses(slots)
        short = rows(slots["short"], False)
        return [some or others[: self.settings.n_best] for some, others in zip(found, short)]


def advance(wishes: Tree, met: Tensor, place: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """How often phrases were met and how far the next time is, B N C, after one more token, B N."""
    phrases, length = wishes["required"], wishes["required_length"][:, None]
    same = phrases[:, None] == token[..., None, None]  # B N C L
    index = same.long().argmax(-1)  # the first of the tokens that are the same
    table = wishes["required_next"][:, None].expand(-1, token.shape[1], -1, -1, -1)  # B N C L L
    size = phrases.shape[-1]
    row = table.gather(3, place[..., None, None].expand(*place.shape, 1, size))[..., 0, :]  # B N C L
    after = torch.where(same.any(-1), row.gather(3, index[..., None])[..., 0], 0)
    whole = (after == length) & (length > 0)
    return met + whole, torch.where(whole, 0, after)


def progress(wishes: Tree, met: Tensor, place: Tensor) -> Tensor:
    """B N: tokens of phrases that hypotheses have met."""
    times, length = wishes["required_times"][:, None], wishes["required_length"][:, None]
    begun = torch.where(met < times, place, 0)
    return (torch.minimum(met, times) * length).sum(-1) + begun.amax(-1)


def has_all(wishes: Tree, met: Tensor) -> Tensor:
    """B N: does a hypothesis have all phrases?"""
    return (met >= wishes["required_times"][:, None]).all(-1)


def allocate(scores: Tensor, bank: Tensor, count: int) -> Tensor:
    """B N candidates → those that the beam takes, B K: the best of each bank, the fullest first, then the second best.

    −∞ is taken only where there is nothing else.
    """
    order = scores.argsort(dim=-1, descending=True, stable=True)
    order = order.gather(1, bank.gather(1, order).argsort(dim=-1, descending=True, stable=True))
    banks = bank.gather(1, order)
    place = torch.arange(banks.shape[1], device=banks.device).expand_as(banks)
    begins = torch.cat((torch.ones_like(banks[:, :1], dtype=torch.bool), banks[:, 1:] != banks[:, :-1]), 1)
    rank = place - torch.where(begins, place, 0).cummax(1).values  # within its bank
    turn = (rank << 32) - banks
    turn = turn.masked_fill(scores.gather(1, order) == -torch.inf, 1 << 62)
    return order.gather(1, turn.topk(count, dim=-1, largest=False).indices)


def repeated(numbers: Tensor) -> Tensor:
    """B N: which numbers stand in their row before."""
    ordered, order = numbers.sort(dim=-1, stable=True)
    again = torch.cat((torch.zeros_like(ordered[:, :1], dtype=torch.bool), ordered[:, 1:] == ordered[:, :-1]), 1)
    return torch.zeros_like(again).scatter(1, order, again)


def _cut(tokenizer: Tokenizer, phrase: str) -> tuple[int, ...]:
    """A phrase as it is cut in the middle of a text."""
    phrase = " ".join(phrase.split())
    if not phrase:
        raise UserError("a required phrase has no words: leave it out, or say what must be written")
    ids = tokenizer.encode(phrase)
    if tokenizer.kind == "foreign" and not tokenizer.tokens(ids[:1])[0].startswith("▁"):
        spaced = tokenizer.encode(f" {phrase}")
        ids = spaced if tokenizer.decode(spaced).strip() == phrase else ids
    if tokenizer.unk in ids:
        raise UserError(
            f"the required phrase {phrase!r} has a word that the target vocabulary does not: require other words"
        )
    return tuple(ids)


def _after(phrase: tuple[int, ...]) -> list[list[int]]:
    """[j][i]: the longest beginning of the phrase that its first j tokens and then its i-th end in."""
    return [[_overlap(phrase, (*phrase[:j], token)) for token in phrase] for j in range(len(phrase))]


def _overlap(phrase: tuple[int, ...], text: tuple[int, ...]) -> int:
    return next(size for size in range(len(text), -1, -1) if text[len(text) - size :] == phrase[:size])


def _essential(phrases: Counter[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Without those that are written wherever another one is."""
    return {
        one: count
        for one, count in phrases.items()
        if not any(one != other and count <= phrases[other] and _within(one, other) for other in phrases)
    }


def _within(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return any(other[start : start + len(one)] == one for start in range(len(other) - len(one) + 1))
