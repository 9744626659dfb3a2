"""The stepping engine under every search: sources in slots, one token a row and step, caches instead of prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from dragoman.models import Model, Start
from dragoman.models.encoder_decoder import first_tokens
from dragoman.parts.mixer import Ctx, Layout, Memory
from dragoman.search.alignment import cross_attention

ROOM = 16  # words that there is room for at first

#: A nested dict of tensors, all of them with one row a source: what a search knows of its sources.
Tree = dict[str, Any]


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


@dataclass(frozen=True)
class Hypothesis:
    """A target that was found: its tokens without START and END, and log p(y|x) with END counted in."""

    tokens: list[int]
    score: float
    normalized: float  # by which it was chosen: score / |y|^α, or with the penalties that were asked for
    finished: bool  # did it reach END within the length limit?


class Strategy(Protocol):
    """How words are chosen, for K rows a source."""

    rows: int  # K
    watches: bool  # must the weights of attention be written down?
    moves: bool  # may a row go on with what another one has written?

    def begin(self, slots: Tree, longest: int) -> None:
        """Put into new slots what the strategy needs."""

    def choose(self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits B K V, −∞ where a token may not be written, and log Σ exp of them all, B K → tokens and parents, B K.

        `slots["step"]` (B) words were written before. Says in `slots["over"]` which sources are.
        """

    def results(self, slots: Tree) -> list[list[Hypothesis]]:
        """Of each source, best first."""


class Rule:
    """What may be written. What a rule must know of its sources it puts into their slots, all of it B … or B K …"""

    def begin(self, slots: Tree, longest: int) -> None:
        """Put into new slots what the rule needs."""

    def __call__(self, slots: Tree, logits: Tensor) -> Tensor:
        """B K V logits, those of tokens that may not be written next set to −∞."""
        return logits

    def follow(self, slots: Tree, tokens: Tensor, parents: Tensor | None) -> None:
        """Tokens (B K) were written, each after what row `parents` (B K) had; None: after the same row's."""


def map_tree(function: Callable[..., Any], *trees: Tree) -> Tree:
    """The tree with `function` done to every tensor in it, or to those in the same place of several trees."""
    return {
        name: map_tree(function, *(tree[name] for tree in trees))
        if isinstance(value, dict)
        else function(*(tree[name] for tree in trees))
        for name, value in trees[0].items()
    }


def take(tree: Tree, sources: Tensor) -> Tree:
    """Some of the sources."""
    return map_tree(lambda leaf: leaf.index_select(0, sources), tree)


def part(tree: Tree, begin: int, end: int) -> Tree:
    return map_tree(lambda leaf: leaf[begin:end], tree)


