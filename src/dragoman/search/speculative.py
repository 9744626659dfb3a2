"""Speculative decoding: a small model drafts some words ahead, and the model itself judges them all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.parts.mixer import Context, Layout, State, map_state
from dragoman.parts.precision import at_least_float32
from dragoman.parts.spec import Configurable
from dragoman.search.configs import Beam, LengthLimit, OtherRun, Sample
from dragoman.search.engine import SearchEngine
from dragoman.search.slots import BatchProgress, Tree, map_tree, memory_of
from dragoman.search.topk import log_sum_exp

GREEDY = Beam(1)


@dataclass(frozen=True)
class Speculative(Configurable):
    """Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): what `search` finds alone, in fewer steps.

    A smaller run over the same vocabulary writes `ahead` words, y_t … y_{t+ahead−1}. The model reads them in one call
    and chooses a word at each of their places and behind the last; they are kept up to the first that it would not have
    written, which it replaces. So nothing that is found depends on the draft, and a bad one costs nothing but time.

    Words are chosen greedily, or drawn as plain sampling draws them, with the same random number for draft and model:
    translations are equal to those of plain sampling with the same seed, where the paper accepts a word by chance, with
    min(1, p/q), which takes more of them and finds others. Rounding is not the same for one word and for several at
    once: where two words are equally likely but for that, the one may be written for the other, as in another batch;
    int8 weights round by all that is multiplied at once, and make that more likely.
    """

    draft_model: str | OtherRun  # a run, or the folder of one
    draft_tokens: int = 4
    search: Beam | Sample = GREEDY

    def __post_init__(self) -> None:
        if self.draft_tokens < 1:
            raise UserError(f"at least 1 word must be drafted ahead, but {self.draft_tokens} were asked for")
        if isinstance(self.search, Sample) and self.search.n_best > 1:
            raise UserError(f"speculative decoding draws 1 sample a source, not {self.search.n_best}: ask for one")
        if isinstance(self.search, Beam) and not self.search.is_greedy:
            raise UserError("speculative decoding writes one hypothesis word by word: use a beam of 1, or sample")

    @property
    def rows_per_source(self) -> int:
        """How many rows a source takes up in a batch."""
        return 1

    @property
    def n_best(self) -> int:
        return 1

    @property
    def length_limit(self) -> LengthLimit:
        return self.search.length_limit


@dataclass
class AcceptanceStats:
    """How well drafts were received."""

    rounds: int = 0  # of every source: calls of the model that wrote for it
    proposed: int = 0  # words that were drafted and judged: none behind the first that was not accepted, or behind END
    accepted: int = 0

    def __add__(self, other: AcceptanceStats) -> AcceptanceStats:
        return AcceptanceStats(*(sum(both) for both in zip(astuple(self), astuple(other))))

    @property
    def mean_accepted(self) -> float:
        """Words that were accepted a round; one more is written each time, the model's own."""
        return self.accepted / max(1, self.rounds)

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / max(1, self.proposed)


