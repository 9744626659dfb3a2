"""The stepping engine under every search: sources in slots, one token a row and step, caches instead of prefixes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dragoman.models import Model
from dragoman.models.encoder_decoder import first_tokens
from dragoman.models.model import position_limit
from dragoman.parts.mixer import Ctx, Layout
from dragoman.parts.precision import at_least_float32
from dragoman.search.alignment import cross_attention
from dragoman.search.largest import log_sum, readable
from dragoman.search.replay import Replay
from dragoman.search.slots import (
    NOBODY,
    Answer,
    Course,
    Tree,
    map_tree,
    memory_of,
    rounded,
    rows_of,
    take,
    unshared,
    wider,
    writer_of,
)

ROOM = 16  # words that there is room for at first
ROOM_ON_GPU = 64
FEWER = 4  # times as few sources must be left for a GPU to go on in another shape, which it must get to know
COMPILED = 64  # shapes of slots that a step is compiled for


@dataclass(frozen=True)
class Symbols:
    """The token ids that a search must know; `banned` are never written, what is `forced` is written first of all.

    `start`, which is fed first, may be another for every source (B).
    """

    start: int | Tensor
    end: int
    banned: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()  # at no cost: its log p is 0
    closed: bool = False  # at the length limit END is forced as well
    least: int = 0  # words before END may come, unless the limit is lower


class Hypothesis(NamedTuple):
    """A target that was found: its tokens without START and END, and log p(y|x) with END counted in."""

    tokens: list[int]
    score: float
    normalized: float  # by which it was chosen: score / |y|^α, or with the penalties that were asked for
    finished: bool  # did it reach END within the length limit?
    proved: bool | None = None  # by exact search: is there none better?


class Strategy:
    """How words are chosen, for K rows a source."""

    rows: int  # K
    watches = False  # must the weights of attention be written down?
    moves = False  # may a row go on with what another one has written?

    def begin(self, slots: Tree, longest: int) -> None:
        """Put into new slots what the strategy needs."""

    def choose(self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits B K V, −∞ where a token may not be written, and log Σ exp of them all, B K → tokens and parents, B K.

        `slots["step"]` (B) words were written before. Says in `slots["over"]` which sources are.
        """
        raise NotImplementedError

    def write_at_once(self, slots: Tree, logits: Tensor, symbols: Symbols, banned: Tensor) -> bool:
        """All that follows from the models' B K V logits in a step, where one kernel does it; False: none does."""
        return False

    def results(self, slots: Tree) -> list[list[Hypothesis]]:
        """Of each source, best first."""
        raise NotImplementedError


class Rule:
    """What may be written. What a rule must know of its sources it puts into their slots, all of it B … or B K …"""

    def begin(self, slots: Tree, longest: int) -> None:
        """Put into new slots what the rule needs."""

    def __call__(self, slots: Tree, logits: Tensor) -> Tensor:
        """B K V logits, those of tokens that may not be written next set to −∞."""
        return logits

    def follow(self, slots: Tree, tokens: Tensor, parents: Tensor | None) -> None:
        """Tokens (B K) were written, each after what row `parents` (B K) had; None: after the same row's."""


