"""The beam as a tree: a strategy that writes down what another one does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose

import torch
from torch import Tensor

from dragoman.lens.seen import Fate, Node, Tree
from dragoman.parts.precision import at_least_float32
from dragoman.run import Run
from dragoman.run.finding import limits_of
from dragoman.run.wishes import Wishes
from dragoman.search import Beam, Hypothesis, Search, engine
from dragoman.search.engine import Strategy
from dragoman.search.slots import Tree as Slots


def watched_search(
    run: Run, source: Tensor, lengths: Tensor, settings: Search, wishes: Wishes
) -> tuple[Hypothesis, Tree]:
    """The best hypothesis of one source (1 S), and every hypothesis that was looked at on the way to it."""
    limits = limits_of(run, settings.length, lengths)
    searching = engine(run.writers, run.symbols, settings, wishes.rules, wishes.required is not None)
    watching = Watching(searching.strategy, run.symbols.end, settings)
    searching.strategy, searching.replays = watching, False  # what is recorded and replayed cannot be watched
    asked = wishes.tree(run.target_tokenizer, limits, len(run.symbols.forced))
    keys = torch.zeros(1, dtype=torch.long)
    hypotheses = searching.search(source, lengths, limits, keys, asked)[0]
    nodes = ranked(watching.nodes, hypotheses)
    pieces = run.target_tokenizer.pieces([node.token for node in nodes[1:]])
    named = [nodes[0], *(replace(node, piece=piece) for node, piece in zip(nodes[1:], pieces))]
    return hypotheses[0], Tree(type(settings).__name__.lower(), tuple(named))


@dataclass
class Complete:
    """A hypothesis that was set aside: log p, by what it is compared, and its size without END."""

    score: float
    normalised: float
    size: int


class Watching(Strategy):
    """Does as its strategy does, and keeps a node for every continuation that was chosen or nearly so.

    Of a step the 2K best continuations are kept beside those that were chosen. Only the first source is watched.
    """

    def __init__(self, strategy: Strategy, end: int, settings: Search) -> None:
        self.strategy, self.end, self.settings = strategy, end, settings
        self.rows, self.watches, self.moves = strategy.rows, strategy.watches, strategy.moves
        self.nodes = [Node(0, None, 0, 0, "", -1, 0.0, 0.0, 0.0, "kept")]
        self.at = [0] * strategy.rows  # the node at which each row stands

    def begin(self, slots: Slots, longest: int) -> None:
        self.strategy.begin(slots, longest)

    def results(self, slots: Slots) -> list[list[Hypothesis]]:
        return self.strategy.results(slots)

    def choose(self, slots: Slots, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        over, scores = bool(slots["over"][0]), _scores(slots)[0].clone()
        ended = slots["ended"][0].clone() if "ended" in slots else torch.zeros_like(scores, dtype=torch.bool)
        log_p = logits[0] - norm[0, :, None]  # K V, before the strategy may write into them
        tokens, parents = self.strategy.choose(slots, logits, norm, looks)
        if not over:
            own = torch.arange(len(scores)) if parents is None else parents[0].cpu()
            self._record(slots, scores.cpu(), ended.cpu(), at_least_float32(log_p).cpu(), tokens[0].cpu(), own)
        return tokens, parents

    def _record(
        self, slots: Slots, scores: Tensor, ended: Tensor, log_p: Tensor, tokens: Tensor, parents: Tensor
    ) -> None:
        """One step of a source: scores and ended K, log p K V, what was chosen K."""
        step = int(slots["step"][0]) + 1
        at_limit = step >= int(slots["limit"][0])
        going: Fate = "cut" if at_limit else "pruned" if bool(slots["over"][0]) else "kept"
        before, total = list(self.at), scores[:, None] + log_p  # K V
        taken: set[tuple[int, int]] = set()

        def add(row: int, token: int, fate: Fate, into: int, normalised: float | None = None) -> int:
            taken.add((row, token))
            score = float(total[row, token])
            shown = score / self._penalty(step) if normalised is None else normalised
            node = Node(
                len(self.nodes), before[row], step, into, "", token, float(log_p[row, token]), score, shown, fate
            )
            self.nodes.append(node)
            return node.number

        for into, (row, token) in enumerate(zip(parents.tolist(), tokens.tolist())):
            if bool(ended[row]) or total[row, token] == -torch.inf:
                continue
            fate: Fate = "finished" if token == self.end else going
            self.at[into] = add(row, token, fate, into)
        aside = _complete(slots)
        for row in range(len(scores)):
            score = float(total[row, self.end])
            match = next(
                (one for one in aside if one.size == step - 1 and isclose(one.score, score, rel_tol=1e-5)), None
            )
            if match is not None and (row, self.end) not in taken:
                add(row, self.end, "finished", row, match.normalised)
        open_ = total.masked_fill(ended[:, None], -torch.inf).flatten()
        for place in open_.topk(min(2 * len(scores), len(open_))).indices.tolist():
            row, token = divmod(place, log_p.shape[1])
            if (row, token) not in taken and open_[place] > -torch.inf:
                add(row, token, "pruned", row)

    def _penalty(self, length: int) -> float:
        return self.settings.penalty(length) if isinstance(self.settings, Beam) else 1.0


def ranked(nodes: list[Node], hypotheses: list[Hypothesis]) -> list[Node]:
    """The nodes, with their places among what was given back."""
    ends = {_tokens(nodes, node): node.number for node in nodes if node.fate in ("finished", "cut")}
    found = list(nodes)
    for rank, one in reversed(list(enumerate(hypotheses, 1))):  # samples may be alike: the best rank is the last word
        number = ends.get((*one.tokens, one.finished))
        if number is not None:
            found[number] = replace(found[number], rank=rank)
    return found


def _tokens(nodes: list[Node], node: Node) -> tuple[int | bool, ...]:
    """The words of a hypothesis, and whether END comes after them."""
    finished = node.fate == "finished"
    tokens = [] if finished else [node.token]
    while node.parent:
        node = nodes[node.parent]
        tokens.append(node.token)
    return (*reversed(tokens), finished)


def _groups(slots: Slots) -> list[Slots]:
    """What strategies of several beams keep for each, or the slots themselves."""
    return list(slots["groups"].values()) if "groups" in slots else [slots]


def _scores(slots: Slots) -> Tensor:
    return torch.cat([group["scores"] for group in _groups(slots)], 1)


def _complete(slots: Slots) -> list[Complete]:
    found = []
    for group in _groups(slots):
        if "aside" in group:
            columns = (group["aside"][name][0].tolist() for name in ("score", "normalized", "size"))
            found += [Complete(*one) for one in zip(*columns) if one[0] > -torch.inf]
    return found