class SpeculativeEngine(SearchEngine):
    """Searches with some models as the engine does, a draft ahead of them; a step writes one word or more for each row.

    A writer's `seen` (B) is how many words its state has read: those of the models all but the last, so that what a
    call reads is that one and the drafts. What was read in vain must be taken back: caches hold a place for every
    position, and what lies behind a row's own is never seen; other states are copied before, and read what was accepted
    once more. The draft's state reads what was accepted when it drafts next.
    """

    def __init__(self, plain: SearchEngine, draft: Model, draft_tokens: int = 4) -> None:
        """`plain` is what would search without the draft."""
        super().__init__([*plain.models, draft], plain.special_tokens, plain.strategy, plain.logits_processors)
        if plain.strategy.rows_per_source > 1 or plain.strategy.reorders_rows:
            raise UserError(
                "a draft is for one hypothesis that is written word by word: phrases to require need a beam"
            )
        if draft.vocab_size != (known := plain.models[0].vocab_size):
            raise UserError(
                f"a draft with {draft.vocab_size:,} words cannot be judged by a model with {known:,}: "
                "take a run that was trained with the same tokenizer"
            )
        self.draft_tokens, self.acceptance = draft_tokens, AcceptanceStats()

    def _course(self, limits: list[int], count: int, replays: bool) -> BatchProgress:
        """With room for drafts behind the last word."""
        return super()._course([limit + 2 * (self.draft_tokens + 1) for limit in limits], count, replays)

    def _enter(self, asked: Tree, numbers: Sequence[int], course: BatchProgress, first: bool = False) -> Tree:
        reach = self.models[-1].max_source_length
        longest = int(asked["lengths"].max())
        if reach is not None and longest > reach:
            raise UserError(
                f"a source has {longest:,} tokens, but the draft reads no more than {reach:,}: "
                "search without it, or take another one"
            )
        slots = super()._enter(asked, numbers, course)  # no step of it is recorded
        slots["first"] = slots["tokens"][:, 0].clone()
        for writer in slots["writers"].values():
            writer["seen"] = torch.zeros_like(slots["step"])
        return slots

    def _step(self, slots: Tree, course: BatchProgress) -> Tree:
        """One word more for every row, and as many more as the draft has guessed."""
        course.ages = [age + 1 for age in course.ages]
        room = course.places
        drafts = self._draft(slots, room) if self._has_room(slots, course) else slots["tokens"][:, :0]  # B N
        tokens = torch.cat((slots["tokens"], drafts), 1)  # B N+1
        saved, found = [], []
        for number, model in enumerate(self.models[:-1]):
            writer = slots["writers"][str(number)]
            saved.append(_saved(model, writer["state"]))
            found.append(_read(model, writer, tokens, None, room[number]))
        logits = found[0] if len(found) == 1 else torch.stack([one.log_softmax(-1) for one in found]).logsumexp(0)
        slots, written = self._judge(slots, logits, drafts)
        for number, (model, before) in enumerate(zip(self.models[:-1], saved)):
            writer = slots["writers"][str(number)]
            if before and not bool((written == tokens.shape[1]).all()):
                writer["state"] = _with(writer["state"], before)
                _read(model, writer, tokens, writer["seen"] + written, room[number])
            writer["seen"] = writer["seen"] + written
        return slots

    def _has_room(self, slots: Tree, course: BatchProgress) -> bool:
        """Whether there are places for all that draft and models would read, after making more where that can be."""
        writers = slots["writers"]
        step, over = slots["step"], slots["over"]
        behind = (step - writers[str(len(self.models) - 1)]["seen"]).masked_fill(over, 0)
        width = max(self.draft_tokens, int(behind.max())) + 1
        ends = [(writer["positions"][:, 0] + step).masked_fill(over, 0).max() for writer in writers.values()]
        needed = [int(end) + width for end in ends]
        while course.room < course.longest and any(n > places for n, places in zip(needed, course.places)):
            self._widen(slots, course)
        return all(n <= places for n, places in zip(needed, course.places))

    def _draft(self, slots: Tree, room: Sequence[int]) -> Tensor:
        """B N: what the draft would write next."""
        model, writer = self.models[-1], slots["writers"][str(len(self.models) - 1)]
        step, seen, told = slots["step"], writer["seen"], map_tree(torch.clone, self._told(slots))
        behind = max(0, int((step - seen).max()))  # words that it has not read, but for the last
        places = seen[:, None] + torch.arange(behind + 1, device=step.device)  # B M
        words = torch.cat((slots["first"][:, None], slots["written"][:, 0]), 1)  # B 1+T
        tokens = words.gather(1, places.clamp(max=words.shape[1] - 1)).clamp(min=0)
        logits = _read(model, writer, tokens, step + 1 if behind else None, room[-1])
        last = (step - seen).clamp(min=0)[:, None, None]  # B 1 1
        logits = logits.gather(1, last.expand(-1, 1, logits.shape[-1]))  # B 1 V
        writer["seen"] = step + 1
        saved, ahead = _saved(model, writer["state"]), dict(writer)
        no_matter = torch.zeros_like(logits[..., 0])  # what a draft costs
        drafts = [self._write(told, logits, no_matter)]
        while len(drafts) < self.draft_tokens:
            logits = _read(model, ahead, drafts[-1], None, room[-1])
            ahead["seen"] = ahead["seen"] + 1
            drafts.append(self._write(told, logits, no_matter))
        writer["state"] = _with(writer["state"], saved)
        return torch.cat(drafts, 1)

    def _judge(self, slots: Tree, logits: Tensor, drafts: Tensor) -> tuple[Tree, Tensor]:
        """Write what the models choose, B N+1 V, up to their first word that was not drafted (B N), and say how many.

        Rows that have come to theirs keep what they had.
        """
        going, writers = ~slots["over"], slots["writers"]  # B
        told, written = self._told(slots), torch.zeros_like(slots["step"])
        norm = log_sum_exp(logits)  # B N+1
        self.acceptance.rounds += int(going.sum())
        for place, drafted in enumerate([*drafts.unbind(1), None]):
            after = dict(told)
            self._write(after, logits[:, place : place + 1], norm[:, place : place + 1])
            told = _where(going, after, told)
            written = written + going
            if drafted is None:
                break
            self.acceptance.proposed += int(going.sum())
            going = going & (told["tokens"][:, 0] == drafted)
            self.acceptance.accepted += int(going.sum())
            going = going & ~told["over"]
            if not bool(going.any()):
                break
        return told | {"writers": writers}, written

    def _write(self, slots: Tree, logits: Tensor, norm: Tensor) -> Tensor:
        """Logits, B 1 V, and log Σ exp of them, B 1 → the words that are chosen, B 1."""
        tokens, _ = self.strategy.select(slots, self._allowed(slots, logits, norm), norm, None)
        for rule in self.logits_processors:
            rule.update(slots, tokens, None)
        slots["tokens"], slots["step"] = tokens, slots["step"] + 1
        return tokens