class Engine:
    """Searches with one model, or with several that write together, each word by the mean of their probabilities."""

    def __init__(
        self, models: Sequence[Model], symbols: Symbols, strategy: Strategy, rules: Sequence[Rule] = ()
    ) -> None:
        self.models, self.symbols, self.strategy = models, symbols, strategy
        self.rules = rules

    @torch.inference_mode()
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
        asked: Tree = {"source": source, "lengths": lengths, "limits": limits, "keys": keys.to(source.device)}
        asked |= {"wishes": wishes or {}, "first": first_tokens(self.symbols.start, len(source), source.device)}
        count, most = len(source), most or len(source)
        self.longest = int(limits.max())
        self.room = min(self.longest, ROOM)
        inside = list(range(min(most, count)))  # the numbers of those that are searched
        slots, entered = self._enter(part(asked, 0, len(inside))), len(inside)
        self.ages = [0] * entered  # how many words they have
        found: dict[int, list[Hypothesis]] = {}
        while inside:
            self.step(slots)
            looks_up = source.device.type == "cpu" or max(self.ages) % 4 == 0  # for which a GPU must be waited for
            over = slots["over"].tolist() if looks_up else []
            if 4 * sum(over) < len(inside) or not over:
                continue
            done, rest = ([n for n, is_over in enumerate(over) if is_over == wanted] for wanted in (True, False))
            leaving = take(self._told(slots), torch.tensor(done, device=source.device))
            found |= zip((inside[n] for n in done), self.strategy.results(leaving))
            slots = take(slots, torch.tensor(rest, dtype=torch.long, device=source.device))
            inside, self.ages = [inside[n] for n in rest], [self.ages[n] for n in rest]
            if more := min(most - len(inside), count - entered):
                new = self._enter(part(asked, entered, entered + more))
                slots = map_tree(lambda one, other: torch.cat((one, other)), slots, new)
                inside, self.ages = [*inside, *range(entered, entered + more)], [*self.ages, *[0] * more]
                entered += more
        return [found[number] for number in range(count)]

    def _enter(self, asked: Tree) -> Tree:
        """Slots for new sources."""
        source, lengths, limits = asked["source"], asked["lengths"], asked["limits"]
        width, batch = self.strategy.rows, len(source)
        starts = [model.start(source, lengths, width, self.room, asked["first"]) for model in self.models]
        self.places = [start.places for start in starts]
        slots: Tree = {
            "writers": {str(n): _writer(start, batch, self.strategy.moves) for n, start in enumerate(starts)},
            "tokens": starts[0].tokens.unflatten(0, (batch, width)),
            "step": torch.zeros_like(limits),
            "limit": limits,
            "key": asked["keys"],
            "over": torch.zeros_like(limits, dtype=torch.bool),
            "wishes": asked["wishes"],
        }
        if self.strategy.watches:  # of the places of the memory, which may be fewer than the source has
            memory = slots["writers"]["0"]["memory"]
            places = torch.arange((memory["states"] if memory else source).shape[1], device=source.device)
            slots["real"] = places < (memory["lengths"] if memory else lengths)[:, None]  # B S
        self.strategy.begin(slots, self.longest)
        for rule in self.rules:
            rule.begin(slots, self.longest)
        return slots

    def step(self, slots: Tree) -> None:
        """One word more for every row."""
        if max(self.ages) >= self.room < self.longest:
            self._widen(slots)
        self.ages = [age + 1 for age in self.ages]
        logits, looks = self._logits(slots)
        norm = logits.logsumexp(-1)  # B K
        logits = self._allowed(slots, logits, norm)
        tokens, parents = self.strategy.choose(slots, logits, norm, looks)
        for rule in self.rules:
            rule.follow(slots, tokens, parents)
        slots["tokens"] = tokens
        slots["step"] = slots["step"] + 1
        if parents is not None:
            self._reorder(slots, parents)

    def _logits(self, slots: Tree) -> tuple[Tensor, Tensor | None]:
        """B K V: what the models would write next; B K S: where in the source they looked."""
        batch, width = slots["tokens"].shape
        found: list[Tensor] = []
        looks = None
        for number, model in enumerate(self.models):
            writer = slots["writers"][str(number)]
            recorder: dict[str, list[Tensor]] | None = {} if self.strategy.watches and not number else None
            places = writer["positions"].clamp(max=self.places[number] - 1)  # rows that are over stay at the last one
            ctx = Ctx(Layout.steps(places.flatten()), _memory(writer["memory"]), recorder=recorder)
            if "ancestors" in writer:  # what is written now, each row has written itself
                own = torch.arange(width, device=slots["tokens"].device)[None, :, None].expand(batch, -1, 1)
                ctx.ancestors = writer["ancestors"].scatter(2, places[..., None], own)
                writer["ancestors"] = ctx.ancestors
            state = map_tree(lambda leaf: leaf.flatten(0, 1), writer["state"])
            logits, after = model.decode(slots["tokens"].flatten()[:, None], ctx, state)
            assert after is not None
            writer["state"] = map_tree(lambda leaf: leaf.unflatten(0, (batch, width)), after)
            writer["positions"] = writer["positions"] + 1
            found.append(logits[:, 0].float().unflatten(0, (batch, width)))
            if recorder is not None:  # the rows of a source ask side by side, as so many queries
                looks = cross_attention(model, {path: weights[0] for path, weights in recorder.items()})
        if len(found) == 1:
            return found[0], looks
        return torch.stack([logits.log_softmax(-1) for logits in found]).logsumexp(0), looks

    def _allowed(self, slots: Tree, logits: Tensor, norm: Tensor) -> Tensor:
        if self.symbols.banned:
            logits = logits.index_fill(-1, torch.tensor(self.symbols.banned, device=logits.device), -torch.inf)
        if self.rules:  # where they leave nothing that could be written END comes, whatever they say
            end = logits[..., self.symbols.end].clone()
            for rule in self.rules:
                logits = rule(slots, logits)
            stuck = (logits == -torch.inf).all(-1)  # B K
            logits[..., self.symbols.end] = torch.where(stuck, end, logits[..., self.symbols.end])
        step = slots["step"]
        for number, token in enumerate(self.symbols.forced):
            logits = _only(token, logits, norm, step == number)
        if self.symbols.closed:
            logits = _only(self.symbols.end, logits, norm, step + 1 == slots["limit"])
        return logits

    def _reorder(self, slots: Tree, parents: Tensor) -> None:
        batch, width = parents.shape
        rows = (torch.arange(batch, device=parents.device)[:, None] * width + parents).flatten()
        for number, model in enumerate(self.models):
            writer = slots["writers"][str(number)]
            state = map_tree(lambda leaf: leaf.flatten(0, 1), writer["state"])
            writer["state"] = map_tree(lambda leaf: leaf.unflatten(0, (batch, width)), model.reorder(state, rows))
            writer["positions"] = writer["positions"].gather(1, parents)
            if "ancestors" in writer:
                index = parents[..., None].expand_as(writer["ancestors"])
                writer["ancestors"] = writer["ancestors"].gather(1, index)

    def _widen(self, slots: Tree) -> None:
        """Twice the room for words, in steps, so that nobody looks at places that nothing has been written to yet."""
        more = min(self.longest, 2 * self.room) - self.room
        self.room += more
        batch, width = slots["tokens"].shape
        for number, model in enumerate(self.models):
            writer = slots["writers"][str(number)]
            state = map_tree(lambda leaf: leaf.flatten(0, 1), writer["state"])
            before = self.places[number]
            wider, self.places[number] = model.widened(state, batch * width, before + more)
            writer["state"] = map_tree(lambda leaf: leaf.unflatten(0, (batch, width)), wider)
            if "ancestors" in writer:
                writer["ancestors"] = pad(writer["ancestors"], (0, self.places[number] - before))

    def _told(self, slots: Tree) -> Tree:
        """The slots without what only the models need."""
        return {name: value for name, value in slots.items() if name != "writers"}