class Engine:
    """Searches with one model, or with several that write together, each word by the mean of their probabilities.

    On a GPU, unless told otherwise, the slots have one of a few shapes, and a step is recorded once for each and then
    replayed; `compiled`: and its kernels are made for it, which takes some time before the first.
    """

    def __init__(
        self,
        models: Sequence[Model],
        symbols: Symbols,
        strategy: Strategy,
        rules: Sequence[Rule] = (),
        compiled: bool = False,
        replays: bool | None = None,
    ) -> None:
        self.models, self.symbols, self.strategy = models, symbols, strategy
        self.rules, self.compiled, self.replays = rules, compiled, replays
        self.entering, self.replay = Replay(self._begin, again=False), Replay(self._next, again=True)
        self.word = self._word
        if compiled:
            torch._dynamo.config.recompile_limit = max(COMPILED, torch._dynamo.config.recompile_limit)
            self.word = torch.compile(self._word, fullgraph=True, dynamic=False)
        self.plain = not rules and not symbols.forced and not symbols.closed
        self.banned: dict[torch.device, Tensor] = {}

    def search(
        self,
        source: Tensor,
        lengths: Tensor,
        limits: Tensor,
        keys: Tensor,
        wishes: Tree | None = None,
        most: int | None = None,
    ) -> list[list[Hypothesis]]:
        """N S sources, how long their targets may get (N) and their numbers (N) → the hypotheses of each.

        `wishes` are tensors, one row a source, that rules look at. Up to `most` sources are searched at a time; as soon
        as a quarter of them is over these leave, and others enter.
        """
        steps = self.steps(source, lengths, limits, keys, wishes, most)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    @torch.inference_mode()
    def steps(
        self,
        source: Tensor,
        lengths: Tensor,
        limits: Tensor,
        keys: Tensor,
        wishes: Tree | None = None,
        most: int | None = None,
    ) -> Generator[tuple[list[int], Tree], None, list[list[Hypothesis]]]:
        """The same step by step, for those who look on: after each the numbers of the sources inside and their slots.

        Closing the generator ends the search.
        """
        asked: Tree = {"source": source, "lengths": lengths, "limits": limits, "keys": keys.to(source.device)}
        asked |= {"wishes": wishes or {}, "first": first_tokens(self.symbols.start, len(source), source.device)}
        count, most = len(source), most or len(source)
        replays = source.is_cuda if self.replays is None else self.replays
        course = self._course(limits.tolist(), min(most, count), replays)
        if replays and not self.bounded:
            asked["source"] = wider(source, rounded(source.shape[1]))
        slots, entered = self._enter(asked, course.inside, course, first=True), max(course.inside) + 1
        found: dict[int, list[Hypothesis]] = {}
        answer: Answer | None = None
        while course.inside:
            slots = self._step(slots, course)
            yield course.inside, slots
            if answer is None and (not source.is_cuda or max(course.ages) % 4 == 0 or course.ends):
                answer = Answer(slots["over"])
                if source.is_cuda and not course.ends:
                    continue  # until after the next step, so that the device does not wait meanwhile
            over = [] if answer is None else answer.read()
            answer = None
            searched = sum(number != NOBODY for number in course.inside)
            done = [n for n, (is_over, number) in enumerate(zip(over, course.inside)) if is_over and number != NOBODY]
            if not done or 4 * len(done) < searched:
                continue
            leaving = self._told(slots)
            if len(done) < len(course.inside):
                leaving = take(leaving, torch.tensor(done, device=source.device))
            found |= zip((course.inside[n] for n in done), self.strategy.results(leaving))
            more = min(len(done), count - entered)
            if more:
                new = range(entered, entered + more)
                self._replace(slots, torch.tensor(done[:more], device=source.device), asked, new, course)
                for n, number in zip(done, new):
                    course.inside[n], course.ages[n] = number, 0
                entered += more
            elif len(done) == searched:
                break  # nobody is left
            for n in done[more:]:
                course.inside[n], course.ages[n] = NOBODY, 0
            slots = self._drawn_together(slots, course)
        return [found[number] for number in range(count)]

    def _course(self, limits: list[int], count: int, replays: bool) -> Course:
        """Where a search of so many sources begins."""
        longest = max(limits)
        if replays and not self.bounded:
            longest = rounded(longest)
        room = longest if self.compiled and replays else min(longest, ROOM_ON_GPU if replays else ROOM)
        course = Course(longest, room, [], list(range(count)), [], replays, limits)
        course.inside += [NOBODY] * (course.size(count) - count)
        course.ages = [0] * len(course.inside)
        return course

    @cached_property
    def bounded(self) -> bool:
        """Has a model positions for so many tokens and no more, so that there may be none to spare?"""
        limits = ((model.longest_source, position_limit(model.decoder)) for model in self.models)
        return any(limit is not None for pair in limits for limit in pair)

    def _drawn_together(self, slots: Tree, course: Course) -> Tree:
        """The slots without empty places, or on a GPU in the next smaller shape that all searched ones fit into."""
        kept = [n for n, number in enumerate(course.inside) if number != NOBODY]
        size = course.size(len(kept))
        if size >= len(course.inside) or (course.replays and size > len(course.inside) // FEWER > 0):
            return slots
        kept += [n for n, number in enumerate(course.inside) if number == NOBODY][: size - len(kept)]
        course.inside, course.ages = [course.inside[n] for n in kept], [course.ages[n] for n in kept]
        return take(slots, torch.tensor(kept, dtype=torch.long, device=slots["over"].device))

    def _replace(self, slots: Tree, where: Tensor, asked: Tree, numbers: Sequence[int], course: Course) -> None:
        """Put new sources into the places of others that are over."""
        new = self._enter(asked, numbers, course)
        map_tree(lambda other, leaf: leaf.index_copy_(0, where, other.to(leaf.dtype)), new, slots)

    def _enter(self, asked: Tree, numbers: Sequence[int], course: Course, first: bool = False) -> Tree:
        """Slots for some of the sources; for nobody there is the first of them, and over.

        Those that are entered `first` may be the same tensors as the last time.
        """
        device = asked["source"].device
        nobody = torch.zeros(len(numbers), dtype=torch.bool, device=device)
        if NOBODY in numbers:
            nobody = torch.tensor([number == NOBODY for number in numbers], device=device)
        if list(numbers) != list(range(len(asked["source"]))):
            asked = take(asked, torch.tensor([max(0, number) for number in numbers], device=device))
        asked = asked | {"over": nobody}
        begin = self.entering if first and course.replays else self._begin
        slots, places = begin(asked, course.room, course.longest)
        course.places = list(places)
        return slots

    def _begin(self, asked: Tree, room: int, longest: int) -> tuple[Tree, tuple[int, ...]]:
        """Slots with room for so many words, of targets no longer than that, and for how many positions, by model."""
        source, lengths, limits = asked["source"], asked["lengths"], asked["limits"]
        width, batch = self.strategy.rows, len(source)
        starts = [model.start(source, lengths, width, room, asked["first"]) for model in self.models]
        slots: Tree = {
            "writers": {str(n): writer_of(start, batch, self.strategy.moves) for n, start in enumerate(starts)},
            "tokens": starts[0].tokens.unflatten(0, (batch, width)),
            "step": torch.zeros_like(limits),
            "limit": limits,
            "key": asked["keys"],
            "over": asked["over"],
            "wishes": asked["wishes"],
        }
        if self.strategy.watches:  # of the places of the memory, which may be fewer than the source has
            memory = slots["writers"]["0"]["memory"]
            places = torch.arange((memory["states"] if memory else source).shape[1], device=source.device)
            slots["real"] = places < (memory["lengths"] if memory else lengths)[:, None]  # B S
        self.strategy.begin(slots, longest)
        for rule in self.rules:
            rule.begin(slots, longest)
        return map_tree(unshared, slots), tuple(start.places for start in starts)

    def _step(self, slots: Tree, course: Course) -> Tree:
        """One word more for every row."""
        if max(course.ages) >= course.room < course.longest:
            slots = map_tree(lambda leaf: leaf, slots)
            self._widen(slots, course)
        course.ages = [age + 1 for age in course.ages]
        return (self.replay if course.replays else self._next)(slots, *course.places)[0]

    def _next(self, slots: Tree, *places: int) -> tuple[Tree, None]:
        return self._advance(slots, places), None

    def _advance(self, slots: Tree, places: Sequence[int]) -> Tree:
        """The slots with a word more; models see their states row by row, R …, as these lie in memory."""
        batch, width = slots["tokens"].shape
        writers: Tree = {name: dict(writer) for name, writer in slots["writers"].items()}
        states = [rows_of(writer.pop("state")) for writer in writers.values()]
        after, states = self.word(slots | {"writers": writers}, states, tuple(places))
        for writer, state in zip(after["writers"].values(), states):
            writer["state"] = map_tree(lambda leaf: leaf.unflatten(0, (batch, width)), state)
        return after

    def _word(self, slots: Tree, states: list[Tree], places: Sequence[int]) -> tuple[Tree, list[Tree]]:
        """Tensors only: nothing here may depend on what is in them, or wait for it."""
        slots = map_tree(lambda leaf: leaf, slots)  # the tree is a new one, the tensors are not
        logits, looks, states = self._logits(slots, states, places)
        if self.plain and self.strategy.write_at_once(slots, logits, self.symbols, self._banned(logits.device)):
            return slots, states
        norm = log_sum(logits)  # B K
        logits = self._allowed(slots, logits, norm)
        tokens, parents = self.strategy.choose(slots, logits, norm, looks)
        for rule in self.rules:
            rule.follow(slots, tokens, parents)
        slots["tokens"] = tokens
        slots["step"] = slots["step"] + 1
        return slots, states if parents is None else self._reorder(slots, states, parents)

    def _logits(self, slots: Tree, states: list[Tree], room: Sequence[int]) -> tuple[Tensor, Tensor | None, list[Tree]]:
        """B K V: what the models would write next; B K S: where in the source they looked; their states after that."""
        batch, width = slots["tokens"].shape
        found: list[Tensor] = []
        after: list[Tree] = []
        looks = None
        for number, (model, state) in enumerate(zip(self.models, states)):
            writer = slots["writers"][str(number)]
            recorder: dict[str, list[Tensor]] | None = {} if self.strategy.watches and not number else None
            places = writer["positions"].clamp(max=room[number] - 1)  # rows that are over stay at the last one
            layout = Layout.steps(places.flatten(), longest=room[number])
            ctx = Ctx(layout, memory_of(writer["memory"]), recorder=recorder)
            if "ancestors" in writer:  # what is written now, each row has written itself
                own = torch.arange(width, device=slots["tokens"].device)[None, :, None].expand(batch, -1, 1)
                ctx.ancestors = writer["ancestors"].scatter(2, places[..., None], own)
                writer["ancestors"] = ctx.ancestors
            logits, left = model.decode(slots["tokens"].flatten()[:, None], ctx, state)
            assert left is not None
            after.append(left)
            writer["positions"] = writer["positions"].add_(1)
            found.append(readable(logits[:, 0]).unflatten(0, (batch, width)))
            if recorder is not None:  # the rows of a source ask side by side, as so many queries
                looks = cross_attention(model, {path: weights[0] for path, weights in recorder.items()})
        if len(found) == 1:
            return found[0], looks, after
        return torch.stack([at_least_float32(logits).log_softmax(-1) for logits in found]).logsumexp(0), looks, after

    def _allowed(self, slots: Tree, logits: Tensor, norm: Tensor) -> Tensor:
        step, last = slots["step"], self.symbols.end
        if self.symbols.banned:
            logits = logits.index_fill_(-1, self._banned(logits.device), -torch.inf)
        end = logits[..., last].clone() if self.rules else logits
        if self.symbols.least:
            early = step < torch.clamp(slots["limit"] - 1, max=self.symbols.least)  # a limit is a limit
            logits[..., last] = logits[..., last].masked_fill(early[:, None], -torch.inf)
        for rule in self.rules:
            logits = rule(slots, logits)
        if self.rules:  # where they leave nothing that could be written END comes, whatever they say
            stuck = logits.amax(-1) == -torch.inf  # B K
            logits[..., last] = torch.where(stuck, end, logits[..., last])
        if self.symbols.forced or self.symbols.closed:
            logits = at_least_float32(logits)  # so that what is forced costs nothing, not even by rounding
        for number, token in enumerate(self.symbols.forced):
            logits = _only(token, logits, norm, step == number)
        if self.symbols.closed:
            logits = _only(last, logits, norm, step + 1 == slots["limit"])
        return logits

    def _banned(self, device: torch.device) -> Tensor:
        if device not in self.banned:
            self.banned[device] = torch.tensor(self.symbols.banned, dtype=torch.long, device=device)
        return self.banned[device]

    def _reorder(self, slots: Tree, states: list[Tree], parents: Tensor) -> list[Tree]:
        batch, width = parents.shape
        rows = (torch.arange(batch, device=parents.device)[:, None] * width + parents).flatten()
        for writer in slots["writers"].values():
            writer["positions"] = writer["positions"].gather(1, parents)
            if "ancestors" in writer:
                index = parents[..., None].expand_as(writer["ancestors"])
                writer["ancestors"] = writer["ancestors"].gather(1, index)
        return [model.reorder(state, rows) for model, state in zip(self.models, states)]

    def _widen(self, slots: Tree, course: Course) -> None:
        """Twice the room for words, in steps, so that nobody looks at places that nothing has been written to yet."""
        more = min(course.longest, 2 * course.room) - course.room
        course.room += more
        batch, width = slots["tokens"].shape
        for number, model in enumerate(self.models):
            writer = slots["writers"][str(number)]
            before = course.places[number]
            widened, course.places[number] = model.widened(rows_of(writer["state"]), batch * width, before + more)
            writer["state"] = map_tree(lambda leaf: leaf.unflatten(0, (batch, width)), widened)
            if "ancestors" in writer:
                writer["ancestors"] = pad(writer["ancestors"], (0, course.places[number] - before))

    def _told(self, slots: Tree) -> Tree:
        """The slots without what only the models need."""
        return {name: value for name, value in slots.items() if name != "writers"}


def _only(token: int, logits: Tensor, norm: Tensor, where: Tensor) -> Tensor:
    """Nothing but a token, and that at no cost, for some of the sources (B)."""
    alone = torch.full_like(logits, -torch.inf)
    alone[..., token] = norm
    return torch.where(where[:, None, None], alone, logits)
