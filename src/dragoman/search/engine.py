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
from dragoman.parts.mixer import Context, Layout
from dragoman.parts.precision import at_least_float32
from dragoman.search.forced_decoding import cross_attention
from dragoman.search.replay import Replay
from dragoman.search.slots import (
    EMPTY_SLOT,
    Answer,
    BatchProgress,
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
from dragoman.search.topk import kernel_input, log_sum_exp

INITIAL_CACHE_LENGTH = 16  # words that there is room for at first
INITIAL_CACHE_LENGTH_GPU = 64
MIN_SHRINK_FACTOR = (
    4  # times as few sources must be left for a GPU to go on in another shape, which it must get to know
)
MAX_COMPILED_SHAPES = 64  # shapes of slots that a step is compiled for


@dataclass(frozen=True)
class SpecialTokens:
    """The token ids that a search must know; `banned` are never written, what is `forced` is written first of all.

    `start`, which is fed first, may be another for every source (B).
    """

    bos: int | Tensor
    eos: int
    suppressed: tuple[int, ...] = ()
    forced_bos: tuple[int, ...] = ()  # at no cost: its log p is 0
    force_eos_at_limit: bool = False  # at the length limit END is forced as well
    min_length: int = 0  # words before END may come, unless the limit is lower


class Hypothesis(NamedTuple):
    """A target that was found: its tokens without START and END, and log p(y|x) with END counted in."""

    tokens: list[int]
    score: float
    normalized_score: float  # by which it was chosen: score / |y|^α, or with the penalties that were asked for
    finished: bool  # did it reach END within the length limit?
    proven_optimal: bool | None = None  # by exact search: is there none better?


class Strategy:
    """How words are chosen, for K rows a source."""

    rows_per_source: int  # K
    needs_attention = False  # must the weights of attention be written down?
    reorders_rows = False  # may a row go on with what another one has written?

    def init_state(self, slots: Tree, longest: int) -> None:
        """Put into new slots what the strategy needs."""

    def select(self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits B K V, −∞ where a token may not be written, and log Σ exp of them all, B K → tokens and parents, B K.

        `slots["step"]` (B) words were written before. Says in `slots["over"]` which sources are.
        """
        raise NotImplementedError

    def fused_step(self, slots: Tree, logits: Tensor, symbols: SpecialTokens, banned: Tensor) -> bool:
        """All that follows from the models' B K V logits in a step, where one kernel does it; False: none does."""
        return False

    def hypotheses(self, slots: Tree) -> list[list[Hypothesis]]:
        """Of each source, best first."""
        raise NotImplementedError


class LogitsProcessor:
    """What may be written. What a rule must know of its sources it puts into their slots, all of it B … or B K …"""

    def init_state(self, slots: Tree, longest: int) -> None:
        """Put into new slots what the rule needs."""

    def __call__(self, slots: Tree, logits: Tensor) -> Tensor:
        """B K V logits, those of tokens that may not be written next set to −∞."""
        return logits

    def update(self, slots: Tree, tokens: Tensor, parents: Tensor | None) -> None:
        """Tokens (B K) were written, each after what row `parents` (B K) had; None: after the same row's."""


class SearchEngine:
    """Searches with one model, or with several that write together, each word by the mean of their probabilities.

    On a GPU, unless told otherwise, the slots have one of a few shapes, and a step is recorded once for each and then
    replayed; `compiled`: and its kernels are made for it, which takes some time before the first.
    """

    def __init__(
        self,
        models: Sequence[Model],
        special_tokens: SpecialTokens,
        strategy: Strategy,
        logits_processors: Sequence[LogitsProcessor] = (),
        compile: bool = False,
        use_cuda_graphs: bool | None = None,
    ) -> None:
        self.models, self.special_tokens, self.strategy = models, special_tokens, strategy
        self.logits_processors, self.compile, self.use_cuda_graphs = logits_processors, compile, use_cuda_graphs
        self.entering, self.replay = Replay(self._begin, again=False), Replay(self._next, again=True)
        self.word = self._word
        if compile:
            torch._dynamo.config.recompile_limit = max(MAX_COMPILED_SHAPES, torch._dynamo.config.recompile_limit)
            self.word = torch.compile(self._word, fullgraph=True, dynamic=False)
        self.plain = not logits_processors and not special_tokens.forced_bos and not special_tokens.force_eos_at_limit
        self.banned: dict[torch.device, Tensor] = {}

    def search(
        self,
        source: Tensor,
        lengths: Tensor,
        max_lengths: Tensor,
        keys: Tensor,
        constraints: Tree | None = None,
        max_sources: int | None = None,
    ) -> list[list[Hypothesis]]:
        """N S sources, how long their targets may get (N) and their numbers (N) → the hypotheses of each.

        `wishes` are tensors, one row a source, that rules look at. Up to `most` sources are searched at a time; as soon
        as a quarter of them is over these leave, and others enter.
        """
        steps = self.steps(source, lengths, max_lengths, keys, constraints, max_sources)
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
        max_lengths: Tensor,
        keys: Tensor,
        constraints: Tree | None = None,
        max_sources: int | None = None,
    ) -> Generator[tuple[list[int], Tree], None, list[list[Hypothesis]]]:
        """The same step by step, for those who look on: after each the numbers of the sources inside and their slots.

        Closing the generator ends the search.
        """
        asked: Tree = {"source": source, "lengths": lengths, "limits": max_lengths, "keys": keys.to(source.device)}
        asked |= {
            "wishes": constraints or {},
            "first": first_tokens(self.special_tokens.bos, len(source), source.device),
        }
        count, max_sources = len(source), max_sources or len(source)
        replays = source.is_cuda if self.use_cuda_graphs is None else self.use_cuda_graphs
        course = self._course(max_lengths.tolist(), min(max_sources, count), replays)
        if replays and not self.has_position_limit:
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
            searched = sum(number != EMPTY_SLOT for number in course.inside)
            done = [
                n for n, (is_over, number) in enumerate(zip(over, course.inside)) if is_over and number != EMPTY_SLOT
            ]
            if not done or 4 * len(done) < searched:
                continue
            leaving = self._told(slots)
            if len(done) < len(course.inside):
                leaving = take(leaving, torch.tensor(done, device=source.device))
            found |= zip((course.inside[n] for n in done), self.strategy.hypotheses(leaving))
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
                course.inside[n], course.ages[n] = EMPTY_SLOT, 0
            slots = self._drawn_together(slots, course)
        return [found[number] for number in range(count)]

    def _course(self, limits: list[int], count: int, replays: bool) -> BatchProgress:
        """Where a search of so many sources begins."""
        longest = max(limits)
        if replays and not self.has_position_limit:
            longest = rounded(longest)
        room = (
            longest
            if self.compile and replays
            else min(longest, INITIAL_CACHE_LENGTH_GPU if replays else INITIAL_CACHE_LENGTH)
        )
        course = BatchProgress(longest, room, [], list(range(count)), [], replays, limits)
        course.inside += [EMPTY_SLOT] * (course.size(count) - count)
        course.ages = [0] * len(course.inside)
        return course

    @cached_property
    def has_position_limit(self) -> bool:
        """Has a model positions for so many tokens and no more, so that there may be none to spare?"""
        limits = ((model.max_source_length, position_limit(model.decoder)) for model in self.models)
        return any(limit is not None for pair in limits for limit in pair)

    def _drawn_together(self, slots: Tree, course: BatchProgress) -> Tree:
        """The slots without empty places, or on a GPU in the next smaller shape that all searched ones fit into."""
        kept = [n for n, number in enumerate(course.inside) if number != EMPTY_SLOT]
        size = course.size(len(kept))
        if size >= len(course.inside) or (course.replays and size > len(course.inside) // MIN_SHRINK_FACTOR > 0):
            return slots
        kept += [n for n, number in enumerate(course.inside) if number == EMPTY_SLOT][: size - len(kept)]
        course.inside, course.ages = [course.inside[n] for n in kept], [course.ages[n] for n in kept]
        return take(slots, torch.tensor(kept, dtype=torch.long, device=slots["over"].device))

    def _replace(self, slots: Tree, where: Tensor, asked: Tree, numbers: Sequence[int], course: BatchProgress) -> None:
        """Put new sources into the places of others that are over."""
        new = self._enter(asked, numbers, course)
        map_tree(lambda other, leaf: leaf.index_copy_(0, where, other.to(leaf.dtype)), new, slots)

    def _enter(self, asked: Tree, numbers: Sequence[int], course: BatchProgress, first: bool = False) -> Tree:
        """Slots for some of the sources; for nobody there is the first of them, and over.

        Those that are entered `first` may be the same tensors as the last time.
        """
        device = asked["source"].device
        nobody = torch.zeros(len(numbers), dtype=torch.bool, device=device)
        if EMPTY_SLOT in numbers:
            nobody = torch.tensor([number == EMPTY_SLOT for number in numbers], device=device)
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
        width, batch = self.strategy.rows_per_source, len(source)
        starts = [model.start_decoding(source, lengths, width, room, asked["first"]) for model in self.models]
        slots: Tree = {
            "writers": {str(n): writer_of(start, batch, self.strategy.reorders_rows) for n, start in enumerate(starts)},
            "tokens": starts[0].tokens.unflatten(0, (batch, width)),
            "step": torch.zeros_like(limits),
            "limit": limits,
            "key": asked["keys"],
            "over": asked["over"],
            "wishes": asked["wishes"],
        }
        if self.strategy.needs_attention:  # of the places of the memory, which may be fewer than the source has
            memory = slots["writers"]["0"]["memory"]
            places = torch.arange((memory["states"] if memory else source).shape[1], device=source.device)
            slots["real"] = places < (memory["lengths"] if memory else lengths)[:, None]  # B S
        self.strategy.init_state(slots, longest)
        for rule in self.logits_processors:
            rule.init_state(slots, longest)
        return map_tree(unshared, slots), tuple(start.max_length for start in starts)

    def _step(self, slots: Tree, course: BatchProgress) -> Tree:
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
        if self.plain and self.strategy.fused_step(slots, logits, self.special_tokens, self._banned(logits.device)):
            return slots, states
        norm = log_sum_exp(logits)  # B K
        logits = self._allowed(slots, logits, norm)
        tokens, parents = self.strategy.select(slots, logits, norm, looks)
        for rule in self.logits_processors:
            rule.update(slots, tokens, parents)
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
            recorder: dict[str, list[Tensor]] | None = {} if self.strategy.needs_attention and not number else None
            places = writer["positions"].clamp(max=room[number] - 1)  # rows that are over stay at the last one
            layout = Layout.continuation(places.flatten(), max_length=room[number])
            if "ancestors" in writer:  # each row writes the current token itself
                own = torch.arange(width, device=slots["tokens"].device)[None, :, None].expand(batch, -1, 1)
                writer["ancestors"] = writer["ancestors"].scatter(2, places[..., None], own)
            context = Context(layout, memory_of(writer["memory"]), ancestors=writer.get("ancestors"), recorder=recorder)
            logits, left = model.decode(slots["tokens"].flatten()[:, None], context, state)
            assert left is not None
            after.append(left)
            writer["positions"] = writer["positions"].add_(1)
            found.append(kernel_input(logits[:, 0]).unflatten(0, (batch, width)))
            if recorder is not None:  # the rows of a source ask side by side, as so many queries
                looks = cross_attention(model, {path: weights[0] for path, weights in recorder.items()})
        if len(found) == 1:
            return found[0], looks, after
        return torch.stack([at_least_float32(logits).log_softmax(-1) for logits in found]).logsumexp(0), looks, after

    def _allowed(self, slots: Tree, logits: Tensor, norm: Tensor) -> Tensor:
        step, last = slots["step"], self.special_tokens.eos
        if self.special_tokens.suppressed:
            logits = logits.index_fill_(-1, self._banned(logits.device), -torch.inf)
        end = logits[..., last].clone() if self.logits_processors else logits
        if self.special_tokens.min_length:
            early = step < torch.clamp(slots["limit"] - 1, max=self.special_tokens.min_length)  # a limit is a limit
            logits[..., last] = logits[..., last].masked_fill(early[:, None], -torch.inf)
        for rule in self.logits_processors:
            logits = rule(slots, logits)
        if self.logits_processors:  # where they leave nothing that could be written END comes, whatever they say
            stuck = logits.amax(-1) == -torch.inf  # B K
            logits[..., last] = torch.where(stuck, end, logits[..., last])
        if self.special_tokens.forced_bos or self.special_tokens.force_eos_at_limit:
            logits = at_least_float32(logits)  # so that what is forced costs nothing, not even by rounding
        for number, token in enumerate(self.special_tokens.forced_bos):
            logits = _only(token, logits, norm, step == number)
        if self.special_tokens.force_eos_at_limit:
            logits = _only(last, logits, norm, step + 1 == slots["limit"])
        return logits

    def _banned(self, device: torch.device) -> Tensor:
        if device not in self.banned:
            self.banned[device] = torch.tensor(self.special_tokens.suppressed, dtype=torch.long, device=device)
        return self.banned[device]

    def _reorder(self, slots: Tree, states: list[Tree], parents: Tensor) -> list[Tree]:
        batch, width = parents.shape
        rows = (torch.arange(batch, device=parents.device)[:, None] * width + parents).flatten()
        for writer in slots["writers"].values():
            writer["positions"] = writer["positions"].gather(1, parents)
            if "ancestors" in writer:
                index = parents[..., None].expand_as(writer["ancestors"])
                writer["ancestors"] = writer["ancestors"].gather(1, index)
        return [model.reorder_state(state, rows) for model, state in zip(self.models, states)]

    def _widen(self, slots: Tree, course: BatchProgress) -> None:
        """Twice the room for words, in steps, so that nobody looks at places that nothing has been written to yet."""
        more = min(course.longest, 2 * course.room) - course.room
        course.room += more
        batch, width = slots["tokens"].shape
        for number, model in enumerate(self.models):
            writer = slots["writers"][str(number)]
            before = course.places[number]
            widened, course.places[number] = model.grow_state(rows_of(writer["state"]), batch * width, before + more)
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
