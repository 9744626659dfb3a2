"""Beam search: at each step the K likeliest hypotheses; complete ones are set aside; backtracking at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.search.engine import Hypothesis, Stepper, Symbols
from dragoman.search.settings import Beam


@torch.inference_mode()
def beam_search(
    model: Model, source: Tensor, lengths: Tensor, symbols: Symbols, limits: Tensor, settings: Beam
) -> list[list[Hypothesis]]:
    """B S → the `settings.best` hypotheses of each source, best first, by log p(y|x) / |y|^α.

    Of the K·V continuations the 2K best are looked at: an END among the first K completes a hypothesis, which is set
    aside; the first K others go on. Every step keeps its tokens and parents, from which hypotheses are traced back.
    """
    batch, width, alpha = source.shape[0], settings.size, settings.length_penalty
    device, longest = source.device, int(limits.max())
    stepper = Stepper(model, model.start(source, lengths, width, longest, symbols.start), symbols)
    first_row = torch.arange(batch, device=device)[:, None] * width  # B 1
    scores = torch.full((batch, width), -torch.inf, device=device)
    cut = scores.clone()  # the hypotheses that the length limit cuts off
    scores[:, 0] = 0.0  # at first all hypotheses are the same: let one speak
    aside = Aside(batch, settings.enough, device)
    over = torch.zeros(batch, dtype=torch.bool, device=device)
    history: list[tuple[Tensor, Tensor]] = []  # of each step: tokens B K, parents B K
    for step in range(longest):
        log_p = stepper.step().unflatten(0, (batch, width))  # B K V
        vocabulary = log_p.shape[-1]
        total = (scores[..., None] + log_p).flatten(1)  # B K·V
        best, index = total.topk(min(2 * width, total.shape[1]), dim=-1)  # B 2K
        parent, token = index // vocabulary, index % vocabulary
        end = token == symbols.end
        complete = torch.where(end[:, :width], best[:, :width], -torch.inf)
        aside.add(complete, step, parent[:, :width], alpha)
        alive = torch.where(end, -torch.inf, best)
        scores, kept = alive.topk(width, dim=-1)  # B K
        token, parent = token.gather(1, kept), parent.gather(1, kept)
        history.append((token, parent))
        cut = torch.where((limits == step + 1)[:, None], scores, cut)
        over = over | (limits <= step + 1)
        if settings.stop == "complete":
            over = over | (aside.count >= settings.enough)
        if bool(over.all()):
            break
        scores = scores.masked_fill(over[:, None], -torch.inf)  # nothing more comes of a source that is over
        stepper.choose(token.flatten(), (first_row + parent).flatten())
    return _trace(history, aside, cut, limits.tolist(), settings)


class Aside:
    """The complete hypotheses of each source, best first: `room` of them, by their normalised scores."""

    def __init__(self, batch: int, room: int, device: torch.device) -> None:
        self.normalized = torch.full((batch, room), -torch.inf, device=device)
        self.score = self.normalized.clone()
        self.step = torch.zeros(batch, room, dtype=torch.long, device=device)  # when END came
        self.parent = self.step.clone()  # which hypothesis it completed
        self.count = torch.zeros(batch, dtype=torch.long, device=device)
        self.room = room

    def add(self, score: Tensor, step: int, parent: Tensor, alpha: float) -> None:
        """score B K, −∞ where nothing was completed; a better one takes the place of the worst."""
        normalized = torch.cat((self.normalized, score / (step + 1) ** alpha), 1)
        self.normalized, order = normalized.topk(self.room, dim=-1)
        self.score = torch.cat((self.score, score), 1).gather(1, order)
        self.step = torch.cat((self.step, torch.full_like(parent, step)), 1).gather(1, order)
        self.parent = torch.cat((self.parent, parent), 1).gather(1, order)
        self.count = self.count + (score > -torch.inf).sum(1)


def _trace(
    history: list[tuple[Tensor, Tensor]], aside: Aside, cut: Tensor, limits: list[int], settings: Beam
) -> list[list[Hypothesis]]:
    """The hypotheses set aside, then, if they are too few, those that the length limit cut off."""
    tokens = torch.stack([token for token, _ in history], 1).tolist()  # B T K
    parents = torch.stack([parent for _, parent in history], 1).tolist()
    found = []
    for row, (token, parent) in enumerate(zip(tokens, parents)):
        hypotheses = [
            Hypothesis(_backtrack(token, parent, step - 1, slot), score, normalized, True)
            for score, normalized, step, slot in zip(
                aside.score[row].tolist(),
                aside.normalized[row].tolist(),
                aside.step[row].tolist(),
                aside.parent[row].tolist(),
            )
            if score > -torch.inf
        ]
        for slot, score in enumerate(cut[row].tolist()):
            if len(hypotheses) < settings.best and score > -torch.inf:
                normalized = score / limits[row] ** settings.length_penalty
                hypotheses.append(
                    Hypothesis(_backtrack(token, parent, limits[row] - 1, slot), score, normalized, False)
                )
        found.append(hypotheses[: settings.best])
    return found


def _backtrack(tokens: list[list[int]], parents: list[list[int]], step: int, slot: int) -> list[int]:
    """The tokens of the hypothesis that stood in `slot` after `step`."""
    path: list[int] = []
    while step >= 0:
        path.append(tokens[step][slot])
        slot = parents[step][slot]
        step -= 1
    return path[::-1]