def _only(token: int, logits: Tensor, norm: Tensor, where: Tensor) -> Tensor:
    """Nothing but a token, and that at no cost, for some of the sources (B)."""
    alone = torch.full_like(logits, -torch.inf)
    alone[..., token] = norm
    return torch.where(where[:, None, None], alone, logits)


def _writer(start: Start, batch: int, moves: bool) -> Tree:
    """What a model has in its slots."""
    rows = len(start.tokens) // batch
    tree = {
        "state": map_tree(lambda leaf: leaf.unflatten(0, (batch, rows)), start.state),
        "positions": start.positions.unflatten(0, (batch, rows)),
        "memory": {} if start.memory is None else _tree(start.memory),
    }
    if moves and rows > 1:
        own = torch.arange(rows, device=start.tokens.device)
        tree["ancestors"] = own[None, :, None].repeat(batch, 1, start.places)
    return tree


def _tree(memory: Memory) -> Tree:
    """A memory as plain tensors; losses are of no interest any more."""
    lengths = memory.layout.lengths
    if lengths is None:
        lengths = torch.full((len(memory.states),), memory.states.shape[1], device=memory.states.device)
    tree: Tree = {"states": memory.states, "lengths": lengths, "projected": memory.projected}
    return tree | {name: value for name in ("inputs", "final") if (value := getattr(memory, name)) is not None}


def _memory(tree: Tree) -> Memory | None:
    if not tree:
        return None
    layout = Layout.padded(tree["states"].shape[1], tree["lengths"])
    return Memory(tree["states"], layout, tree.get("inputs"), tree.get("final"), projected=tree["projected"])