def _read(model: Model, writer: Tree, tokens: Tensor, lengths: Tensor | None, room: int) -> Tensor:
    """B N tokens behind those that a model has seen → B N V; with `lengths` (B) rows read only up to so many."""
    begin = writer["positions"][:, 0]  # B: of the first word
    places = (begin + writer["seen"])[:, None] + torch.arange(tokens.shape[1], device=tokens.device)  # B N
    layout = Layout(places.clamp(max=room - 1), None if lengths is None else begin + lengths)
    logits, state = model.decode(tokens, Context(layout, memory_of(writer["memory"])), _rows(writer["state"]))
    assert state is not None
    writer["state"] = map_state(lambda leaf: leaf[:, None], state)
    return at_least_float32(logits)


def _rows(state: State) -> State:
    """B 1 …, as slots hold it, → B …"""
    return map_state(lambda leaf: leaf[:, 0], state)


def _saved(model: Model, state: State) -> State:
    """Copies of what a call changes for good: all that does not hold a place for every position (B 1 …)."""
    like = torch.empty(0, device="meta")
    return _changing(state, model.decoder.init_state(1, 1, like))


def _changing(state: State, narrow: State) -> State:
    """The leaves that are no larger than those for one position."""
    found: State = {}
    for name, leaf in state.items():
        if isinstance(leaf, dict):
            if inner := _changing(leaf, narrow[name]):
                found[name] = inner
        elif leaf.shape[2:] == narrow[name].shape[1:]:
            found[name] = leaf.clone()
    return found


def _with(state: State, saved: State) -> State:
    """The state with what was saved of it in its place."""
    return {
        name: _with(leaf, saved.get(name, {})) if isinstance(leaf, dict) else saved.get(name, leaf)
        for name, leaf in state.items()
    }


def _where(chosen: Tensor, one: Tree, other: Tree) -> Tree:
    """The rows of one tree that are chosen (B), and the others of the other."""
    if bool(chosen.all()):
        return one

    def merged(new: Tensor, old: Tensor) -> Tensor:
        return old if new is old else torch.where(chosen.view(-1, *[1] * (old.dim() - 1)), new, old)

    return map_tree(merged, one, other)
