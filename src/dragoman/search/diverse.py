"""Diverse beam search: groups of hypotheses, of which each keeps away from what those before it have just written."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dragoman.parts.precision import at_least_float32
from dragoman.search.beam import BeamSearch
from dragoman.search.configs import Beam
from dragoman.search.engine import Hypothesis, Strategy
from dragoman.search.slots import Tree


class DiverseBeamSearch(Strategy):
    """A beam of K in G groups (Vijayakumar et al. 2018, with their Hamming diversity).

    At every step the groups choose one after the other. A group compares its continuations by log p − λ n, where n is
    how often groups before it have chosen the same token at this step; the scores of hypotheses are log p. Every
    group ends by the stopping rule of the beam, and a group that has ended penalises nothing.
    """

    moves, watches = True, False

    def __init__(self, settings: Beam, end: int) -> None:
        size = settings.size // settings.num_groups
        best = min(size, settings.n_best)
        finished = settings.num_finished and max(best, settings.num_finished // settings.num_groups)
        own = replace(settings, size=size, num_groups=1, n_best=best, num_finished=finished)
        self.settings, self.rows_per_source, self.group = settings, settings.size, BeamSearch(own, end)
        self.names = [str(number) for number in range(settings.num_groups)]

    def init_state(self, slots: Tree, longest: int) -> None:
        size = self.group.rows_per_source
        slots["groups"] = {}
        for name in self.names:
            group = {"tokens": slots["tokens"][:, :size]}
            self.group.init_state(group, longest)
            slots["groups"][name] = group | {"over": slots["over"].clone()}
        self._join(slots)

    def select(self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = at_least_float32(logits)  # precise enough for small penalties
        size, cost = self.group.rows_per_source, torch.zeros_like(logits[:, 0])  # B V
        tokens, parents = [], []
        for number, name in enumerate(self.names):
            part = slice(number * size, (number + 1) * size)
            group = slots["groups"][name] | {"step": slots["step"], "limit": slots["limit"]}
            token, parent = self.group.select(group, logits[:, part], norm[:, part], None, cost)
            slots["groups"][name] = {kept: group[kept] for kept in slots["groups"][name]}
            truncated = (slots["limit"] == slots["step"] + 1)[:, None] & (group["cut"]["score"] > -torch.inf)
            live = truncated | (group["scores"] > -torch.inf)  # B K/G
            cost = cost.scatter_add(1, token, (live * self.settings.diversity_penalty).to(cost.dtype))
            tokens.append(token)
            parents.append(parent + number * size)
        slots["over"] = torch.stack([slots["groups"][name]["over"] for name in self.names]).all(0)
        self._join(slots)
        return torch.cat(tokens, 1), torch.cat(parents, 1)

    def _join(self, slots: Tree) -> None:
        slots["written"] = torch.cat([slots["groups"][name]["written"] for name in self.names], 1)  # what rules look at

    def hypotheses(self, slots: Tree) -> list[list[Hypothesis]]:
        """Of all groups together, each hypothesis once."""
        found = []
        for some in zip(*(self.group.hypotheses(slots["groups"][name]) for name in self.names)):
            alike = {tuple(one.tokens): one for group in some for one in group}
            ranked = sorted(alike.values(), key=lambda one: (not one.finished, -one.normalized))
            found.append(ranked[: self.settings.n_best])
        return found
