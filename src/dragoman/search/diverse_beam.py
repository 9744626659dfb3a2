"""Diverse beam search: groups of hypotheses, each penalized for tokens that earlier groups have chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dragoman.parts.precision import at_least_float32
from dragoman.search.beam import BeamSearch, BeamState
from dragoman.search.engine import Strategy
from dragoman.search.search_state import Hypothesis, HypothesisBuffer, SearchState, StrategyState

if TYPE_CHECKING:
    from dragoman.search.configs import Beam


@dataclass
class DiverseBeamState(StrategyState):
    """The state of diverse beam search."""

    groups: list[BeamState]
    group_done: list[Tensor]  # B, by group

    @property
    def finished_buffers(self) -> list[HypothesisBuffer]:
        return [group.finished for group in self.groups]

    @property
    def truncated_buffers(self) -> list[HypothesisBuffer]:
        return [group.truncated for group in self.groups]


class DiverseBeamSearch(Strategy):
    """A beam of K hypotheses in G groups (Vijayakumar et al. 2018, with Hamming diversity).

    At every step the groups select their continuations one after the other. A group compares them by log p − λ n, where
    n is how often earlier groups have chosen the same token in this step; scores are log p. Each group ends by the
    beam's stopping rule. A group that has ended does not penalize others.
    """

    reorders_rows = True

    def __init__(self, config: Beam, eos: int) -> None:
        size = config.size // config.num_groups
        n_best = min(size, config.n_best)
        num_finished = config.num_finished and max(n_best, config.num_finished // config.num_groups)
        group = replace(config, size=size, num_groups=1, n_best=n_best, num_finished=num_finished)
        self.config, self.rows_per_source, self.group = config, config.size, BeamSearch(group, eos)

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        groups = [self.group.init_state(state, max_length) for _ in range(self.config.num_groups)]
        return self._join(
            replace(state, strategy=DiverseBeamState([], [])),
            [replace(group, tokens=state.tokens[:, : self.group.rows_per_source]) for group in groups],
        )

    def select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None
    ) -> tuple[SearchState, Tensor]:
        diverse = state.strategy
        assert isinstance(diverse, DiverseBeamState)
        logits = at_least_float32(logits)  # precise enough for small penalties
        size, penalty = self.group.rows_per_source, torch.zeros_like(logits[:, 0])  # B V
        groups, parents = [], []
        for number, (beam, done) in enumerate(zip(diverse.groups, diverse.group_done)):
            rows = slice(number * size, (number + 1) * size)
            group = replace(
                state,
                scores=state.scores[:, rows],
                output_tokens=state.output_tokens[:, rows],
                done=done,
                strategy=beam,
            )
            group, group_parents = self.group.select(group, logits[:, rows], log_normalizer[:, rows], None, penalty)
            assert isinstance(group.strategy, BeamState)
            at_limit = (state.max_length == state.step + 1)[:, None]
            live = (group.scores > -torch.inf) | (at_limit & (group.strategy.truncated.scores > -torch.inf))  # B K/G
            penalty = penalty.scatter_add(1, group.tokens, (live * self.config.diversity_penalty).to(penalty.dtype))
            groups.append(group)
            parents.append(group_parents + number * size)
        return self._join(state, groups), torch.cat(parents, 1)

    def _join(self, state: SearchState, groups: list[SearchState]) -> SearchState:
        """Return the state of all groups together."""
        group_done = [group.done for group in groups]
        return replace(
            state,
            tokens=torch.cat([group.tokens for group in groups], 1),
            scores=torch.cat([group.scores for group in groups], 1),
            output_tokens=torch.cat([group.output_tokens for group in groups], 1),
            done=torch.stack(group_done).all(0),
            strategy=DiverseBeamState([group.strategy for group in groups], group_done),  # type: ignore[misc]
        )

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return the hypotheses of all groups, each once."""
        diverse = state.strategy
        assert isinstance(diverse, DiverseBeamState)
        results = []
        for groups in zip(*(self.group.hypotheses(replace(state, strategy=group)) for group in diverse.groups)):
            unique = {tuple(hypothesis.tokens): hypothesis for group in groups for hypothesis in group}
            ranked = sorted(unique.values(), key=lambda h: (not h.finished, -h.normalized_score))
            results.append(ranked[: self.config.n_best])
        return results
