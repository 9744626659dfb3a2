"""Beam search: at each step the K likeliest hypotheses; complete ones are set aside; backtracking at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.models import Model, Start
from dragoman.search.engine import Hypothesis, Stepper, Symbols
from dragoman.search.penalties import Coverage, SummedCoverage
from dragoman.search.settings import Beam
from dragoman.search.stopping import STOPS


@torch.inference_mode()
def beam_search(
    model: Model, source: Tensor, lengths: Tensor, symbols: Symbols, limits: Tensor, settings: Beam
) -> list[list[Hypothesis]]:
    """B S → the `settings.best` hypotheses of each source, best first, by log p(y|x) / |y|^α.

    Of the K·V continuations the 2K best are looked at: an END among the first K completes a hypothesis, which is set
    aside; the first K others go on. Every step keeps its tokens and parents, from which hypotheses are traced back.
    Penalties act where hypotheses are set aside; which of them go on is a matter of log p(y|x) alone.
    """
    batch, width, device = source.shape[0], settings.size, source.device
    lasts = set(limits.tolist())  # the numbers of tokens at which something is cut off
    longest = max(lasts)
    begin = model.start(source, lengths, width, longest, symbols.start)
    coverage = _coverage(settings, begin, lengths, source.shape[1])
    stepper = Stepper(model, begin, symbols, limits, coverage.watches)
    first_row = torch.arange(batch, device=device)[:, None] * width  # B 1
    scores = torch.full((batch, width), -torch.inf, device=device)
    scores[:, 0] = 0.0  # at first all hypotheses are the same: let one speak
    aside, cut = (
        Aside(batch, settings.enough, device),
        Aside(batch, width, device),
    )  # complete, and cut off by the limit
    over = torch.zeros(batch, dtype=torch.bool, device=device)
    history: list[tuple[Tensor, Tensor]] = []  # of each step: tokens B K, parents B K
    for step in range(longest):
        log_p = stepper.step().unflatten(0, (batch, width))  # B K V
        coverage.look(stepper.looks)
        vocabulary = log_p.shape[-1]
        total = (scores[..., None] + log_p).flatten(1)  # B K·V
        best, index = total.topk(min(2 * width, total.shape[1]), dim=-1)  # B 2K
        parent, token = index // vocabulary, index % vocabulary
        end = token == symbols.end
        complete = torch.where(end[:, :width], best[:, :width], -torch.inf)
        normalized = complete / settings.penalty(step + 1) + coverage.penalty(parent[:, :width])
        aside.add(complete, normalized, step, parent[:, :width])
        alive = torch.where(end, -torch.inf, best)
        scores, kept = alive.topk(width, dim=-1)  # B K
        token, parent = token.gather(1, kept), parent.gather(1, kept)
        history.append((token, parent))
        if step + 1 in lasts:
            unfinished = torch.where((limits == step + 1)[:, None], scores, -torch.inf)
            normalized = unfinished / settings.penalty(step + 1) + coverage.penalty(parent)
            cut.add(unfinished, normalized, step + 1, torch.arange(width, device=device).expand(batch, -1))
        ahead = scores[:, 0] / settings.penalty(step + 1)  # as if it had covered every source token
        over = over | (limits <= step + 1) | STOPS[settings.stop](aside.normalized[:, -1], ahead)
        if bool(over.all()):
            break
        scores = scores.masked_fill(over[:, None], -torch.inf)  # nothing more comes of a source that is over
        stepper.choose(token.flatten(), (first_row + parent).flatten())
        coverage.choose(parent)
    return _trace(history, aside, cut, settings)


def _coverage(settings: Beam, begin: Start, lengths: Tensor, longest: int) -> Coverage:
    """Of the places of the memory, which may be fewer than the `longest` source has."""
    if not settings.coverage:
        return Coverage()
    if begin.memory is not None and begin.memory.layout.lengths is not None:
        lengths, longest = begin.memory.layout.lengths, begin.memory.states.shape[1]
    return SummedCoverage(lengths, settings.size, longest, settings.coverage)


class Aside:
    """Hypotheses of each source that go on no more, best first: `room` of them, by their normalised scores."""

    def __init__(self, batch: int, room: int, device: torch.device) -> None:
        self.normalized = torch.full((batch, room), -torch.inf, device=device)
        self.score = self.normalized.clone()
        self.step = torch.zeros(batch, room, dtype=torch.long, device=device)  # how many steps it went, END not counted
        self.parent = self.step.clone()  # which hypothesis it was after them
        self.room = room

    def add(self, score: Tensor, normalized: Tensor, step: int, parent: Tensor) -> None:
        """score B K, −∞ where there is nothing to set aside; a better one takes the place of the worst."""
        self.normalized, order = torch.cat((self.normalized, normalized), 1).topk(self.room, dim=-1)
        self.score = torch.cat((self.score, score), 1).gather(1, order)
        self.step = torch.cat((self.step, torch.full_like(parent, step)), 1).gather(1, order)
        self.parent = torch.cat((self.parent, parent), 1).gather(1, order)

    def rows(self) -> list[list[tuple[float, float, int, int]]]:
        """Of each source: (score, normalised score, steps, slot) of what was set aside."""
        columns = zip(self.score.tolist(), self.normalized.tolist(), self.step.tolist(), self.parent.tolist())
        return [[one for one in zip(*row) if one[0] > -torch.inf] for row in columns]


def _trace(history: list[tuple[Tensor, Tensor]], aside: Aside, cut: Aside, settings: Beam) -> list[list[Hypothesis]]:
    """The hypotheses set aside, then, if they are too few, those that the length limit cut off, or both by score."""
    tokens = torch.stack([token for token, _ in history], 1).tolist()  # B T K
    parents = torch.stack([parent for _, parent in history], 1).tolist()
    results = []
    for token, parent, complete, unfinished in zip(tokens, parents, aside.rows(), cut.rows()):
        found = [(True, *one) for one in complete] + [(False, *one) for one in unfinished]
        if settings.unfinished == "beside":
            found.sort(key=lambda one: -one[2])
        results.append(
            [
                Hypothesis(_backtrack(token, parent, steps, slot), score, normalized, finished)
                for finished, score, normalized, steps, slot in found[: settings.best]
            ]
        )
    return results


def _backtrack(tokens: list[list[int]], parents: list[list[int]], steps: int, slot: int) -> list[int]:
    """The tokens of the hypothesis that stood in `slot` after so many steps."""
    path: list[int] = []
    for step in reversed(range(steps)):
        path.append(tokens[step][slot])
        slot = parents[step][slot]
    return path[::-1]
