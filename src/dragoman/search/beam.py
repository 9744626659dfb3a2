"""Beam search: at each step the K likeliest hypotheses; complete ones are set aside."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.parts.precision import at_least_float32
from dragoman.search.engine import Hypothesis, Strategy
from dragoman.search.greedy import put
from dragoman.search.largest import continuations, top
from dragoman.search.penalties import coverage_penalty, looked
from dragoman.search.settings import Beam
from dragoman.search.slots import Tree
from dragoman.search.stopping import STOPS


class BeamSearch(Strategy):
    """The `settings.best` hypotheses of each source, best first, by log p(y|x) / |y|^α.

    Of the K·V continuations the 2K best are looked at: an END among the first K completes a hypothesis, which is set
    aside; the first K others go on. Penalties act where hypotheses are set aside; which of them go on is a matter of
    log p(y|x) alone.
    """

    moves = True

    def __init__(self, settings: Beam, end: int) -> None:
        self.settings, self.end, self.rows = settings, end, settings.size
        self.watches = settings.coverage > 0

    def begin(self, slots: Tree, longest: int) -> None:
        tokens = slots["tokens"]
        batch, width = tokens.shape
        slots["scores"] = torch.full((batch, width), -torch.inf, device=tokens.device)
        slots["scores"][:, 0] = 0.0  # at first all hypotheses are the same: let one speak
        slots["written"] = torch.zeros((batch, width, longest), dtype=torch.long, device=tokens.device)
        slots["aside"] = empty(batch, self.settings.enough, longest, tokens.device)  # complete
        slots["cut"] = empty(batch, width, longest, tokens.device)  # off by the limit
        if self.watches:
            slots["looks"] = torch.zeros(batch, width, slots["real"].shape[1], device=tokens.device)  # B K S, in all

    def choose(
        self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None, handicap: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`handicap` (B V): what words cost besides where continuations are compared."""
        settings, width = self.settings, self.rows
        step, limit, written = slots["step"], slots["limit"], slots["written"]
        if self.watches:
            slots["looks"] = slots["looks"] + at_least_float32(looked(looks))
        best, parent, token = candidates(slots["scores"], logits, norm, 2 * width, handicap)  # B 2K
        divisor = settings.penalty(step + 1)[:, None]  # B 1
        end = token == self.end
        complete = torch.where(end[:, :width], best[:, :width], -torch.inf)
        normalized = complete / divisor + self._coverage(slots, parent[:, :width])
        set_aside(slots["aside"], complete, normalized, of(written, parent[:, :width]), step)
        scores, kept = top(torch.where(end, -torch.inf, best), width)  # B K
        token, parent = token.gather(1, kept), parent.gather(1, kept)
        slots["written"] = written = put(of(written, parent), step, token)
        unfinished = torch.where((limit == step + 1)[:, None], scores, -torch.inf)
        normalized = unfinished / divisor + self._coverage(slots, parent)
        set_aside(slots["cut"], unfinished, normalized, written, step + 1)
        ahead = scores[:, 0] / divisor[:, 0]  # as if it had covered every source token
        over = slots["over"] | (limit <= step + 1) | STOPS[settings.stop](slots["aside"]["normalized"][:, -1], ahead)
        slots["over"] = over
        slots["scores"] = scores.masked_fill(over[:, None], -torch.inf)  # nothing more comes of a source that is over
        if self.watches:
            slots["looks"] = of(slots["looks"], parent)
        return token, parent

    def _coverage(self, slots: Tree, parent: Tensor) -> Tensor | float:
        """B N: the penalty of what the hypotheses `parent` (B N) have written, this step's token counted in."""
        if not self.watches:
            return 0.0
        return coverage_penalty(slots["looks"], slots["real"][:, None], self.settings.coverage).gather(1, parent)

    def results(self, slots: Tree) -> list[list[Hypothesis]]:
        """What was set aside, then, if that is too little, what the length limit cut off, or both by score."""
        results = []
        best = self.settings.best
        for complete, unfinished in zip(rows(slots["aside"], True, best), rows(slots["cut"], False, best)):
            found = complete + unfinished
            if self.settings.unfinished == "beside":
                found.sort(key=lambda one: -one.normalized)
            results.append(found[:best])
        return results


def candidates(
    scores: Tensor, logits: Tensor, norm: Tensor, count: int, handicap: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """B K scores so far and B K V logits → the best continuations: log p of them, their hypotheses, their tokens, B N.

    `handicap` (B V) is taken off where they are compared.
    """
    compared = logits if handicap is None else logits - handicap[:, None]
    best, parent, token = continuations(scores, compared, norm, count)
    if handicap is not None:
        best = best + handicap.gather(1, token)
    return best, parent, token


def of(rows: Tensor, parents: Tensor) -> Tensor:
    """B K …, the rows that stand at `parents` (B N): B N …"""
    index = parents.reshape(*parents.shape, *(1,) * (rows.dim() - 2)).expand(-1, -1, *rows.shape[2:])
    return rows.gather(1, index)


def empty(batch: int, room: int, longest: int, device: torch.device) -> Tree:
    """Hypotheses of each source that go on no more, best first: `room` of them, by their normalised scores."""
    nothing = torch.full((batch, room), -torch.inf, device=device)
    return {
        "normalized": nothing,
        "score": nothing.clone(),
        "size": torch.zeros((batch, room), dtype=torch.long, device=device),  # END not counted
        "written": torch.zeros((batch, room, longest), dtype=torch.long, device=device),
    }


def set_aside(aside: Tree, score: Tensor, normalized: Tensor, written: Tensor, size: Tensor) -> None:
    """score B K, −∞ where there is nothing to set aside; a better one takes the place of the worst."""
    room = aside["score"].shape[1]
    aside["normalized"], order = top(torch.cat((aside["normalized"], normalized), 1), room)
    aside["score"] = torch.cat((aside["score"], score), 1).gather(1, order)
    aside["size"] = torch.cat((aside["size"], size[:, None].expand_as(score)), 1).gather(1, order)
    aside["written"] = of(torch.cat((aside["written"], written), 1), order)


def rows(aside: Tree, finished: bool, most: int) -> list[list[Hypothesis]]:
    """The best of each source, at `most` so many."""
    columns = (aside[name][:, :most].tolist() for name in ("written", "size", "score", "normalized"))
    return [
        [
            Hypothesis(written[:size], score, normalized, finished)
            for written, size, score, normalized in zip(*source)
            if score > -torch.inf
        ]
        for source in zip(*columns)
    ]
